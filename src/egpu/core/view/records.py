"""What is shown of a cluster. Compute is in percent of a card, memory in MiB where it is given and in bytes where it is
used; what nobody has published the use of is None."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from egpu.core.placement.cards import Card
from egpu.core.placement.ledger import Holder
from egpu.core.view.pending import PendingPod
from egpu.core.view.usage import SliceUsage

WHOLE: Final = 100
"""Percent of a card."""


class User(NamedTuple):
    """A container that uses a slice."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceView:
    """A share of one card. A pod's container has one of its own; a claim's is there without anybody, and `users` are
    those who use it now. `node` has the card, `pod_node` runs the program: two nodes where the slice is of the pool.
    `init`: of an init container, which runs before the others and may have what they have after it. `labels` are its
    pod's, or its claim's."""

    holder: Holder
    namespace: str
    name: str
    """Of the pod, the claim or, for a retained slice, its ElasticGPU."""
    container: str
    """Of a pod; "" otherwise."""
    claim: str
    """The claim that it is of; "" for a container's own."""
    users: tuple[User, ...]
    node: str
    pod_node: str
    uuid: str
    index: int
    card_memory_mib: int
    provisioner: str
    exclusive: bool
    core_percent: int
    memory_mib: int
    init: bool = False
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    used: SliceUsage | None = None
    made_seconds: float = 0.0
    """Since its pod or its claim was made; 0 for a retained slice."""

    @property
    def pooled(self) -> bool:
        """Whether its card is another node's than its program."""
        return self.node != self.pod_node

    @property
    def share(self) -> float:
        """How much of a card nobody else can have, 0 to 1: the larger part of compute and memory."""
        if self.exclusive:
            return 1.0
        memory = self.memory_mib / self.card_memory_mib if self.card_memory_mib else 0.0
        return min(1.0, max(self.core_percent / WHOLE, memory))


@dataclass(frozen=True, kw_only=True, slots=True)
class CardView:
    """A card and whoever holds some of it. `core_given` and `memory_given_mib` are what nobody else can have: all of it
    when it was given out whole or kept for a waiting pod, more than there is when it is `overcommitted` (in words)."""

    node: str
    card: Card
    mode: str
    """ "" for a free card, "exclusive", "conflict", or the provisioner that shares it."""
    core_given: int
    memory_given_mib: int
    slices: tuple[SliceView, ...] = ()
    reserved_for: tuple[str, ...] = ()
    """Pods (`namespace/name`) that wait, and for which some of it is kept."""
    overcommitted: str = ""

    @property
    def core_used_ratio(self) -> float | None:
        """The sum over its slices; None where nobody says."""
        used = [one.used.core_ratio for one in self.slices if one.used is not None]
        return sum(used) if used else None

    @property
    def memory_used_bytes(self) -> int | None:
        """Likewise."""
        used = [one.used.memory_bytes for one in self.slices if one.used is not None]
        return sum(used) if used else None

    @property
    def idle_seconds(self) -> float | None:
        """Since the last of its slices asked it for anything; None for a free card, or where nobody says."""
        return min((one.used.idle_seconds for one in self.slices if one.used is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Of some cards. Stranded is what is free of one kind on cards of which nothing is left of the other."""

    cards: int = 0
    free_cards: int = 0
    unhealthy_cards: int = 0
    overcommitted_cards: int = 0
    core_percent: int = 0
    core_given: int = 0
    core_free: int = 0
    """Of cards that take new work."""
    core_free_whole: int = 0
    """Of these, on cards that nobody has any of."""
    memory_mib: int = 0
    memory_given_mib: int = 0
    memory_free_mib: int = 0
    stranded_core: int = 0
    stranded_memory_mib: int = 0

    @property
    def fragmentation(self) -> float:
        """The part of the free compute that is not on wholly free cards: 0 to 1, and 0 where nothing is free."""
        return 1 - self.core_free_whole / self.core_free if self.core_free else 0.0

    @classmethod
    def of(cls, cards: Iterator[CardView]) -> "Totals":
        """Add these up."""
        sums = dict.fromkeys(cls.__dataclass_fields__, 0)
        for one in cards:
            core_left = max(0, WHOLE - one.core_given)
            memory_left = max(0, one.card.memory_mib - one.memory_given_mib)
            usable = one.card.healthy
            sums["cards"] += 1
            sums["free_cards"] += usable and not one.mode
            sums["unhealthy_cards"] += not (one.card.healthy or one.card.cordoned)
            sums["overcommitted_cards"] += bool(one.overcommitted)
            sums["core_percent"] += WHOLE
            sums["core_given"] += one.core_given
            sums["memory_mib"] += one.card.memory_mib
            sums["memory_given_mib"] += one.memory_given_mib
            if usable:
                sums["core_free"] += core_left
                sums["memory_free_mib"] += memory_left
                sums["core_free_whole"] += 0 if one.mode else core_left
                sums["stranded_core"] += 0 if memory_left else core_left
                sums["stranded_memory_mib"] += 0 if core_left else memory_left
        return cls(**sums)


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node and its cards, in the order of their indexes. `serving`: whether its cards serve the pool; None: it takes
    no part in that."""

    name: str
    ready: bool
    unschedulable: bool
    cards: tuple[CardView, ...] = ()
    serving: bool | None = None

    @cached_property
    def totals(self) -> Totals:
        return Totals.of(iter(self.cards))


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """`nodes` are in the order of their names, those without cards too; `pending` are those that ask for cards and have
    none, the longest waiting first. `problems` are what is wrong with the objects, in sentences."""

    nodes: tuple[NodeView, ...] = ()
    pending: tuple[PendingPod, ...] = ()
    claims: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many claims are in each phase."""
    problems: tuple[str, ...] = ()

    @cached_property
    def totals(self) -> Totals:
        return Totals.of(self.cards())

    def cards(self) -> Iterator[CardView]:
        """Of all nodes."""
        return (card for node in self.nodes for card in node.cards)

    def slices(self) -> Iterator[SliceView]:
        """Of all cards that are there."""
        return (one for card in self.cards() for one in card.slices)
