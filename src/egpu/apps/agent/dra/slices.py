"""Publishes a node's cards as ResourceSlices: one pool, whose generation grows with every change.

The order of cards follows their use, so a new slot changes the slices. A pause between two changes keeps a burst of
starts from becoming a burst of writes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.cards.places import driver_version, pcie_root
from egpu.api import names
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.slots.directories import Slots
from egpu.core.dra.devices import PRICED, PublishedCard, slices
from egpu_base.api.devices import Device, ResourceSlice
from egpu_base.api.wire import replacing
from egpu_base.errors import AlreadyExists, ElasticGPUError, NotSupported
from egpu_base.kubernetes import Client
from egpu_base.runtime.beats import rest

log = structlog.get_logger(__name__)

PAUSE_SECONDS: Final = 3.0
"""Between two looks at the cards, and so between two changes."""
CHECK_SECONDS: Final = 15.0
"""Between two looks at the API server: kubelet deletes the slices of a driver that it lost for a while."""

UNTAINTED_SECONDS: Final = 600.0
"""Before slices of priced cards are tried again where the API server drops taints: kube-scheduler sees them for a
moment, and could give such a card to a claim, which the node then refuses to prepare."""
WITHOUT_TAINTS: Final = (
    "the API server drops taints of devices, which keep kube-scheduler off priced cards, so the node publishes no "
    "slices: turn on its feature gate DRADeviceTaints"
)


class Slices:
    """The slices of one node. `node_uid` returns the UID of the Node, `cordoned` the UUIDs of cards under cordon, and
    `giving` whether the node gives out cards this way now: without it there are no slices. `priced`: whether the
    extender chooses them. `contested` says whether another program gives out the cards, too: then the slices go, and
    claims that have devices keep them."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        inventory: Inventory,
        slots: Slots,
        node_uid: Callable[[], str],
        cordoned: Callable[[], Collection[str]],
        giving: Callable[[], bool],
        priced: Callable[[], bool] = lambda: False,
        contested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._contested = contested
        self._withdrawn = False
        self._client = client
        self._node = node
        self._inventory = inventory
        self._slots = slots
        self._node_uid = node_uid
        self._cordoned = cordoned
        self._giving = giving
        self._priced = priced
        self._written: Sequence[PublishedCard] | None = None
        self._checked = 0.0
        self._untainted_at = -math.inf
        """When the API server dropped taints of priced cards."""

    async def run(self) -> None:
        """Keep the slices up to date, forever."""
        while True:
            try:
                await self.step()
            except ElasticGPUError as error:
                log.info("slices not published yet", reason=str(error))
                self._written = None
            await rest(PAUSE_SECONDS)

    async def step(self) -> None:
        """Publish once, if anything changed or it is time to check. Raises the API server's errors."""
        if not self._giving() or not self._inventory.version or not self._node_uid():
            return
        if self._contested():
            if not self._withdrawn:
                await self.withdraw()
                self._withdrawn = True
            return
        self._withdrawn = False
        cards = self.cards()
        now = time.monotonic()
        if self._priced() and now - self._untainted_at < UNTAINTED_SECONDS:
            return
        if cards == self._written and now - self._checked < CHECK_SECONDS:
            return
        await self._publish(cards)
        self._written, self._checked = cards, now

    def cards(self) -> list[PublishedCard]:
        """Return the cards to publish: those in MIG mode have instances only, which claims cannot get yet. The use of
        priced cards is left out: their order means nothing, and each change is a write."""
        core: dict[str, int] = {}
        memory: dict[str, int] = {}
        for record in self._slots.records() if not self._priced() else ():
            for share in record.allocation.cards if not record.server else ():
                core[share.uuid] = core.get(share.uuid, 0) + share.core
                memory[share.uuid] = memory.get(share.uuid, 0) + share.memory_mib
        version, cordoned = driver_version(), self._cordoned()
        priced = self._priced()
        return [
            _published(
                card,
                version,
                cordoned=card.uuid in cordoned,
                priced=priced,
                core=core.get(card.uuid, 0),
                mib=memory.get(card.uuid, 0),
            )
            for card in self._inventory.cards.values()
            if card.mig is None
        ]

    async def _publish(self, cards: Sequence[PublishedCard]) -> None:
        found = await self._own()
        generation = max((one.spec.pool.generation for one in found.values()), default=0)
        wanted = slices(self._node, self._node_uid(), cards, generation=generation)
        if {one.name: _comparable(one) for one in wanted} == {name: _comparable(one) for name, one in found.items()}:
            return
        wanted = slices(self._node, self._node_uid(), cards, generation=generation + 1)
        kept = [await self._write(one, found.get(one.name)) for one in wanted]
        if not all(map(_keeps_price, wanted, kept)):
            await self.withdraw()
            self._untainted_at = time.monotonic()
            raise NotSupported(WITHOUT_TAINTS)
        await self._delete(found[name] for name in found.keys() - {one.name for one in wanted})
        log.info("slices published", slices=len(wanted), cards=len(cards), generation=generation + 1)

    async def _write(self, wanted: ResourceSlice, found: ResourceSlice | None) -> ResourceSlice:
        """Write a slice, and return it as the API server keeps it."""
        if found is None:
            try:
                return await self._client.create(ResourceSlice, wanted)
            except AlreadyExists:
                found = await self._client.get(ResourceSlice, wanted.name)
        patch = {"spec": replacing(found.spec, wanted.spec)}
        return await self._client.patch(ResourceSlice, wanted.name, patch)

    async def withdraw(self) -> None:
        """Delete the node's slices. Raises the API server's errors."""
        self._written = None
        await self._delete((await self._own()).values())

    async def _delete(self, those: Iterable[ResourceSlice]) -> None:
        for one in those:
            await self._client.delete(ResourceSlice, one.name, uid=one.uid)

    async def _own(self) -> dict[str, ResourceSlice]:
        found = await self._client.list(ResourceSlice, fields=f"spec.nodeName={self._node}")
        return {one.name: one for one in found if (one.spec.driver, one.spec.node_name) == (names.DRIVER, self._node)}


def _published(card: CardReading, version: str, *, cordoned: bool, priced: bool, core: int, mib: int) -> PublishedCard:
    return PublishedCard(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        memory_mib=card.memory_mib,
        compute_capability=card.compute_capability,
        tflops=card.tflops,
        numa=card.numa,
        pcie_root=pcie_root(card.bus_id) if card.bus_id else "",
        driver_version=version,
        links=dict(card.links),
        sick="" if card.healthy else card.reason or "unhealthy",
        cordoned=cordoned,
        priced=priced,
        used_core=core,
        used_mib=mib,
    )


def _keeps_price(wanted: ResourceSlice, kept: ResourceSlice) -> bool:
    """Return whether the API server kept the taint of priced cards."""
    priced = {device.name for device in wanted.spec.devices or () if PRICED in (device.taints or ())}
    return all(
        any(taint.key == PRICED.key for taint in device.taints or ())
        for device in kept.spec.devices or ()
        if device.name in priced
    )


def _comparable(one: ResourceSlice) -> object:
    """Return what must be equal; the API server adds times to taints."""
    return one.spec.pool, [_without_times(device) for device in one.spec.devices or ()]


def _without_times(device: Device) -> Device:
    return replace(device, taints=[replace(taint, time_added=None) for taint in device.taints or ()])
