"""The life of one pod on this node, from admission to its deletion.

The pod's run directory holds everything that must survive the kubelet: `.admitted`, and a directory per run of a
container. A new worker walks the same path and finds each step done, running, or still to do. So it adopts running
containers and never starts a second copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import structlog

from egpu_base.api.kubernetes import TERMINAL_PHASES
from egpu_base.errors import ElasticGPUError, NotFound, RetryableError
from egpu_base.kubernetes import Client
from egpu_sim.cluster.kubelet import status
from egpu_sim.cluster.kubelet.admission import Rejected, requested
from egpu_sim.cluster.kubelet.claims import Claims
from egpu_sim.cluster.kubelet.config import RUNS, VOLUMES, KubeletConfig
from egpu_sim.cluster.kubelet.containers import ContainerRecord, restarts_after
from egpu_sim.cluster.kubelet.devices import DeviceManager
from egpu_sim.cluster.kubelet.events import Events
from egpu_sim.cluster.kubelet.launch import pod_log_name
from egpu_sim.cluster.kubelet.objects import Pod
from egpu_sim.cluster.kubelet.runtime import NeverStarted, Runtime, look
from egpu_sim.cluster.kubelet.starter import Starter

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0
# The time between SIGTERM and SIGKILL for a pod whose object was removed by force.
ORPHAN_GRACE_SECONDS = 2.0
CLAIM_RETRY_LIMIT_SECONDS = 5.0
"""The longest pause between calls of a driver that does not prepare a claim."""
ADMITTED = ".admitted"


class Node(Protocol):
    """A worker's view of its kubelet."""

    async def admit(self, pod: Pod, *, waited_seconds: float) -> None:
        """`waited_seconds` since the first call. Raises Rejected, or RetryableError when it is undecided."""
        ...


