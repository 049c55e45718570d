"""Tells the cluster what this node has: an ElasticGPU per card, and the node's capacity under every vocabulary.

Written when the cards change and again every minute, whatever we believe is there: somebody may have deleted an
object, or registered the node anew. Cards that were published by an earlier run and are gone stay, as unhealthy.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from egpu.adapters.kubernetes import Client
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.adapters.nvml import CardReading
from egpu.api import names
from egpu.api.kubernetes import Node, NodeSystemInfo
from egpu.api.mig import InstancePlace, Mig
from egpu.api.objects import (
    ElasticGPU,
    ElasticGPUSpec,
    ElasticGPUStatus,
    Link,
    ObjectMeta,
    OwnerReference,
    PhysicalGPU,
    card_name,
)
from egpu.api.quantities import parse_count, quantity_or_zero
from egpu.api.wire import replacing
from egpu.apps.agent.cards.instances import Instances
from egpu.apps.agent.cards.inventory import Inventory
from egpu.core.provisioners import PROVISIONERS, NodeTotals
from egpu.core.provisioners.preparation import CardInstance
from egpu.errors import AlreadyExists, ElasticGPUError, InvalidInput

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0
PRODUCT_LABEL = f"{names.GROUP}/gpu-product"
COUNT_LABEL = f"{names.GROUP}/gpu-count"
GONE = "NotFound"
UNHEALTHY = "Unhealthy"


@dataclass(frozen=True)
class PoolMember:
    """What the cluster is told of a node of the pool. `slots`: how many it has, by its number of cards."""

    address: str
    link_mbps: int
    slots: Callable[[int], int]


class Publisher:
    """`published` is the version of the inventory that the cluster was last told completely; 0 at first. `pool` is set
    before it runs where the node takes part in the pool. `learn` is told what kubelet says of the node, and answers how
    slots reach containers there; `vocabularies` are the optional ones that are turned on; `given` are the instances of
    MIG that this node's containers have; `mps` says of a card whether it can have an MPS server."""

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
    ) -> None:
        self._instances = instances
        self._given = given
        self._mps = mps
        self.pool: PoolMember | None = None
        self._client = client
        self._node = node
        self._inventory = inventory
        self._events = events
        self._interval_seconds = interval_seconds
        self._vocabularies = vocabularies
        self._learn = learn
        self.published = 0

    async def run(self) -> None:
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._announce(changed))
            while True:
                changed.clear()
                pause = self._interval_seconds
                if self._inventory.version:
                    pause = await self._publish_or_retry()
                try:
                    async with asyncio.timeout(pause):
                        await changed.wait()
                except TimeoutError:
                    continue

    async def _announce(self, changed: asyncio.Event) -> None:
        async for _ in self._inventory.changes():
            changed.set()

    async def _publish_or_retry(self) -> float:
        version = self._inventory.version
        try:
            await self.publish(tuple(self._inventory.cards.values()))
        except ElasticGPUError as error:
            log.info("the cards are not published yet", reason=str(error))
            return RETRY_SECONDS
        self.published = version
        return self._interval_seconds

    async def publish(self, cards: tuple[CardReading, ...]) -> None:
        """Write everything once. Raises whatever the API server refuses."""
        node = await self._client.get(Node, self._node)
        injection = self._learn(node.status.node_info)
        given = self._given() if any(card.mig is not None for card in cards) else ()
        in_use = {card.uuid for card in cards if await self._publish_card(card, node, given)}
        await self._disown({card.uuid for card in cards})
        await self._publish_node(cards, node, injection, in_use)

    async def _publish_card(self, card: CardReading, node: Node, given: Collection[CardInstance]) -> bool:
        """Whether anything of it is given out."""
        own = frozenset[InstancePlace]() if self._instances is None else self._instances.own(card.uuid)
        wanted = card_object(self._node, card, node.uid, own, given, mps=self._mps(card))
        found = await self._client.find(ElasticGPU, wanted.name)
        if found is None:
            try:
                found = await self._client.create(ElasticGPU, wanted)
            except AlreadyExists:
                found = await self._client.get(ElasticGPU, wanted.name)
        there = found.spec.physical_gpu
        if there is None or (found.spec.node_name, there.uuid) != (self._node, card.uuid):
            log.error("the name of a card's object is taken by something else", name=wanted.name, uuid=card.uuid)
            return False
        if (there, found.spec.capacity) != (wanted.spec.physical_gpu, wanted.spec.capacity):
            spec: dict[str, Any] = msgspec.to_builtins(wanted.spec)
            # A merge patch keeps what it does not name: what was there and is at its default now, at any depth.
            spec["physicalGPU"] = replacing(there, wanted.spec.physical_gpu)
            await self._client.patch(ElasticGPU, wanted.name, {"spec": spec})
        await self._publish_status(found, card_status(found, card))
        return any(quantity_or_zero(amount) for amount in found.status.given.values())

    async def _publish_status(self, found: ElasticGPU, status: ElasticGPUStatus) -> None:
        if (found.status.healthy is not False) != (status.healthy is not False):
            if status.healthy:
                await self._events.note(found, "Healthy", "the card takes new work again")
            else:
                await self._events.warn(found, status.reason, f"{status.message}: the card takes no new work")
        if found.status != status:
            # Our own fields alone: the rest of the status is the extender's.
            complete = _complete(status)
            told = {field: complete[field] for field in ("phase", "healthy", "reason", "message")}
            await self._client.patch(ElasticGPU, found.name, {"status": told}, subresource="status")

    async def _disown(self, present: set[str]) -> None:
        """Cards of this node that an earlier run published and nobody finds now."""
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
        capacity = node_capacity(cards, pool_slots, self._vocabularies)
        # The scheduler takes off what pods on a sick card have, too: without that card in the sum the node would seem
        # to be full, although its other cards are free. What is on which card, the extender knows.
        counted = [card for card in cards if card.healthy or card.uuid in in_use]
        allocatable = node_capacity(counted, pool_slots, self._vocabularies)
        # What was published of a card that has left MIG mode; a merge patch keeps what it does not name.
        gone = {name: "0" for name in node.status.capacity or () if name.startswith(names.MIG_PREFIX)}
        capacity, allocatable = gone | capacity, gone | allocatable
        labels = node_labels(cards)
        annotations = {**pool_annotations(self.pool), names.INJECTION: injection}
        said = {key: node.annotations.get(key) for key in annotations}
        patch: dict[str, Any] = {}
        if not _within(capacity, node.status.capacity) or not _within(allocatable, node.status.allocatable):
            patch["status"] = {"capacity": capacity, "allocatable": allocatable}
        if not _within(labels, node.metadata.labels) or said != annotations:
            patch["metadata"] = {"labels": labels, "annotations": annotations}
        if patch:
            # All of it through the status, from which nobody can change a node's taints: no other right is needed.
            await self._client.patch(Node, self._node, patch, subresource="status")


