"""kubelet's device manager: plugins register, containers get ids, plugins are called before every start.

It keeps the real one's traps for plugins: ids are taken in random order, and so are a container's resources; each
Allocate is for one container; ids of ended pods are free at once; sockets in the directory are deleted at the start; an
init container's ids are reused by app containers. When a plugin's stream ends, all its devices are unhealthy until it
has registered and listed them again. A pod that is admitted meanwhile, or whose Allocate meets a dead plugin, fails for
good.

One difference: a pod waits that is admitted after a restart of this kubelet and before the plugin's first registration.
A real kubelet fails that one, too.
"""

from __future__ import annotations

import asyncio
import random
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc.aio
import structlog

from egpu_base.api.resources import container_requests, whole_units
from egpu_base.errors import ElasticGPUError, InvalidInput, TerminalError, Unavailable
from egpu_base.kubelet.deviceplugin import (
    DIRECTORY,
    VERSION,
    ContainerDevices,
    PluginClient,
    PluginDevice,
    Registration,
    serve_registration,
)
from egpu_sim.cluster.kubelet.allocations import Allocations, Grant
from egpu_sim.cluster.kubelet.objects import Container, Pod

log = structlog.get_logger(__name__)

CHECKPOINT = "kubelet_internal_checkpoint"
MAX_ID_LENGTH = 63


@dataclass
class Plugin:
    """A registered plugin: `devices` is its last list, all of it unhealthy once its stream has ended."""

    registration: Registration
    client: PluginClient
    devices: Mapping[str, PluginDevice] = field(default_factory=dict[str, PluginDevice])
    healthy: Sequence[str] = ()
    """Their ids, sorted."""
    connected: bool = True
    listed: bool = False
    watching: asyncio.Task[None] | None = None

    def has(self, devices: Mapping[str, PluginDevice]) -> None:
        self.devices = devices
        self.healthy = sorted(each.id for each in devices.values() if each.healthy)


