"""Starts one run of a container. Events and its waiting state give the reason for any delay."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import structlog

from egpu_base.api.kubernetes import Secret
from egpu_base.errors import ElasticGPUError, InvalidInput, NativeMissing, NotSupported, TerminalError, Unavailable
from egpu_base.kubernetes import Client
from egpu_sim.cluster.kubelet import cdi, images, volumes
from egpu_sim.cluster.kubelet.claims import Claims
from egpu_sim.cluster.kubelet.config import KubeletConfig
from egpu_sim.cluster.kubelet.containers import ContainerRecord, Run
from egpu_sim.cluster.kubelet.devices import DeviceManager
from egpu_sim.cluster.kubelet.environment import Sources, named_sources
from egpu_sim.cluster.kubelet.events import Events
from egpu_sim.cluster.kubelet.launch import run_spec
from egpu_sim.cluster.kubelet.objects import ConfigMap, Pod
from egpu_sim.cluster.kubelet.runtime import Bind, RunSpec, Runtime, write_start_error

log = structlog.get_logger(__name__)

# Pause between tries to start a container, whatever prevents it (an agent that is away, an unhealthy card).
RETRY_LIMIT_SECONDS = 5.0

Reason = Literal["ErrImagePull", "CreateContainerConfigError", "CreateContainerError"]


class _CannotStart(Exception):
    def __init__(self, reason: Reason, error: ElasticGPUError) -> None:
        super().__init__(str(error))
        self.reason: Reason = reason


def _ours(error: ElasticGPUError | OSError) -> ElasticGPUError:
    return error if isinstance(error, ElasticGPUError) else InvalidInput("container", str(error))


def _missing_source(spec: RunSpec) -> InvalidInput | None:
    """Return the error of a mount that may come later. Container runtimes find it before they make a container."""
    missing = [bind.source for bind in spec.binds if not os.path.lexists(bind.source)]
    return InvalidInput("mounts", f"{missing[0]} does not exist") if missing else None


def _decoded(values: Mapping[str, str] | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (values or {}).items()}


class Starter:
    """Starts runs. Without private mounts, each start records an event: the container's slice is weaker."""

    def __init__(
        self,
        config: KubeletConfig,
        *,
        client: Client,
        runtime: Runtime,
        devices: DeviceManager,
        claims: Claims,
        events: Events,
    ) -> None:
        self._config = config
        self._client = client
        self._runtime = runtime
        self._devices = devices
        self._claims = claims
        self._events = events

    async def start(self, pod: Pod, record: ContainerRecord, changed: Callable[[], None]) -> Run:
        """Try until there is a run, which has begun, begins slowly, or has ended with the reason why it cannot start.
        `changed` is called when the container's waiting state has changed."""
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
            answers = [*self._devices.answers(pod.uid, record.name), *self._claims.devices(pod, container)]
        except (ElasticGPUError, OSError) as error:
            raise _CannotStart("CreateContainerConfigError", _ours(error)) from error
        try:
            # From here on this is the runtime's work, with kubelet's input. It reads and makes hundreds of small files
            # in this thread: another thread would have to get the interpreter back for each, which costs several times
            # the file operations while a hundred pods start.
            wanted = [name for answer in answers for name in answer.cdi_devices]
            edits = cdi.resolve(wanted, self._config.cdi_directories)
        except TerminalError as error:
            raise _CannotStart("CreateContainerError", error) from error
        try:
            # Except a volume: it may be a directory of a file system that does not answer.
            given: Sequence[Bind] = ()
            if container.volume_mounts:
                given = await asyncio.to_thread(volumes.mounts, self._config, pod, container, sources)
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
            weaker = "no private mounts on this machine: only its environment keeps the container inside its slice"
            self._events.record(pod, "Warning", "NoPrivateMounts", weaker, record.name)
            log.warning("no private mounts", pod=pod.key, container=record.name)
        await self._run(pod, record, run, spec)
        return run

    async def _run(self, pod: Pod, record: ContainerRecord, run: Run, spec: RunSpec) -> None:
        self._events.record(pod, "Normal", "Created", f"Created container: {record.name}", record.name)
        starting = asyncio.create_task(self._runtime.start(run.directory, spec))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Stopping the pod begins when this returns, and must find the run that was being started.
            await asyncio.wait([starting])
            raise
        except Unavailable as error:
            # It may still begin, and must not begin twice: the worker waits for this run.
            log.warning("container starts slowly", pod=pod.key, container=record.name, reason=str(error))
        except ElasticGPUError as error:
            missing = _missing_source(spec)
            if missing is not None:
                await asyncio.to_thread(shutil.rmtree, run.directory, ignore_errors=True)
                raise _CannotStart("CreateContainerError", missing) from error
            write_start_error(run.directory, str(error))
            log.warning("container cannot start", pod=pod.key, container=record.name, reason=str(error))
            self._events.record(pod, "Warning", "Failed", f"Error: {error}", record.name)
        else:
            self._events.record(pod, "Normal", "Started", f"Started container {record.name}", record.name)

    async def _ask_plugins(self, pod: Pod, record: ContainerRecord) -> None:
        try:
            await self._devices.pre_start(pod.uid, record.name)
        except ElasticGPUError as error:
            raise InvalidInput("devices", f"device plugin PreStartContainer rpc failed with err: {error}") from error

    async def _sources(self, pod: Pod) -> Sources:
        named, in_volumes = named_sources(pod), volumes.named_by_volumes(pod)
        maps, secrets = named[0] | in_volumes[0], named[1] | in_volumes[1]
        found_maps = {name: await self._client.find(ConfigMap, name, namespace=pod.namespace) for name in maps}
        found_secrets = {name: await self._client.find(Secret, name, namespace=pod.namespace) for name in secrets}
        return Sources(
            config_maps={
                name: {key: text.encode() for key, text in (found.data or {}).items()} | _decoded(found.binary_data)
                for name, found in found_maps.items()
                if found is not None
            },
            secrets={name: _decoded(found.data) for name, found in found_secrets.items() if found is not None},
        )
