"""The model of a cluster view. Compute is in percent of a card; allocated memory is in MiB, used memory in bytes.
Unpublished usage is None."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Final, NamedTuple

from egpu.api.allocation import Qos, Work
from egpu.core.placement.cards import Card
from egpu.core.placement.ledger import Holder
from egpu.core.view.pending import PendingPod
from egpu.core.view.slice_usage import SliceUsage
from egpu_base.api.quantities import MIB_BYTES

WHOLE: Final = 100
"""Percent of a card."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
FAR_BELOW: Final = 0.25
"""A slice that uses less than this part of its share is wasted …"""
SETTLED_SECONDS: Final = 60.0
"""… after this time to start."""


class User(NamedTuple):
    """A container that uses a slice."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceView:
    """A share of one card. A pod's container has its own; a claim's exists by itself, and `users` are its present
    users. `node` has the card, `pod_node` runs the program: two nodes if the slice is of the pool. `init`: of an init
    container, whose share later containers may have. `labels` are its pod's, or its claim's."""

    holder: Holder
    namespace: str
    name: str
    """The name of the pod, the claim or, for a retained slice, its ElasticGPU."""
    container: str
    """The container of a pod; "" otherwise."""
    claim: str
    """The claim of the slice; "" for a container's own."""
    users: tuple[User, ...]
    node: str
    pod_node: str
    uuid: str
    index: int
    card_memory_mib: int
    provisioner: str
    exclusive: bool
    core_percent: int
    core_limit_percent: int
    qos: Qos
    work: Work
    memory_mib: int
    init: bool = False
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    used: SliceUsage | None = None
    made: str | None = None
    """The creation time of its pod or claim (RFC 3339); None for a retained slice."""

    @property
    def pooled(self) -> bool:
        """True if its card is on another node than its program."""
        return self.node != self.pod_node

    @property
    def share(self) -> float:
        """The part of a card that no other can have, 0 to 1: the larger part of compute and memory."""
        if self.exclusive:
            return 1.0
        memory = self.memory_mib / self.card_memory_mib if self.card_memory_mib else 0.0
        return min(1.0, max(self.core_percent / WHOLE, memory))

    @property
    def wasted(self) -> bool:
        """True if it uses far less than its share, of compute and of memory, after some time."""
        if self.used is None or self.used.age_seconds < SETTLED_SECONDS:
            return False
        parts = [self.used.memory_bytes / (self.memory_mib * MIB_BYTES)] if self.memory_mib else []
        if self.exclusive or self.core_percent:
            parts.append(WHOLE * self.used.core_ratio / (WHOLE if self.exclusive else self.core_percent))
        return max(parts, default=0.0) < FAR_BELOW


@dataclass(frozen=True, kw_only=True, slots=True)
class CardView:
    """A card and its holders. `core_given` and `memory_given_mib` are what no other can have: all of it if it is
    allocated whole or reserved for a waiting pod, more than the card has if it is `overcommitted` (in words)."""

    node: str
    card: Card
    mode: str
    """ "" for a free card, "exclusive", "conflict", or the provisioner that shares it."""
    core_given: int
    memory_given_mib: int
    slices: tuple[SliceView, ...] = ()
    reserved_for: tuple[str, ...] = ()
    """Waiting pods (`namespace/name`) for which a part is reserved."""
    overcommitted: str = ""

    @property
    def core_used_ratio(self) -> float | None:
        """The sum over its slices; None if usage is unknown."""
        used = [one.used.core_ratio for one in self.slices if one.used is not None]
        return sum(used) if used else None

    @property
    def memory_used_bytes(self) -> int | None:
        """The sum over its slices; None if usage is unknown."""
        used = [one.used.memory_bytes for one in self.slices if one.used is not None]
        return sum(used) if used else None

    @property
    def idle_seconds(self) -> float | None:
        """Seconds since the last request of its slices; None for a free card, or if usage is unknown."""
        return min((one.used.idle_seconds for one in self.slices if one.used is not None), default=None)


