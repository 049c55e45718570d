"""A device plugin of somebody else that gives out NVIDIA's cards, registered with a real socket at a kubelet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

from egpu_base.kubelet.deviceplugin import (
    DIRECTORY,
    ContainerDevices,
    PluginDevice,
    PluginOptions,
    Registration,
    register,
    serve_plugin,
)

ENDPOINT = "nvidia-gpu.sock"


class ForeignPlugin:
    """Gives out whole devices, and prepares nothing."""

    options = PluginOptions()

    def __init__(self, count: int) -> None:
        self.count = count
        self.given: list[str] = []

    async def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        yield tuple(PluginDevice(f"GPU-{number}") for number in range(self.count))
        await asyncio.Event().wait()

    async def allocate(self, ids: tuple[str, ...]) -> ContainerDevices:
        self.given += ids
        return ContainerDevices()

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Nothing to do."""


@contextlib.asynccontextmanager
async def foreign_plugin(
    kubelet_dir: Path, *, resource: str = "nvidia.com/gpu", count: int = 2
) -> AsyncGenerator[ForeignPlugin]:
    """The plugin, registered; at the end it is gone."""
    directory, plugin = kubelet_dir / DIRECTORY, ForeignPlugin(count)
    server = await serve_plugin(plugin, directory / ENDPOINT)
    try:
        await register(directory, Registration(resource, ENDPOINT, plugin.options))
        yield plugin
    finally:
        await server.stop(None)
