"""The device plugin for kubelet, with or without a running agent.

kubelet (pkg/kubelet/cm/devicemanager: `PluginDisconnected`, `devicesToAllocate`) treats every slot as unhealthy the
moment the stream ends. A pod that it then admits fails for good: *no healthy devices present*, or the broken
connection's error. PreStartContainer is repeated while it fails. So the shim answers slots and Allocate from the
agent's last offer, and PreStartContainer waits for the agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from egpu.adapters.shim import ShimDirectory
from egpu.adapters.shim import offer as offers
from egpu_base.errors import Unavailable
from egpu_base.kubelet.deviceplugin import ContainerDevices, PluginClient, PluginDevice, PluginOptions

POLL_SECONDS: Final = 0.25
PRESTART_SECONDS: Final = 25.0
"""kubelet gives up after 30 s, and repeats."""
RETRY_SECONDS: Final = 0.3


class HeldPlugin:
    """The plugin. Implements `egpu_base.kubelet.deviceplugin.DevicePlugin`."""

    options = PluginOptions(pre_start_required=True)

    def __init__(self, directory: ShimDirectory, *, prestart_seconds: float = PRESTART_SECONDS) -> None:
        self._directory = directory
        self._prestart_seconds = prestart_seconds
        self._agent: PluginClient | None = None

    async def offered(self) -> None:
        """Return once an agent has offered slots for the first time."""
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
        """Answer with one slot. Raises TerminalError for another number of slots."""
        offer = offers.read(self._directory.offer)
        if offer is None:
            raise Unavailable("no agent has offered slots on this node yet")
        return offer.answered(ids)

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Pass on the agent's answer, and wait for an agent that is away. Raises the agent's error, Unavailable."""
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
