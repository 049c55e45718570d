"""Assembles a shim and runs it."""

from __future__ import annotations

import asyncio

import structlog

from egpu.adapters.cards import kernel_driver
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.libraries import found, library_path
from egpu.adapters.registrar import Registrar
from egpu.adapters.shim import ShimDirectory
from egpu.apps.shim.config import ShimConfig
from egpu.apps.shim.executors import OrderedExecutors
from egpu.apps.shim.last_words import last_words
from egpu.apps.shim.plugin import HeldPlugin
from egpu_base.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)


class NodeShim:
    """The shim of one node."""

    def __init__(self, config: ShimConfig) -> None:
        """Read the configuration. Raises InvalidInput, NotPrivate, Unavailable."""
        self.directory = directory = ShimDirectory.of(config.state_dir)
        self.confinement = Confinement(config.confinement)
        self.images = Images(config.state_dir / "images", config.image_cache_mib)
        self.libraries = library_path(config.library_path, config.driver_dir)
        self._driver_dir = config.driver_dir
        self.plugin = HeldPlugin(directory)
        self.registrar = Registrar(self.plugin, config.kubelet_dir)
        self.executors = OrderedExecutors(
            config.state_dir,
            directory,
            driver_dir=config.driver_dir,
            confinement=self.confinement,
            images=self.images,
            registered=lambda: self.registrar.registered,
            libraries=self.libraries,
        )

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor stops. Raises Unavailable."""
        server = await self.executors.open()
        log.info(
            "shim starts",
            executors=self.confinement.told,
            images=self.images.told,
            libraries=await asyncio.to_thread(found, self._driver_dir, self.libraries),
        )
        supervisor.add("orders", server.serve_forever())
        supervisor.add("executors", self.executors.look_after())
        supervisor.add("registrar", self._register())
        if self._driver_dir is None:
            supervisor.add("driver", self._until_too_old(supervisor), may_end=True)
        await supervisor.run()

    async def _until_too_old(self, supervisor: Supervisor) -> None:
        """End this process when its container must be created again to have the driver. No executor works without."""
        await kernel_driver.container_is_too_old(lambda: not kernel_driver.has_libraries())
        log.info("NVIDIA's driver has come: this container ends, to be created again with the driver's libraries")
        supervisor.stop()

    async def _register(self) -> None:
        """Register after the first offer: kubelet asks for the slots at once."""
        await self.plugin.offered()
        await self.registrar.run()


async def run(config: ShimConfig) -> None:
    """Run a shim until SIGTERM or SIGINT. Raises errors that end it."""
    shim = NodeShim(config)
    await shim.run(Supervisor())
    await last_words(shim.directory, config.kubelet_dir)