class Totals(NamedTuple):
    """Sums over cards. Stranded is what is free of one resource on cards that have nothing left of the other."""

    cards: int = 0
    free_cards: int = 0
    unhealthy_cards: int = 0
    overcommitted_cards: int = 0
    core_percent: int = 0
    core_given: int = 0
    core_free: int = 0
    """On cards that take new work."""
    core_free_whole: int = 0
    """The part of it on completely free cards."""
    memory_mib: int = 0
    memory_given_mib: int = 0
    memory_free_mib: int = 0
    stranded_core: int = 0
    stranded_memory_mib: int = 0
    told: int = 0
    """Slices with published usage, which alone count in the figures of use."""
    core_used_ratio: float = 0.0
    memory_used_bytes: int = 0
    wasted: int = 0
    """Slices that use far less than their share."""

    @property
    def fragmentation(self) -> float:
        """The part of the free compute that is not on wholly free cards: 0 to 1, and 0 if nothing is free."""
        return 1 - self.core_free_whole / self.core_free if self.core_free else 0.0

    @classmethod
    def of(cls, card: CardView) -> "Totals":
        """Return the totals of one card."""
        core_left = max(0, WHOLE - card.core_given)
        memory_left = max(0, card.card.memory_mib - card.memory_given_mib)
        usable = card.card.healthy
        used = [one.used for one in card.slices if one.used is not None]
        return cls(
            cards=1,
            free_cards=int(usable and not card.mode),
            unhealthy_cards=int(not card.card.works),
            overcommitted_cards=int(bool(card.overcommitted)),
            core_percent=WHOLE,
            core_given=card.core_given,
            core_free=core_left if usable else 0,
            core_free_whole=core_left if usable and not card.mode else 0,
            memory_mib=card.card.memory_mib,
            memory_given_mib=card.memory_given_mib,
            memory_free_mib=memory_left if usable else 0,
            stranded_core=core_left if usable and not memory_left else 0,
            stranded_memory_mib=memory_left if usable and not core_left else 0,
            told=len(used),
            core_used_ratio=sum(one.core_ratio for one in used),
            memory_used_bytes=sum(one.memory_bytes for one in used),
            wasted=sum(one.wasted for one in card.slices) if used else 0,
        )

    @classmethod
    def sum(cls, parts: "Iterable[Totals]") -> "Totals":
        """Add these up."""
        columns = list(zip(*parts, strict=True))
        return cls(*map(sum, columns)) if columns else cls()


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node and its cards, sorted by index. `serving`: whether its cards serve the pool; None outside the pool."""

    name: str
    ready: bool
    unschedulable: bool
    cards: tuple[CardView, ...] = ()
    serving: bool | None = None

    @cached_property
    def totals(self) -> Totals:
        return Totals.sum(map(Totals.of, self.cards))

    def prepare(self) -> None:
        """Compute what pages need of every node, ahead of a request."""
        _ = self.totals, self.namespaces

    @property
    def card_count(self) -> int:
        return len(self.cards)

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """The namespaces with slices of its cards."""
        return frozenset(one.namespace for card in self.cards for one in card.slices if one.namespace)

    @cached_property
    def text(self) -> str:
        """The text that a search matches."""
        return searched(self.name, self.cards)


def searched(name: str, cards: Iterable[CardView]) -> str:
    """Return a node's search text in lower case, one entry per line: names of the node, its cards and their holders."""
    words = {name}
    for card in cards:
        words |= {card.card.model, card.card.uuid, card.mode}
        words |= {f"{one.namespace}/{one.name}" for one in card.slices if one.name}
    return "\n".join(sorted(words)).lower()


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """`nodes` are sorted by name, with or without cards; `pending` are the pods that ask for cards and have none, the
    longest waiting first. `problems` are problems of the objects, in sentences."""

    nodes: tuple[NodeView, ...] = ()
    pending: tuple[PendingPod, ...] = ()
    claims: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of claims in each phase."""
    problems: tuple[str, ...] = ()
    now: datetime = _EPOCH
    """The time of the view."""

    @cached_property
    def totals(self) -> Totals:
        return Totals.sum(node.totals for node in self.nodes)

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """The namespaces with slices, or with pods that wait."""
        waiting = {pod.namespace for pod in self.pending}
        return frozenset(waiting.union(*(node.namespaces for node in self.nodes)))

    def node(self, name: str) -> NodeView | None:
        """Return the node of that name."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, NodeView]:
        return {node.name: node for node in self.nodes}

    def cards(self) -> Iterator[CardView]:
        """Return the cards of all nodes."""
        return (card for node in self.nodes for card in node.cards)

    def slices(self) -> Iterator[SliceView]:
        """Return the slices of all present cards."""
        return (one for card in self.cards() for one in card.slices)
