"""Starts one run of a container, and says in events and in its waiting state what keeps it from starting."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Literal

import structlog

from egpu.adapters.kubernetes import Client
from egpu.api.kubernetes import Secret
from egpu.embedded.kubelet import cdi, images
from egpu.embedded.kubelet.config import KubeletConfig
from egpu.embedded.kubelet.containers import ContainerRecord, Run
from egpu.embedded.kubelet.devices import DeviceManager
from egpu.embedded.kubelet.environment import Sources, named_sources
from egpu.embedded.kubelet.events import Events
from egpu.embedded.kubelet.launch import run_spec, volumes
from egpu.embedded.kubelet.objects import ConfigMap, Pod
from egpu.embedded.kubelet.runtime import Runtime
from egpu.errors import ElasticGPUError, InvalidInput, NativeMissing, NotSupported, TerminalError

log = structlog.get_logger(__name__)

#: Whatever keeps a container from starting (an agent that is away, a card that is unhealthy) is asked this often.
RETRY_LIMIT_SECONDS = 5.0

Reason = Literal["ErrImagePull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"]


class _CannotStart(Exception):
    def __init__(self, reason: Reason, error: ElasticGPUError) -> None:
        super().__init__(str(error))
        self.reason: Reason = reason


def _ours(error: ElasticGPUError | OSError) -> ElasticGPUError:
    return error if isinstance(error, ElasticGPUError) else InvalidInput("container", str(error))


class Starter:
    """Where the machine allows no private mounts, each start records an event: the container's slice is weaker."""

    def __init__(
        self, config: KubeletConfig, *, client: Client, runtime: Runtime, devices: DeviceManager, events: Events
    ) -> None:
        self._config = config
        self._client = client
        self._runtime = runtime
        self._devices = devices
        self._events = events

    async def start(self, pod: Pod, record: ContainerRecord, changed: Callable[[], None]) -> Run:
        """Try until it starts; `changed` is called when its waiting state has. Returns the run."""
        delay = self._config.backoff_seconds
        while True:
            try:
                return await self._start(pod, record)
            except _CannotStart as failure:
                log.warning("container does not start", pod=pod.key, container=record.name, reason=str(failure))
                self._events.record(pod, "Warning", "Failed", f"Error: {failure}", record.name)
                record.waiting = (failure.reason, str(failure))
                changed()
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY_LIMIT_SECONDS)
            if record.waiting[0] == "ErrImagePull":
                record.waiting = ("ImagePullBackOff", record.waiting[1])
                changed()

    async def _start(self, pod: Pod, record: ContainerRecord) -> Run:
        container, run = record.container, record.next_run()
        try:
            images.argv(container, self._config.images)
        except (NotSupported, NativeMissing, InvalidInput) as error:
            raise _CannotStart("ErrImagePull", error) from error
        try:
            sources = await self._sources(pod)
            await self._ask_plugins(pod, record)
            answers = self._devices.answers(pod.uid, record.name)
        except (ElasticGPUError, OSError) as error:
            raise _CannotStart("CreateContainerConfigError", _ours(error)) from error
        try:
            # From here on it is the runtime that acts, on what kubelet passes to it. Hundreds of small files are looked
            # at and made, in this thread: one beside it would have to get the interpreter back for each, and while a
            # hundred pods start that costs several times what the files do.
            wanted = [name for answer in answers for name in answer.cdi_devices]
            edits = cdi.resolve(wanted, self._config.cdi_directories)
        except TerminalError as error:
            raise _CannotStart("CreateContainerError", error) from error
        try:
            # Except a volume: it may be a directory of a file system that does not answer.
            given = await asyncio.to_thread(volumes, self._config, pod, container) if container.volume_mounts else ()
            spec = run_spec(
                self._config,
                pod,
                container,
                directory=self._config.run_dir / pod.uid / record.name / f".{run.number}",
                number=run.number,
                answers=answers,
                edits=edits,
                sources=sources,
                volumes=given,
                private_mounts=self._runtime.private_mounts,
            )
        except (ElasticGPUError, OSError) as error:
            raise _CannotStart("CreateContainerConfigError", _ours(error)) from error
        if spec.binds and not self._runtime.private_mounts:
            weaker = "this machine allows no private mounts: the container's slice is held by its environment only"
            self._events.record(pod, "Warning", "NoPrivateMounts", weaker, record.name)
            log.warning("no private mounts", pod=pod.key, container=record.name)
        self._events.record(pod, "Normal", "Created", f"Created container: {record.name}", record.name)
        starting = asyncio.create_task(self._runtime.start(run.directory, spec))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Stopping the pod begins when this returns, and must find the run that was being started.
            await asyncio.wait([starting])
            raise
        except ElasticGPUError as error:
            raise _CannotStart("RunContainerError", error) from error
        self._events.record(pod, "Normal", "Started", f"Started container {record.name}", record.name)
        return run

    async def _ask_plugins(self, pod: Pod, record: ContainerRecord) -> None:
        try:
            await self._devices.pre_start(pod.uid, record.name)
        except ElasticGPUError as error:
            raise InvalidInput("devices", f"device plugin PreStartContainer rpc failed with err: {error}") from error

    async def _sources(self, pod: Pod) -> Sources:
        maps, secrets = named_sources(pod)
        found_maps = {name: await self._client.find(ConfigMap, name, namespace=pod.namespace) for name in maps}
        found_secrets = {name: await self._client.find(Secret, name, namespace=pod.namespace) for name in secrets}
        return Sources(
            config_maps={name: found.data or {} for name, found in found_maps.items() if found is not None},
            secrets={
                name: {key: base64.b64decode(value).decode() for key, value in (found.data or {}).items()}
                for name, found in found_secrets.items()
                if found is not None
            },
        )