class DeviceManager:
    """`on_change` is called when the node's capacity may have changed."""

    def __init__(self, kubelet_dir: Path, *, rng: random.Random, on_change: Callable[[], None]) -> None:
        self._directory = kubelet_dir / DIRECTORY
        self._rng = rng
        self._on_change = on_change
        self._plugins: dict[str, Plugin] = {}
        self._server: grpc.aio.Server | None = None
        self._admitting = asyncio.Lock()
        self.allocations = Allocations(self._directory / CHECKPOINT)

    async def start(self) -> None:
        """Forget every plugin, empty the directory, and wait for plugins to register."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            if path.name != CHECKPOINT and not stat.S_ISDIR(path.lstat().st_mode):
                path.unlink()
        self._server = await serve_registration(self._register, self._directory)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
        for plugin in self._plugins.values():
            await _close(plugin)

    def capacity(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (all, healthy) numbers of devices by resource, without resources whose plugin has yet to return."""
        absent = dict.fromkeys(self.allocations.resources, 0)
        total = {resource: len(plugin.devices) for resource, plugin in self._plugins.items()}
        healthy = {resource: len(plugin.healthy) for resource, plugin in self._plugins.items()}
        return {**absent, **total}, {**absent, **healthy}

    def allocatable(self) -> dict[str, tuple[str, ...]]:
        """Return every healthy id by resource."""
        return {resource: tuple(plugin.healthy) for resource, plugin in self._plugins.items()}

    def managed(self, resource: str) -> bool:
        """Return whether any plugin has registered `resource` here."""
        return resource in self.allocations.resources

    async def allocate(self, pod: Pod) -> None:
        """Give every container of `pod` its ids; it keeps ids that it has.

        Raises TerminalError when there are too few, or the plugin refuses or is gone, and Unavailable when the plugin
        has yet to return; the pod then holds nothing.
        """
        async with self._admitting:
            try:
                await self._allocate(pod)
            except ElasticGPUError:
                self.allocations.release(pod.uid)
                raise

    async def _allocate(self, pod: Pod) -> None:
        reusable: dict[str, set[str]] = {}
        for container in pod.init_containers:
            for resource, ids in (await self._container(pod, container, reusable)).items():
                if container.restartable:
                    reusable.get(resource, set()).difference_update(ids)
                else:
                    reusable.setdefault(resource, set()).update(ids)
        for container in pod.containers:
            for resource, ids in (await self._container(pod, container, reusable)).items():
                reusable.get(resource, set()).difference_update(ids)

    async def _container(
        self, pod: Pod, container: Container, reusable: Mapping[str, set[str]]
    ) -> dict[str, tuple[str, ...]]:
        given: dict[str, tuple[str, ...]] = {}
        requests = container_requests(container)
        resources = [resource for resource in requests if self.managed(resource)]
        self._rng.shuffle(resources)
        for resource in resources:
            wanted = whole_units(resource, requests[resource])
            grant = self.allocations.get(pod.uid, container.name, resource)
            if grant is None and wanted:
                plugin = self._plugins.get(resource)
                if plugin is None or (plugin.connected and not plugin.devices):
                    raise Unavailable(f"no device plugin has registered {resource} yet")
                ids = self._choose(plugin, wanted, reusable.get(resource, set()))
                try:
                    answer = await plugin.client.allocate(ids)
                except ElasticGPUError as error:
                    raise TerminalError(f"rpc error: {error}") from error
                grant = Grant(pod.uid, container.name, resource, ids, answer)
                self.allocations.add(grant)
            if grant is not None:
                given[resource] = grant.ids
        return given

    def _choose(self, plugin: Plugin, wanted: int, reusable: set[str]) -> tuple[str, ...]:
        """Choose `reusable` ids first, then any free ones, in random order."""
        resource = plugin.registration.resource
        if not plugin.healthy:
            raise TerminalError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        again = self._rng.sample(sorted(reusable), min(wanted, len(reusable)))
        held = self.allocations.held(resource)
        free = [each for each in plugin.healthy if each not in held]
        missing = wanted - len(again)
        if missing > len(free):
            raise TerminalError(
                f"requested number of devices unavailable for {resource}. Requested: {missing}, Available: {len(free)}"
            )
        return (*again, *self._rng.sample(free, missing))

    def _plugin(self, resource: str) -> Plugin:
        plugin = self._plugins.get(resource)
        if plugin is None or not plugin.connected or not plugin.listed:
            raise Unavailable(f"no device plugin is connected for {resource}")
        return plugin

    async def pre_start(self, pod_uid: str, container: str) -> None:
        """Call every plugin that asked for it, before each start of a container. Raises their errors."""
        for grant in self.allocations.of_container(pod_uid, container):
            plugin = self._plugin(grant.resource)
            if plugin.registration.options.pre_start_required:
                await plugin.client.pre_start(grant.ids)

    def answers(self, pod_uid: str, container: str) -> list[ContainerDevices]:
        """Return the plugins' answers for the container."""
        return [grant.answer for grant in self.allocations.of_container(pod_uid, container)]

    def release(self, pod_uid: str) -> None:
        self.allocations.release(pod_uid)

    async def _register(self, registration: Registration) -> None:
        if registration.version != VERSION:
            raise InvalidInput("version", f"{registration.version!r} is not {VERSION}")
        if "/" not in registration.resource or registration.resource.startswith("kubernetes.io/"):
            raise InvalidInput("resourceName", f"{registration.resource!r} is not an extended resource")
        old = self._plugins.get(registration.resource)
        plugin = Plugin(registration, PluginClient(self._directory / registration.endpoint))
        if old is not None:
            plugin.has(old.devices)
            await _close(old)
        self._plugins[registration.resource] = plugin
        self.allocations.remember(registration.resource)
        plugin.watching = asyncio.create_task(self._watch(plugin))
        log.info("plugin registered", resource=registration.resource, endpoint=registration.endpoint)

    async def _watch(self, plugin: Plugin) -> None:
        resource = plugin.registration.resource
        try:
            async for devices in plugin.client.watch():
                known = {each.id: each for each in devices if len(each.id) <= MAX_ID_LENGTH}
                if len(known) != len(devices):
                    log.warning("device ids are too long or repeated", resource=resource, devices=len(devices))
                plugin.has(known)
                plugin.listed = True
                self._on_change()
        except ElasticGPUError as error:
            log.info("plugin has gone", resource=resource, reason=str(error))
        plugin.connected = False
        plugin.has({each.id: replace(each, healthy=False) for each in plugin.devices.values()})
        self._on_change()


async def _close(plugin: Plugin) -> None:
    plugin.connected = False
    if plugin.watching is not None:
        plugin.watching.cancel()
        await asyncio.wait([plugin.watching])
    await plugin.client.close()
