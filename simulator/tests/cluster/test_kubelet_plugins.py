"""What the simulated kubelet does to pods whose device plugin is gone: exactly as unkind as a real one."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egpu_base.errors import TerminalError, Unavailable
from egpu_base.kubelet.deviceplugin import (
    DIRECTORY,
    ContainerDevices,
    PluginDevice,
    PluginOptions,
    Registration,
    register,
    serve_plugin,
)
from egpu_sim.cluster.kubelet.devices import DeviceManager
from egpu_sim.cluster.kubelet.objects import Pod
from support.waiting import until

RESOURCE = "example.com/slot"


class Plugin:
    """Two devices, and any number of lists of them."""

    options = PluginOptions()

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent

    async def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        if not self._silent:
            yield [PluginDevice("0"), PluginDevice("1")]
        await asyncio.Event().wait()

    async def allocate(self, ids: tuple[str, ...]) -> ContainerDevices:
        return ContainerDevices(envs={"IDS": ",".join(ids)})

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        raise AssertionError("it did not ask for that")


def pod(uid: str) -> Pod:
    container = {"name": "main", "image": "x", "resources": {"limits": {RESOURCE: "1"}, "requests": {RESOURCE: "1"}}}
    body = {"metadata": {"name": uid, "namespace": "default", "uid": uid}, "spec": {"containers": [container]}}
    return msgspec.convert(body, Pod)


async def plugged(directory: Path, plugin: Plugin, name: str) -> Any:
    server = await serve_plugin(plugin, directory / DIRECTORY / name)
    await register(directory / DIRECTORY, Registration(RESOURCE, name))
    return server


async def test_a_plugin_that_is_gone_costs_the_pods_that_come_meanwhile(tmp_path: Path) -> None:
    manager = DeviceManager(tmp_path, rng=random.Random(1), on_change=lambda: None)
    await manager.start()
    servers: list[Any] = []
    try:
        servers.append(await plugged(tmp_path, Plugin(), "first.sock"))
        await until(lambda: manager.capacity()[1].get(RESOURCE) == 2, "two healthy devices")
        await manager.allocate(pod("before"))
        assert [answer.envs["IDS"] for answer in manager.answers("before", "main")] != []

        await servers.pop().stop(None)
        await until(lambda: manager.capacity()[1][RESOURCE] == 0, "no healthy device")
        assert manager.capacity()[0][RESOURCE] == 2
        with pytest.raises(TerminalError, match="no healthy devices present; cannot allocate unhealthy devices"):
            await manager.allocate(pod("meanwhile"))

        # Registering alone makes nothing well again: the new list does.
        servers.append(await plugged(tmp_path, Plugin(silent=True), "silent.sock"))
        with pytest.raises(TerminalError, match="no healthy devices present"):
            await manager.allocate(pod("too-soon"))
        servers.append(await plugged(tmp_path, Plugin(), "second.sock"))
        await until(lambda: manager.capacity()[1][RESOURCE] == 2, "healthy again")
        await manager.allocate(pod("after"))
    finally:
        for server in servers:
            await server.stop(None)
        await manager.stop()


async def test_an_allocation_that_meets_a_dead_plugin_fails_for_good(tmp_path: Path) -> None:
    manager = DeviceManager(tmp_path, rng=random.Random(1), on_change=lambda: None)
    await manager.start()
    plugin = Plugin()
    server = await plugged(tmp_path, plugin, "only.sock")
    try:
        await until(lambda: manager.capacity()[1].get(RESOURCE) == 2, "two healthy devices")
        dying = asyncio.Event()

        async def never(ids: tuple[str, ...]) -> ContainerDevices:
            dying.set()
            await asyncio.Event().wait()
            raise AssertionError(ids)

        plugin.allocate = never
        asked = asyncio.ensure_future(manager.allocate(pod("struck")))
        await dying.wait()
        await server.stop(None)
        with pytest.raises(TerminalError, match="rpc error"):
            await asked
        assert not list(manager.allocations)
    finally:
        await server.stop(None)
        await manager.stop()


async def test_a_pod_waits_for_a_plugin_that_has_yet_to_find_this_kubelet(tmp_path: Path) -> None:
    first = DeviceManager(tmp_path, rng=random.Random(1), on_change=lambda: None)
    await first.start()
    server = await plugged(tmp_path, Plugin(), "only.sock")
    await until(lambda: first.capacity()[1].get(RESOURCE) == 2, "two healthy devices")
    await first.stop()
    second = DeviceManager(tmp_path, rng=random.Random(1), on_change=lambda: None)
    await second.start()
    try:
        with pytest.raises(Unavailable, match="has registered"):
            await second.allocate(pod("early"))
    finally:
        await server.stop(None)
        await second.stop()
