"""The device plugin of `elasticgpu.io/slot`: a slot per GPU container, filled in when the container starts.

Allocate knows no container, so it answers with paths named by the slot id, and with a CDI device of that name, or
without CDI with every device file of the node. PreStartContainer runs before every start: it finds the slot's owner,
and has those paths and that device prepared."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import structlog

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.shim.offer import only
from egpu.api import names
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.config import AgentConfig
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.cdi import SlotSpecs, device_name
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.owners import Owner, Owners
from egpu.apps.agent.slots.preparer import Preparer
from egpu_base.errors import ElasticGPUError, RetryableError, Unavailable
from egpu_base.kubelet.deviceplugin import ContainerDevices, DeviceNode, Mount, PluginDevice, PluginOptions
from egpu_base.system.files import last_change

log = structlog.get_logger(__name__)

# : kubelet gives up after 30 s; until then a temporary failure is tried again.
PRESTART_SECONDS = 20.0
RETRY_SECONDS = 0.3


class SlotPlugin:
    """The plugin. Implements `egpu_base.kubelet.deviceplugin.DevicePlugin`."""

    options = PluginOptions(pre_start_required=True)

    def __init__(
        self,
        config: AgentConfig,
        *,
        inventory: Inventory,
        devices: DeviceFiles,
        owners: Owners,
        preparer: Preparer,
        metrics: AgentMetrics,
        specs: SlotSpecs,
        injection: Injection,
    ) -> None:
        self._config = config
        self._inventory = inventory
        self._devices = devices
        self._owners = owners
        self._preparer = preparer
        self._metrics = metrics
        self._specs = specs
        self._injection = injection
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def slot_lock(self, slot_id: str) -> asyncio.Lock:
        """Return the lock of a slot that is being changed."""
        return self._locks[slot_id]

    @property
    def devices_change(self) -> int:
        """A number that changes when a device file of the node comes or goes: `answer` may change then."""
        return last_change(self._config.device_root)

    async def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        """Yield the slots, by the number of cards. A card that is lost for a while removes none."""
        sent: tuple[PluginDevice, ...] | None = None
        async for cards in self._inventory.changes():
            pooled = self._config.pool_pki is not None
            usable = pooled or any(card.healthy for card in cards.values())
            count = self._config.slots(len(cards))
            numa = () if pooled else _numa_nodes(cards.values())
            slots = tuple(PluginDevice(str(number), healthy=usable, numa=numa) for number in range(count))
            if slots != sent:
                sent = slots
                yield slots

    async def allocate(self, ids: tuple[str, ...]) -> ContainerDevices:
        """Answer with the container's one slot. Raises TerminalError for any other number of slots."""
        began = time.monotonic()
        slot_id = only(ids)
        if not self._inventory.version:
            raise Unavailable("the node's cards have not been read yet")
        self._specs.remove(slot_id)
        answer = self.answer(slot_id)
        self._metrics.allocate_seconds.observe(time.monotonic() - began)
        return answer

    def answer(self, slot_id: str) -> ContainerDevices:
        """Return Allocate's answer for a slot, for any container."""
        slot = self._config.slots_dir / slot_id
        target = names.SLICE_DIRECTORY
        # The files that limit a program are mounted in any case: a runtime with CDI disabled ignores names silently,
        # and NVIDIA's runtime may then bring the card all the same.
        mounts = (
            Mount(target, str(slot)),
            Mount(f"{target}/{layout.USAGE_FILE}", str(slot / layout.USAGE_FILE), read_only=False),
            Mount(names.PRELOAD_LIST, str(slot / layout.PRELOAD_FILE)),
        )
        if self._injection.cdi:
            return ContainerDevices(mounts=mounts, cdi_devices=(device_name(slot_id),))
        return ContainerDevices(mounts=mounts, devices=self._links(slot))

    def _links(self, slot: Path) -> tuple[DeviceNode, ...]:
        files = (*self._devices.cards(self._inventory.minors), *self._devices.control())
        return tuple(DeviceNode(f"/dev/{file}", str(slot / layout.DEVICES / file)) for file in files)

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Fill the slot with its container's allocation; an exception keeps the container from starting."""
        slot_id = only(ids)
        began = time.monotonic()
        try:
            async with self.slot_lock(slot_id):
                self._specs.remove(slot_id)
                owner = await self._prepared(slot_id, deadline=began + PRESTART_SECONDS)
        except ElasticGPUError as error:
            self._metrics.refusals.labels(reason=type(error).__name__).inc()
            log.warning("container may not start", slot_id=slot_id, reason=str(error))
            raise
        self._metrics.prepare_seconds.observe(time.monotonic() - began)
        if names.PRELOAD in owner.pod.annotations:
            self._metrics.environment_preloads.inc()

    async def _prepared(self, slot_id: str, *, deadline: float) -> Owner:
        while True:
            try:
                owner = await self._owners.of(slot_id)
                await self._preparer.prepare(slot_id, owner)
            except RetryableError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return owner


def _numa_nodes(cards: Iterable[CardReading]) -> tuple[int, ...]:
    """Return the NUMA nodes for kubelet's topology manager. The card is not known when kubelet asks, so a container
    is limited to NUMA nodes that have cards; to none if a card's node is unknown."""
    found = {card.numa for card in cards}
    return () if None in found else tuple(sorted(node for node in found if node is not None))
