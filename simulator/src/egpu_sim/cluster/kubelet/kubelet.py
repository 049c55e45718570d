"""One simulated node's kubelet, put together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio
import structlog

from egpu_base.api.kubernetes import TERMINAL_PHASES
from egpu_base.errors import ElasticGPUError, RetryableError
from egpu_base.kubelet.podresources import ContainerHoldings, PodHoldings, serve_pod_resources
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_base.runtime.supervisor import Supervisor
from egpu_sim.cluster.kubelet import objects
from egpu_sim.cluster.kubelet.admission import Rejected, check_fit, requested
from egpu_sim.cluster.kubelet.claims import Claims
from egpu_sim.cluster.kubelet.config import KubeletConfig
from egpu_sim.cluster.kubelet.devices import DeviceManager
from egpu_sim.cluster.kubelet.drivers import Drivers
from egpu_sim.cluster.kubelet.events import Events
from egpu_sim.cluster.kubelet.node import NodeStatus
from egpu_sim.cluster.kubelet.objects import Pod
from egpu_sim.cluster.kubelet.port import KubeletPort
from egpu_sim.cluster.kubelet.runtime import Runtime
from egpu_sim.cluster.kubelet.starter import Starter
from egpu_sim.cluster.kubelet.streaming import Streaming
from egpu_sim.cluster.kubelet.worker import RETRY_SECONDS, PodWorker, end_leftovers

log = structlog.get_logger(__name__)

# How long a pod waits for a device plugin that has not returned since this kubelet started.
PLUGIN_WAIT_SECONDS = 60.0


class Kubelet:
    """Runs the pods that are bound to its node. Leaves containers running when it stops, as a real one does."""

    def __init__(self, config: KubeletConfig, *, client: Client, runtime: Runtime) -> None:
        self.config = config
        self._client = client
        self._runtime = runtime
        self.node = NodeStatus(config, client, self._capacity)
        self.devices = DeviceManager(config.kubelet_dir, rng=random.Random(config.seed), on_change=self.node.changed)
        self.events = Events(client, config.node)
        self.drivers = Drivers(config.kubelet_dir, node=config.node, client=client)
        self.claims = Claims(config.kubelet_dir, client=client, drivers=self.drivers)
        self._starter = Starter(
            config, client=client, runtime=runtime, devices=self.devices, claims=self.claims, events=self.events
        )
        self._pods = Reflector(client, Pod, fields=f"spec.nodeName={config.node}")
        self._admitting = asyncio.Lock()
        self._pod_resources: grpc.aio.Server | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.workers: dict[str, PodWorker] = {}

    async def run(self, supervisor: Supervisor) -> None:
        await self.devices.start()
        try:
            self._pod_resources = await serve_pod_resources(
                self.config.kubelet_dir, self.holdings, self.devices.allocatable
            )
            supervisor.add("node", self.node.run())
            supervisor.add("events", self.events.run())
            supervisor.add("drivers", self.drivers.run())
            supervisor.add("pods", self._pods.run())
            supervisor.add("workers", self._work())
            if self.config.listening is not None:
                supervisor.add("port", KubeletPort(self.config, self.workers).serve(self.config.listening))
            async with Streaming(self._runtime, self.workers).serve(self.config.kubelet_dir):
                await supervisor.run()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            if self._pod_resources is not None:
                await self._pod_resources.stop(None)
            await self.devices.stop()

    async def _work(self) -> None:
        """Start once all pods are known: only then are runs without a pod recognised."""
        await self._pods.synced.wait()
        known = {pod.uid for pod in self._pods}
        for uid in self.devices.allocations.pods() - known:
            self.devices.release(uid)
        left = await end_leftovers(self._runtime, self.config.kubelet_dir, known)
        for uid in self.claims.pods() - known:
            self._tasks[uid] = asyncio.create_task(self._unprepare(uid), name=f"claims of pod {uid}")
        if left:
            log.info("leftovers of removed pods ended", pods=left)
        self._pods.on_change(self._on_change)
        await asyncio.Event().wait()

    async def _unprepare(self, uid: str) -> None:
        """Undo the claims of a pod that went while this kubelet was away."""
        while True:
            try:
                return await self.claims.unprepare(uid)
            except ElasticGPUError as error:
                log.warning("claims not unprepared", pod=uid, reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    def _on_change(self, change: Change[Pod]) -> None:
        pod = change.subject
        worker = self.workers.get(pod.uid)
        if change.new is None:
            if worker is not None:
                worker.update(None)
        elif worker is not None:
            worker.update(pod)
        elif pod.spec.node_name == self.config.node:
            self._take(pod)

    def _take(self, pod: Pod) -> None:
        worker = PodWorker(
            pod,
            config=self.config,
            client=self._client,
            node=self,
            runtime=self._runtime,
            devices=self.devices,
            claims=self.claims,
            events=self.events,
            starter=self._starter,
        )
        self.workers[pod.uid] = worker
        task = asyncio.create_task(worker.run(), name=f"pod {pod.key}")
        self._tasks[pod.uid] = task
        task.add_done_callback(lambda done: self._left(pod.uid, done))

    def _left(self, uid: str, task: asyncio.Task[None]) -> None:
        self.workers.pop(uid, None)
        self._tasks.pop(uid, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a pod's worker failed", task=task.get_name(), exc_info=error)

    def _capacity(self) -> tuple[dict[str, int], dict[str, int]]:
        return self.devices.capacity()

    async def admit(self, pod: Pod, *, waited_seconds: float) -> None:
        """Give the pod its devices if the node can take it; see `worker.Node`."""
        async with self._admitting:
            try:
                await self.devices.allocate(pod)
            except ElasticGPUError as error:
                if isinstance(error, RetryableError) and waited_seconds < PLUGIN_WAIT_SECONDS:
                    raise
                message = f"Allocate failed due to {error}, which is unexpected"
                raise Rejected("UnexpectedAdmissionError", message) from error
            try:
                await self._check_fit(pod)
            except ElasticGPUError:
                self.devices.release(pod.uid)
                raise

    async def _check_fit(self, pod: Pod) -> None:
        """Check the pod against the node. Raises Rejected. The watched node may be older than the scheduler's: before a
        pod fails for good, ask the API server."""
        try:
            self._check_beside_others(pod, await self.node.allocatable(fresh=False))
        except Rejected:
            self._check_beside_others(pod, await self.node.allocatable(fresh=True))

    def _check_beside_others(self, pod: Pod, allocatable: Mapping[str, int]) -> None:
        # The scheduler does not count pods in a terminal phase. So this check must not either, even if the pod's worker
        # (after a restart of the kubelet, say) has not seen its end yet.
        others = [
            worker.requested
            for worker in self.workers.values()
            if worker.admitted and not worker.ended and worker.pod.status.phase not in TERMINAL_PHASES
        ]
        # Devices were granted before, one by one. Their number adds nothing, and is 0 while a plugin restarts.
        managed = self.devices.managed
        check_fit(requested(pod), others, {name: amount for name, amount in allocatable.items() if not managed(name)})

    def holdings(self) -> list[PodHoldings]:
        """Return every active pod with its app and restartable init containers, as pod-resources lists them."""
        return [self._holdings(worker.pod) for worker in self.workers.values() if not worker.ended]

    def _holdings(self, pod: Pod) -> PodHoldings:
        listed = [*(each for each in pod.init_containers if each.restartable), *pod.containers]
        return PodHoldings(
            namespace=pod.namespace,
            name=pod.name,
            containers=tuple(
                ContainerHoldings(pod.namespace, pod.name, container.name, self._held(pod, container))
                for container in listed
            ),
        )

    def _held(self, pod: Pod, container: objects.Container) -> dict[str, tuple[str, ...]]:
        return {grant.resource: grant.ids for grant in self.devices.allocations.of_container(pod.uid, container.name)}


async def run(config: KubeletConfig) -> None:
    """Run a kubelet until SIGTERM or SIGINT; its containers go on. Raises NativeMissing without egpu-enter."""
    _wait_without_threads()
    runtime, allowed = await Runtime.probe()
    log.info("kubelet starts", node=config.node, directory=str(config.kubelet_dir), runtime=allowed)
    await asyncio.to_thread(config.kubelet_dir.mkdir, parents=True, exist_ok=True)
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        await Kubelet(config, client=client, runtime=runtime).run(Supervisor())


def _wait_without_threads() -> None:
    """Let the event loop wait for child processes by descriptor, as Python 3.12 does by default. Older versions use one
    more thread for each start of a container, only to wait."""
    if sys.version_info < (3, 12):
        with contextlib.suppress(OSError):  # a kernel without pidfd
            os.close(os.pidfd_open(os.getpid()))
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(asyncio.get_running_loop())
            set_watcher: Any = vars(asyncio)["set_child_watcher"]  # deprecated by versions that do not need it
            set_watcher(watcher)


async def end_all(kubelet_dir: Path) -> int:
    """End every container that a stopped kubelet left running under `kubelet_dir`. Return how many pods had any."""
    runtime = Runtime(private_mounts=False)
    return len(await end_leftovers(runtime, kubelet_dir, ()))
