"""The slot plugin of a node with a shim. The shim answers kubelet with this offer, and asks the agent only when a
container is about to start."""

from __future__ import annotations

import structlog

from egpu.adapters.shim import ShimDirectory
from egpu.adapters.shim import offer as offers
from egpu.adapters.shim.offer import SLOT_ID, Offer
from egpu.adapters.shim.orders import Shim
from egpu.apps.agent.slots.plugin import SlotPlugin
from egpu_base.errors import Unavailable
from egpu_base.kubelet.deviceplugin import PluginDevice, serve_plugin
from egpu_base.runtime.beats import rest
from egpu_base.runtime.endless import EndlessTasks

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
REGISTERED_LOOK_SECONDS = 5.0
"""Time between two questions to a shim that kubelet knows."""


class Offering:
    """Keeps the offer up to date in `run()`, and answers the shim. `registered` says whether kubelet knows the shim."""

    def __init__(self, plugin: SlotPlugin, directory: ShimDirectory, shim: Shim) -> None:
        self._plugin = plugin
        self._directory = directory
        self._shim = shim
        self._slots: tuple[PluginDevice, ...] | None = None
        self._offered: Offer | None = None
        self.registered = False

    async def run(self) -> None:
        server = await serve_plugin(self._plugin, self._directory.agent_socket)
        try:
            async with EndlessTasks() as group:
                group.start(self._offer())
                group.start(self._renew())
                group.start(self._follow())
        finally:
            self.registered = False
            await server.stop(None)

    def withdraw(self) -> None:
        """Offer kubelet no slots, until `run` offers them again."""
        self._slots = ()
        self._write()

    async def _offer(self) -> None:
        async for slots in self._plugin.watch():
            self._slots = tuple(slots)
            self._write()

    def _write(self) -> None:
        """Written even if the slots stay the same: the driver creates device files when they are first needed."""
        if self._slots is None:
            return
        offer = Offer(self._slots, self._plugin.answer(SLOT_ID))
        if offer != self._offered:
            offers.write(self._directory.offer, offer)
            self._offered = offer
            log.info("offered to kubelet", slots=len(self._slots))

    async def _renew(self) -> None:
        seen: int | None = None
        while True:
            if (change := self._plugin.devices_change) != seen:
                seen = change
                self._write()
            await rest(LOOK_SECONDS)

    async def _follow(self) -> None:
        while True:
            self._write()
            try:
                self.registered = (await self._shim.state()).registered
            except Unavailable as error:
                self.registered = False
                log.warning("kubelet not answered", reason=str(error))
            await rest(REGISTERED_LOOK_SECONDS if self.registered else LOOK_SECONDS)
