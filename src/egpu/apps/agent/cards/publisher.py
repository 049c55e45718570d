"""Publishes what this node has: an ElasticGPU per card, and the node's capacity in every vocabulary.

The publisher writes when the cards change, or what pods hold of their requests, and every minute in any case: an object
may have been deleted, or the node registered again. Cards that an earlier run published and that are gone stay, as
unhealthy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from egpu.adapters.cards.nvml import CardReading
from egpu.api import names
from egpu.api.mig import InstancePlace, Mig
from egpu.api.objects import ElasticGPU, ElasticGPUSpec, ElasticGPUStatus, Link, PhysicalGPU, card_name
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.cards.mig_instances import Instances
from egpu.apps.agent.dra.allocator import Allocator
from egpu.apps.agent.standing import NodeStanding
from egpu.core.offered import has_slots
from egpu.core.placement.sums import asked_beyond_held
from egpu.core.provisioners.preparation import CardInstance
from egpu.core.thrashing import published
from egpu_base.api.kubernetes import Node, NodeSystemInfo, Pod
from egpu_base.api.objects import ObjectMeta, OwnerReference
from egpu_base.api.quantities import parse_count, quantity_or_zero
from egpu_base.api.wire import replacing
from egpu_base.errors import AlreadyExists, ElasticGPUError, InvalidInput
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.endless import EndlessTasks

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0
PRODUCT_LABEL = f"{names.GROUP}/gpu-product"
COUNT_LABEL = f"{names.GROUP}/gpu-count"
GONE = "NotFound"
UNHEALTHY = "Unhealthy"


@dataclass(frozen=True)
class PoolMember:
    """The node's entry in the pool. `slots`: how many slots it has, by its number of cards."""

    address: str
    link_mbps: int
    slots: Callable[[int], int]


