"""A device plugin without devices: kubelet then publishes 0 of its resources, and refuses pods that ask for them."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final

from egpu_base.errors import NotSupported
from egpu_base.kubelet.deviceplugin import (
    DIRECTORY,
    ContainerDevices,
    PluginDevice,
    PluginOptions,
    Registration,
    register,
    serve_plugin,
)

LISTED_SECONDS: Final = 5.0
"""kubelet asks for the devices of a new plugin at once."""
ENDPOINT: Final = "elasticgpu-farewell.sock"


class Nothing:
    """A device plugin without devices. Implements `egpu_base.kubelet.deviceplugin.DevicePlugin`."""

    options = PluginOptions()

    def __init__(self) -> None:
        self._asked = asyncio.Semaphore(0)
        self._never = asyncio.Event()

    async def listed(self, times: int, *, seconds: float) -> None:
        """Wait until kubelet has read the list so many times. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            for _ in range(times):
                await self._asked.acquire()

    async def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        yield ()
        self._asked.release()
        await self._never.wait()

    async def allocate(self, ids: tuple[str, ...]) -> ContainerDevices:
        raise NotSupported("Elastic GPU was removed from this node")

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        raise NotSupported("Elastic GPU was removed from this node")


async def offer_nothing(kubelet_dir: Path, resources: Iterable[str]) -> None:
    """Have kubelet publish 0 of each resource. Raises Unavailable, and OSError if its directory is not there."""
    directory, plugin, names = kubelet_dir / DIRECTORY, Nothing(), sorted(resources)
    server = await serve_plugin(plugin, directory / ENDPOINT)
    try:
        for name in names:
            await register(directory, Registration(name, ENDPOINT, plugin.options))
        await plugin.listed(len(names), seconds=LISTED_SECONDS)
    finally:
        await server.stop(None)
