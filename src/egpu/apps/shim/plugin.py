"""The device plugin as kubelet sees it, whether an agent runs or not.

kubelet (pkg/kubelet/cm/devicemanager: `PluginDisconnected`, `devicesToAllocate`) takes every slot for unhealthy the
moment that the stream ends, and a pod that it then admits is Failed for good: *no healthy devices present*, or the
broken connection's error. PreStartContainer is asked again for as long as it fails. So slots and Allocate are answered
here from the agent's last word, and PreStartContainer waits for the agent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from egpu.adapters.kubelet.deviceplugin import ContainerDevices, PluginClient, PluginDevice, PluginOptions
from egpu.adapters.shim import ShimDirectory
from egpu.adapters.shim import offer as offers
from egpu.errors import Unavailable

POLL_SECONDS: Final = 0.25
PRESTART_SECONDS: Final = 25.0
"""kubelet gives up after 30 s, and comes again."""
RETRY_SECONDS: Final = 0.3


class HeldPlugin:
    """Implements `egpu.adapters.kubelet.deviceplugin.DevicePlugin`."""

    options = PluginOptions(pre_start_required=True)

    def __init__(self, directory: ShimDirectory, *, prestart_seconds: float = PRESTART_SECONDS) -> None:
        self._directory = directory
        self._prestart_seconds = prestart_seconds
        self._agent: PluginClient | None = None

    async def offered(self) -> None:
        """Returns once an agent has ever said what this node offers."""
        async for _ in self.watch():
            return

    async def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        sent: Sequence[PluginDevice] | None = None
        while True:
            offer = offers.read(self._directory.offer)
            if offer is not None and offer.slots is not sent and offer.slots != sent:
                sent = offer.slots
                yield sent
            await asyncio.sleep(POLL_SECONDS)

    async def allocate(self, ids: tuple[str, ...]) -> ContainerDevices:
        """Raises TerminalError for another number of slots than one."""
        offer = offers.read(self._directory.offer)
        if offer is None:
            raise Unavailable("no agent has said yet what this node offers")
        return offer.answered(ids)

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """As the agent says; one that is away is waited for. Raises what it answers, Unavailable."""
        deadline = time.monotonic() + self._prestart_seconds
        if self._agent is None:
            self._agent = PluginClient(self._directory.agent_socket)  # reaches whichever agent listens there
        while True:
            try:
                return await self._agent.pre_start(ids)
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)