class PodWorker:
    """Runs one pod (one UID). `update` brings its newest object, None once the API server has none."""

    def __init__(
        self,
        pod: Pod,
        *,
        config: KubeletConfig,
        client: Client,
        node: Node,
        runtime: Runtime,
        devices: DeviceManager,
        claims: Claims,
        events: Events,
        starter: Starter,
    ) -> None:
        self.pod = pod
        self._config = config
        self._client = client
        self._node = node
        self._runtime = runtime
        self._devices = devices
        self._claims = claims
        self._events = events
        self._starter = starter
        self._directory = config.run_dir / pod.uid
        self.inits = [ContainerRecord(each, self._directory / each.name) for each in pod.init_containers]
        self.apps = [ContainerRecord(each, self._directory / each.name) for each in pod.containers]
        self._began = time.time()
        self._seen = time.monotonic()
        self._gone = asyncio.Event()
        self._leaving = asyncio.Event()
        self._requested: tuple[Pod | None, Mapping[str, int]] = None, {}
        """The resources that a pod takes."""
        self._dirty = asyncio.Event()
        self._written: dict[str, Any] | None = None
        self._rejection: dict[str, Any] | None = None
        self.admitted = (self._directory / ADMITTED).exists()
        self.ended = pod.status.phase in TERMINAL_PHASES and not self.admitted
        """Nothing of it runs or will run again, so it holds nothing of the node."""
        if pod.status.phase in TERMINAL_PHASES:
            # A terminal phase is final, and another pod may have its cards by now. A kubelet that has just started must
            # not report the pod as Running, not even before it has read the runs.
            for record in (*self.inits, *self.apps):
                record.finished = True

    def update(self, pod: Pod | None) -> None:
        if pod is None:
            self._gone.set()
            self._leaving.set()
            return
        self.pod = pod
        if pod.metadata.deletion_timestamp is not None:
            self._leaving.set()

    @property
    def requested(self) -> Mapping[str, int]:
        """Return the resources that the pod takes: called for every other pod, and the result rarely changes."""
        if self._requested[0] is not self.pod:
            self._requested = self.pod, requested(self.pod)
        return self._requested[1]

    async def run(self) -> None:
        """Return when the pod's object is gone and nothing of it is left on this node."""
        self.update(self.pod)
        living = asyncio.create_task(self._live_on())
        publishing = asyncio.create_task(self._publish_changes())
        try:
            await self._leaving.wait()
            await _cancel(living)
            await self._end()
            await _cancel(publishing)
            await self._remove_object()
            await asyncio.to_thread(self._forget)
        finally:
            await _cancel(living)
            await _cancel(publishing)

    async def _live_on(self) -> None:
        """Resume from the pod's directory after an unexpected error."""
        while True:
            try:
                return await self._live()
            except Exception:
                log.exception("a pod's life was interrupted", pod=self.pod.key)
                await asyncio.sleep(self._config.backoff_limit_seconds)

    async def _live(self) -> None:
        if self.ended or not await self._admit():
            self._devices.release(self.pod.uid)
            return
        self._dirty.set()
        await self._prepare_claims()
        sidecars: list[asyncio.Task[None]] = []
        try:
            if await self._initialize(sidecars):
                async with asyncio.TaskGroup() as group:
                    for record in self.apps:
                        group.create_task(self._keep(record, init=False))
        finally:
            for task in sidecars:
                await _cancel(task)
        await self._stop_running(self.pod.grace_seconds)
        await self._unprepare_claims()
        self._settle()

    async def _admit(self) -> bool:
        while not self.admitted:
            try:
                await self._node.admit(self.pod, waited_seconds=time.monotonic() - self._seen)
            except Rejected as rejection:
                log.warning("pod rejected", pod=self.pod.key, reason=rejection.reason, message=str(rejection))
                self._events.record(self.pod, "Warning", rejection.reason, str(rejection))
                self._rejection = status.rejected(rejection.reason, str(rejection), now=time.time())
                self.ended = True
                self._dirty.set()
                return False
            except RetryableError as error:
                log.info("not admitted yet", pod=self.pod.key, reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._config.pod_group(self.pod.uid).mkdir(parents=True, exist_ok=True)
                self._directory.mkdir(parents=True, exist_ok=True)
                (self._directory / ADMITTED).touch()
                self.admitted = True
        return True

    async def _prepare_claims(self) -> None:
        """Return when the pod's claims are prepared. Those of a pod that has runs were, even before a restart."""
        ran = any(record.last is not None for record in (*self.inits, *self.apps))
        if self.pod.status.phase in TERMINAL_PHASES or (ran and self._claims.holds(self.pod.uid)):
            return
        delay = self._config.backoff_seconds
        while True:
            try:
                await self._claims.prepare(self.pod)
            except ElasticGPUError as error:
                message = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
                self._events.record(self.pod, "Warning", "FailedPrepareDynamicResources", message)
                log.warning("claims not prepared", pod=self.pod.key, reason=str(error))
            else:
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, CLAIM_RETRY_LIMIT_SECONDS)

    async def _unprepare_claims(self) -> None:
        """Return when nothing of the pod's claims is left: only then may others have the devices."""
        while True:
            try:
                return await self._claims.unprepare(self.pod.uid)
            except ElasticGPUError as error:
                log.warning("claims not unprepared", pod=self.pod.key, reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _initialize(self, sidecars: list[asyncio.Task[None]]) -> bool:
        """Run init containers, one after the other. Return False when one of them failed for good."""
        for record in self.inits:
            if record.container.restartable:
                sidecars.append(asyncio.create_task(self._keep(record, init=True)))
                while record.last is None and not sidecars[-1].done():  # noqa: ASYNC110 - a start is soon over
                    await asyncio.sleep(0.02)
                continue
            await self._keep(record, init=True)
            last = record.last
            if last is None or last.exit is None or last.exit.code != 0:
                return False
        return True

    async def _keep(self, record: ContainerRecord, *, init: bool) -> None:
        """Run a container as often as its policy says. Return when it will not run again."""
        last = record.last
        while True:
            if last is not None:
                try:
                    ended = last.exit or await self._runtime.wait(last.directory)
                except NeverStarted:
                    await asyncio.to_thread(shutil.rmtree, last.directory, ignore_errors=True)
                    last = None
                    continue
                if not restarts_after(self.pod.restart_policy, record.container, init=init, code=ended.code):
                    record.finished = True
                    self._dirty.set()
                    return
                await self._back_off(record, last.start_error)
            last = await self._starter.start(self.pod, record, self._dirty.set)
            self._dirty.set()

    async def _back_off(self, record: ContainerRecord, start_error: str) -> None:
        delay = record.crash_delay(
            base_seconds=self._config.backoff_seconds, limit_seconds=self._config.backoff_limit_seconds
        )
        message = f"back-off restarting failed container {record.name} of pod {self.pod.key}"
        record.waiting = ("RunContainerError", start_error) if start_error else ("CrashLoopBackOff", message)
        self._dirty.set()
        if delay > 0:
            self._events.record(self.pod, "Warning", "BackOff", message, record.name)
            await asyncio.sleep(delay)

    def _settle(self) -> None:
        """Release the pod's resources: every container has run for the last time."""
        for record in (*self.inits, *self.apps):
            record.finished = True
        self.ended = True
        self._devices.release(self.pod.uid)
        self._dirty.set()

    async def _end(self) -> None:
        was_ended = self.ended
        await self._stop_running(min(self.pod.grace_seconds, ORPHAN_GRACE_SECONDS) if self._gone.is_set() else None)
        await self._unprepare_claims()
        self.ended = True
        self._devices.release(self.pod.uid)
        if self._gone.is_set() or (was_ended and self._written is None):
            return
        with contextlib.suppress(NotFound):
            await self._write_last_status()

    async def _stop_running(self, grace_seconds: float | None) -> None:
        grace = self.pod.grace_seconds if grace_seconds is None else grace_seconds
        await asyncio.gather(*(self._stop(record, grace) for record in (*self.inits, *self.apps)))

    async def _stop(self, record: ContainerRecord, grace_seconds: float) -> None:
        last = record.last
        if last is None or last.exit is not None:
            return
        if look(last.directory) is not None:
            self._events.record(self.pod, "Normal", "Killing", f"Stopping container {record.name}", record.name)
        await self._runtime.stop(last.directory, grace_seconds=grace_seconds)
        self._dirty.set()

    async def _publish_changes(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._write_status()
            except NotFound:
                return
            except ElasticGPUError as error:
                log.info("status not written", pod=self.pod.key, reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._dirty.set()

    async def _write_status(self) -> None:
        wanted = self._rejection or status.build(
            self.pod,
            inits=self.inits,
            apps=self.apps,
            node_ip=self._config.node_ip,
            started_at=self._began,
            now=time.time(),
            ended=self.ended and self._leaving.is_set(),
        )
        if wanted == self._written:
            return
        await self._client.patch(
            Pod,
            self.pod.name,
            {"metadata": {"uid": self.pod.uid}, "status": wanted},
            namespace=self.pod.namespace,
            subresource="status",
        )
        self._written = wanted

    async def _remove_object(self) -> None:
        """Delete the object, now that nothing of the pod runs. Finalizers may keep it for a while."""
        while not self._gone.is_set():
            try:
                await self._client.delete(
                    Pod, self.pod.name, namespace=self.pod.namespace, uid=self.pod.uid, grace_period_seconds=0
                )
            except NotFound:
                return
            except ElasticGPUError as error:
                log.info("pod not removed yet", pod=self.pod.key, reason=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await self._gone.wait()

    async def _write_last_status(self) -> None:
        """Write the last status, and retry while that may help, until the object is gone."""
        while not self._gone.is_set():
            try:
                await self._write_status()
                break
            except RetryableError as error:
                log.info("status not written", pod=self.pod.key, reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def _forget(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        shutil.rmtree(self._config.volumes_dir / self.pod.uid, ignore_errors=True)
        shutil.rmtree(self._config.pod_group(self.pod.uid), ignore_errors=True)
        shutil.rmtree(self._config.logs_dir / pod_log_name(self.pod), ignore_errors=True)


def leftovers(run_dir: Path, known: Collection[str]) -> dict[str, list[Path]]:
    """Return run directories of pods that the API server no longer has, by pod UID."""
    if not run_dir.is_dir():
        return {}
    pods = [path for path in run_dir.iterdir() if path.is_dir() and path.name not in known]
    return {path.name: [run for run in path.glob("*/*") if run.name.isdigit()] for path in pods}


async def end_leftovers(runtime: Runtime, kubelet_dir: Path, known: Collection[str]) -> list[str]:
    """End and forget the runs of pods that the API server no longer has. Return their UIDs."""
    found = await asyncio.to_thread(leftovers, kubelet_dir / RUNS, known)
    for uid, runs in found.items():
        await asyncio.gather(*(runtime.stop(run, grace_seconds=ORPHAN_GRACE_SECONDS) for run in runs))
        for name in (RUNS, VOLUMES):
            await asyncio.to_thread(shutil.rmtree, kubelet_dir / name / uid, ignore_errors=True)
    return list(found)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel and wait. A failure of the task is logged, and the pod ends anyway."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
    except Exception:
        log.exception("a pod's task failed", task=task.get_name())