class Publisher:
    """Publishes the cards. `published` is the inventory's version that was last published completely; 0 at first.

    `pool` is set before `run` if the node takes part in the pool. `learn` gets kubelet's versions from the Node
    object, and returns how slots reach containers. `vocabularies` are the optional ones that are enabled. `given`
    returns the MIG instances of this node's containers. `mps` returns READY if a card can have an MPS server, or why
    not. `pods` follows the node's pods, and another part runs it: the capacity grows by what they ask for and do not
    hold. `allocator` learns the Node's label, and says who may give out the cards. `standing` says whether another
    program gives them out, too: then nothing is published but what pods have. `parking_memory_mib`: for parked slices.
    `thrashing`: the UUIDs of cards whose busy slices wait for each other.
    `slots_first`: amounts wait until kubelet gives out slots, because kubelet would run a pod by amounts alone."""

    def __init__(
        self,
        client: Client,
        node: str,
        inventory: Inventory,
        *,
        events: EventRecorder,
        interval_seconds: float,
        learn: Callable[[NodeSystemInfo], str],
        vocabularies: Collection[str] = (),
        instances: Instances | None = None,
        given: Callable[[], Collection[CardInstance]] = frozenset,
        mps: Callable[[CardReading], str] = lambda _: "",
        slots_first: bool = False,
        pods: Reflector[Pod] | None = None,
        allocator: Allocator | None = None,
        standing: NodeStanding | None = None,
        parking_memory_mib: int = 0,
        thrashing: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._parking_memory_mib = parking_memory_mib
        self._thrashing = thrashing
        self._standing = standing
        self._instances = instances
        self._given = given
        self._mps = mps
        self._pods = pods
        self._changed = asyncio.Event() if allocator is None else allocator.changed
        if pods is not None:
            pods.on_change(self._pod_changed)
        self._allocator = allocator
        self.kept_off = False
        """Whether the published cards tell the extender to keep off."""
        self.cordoned: frozenset[str] = frozenset()
        """The UUIDs of cordoned cards, when last published."""
        self.holders: tuple[str, ...] = ()
        """The holders of cards in the extender's ledger, when last published."""
        self.pool: PoolMember | None = None
        self._client = client
        self._node = node
        self._inventory = inventory
        self._events = events
        self._interval_seconds = interval_seconds
        self._vocabularies = vocabularies
        self._learn = learn
        self._slots_first = slots_first
        self._withheld = False
        self.published = 0
        self.offered: frozenset[str] = frozenset()
        """The resource names that this node publishes."""
        self.before_offering: Callable[[frozenset[str]], None] = lambda _: None
        """Gets them before the API server does."""

    async def run(self) -> None:
        async with EndlessTasks() as group:
            group.start(self._announce())
            while True:
                self._changed.clear()
                pause = self._interval_seconds
                if self._inventory.version and (self._standing is None or self._standing.looked.is_set()):
                    pause = await self._publish_or_retry()
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _pod_changed(self, change: Change[Pod]) -> None:
        """Publish again if the pod holds another part of what it asked for."""
        before, now = ((one,) if one is not None else () for one in (change.old, change.new))
        if asked_beyond_held(before) != asked_beyond_held(now):
            self._changed.set()

    async def _announce(self) -> None:
        async for _ in self._inventory.changes():
            self._changed.set()

    async def _publish_or_retry(self) -> float:
        version = self._inventory.version
        try:
            await self.publish(tuple(self._inventory.cards.values()))
        except ElasticGPUError as error:
            log.info("cards not published yet", reason=str(error))
            return RETRY_SECONDS
        self.published = version
        return RETRY_SECONDS if self._withheld else self._interval_seconds

    async def publish(self, cards: tuple[CardReading, ...]) -> None:
        """Write everything once. Raises the API server's errors."""
        if self._pods is not None:
            await self._pods.synced.wait()  # without the pods the node would seem smaller than before a restart
        node = await self._client.get(Node, self._node)
        injection = self._learn(node.status.node_info)
        if self._allocator is not None:
            self._allocator.learn(node)
        keeps_off = self._allocator is not None and self._allocator.keeps_extender_off
        contested = self._standing is not None and self._standing.contested
        chosen = "" if self._allocator is None else self._allocator.of_cards
        allocator = names.OTHER_PLUGIN if contested and not keeps_off else chosen
        given = self._given() if any(card.mig is not None for card in cards) else ()
        objects = {card.uuid: await self._publish_card(card, node, given, allocator) for card in cards}
        found = {uuid: gpu for uuid, gpu in objects.items() if gpu is not None}
        held = {uuid: gpu for uuid, gpu in found.items() if any(map(quantity_or_zero, gpu.status.given.values()))}
        await self._disown({card.uuid for card in cards})
        await self._publish_node(cards, node, injection, held.keys())
        self.cordoned = frozenset(uuid for uuid, gpu in found.items() if gpu.spec.unschedulable)
        self.holders = tuple(gpu.status.held_by or f"card {gpu.name}" for gpu in held.values())
        self.kept_off = keeps_off

    async def _publish_card(
        self, card: CardReading, node: Node, given: Collection[CardInstance], allocator: str
    ) -> ElasticGPU | None:
        """Publish one card. Returns its object, as it was; None if there is none, or if another object has its name."""
        own = frozenset[InstancePlace]() if self._instances is None else self._instances.own(card.uuid)
        wanted = card_object(self._node, card, node.uid, own, given, mps=self._mps(card), allocator=allocator)
        found = await self._client.find(ElasticGPU, wanted.name)
        if found is None and allocator == names.OTHER_PLUGIN:
            return None
        if found is None:
            try:
                found = await self._client.create(ElasticGPU, wanted)
            except AlreadyExists:
                found = await self._client.get(ElasticGPU, wanted.name)
        there = found.spec.physical_gpu
        if there is None or (found.spec.node_name, there.uuid) != (self._node, card.uuid):
            log.error("the name of the card's object is used by another object", name=wanted.name, uuid=card.uuid)
            return None
        if (there, found.spec.capacity) != (wanted.spec.physical_gpu, wanted.spec.capacity):
            spec: dict[str, Any] = msgspec.to_builtins(wanted.spec)
            # A merge patch keeps fields that it does not name: so fields that are back at their default are named, at
            # any depth.
            spec["physicalGPU"] = replacing(there, wanted.spec.physical_gpu)
            await self._client.patch(ElasticGPU, wanted.name, {"spec": spec})
        await self._publish_status(found, card_status(found, card))
        return found

    async def _publish_status(self, found: ElasticGPU, status: ElasticGPUStatus) -> None:
        if (found.status.healthy is not False) != (status.healthy is not False):
            if status.healthy:
                await self._events.note(found, "Healthy", "the card takes new work again")
            else:
                await self._events.warn(found, status.reason, f"{status.message}: the card takes no new work")
        if found.status != status:
            # Only the agent's fields: the rest of the status belongs to the extender.
            complete = _complete(status)
            own_fields = {field: complete[field] for field in ("phase", "healthy", "reason", "message")}
            await self._client.patch(ElasticGPU, found.name, {"status": own_fields}, subresource="status")

    async def _disown(self, present: set[str]) -> None:
        """Mark cards of this node as unhealthy that an earlier run published and the driver no longer finds."""
        for found in await self._client.list(ElasticGPU):
            physical = found.spec.physical_gpu
            if physical is None or found.spec.node_name != self._node or physical.uuid in present:
                continue
            message = "the node's driver does not find this card"
            gone = replace(found.status, phase="Failed", healthy=False, reason=GONE, message=message)
            await self._publish_status(found, gone)

    async def _publish_node(
        self, cards: tuple[CardReading, ...], node: Node, injection: str, in_use: Collection[str]
    ) -> None:
        pool_slots = self.pool.slots(len(cards)) if self.pool is not None else 0
        beyond = asked_beyond_held(self._pods or ())
        capacity = node_capacity(cards, pool_slots, self._vocabularies, beyond, self._mps)
        # The scheduler also subtracts what pods have on an unhealthy card. Without that card in the sum the node
        # would seem full, although its other cards are free. The extender knows what is on which card.
        counted = [card for card in cards if card.healthy or card.uuid in in_use]
        allocatable = node_capacity(counted, pool_slots, self._vocabularies, beyond, self._mps)
        # Removes what was published while the card was in MIG mode; a merge patch keeps fields that it does not name.
        gone = {name: "0" for name in node.status.capacity or () if name.startswith(names.MIG_PREFIX)}
        capacity, allocatable = gone | capacity, gone | allocatable
        by_claims = self._allocator is not None and self._allocator.in_force == names.DRA
        contested = self._standing is not None and self._standing.contested
        self._withheld = not (by_claims or contested or has_slots(node.status.allocatable)) and self._slots_first
        if by_claims:
            there = node.status.capacity or {}
            capacity = allocatable = {name: "0" for name in capacity if name in there}
        if self._standing is not None:
            capacity, allocatable = (self._standing.limited(one, node) for one in (capacity, allocatable))
        self.offered = frozenset(capacity)
        self.before_offering(self.offered)
        labels = node_labels(cards) if not contested else {}
        parking = str(self._parking_memory_mib) if self._parking_memory_mib else None
        annotations = {**pool_annotations(self.pool), names.INJECTION: injection, names.PARKING_MEMORY: parking}
        annotations[names.THRASHING_CARDS] = published(card.uuid for card in cards if card.uuid in self._thrashing())
        said = {key: node.annotations.get(key) for key in annotations}
        patch: dict[str, Any] = {}
        new = not _within(capacity, node.status.capacity) or not _within(allocatable, node.status.allocatable)
        if new and not self._withheld:
            patch["status"] = {"capacity": capacity, "allocatable": allocatable}
        if not _within(labels, node.metadata.labels) or said != annotations:
            patch["metadata"] = {"labels": labels, "annotations": annotations}
        if patch:
            # Everything goes through the status, which cannot change a node's taints: no other permission is needed.
            await self._client.patch(Node, self._node, patch, subresource="status")


def card_object(
    node: str,
    card: CardReading,
    node_uid: str,
    own: Collection[InstancePlace] = frozenset(),
    given: Collection[CardInstance] = frozenset(),
    *,
    mps: str = "",
    allocator: str = "",
) -> ElasticGPU:
    """Return the object of one card, owned by its node.

    `own`: the agent's MIG instances on it. `given`: those of the node's containers, on any card. `mps`, `allocator`:
    as in PhysicalGPU."""
    owner = OwnerReference(api_version="v1", kind="Node", name=node, uid=node_uid)
    tflops = {} if card.tflops is None else {"fp32": card.tflops}
    return ElasticGPU(
        metadata=ObjectMeta(name=card_name(node, card.uuid), owner_references=[owner] if node_uid else None),
        spec=ElasticGPUSpec(
            node_name=node,
            capacity={names.GPU_CORE: "100", names.GPU_MEMORY: str(card.memory_mib)},
            physical_gpu=PhysicalGPU(
                uuid=card.uuid,
                index=card.index,
                minor=card.minor,
                model=card.model,
                memory_mib=card.memory_mib,
                compute_capability=card.compute_capability,
                tflops=tflops,
                numa=-1 if card.numa is None else card.numa,
                memory_isolation=card.memory_isolation,
                links=[Link(uuid=uuid, kind=kind) for uuid, kind in card.links],
                mps=mps,
                allocator=allocator,
                mig=_mig(card, own, {one.place for one in given if one.uuid == card.uuid}),
            ),
        ),
    )


def _mig(card: CardReading, own: Collection[InstancePlace], given: Collection[InstancePlace]) -> Mig | None:
    """Return the card's MIG state. The agent's own half-made instances are left out: they are whole or gone in a
    moment. It does not say which instances programs use: the scheduler knows who has them."""
    if card.mig is None:
        return None
    found = card.mig.instances
    return Mig(
        profiles=list(card.mig.profiles),
        own=[one.place for one in found if one.place in own and one.whole],
        others=[one.published for one in found if one.place not in own],
        used=[one.published for one in found if one.in_use and one.place not in given],
    )


def card_status(found: ElasticGPU, card: CardReading) -> ElasticGPUStatus:
    """Return health and the matching phase. The extender says whether the card is in use."""
    if not card.healthy:
        return replace(found.status, phase="Failed", healthy=False, reason=UNHEALTHY, message=card.reason)
    phase = found.status.phase if found.status.phase == "Bound" else "Available"
    return replace(found.status, phase=phase, healthy=True, reason="", message="")


def node_labels(cards: tuple[CardReading, ...]) -> dict[str, str]:
    """Return labels for node selectors: the model (the first card's if they differ) and the number of cards."""
    product = re.sub(r"[^A-Za-z0-9_.-]+", "-", cards[0].model)[:63].strip("-_.") if cards else ""
    return {PRODUCT_LABEL: product, COUNT_LABEL: str(len(cards))}


def pool_annotations(pool: PoolMember | None) -> dict[str, str | None]:
    """Return a merge patch. A node that left the pool removes its annotations."""
    address, link = (pool.address, str(pool.link_mbps)) if pool is not None else (None, None)
    return {names.POOL_ADDRESS: address, names.POOL_LINK: link}


def _within(wanted: Mapping[str, str], found: Mapping[str, Any] | None) -> bool:
    """Return whether `found` has everything of `wanted`; the API server may write 2000 as "2k"."""
    return found is not None and all(_same(value, found.get(key)) for key, value in wanted.items())


def _same(wanted: str, found: Any) -> bool:
    if found is None or str(found) == wanted:
        return found is not None
    try:
        return parse_count(found, field="") == parse_count(wanted, field="")
    except InvalidInput:
        return False


def _complete(value: msgspec.Struct | None) -> dict[str, Any]:
    """Return every field, including those with default values."""
    if value is None:
        return {}
    encoded = {field.name: field.encode_name for field in msgspec.structs.fields(value)}
    return {wire: msgspec.to_builtins(getattr(value, name)) for name, wire in encoded.items()}