def card_object(
    node: str,
    card: CardReading,
    node_uid: str,
    own: Collection[InstancePlace] = frozenset(),
    given: Collection[CardInstance] = frozenset(),
    *,
    mps: str = "",
) -> ElasticGPU:
    """The object of one card. It goes with its node. `own`: which instances of MIG on it are the agent's; `given`:
    which, of any card, the node's containers have; `mps`: as of PhysicalGPU."""
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
                mig=_mig(card, own, {one.place for one in given if one.uuid == card.uuid}),
            ),
        ),
    )


def _mig(card: CardReading, own: Collection[InstancePlace], given: Collection[InstancePlace]) -> Mig | None:
    """What is half made of the agent's own is left out: it is whole or gone in a moment. Whether a container's program
    runs on what it was given is not told: the scheduler knows who has it."""
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
    """Health, and the phase that goes with it; whether the card is in use is not ours to say."""
    if not card.healthy:
        return replace(found.status, phase="Failed", healthy=False, reason=UNHEALTHY, message=card.reason)
    phase = found.status.phase if found.status.phase == "Bound" else "Available"
    return replace(found.status, phase=phase, healthy=True, reason="", message="")


def node_labels(cards: tuple[CardReading, ...]) -> dict[str, str]:
    """Labels for node selectors: the product (the first card's where they differ) and the number of cards."""
    product = re.sub(r"[^A-Za-z0-9_.-]+", "-", cards[0].model)[:63].strip("-_.") if cards else ""
    return {PRODUCT_LABEL: product, COUNT_LABEL: str(len(cards))}


def pool_annotations(pool: PoolMember | None) -> dict[str, str | None]:
    """As a merge patch: a node that takes part no more says nothing."""
    address, link = (pool.address, str(pool.link_mbps)) if pool is not None else (None, None)
    return {names.POOL_ADDRESS: address, names.POOL_LINK: link}


def node_capacity(cards: Sequence[CardReading], pool_slots: int, vocabularies: Collection[str] = ()) -> dict[str, str]:
    """What a node of these cards publishes, for every technology; of what two publish, the more. `pool_slots` and
    `vocabularies` as in NodeTotals."""
    whole, cut = [card for card in cards if card.mig is None], [card for card in cards if card.mig is not None]
    memory_mib, tflops = sum(card.memory_mib for card in whole), sum(card.tflops or 0.0 for card in whole)
    instances = Counter[str]()
    for card in cut:
        instances.update({one.name: one.most for one in (card.mig.profiles if card.mig is not None else ())})
    node = NodeTotals(
        cards=len(whole),
        memory_mib=memory_mib,
        tflops=tflops,
        pool_slots=pool_slots,
        vocabularies=vocabularies,
        cut_cards=len(cut),
        cut_memory_mib=sum(card.memory_mib for card in cut),
        instances=instances,
    )
    published: dict[str, int] = {}
    for technology in PROVISIONERS.values():
        for name, amount in technology.capacity(node).items():
            published[name] = max(amount, published.get(name, 0))
    return {name: str(amount) for name, amount in published.items()}


def _within(wanted: Mapping[str, str], found: Mapping[str, Any] | None) -> bool:
    """Whether `found` says all of `wanted`; the API server may write 2000 as "2k"."""
    return found is not None and all(_same(value, found.get(key)) for key, value in wanted.items())


def _same(wanted: str, found: Any) -> bool:
    if found is None or str(found) == wanted:
        return found is not None
    try:
        return parse_count(found, field="") == parse_count(wanted, field="")
    except InvalidInput:
        return False


def _complete(value: msgspec.Struct | None) -> dict[str, Any]:
    """Every field, those with their default included."""
    if value is None:
        return {}
    encoded = {field.name: field.encode_name for field in msgspec.structs.fields(value)}
    return {wire: msgspec.to_builtins(getattr(value, name)) for name, wire in encoded.items()}
