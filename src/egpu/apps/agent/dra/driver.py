"""Prepares and removes the slots of ResourceClaims, as kubelet asks.

kubelet asks to prepare a claim before the first container that uses it starts, and again after its own restart, maybe
while programs run. So a slot that was prepared since the boot, for the same claim and the same amounts, stays as it is.
The slot directory is written before the CDI file: whatever is missing after a kill is made by the next call.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog

from egpu.api import names
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.dra.claims import Claims
from egpu.apps.agent.dra.specs import ClaimSpecs
from egpu.apps.agent.slots.directories import HeldClaim, SlotRecord, Slots
from egpu.apps.agent.slots.former import FormerUsers
from egpu.apps.agent.slots.leftovers import Leftovers
from egpu.apps.agent.slots.owners import Owner
from egpu.apps.agent.slots.preparer import Preparer
from egpu.core.dra.devices import device_name
from egpu.core.dra.grants import Grant, NodeCard, containers_with, grants, main_request, ours
from egpu.core.dra.held import bypasses
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, ElasticGPUError, TerminalError, Unavailable
from egpu_base.kubelet.dra import ClaimName, PreparedDevice
from egpu_base.system.processes import boot_id

log = structlog.get_logger(__name__)

_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


class ClaimDriver:
    """The driver. Implements `egpu_base.kubelet.dra.Driver`. `slot_lock`: the lock of a slot that is being changed.
    `priced`: whether the extender chooses the cards of claims."""

    def __init__(
        self,
        node: str,
        claims: Claims,
        *,
        inventory: Inventory,
        slots: Slots,
        preparer: Preparer,
        specs: ClaimSpecs,
        former: FormerUsers,
        slot_lock: Callable[[str], asyncio.Lock],
        priced: Callable[[], bool] = lambda: False,
        sweep_seconds: float = 15.0,
    ) -> None:
        self._node = node
        self._claims = claims
        self._inventory = inventory
        self._slots = slots
        self._preparer = preparer
        self._specs = specs
        self._former = former
        self._slot_lock = slot_lock
        self._priced = priced
        self._sweep_seconds = sweep_seconds
        self._boot_id = boot_id()

    def open(self) -> None:
        """Create the folder of CDI files. Raises NotSupported."""
        self._specs.open()

    async def prepare(self, claim: ClaimName) -> Sequence[PreparedDevice]:
        """Prepare a slot for each request of a claim. Raises TerminalError, and RetryableError."""
        try:
            return await self._prepare(claim)
        except ElasticGPUError as error:
            log.warning("claim not prepared", claim=f"{claim.namespace}/{claim.name}", reason=str(error))
            raise

    async def _prepare(self, claim: ClaimName) -> Sequence[PreparedDevice]:
        _prefix(claim.uid)
        found = await self._claims.read(claim)
        if self._priced() and any(map(bypasses, ours(found, self._node))):
            raise TerminalError(
                f"claim {found.key}: kube-scheduler gave it a card, because it tolerates the taint "
                f"{names.PRICED_TAINT}. The extender gives out the cards of this node, and may have given this one to "
                "others; remove the toleration, and make the claim anew"
            )
        wanted = grants(found, self._node, await self._cards())
        pod = await self._claims.pod(found)
        users = {grant.request: containers_with(pod, found.name, grant.request) for grant in wanted}
        self._one_slot_each(found, pod, users)
        devices: list[PreparedDevice] = []
        for grant in wanted:
            slot_id = slot_of(claim.uid, grant.request)
            held = HeldClaim(name=claim.name, uid=claim.uid, request=main_request(grant.request))
            owner = Owner(pod, ",".join(users[grant.request]), grant.allocation, held)
            async with self._slot_lock(slot_id):
                await self._slot(slot_id, owner)
            devices += self._devices(slot_id, grant)
        await self._claims.report(found, wanted)
        return devices

    async def _cards(self) -> dict[str, NodeCard]:
        if not self._inventory.version:
            raise Unavailable("the node's cards have not been read yet")
        return {
            device_name(card.uuid): NodeCard(card.uuid, card.index, card.minor, card.memory_mib, card.model)
            for card in self._inventory.cards.values()
            if card.mig is None
        }

    def _one_slot_each(self, claim: ResourceClaim, pod: Pod, users: Mapping[str, Iterable[str]]) -> None:
        """Raise TerminalError for a container with two slots: their files would have the same places in it."""
        known = {
            name: f"claim {record.resource_claim.name}"
            for record in self._slots.records()
            if record.resource_claim is not None
            and record.resource_claim.uid != claim.uid
            and record.pod_uid == pod.uid
            for name in record.container.split(",")
            if name
        }
        for request, containers in users.items():
            for name in containers:
                if name in known:
                    raise TerminalError(
                        f"pod {pod.key}, container {name}: it gets request {request} of claim {claim.name} and "
                        f"{known[name]}, and a container can have one slice; ask for several cards with `count` of "
                        "one request, or name one request in each container's resources.claims"
                    )
                known[name] = f"request {request}"

    async def _slot(self, slot_id: str, owner: Owner) -> None:
        """Prepare one slot, or leave it as it is."""
        record = self._record(slot_id)
        if record is None or not self._still(record, owner):
            self._specs.remove(slot_id)
            await self._preparer.prepare(slot_id, owner)
        elif not self._specs.written(slot_id):
            await asyncio.to_thread(self._preparer.describe, record, owner)

    def _still(self, record: SlotRecord, owner: Owner) -> bool:
        """Return whether a slot is as `prepare` would make it. The numbers of cards may change at a boot only."""
        same = (record.resource_claim, record.boot_id) == (owner.resource_claim, self._boot_id)
        return same and record.allocation == owner.allocation

    def _record(self, slot_id: str) -> SlotRecord | None:
        try:
            return self._slots.record(slot_id)
        except CorruptData as error:
            log.warning("slot with an unreadable record is made anew", slot_id=slot_id, reason=str(error))
            return None

    def _devices(self, slot_id: str, grant: Grant) -> list[PreparedDevice]:
        """Return the devices of a request. The first one names the slot, which has all of them."""
        names = (self._specs.device_name(slot_id),)
        return [
            PreparedDevice(
                (main_request(one.request),), one.pool, one.device, names if number == 0 else (), one.share_id
            )
            for number, one in enumerate(grant.devices)
        ]

    async def unprepare(self, claim: ClaimName) -> None:
        """Remove every slot of a claim. Raises TerminalError, OSError."""
        await self._remove(claim.uid)

    async def _remove(self, uid: str) -> None:
        prefix = _prefix(uid)
        here = {each for each in (*self._slots.ids(), *self._specs.ids()) if each.startswith(prefix)}
        for slot_id in sorted(here):
            async with self._slot_lock(slot_id):
                # The file first: while there is a slot, the next call finds what is left.
                self._specs.remove(slot_id)
                await asyncio.to_thread(self._slots.remove, slot_id)
            log.info("slot of a claim removed", slot_id=slot_id)

    # --- claims that kubelet forgot -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Remove slots whose claim is gone, forever."""
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await self.sweep()
            except (ElasticGPUError, OSError) as error:
                log.info("slots of claims not swept", reason=str(error))

    async def sweep(self) -> None:
        """Remove slots whose claim has no cards any more, with the processes of its pods: the cards may have new users.

        Raises Unavailable."""
        for record in list(self._slots.records()):
            if record.resource_claim is None or await self._claims.holds(record):
                continue
            slot, policy = self._slots.path(record.slot_id), self._slots.policy_file(record.slot_id)
            left = [Leftovers(uid, slot=slot, policy=policy) for uid in sorted(await self._claims.left(record))]
            for one, killed in (await asyncio.to_thread(self._former.end, left)).items():
                log.warning("processes of a claim that is gone ended", claim=record.resource_claim.name,
                            namespace=record.namespace, pod=one.pod_uid, pids=killed)  # fmt: skip
            await self._remove(record.resource_claim.uid)


def slot_of(uid: str, request: str) -> str:
    """Return the id of the slot of a claim's request."""
    return f"{_prefix(uid)}{main_request(request)}"


def _prefix(uid: str) -> str:
    if not _UID.fullmatch(uid):
        raise TerminalError(f"{uid!r} is not the UID of a claim")
    return f"{uid}."
