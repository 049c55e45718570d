"""What a technology answers, from admission to the node; the defaults are those of one that gives out devices as such.

What lies beside what on a card is the same for all: a whole card has one holder, and a shared card is shared by one
technology (`egpu.core.placement.ledger`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from egpu.api.allocation import ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.vocabularies import ELASTIC, VOCABULARIES, Vocabulary
from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.attributes import WEAKEST, CardKind, selects
from egpu.core.mig import WantedInstance
from egpu.core.provisioners.preparation import Preparation
from egpu.errors import NotSupported, TerminalError


@dataclass(frozen=True)
class CardTotals:
    """What cards have when empty: `memory_mib` and per precision `tflops`, arrays of one shape; and what they are: of
    that shape too, `kind` is an index into `kinds` (None where only amounts are known)."""

    memory_mib: IntArray
    tflops: Mapping[str, FloatArray]
    kind: IntArray | None = None
    kinds: Sequence[CardKind] = ()

    def selected(self, demand: ContainerDemand) -> BoolArray:
        """Cards that are what `demand` selects; all of them where it selects nothing, or nothing is known."""
        if self.kind is None or not (demand.select and self.kinds):
            return np.ones(self.memory_mib.shape, dtype=np.bool_)
        return np.array([selects(demand.select, kind) for kind in self.kinds], dtype=np.bool_)[self.kind]

    def whole(self) -> BoolArray:
        """Cards that are not in MIG mode: of one that is, only instances can be used."""
        return self.where(lambda kind: not kind.profiles)

    def where(self, holds: Callable[[CardKind], bool]) -> BoolArray:
        """Cards of the kinds of which `holds` is true; all of them where only amounts are known."""
        held = [holds(kind) for kind in self.kinds]
        if self.kind is None or all(held):
            return np.ones(self.memory_mib.shape, dtype=np.bool_)
        return np.array(held, dtype=np.bool_)[self.kind]

    def liking(self, demand: ContainerDemand) -> FloatArray:
        """How much `demand` would rather have each card than others, 0..1; all 0 where it does not care."""
        if self.kind is None or not (demand.prefer and self.kinds):
            return np.zeros(self.memory_mib.shape)
        ordered = sorted({kind.strength for kind in self.kinds}, reverse=demand.prefer == WEAKEST)
        place = {strength: at / len(ordered) for at, strength in enumerate(ordered, 1)}
        return np.array([place[kind.strength] for kind in self.kinds])[self.kind]


@dataclass(frozen=True)
class Needs:
    """What one demand takes of each card, were it put there; `possible` is False where that card can never serve it."""

    core: IntArray
    memory_mib: IntArray
    possible: BoolArray
    instances: Mapping[int, WantedInstance] | None = None
    """Where it takes an instance of MIG, of which profile on each kind of card that can be cut so."""


@dataclass(frozen=True)
class Profile:
    """A size that a class has a name for: of each card, percent of its compute, and memory."""

    core: int
    memory_mib: int


@dataclass(frozen=True)
class NodeTotals:
    """What a node has: its cards, and their memory and TFLOPS (fp32) added up. `pool_slots`: how many containers it can
    run with cards of the pool; 0 where it takes no part. `vocabularies`: the optional ones that are turned on."""

    cards: int
    memory_mib: int
    tflops: float
    pool_slots: int = 0
    vocabularies: Collection[str] = ()
    cut_cards: int = 0
    """How many more it has in MIG mode, which the others do not count."""
    cut_memory_mib: int = 0
    """Their memory."""
    instances: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many instances of each profile those can have at the most."""


@dataclass(frozen=True)
class Variable:
    """An environment variable of a container: a value, or the name of the pod's annotation that has it."""

    name: str
    value: str = ""
    annotation: str = ""


class Provisioner:
    """One technology. A subclass sets the names and overrides what differs; one line of the package registers it."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    oversubscribes: ClassVar[bool] = False
    """Whether programs may be let allocate more than their share, the rest in managed memory."""
    anywhere: ClassVar[bool] = False
    """Whether the cards may be another node's than the pod's."""
    resizable: ClassVar[bool] = True
    """Whether a slice can change its size while it runs."""
    shareable: ClassVar[bool] = False
    """Whether several pods of one node can have one slice together."""
    driver_limits: ClassVar[bool] = False
    """Whether the driver can hold its programs to their memory, where the driver has limits by control group."""
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Parameters of a class that only this technology knows, and their values."""
    claim_vocabulary: ClassVar[Vocabulary] = ELASTIC
    """In whose resources the webhook writes what a claim gives onto the container that uses it."""

    def memory_unit_mib(self, vocabulary: Vocabulary, parameters: Mapping[str, str]) -> int:
        """MiB per bare number of memory, where a claim of a class with `parameters` speaks `vocabulary`, which is one
        of this technology's own."""
        return vocabulary.memory_unit_mib

    def problem(self, demand: ContainerDemand) -> str | None:
        """Why this technology can never serve `demand`, whatever the cards; None when it can."""
        return None

    def profiles(self, parameters: Mapping[str, str]) -> Mapping[str, Profile]:
        """What a class with these `parameters` has names of its own for, by resource name: its claims ask for so many
        cards of each. Raises InvalidDemand, naming the parameter, for what cannot be read."""
        return {}

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        """What the technology's own `parameters` of a class make of a claim's `demand`."""
        return demand

    def needs(self, demand: ContainerDemand, cards: CardTotals) -> Needs:
        """What `demand` takes of each card of `cards` (same shape).

        Compute in percent of the card, from TFLOPS by the card's own figure, rounded up. Memory in MiB; where the
        demand names none, its percentage of the card's or in proportion to the compute share, rounded down so that 100
        shares of 1 % always fit.
        """
        memory = cards.memory_mib
        if demand.exclusive:
            suits = cards.selected(demand) & cards.whole() & (memory >= max(demand.memory_mib, 1))
            return Needs(np.full_like(memory, 100), memory, suits)
        if demand.tflops:
            figure = cards.tflops.get(demand.precision, np.zeros(memory.shape))
            known = figure > 0
            share = np.ceil(100 * demand.tflops / np.where(known, figure, 1))
            possible = known & (share <= 100)
            core = np.where(possible, share, 0).astype(np.int64)
        else:
            possible = np.ones(memory.shape, dtype=np.bool_)
            core = np.full_like(memory, demand.core)
        if demand.memory_mib:
            needed = np.full_like(memory, demand.memory_mib)
        else:
            needed = np.maximum(memory * (demand.memory_percent or core) // 100, 1)
        return Needs(core, needed, possible & cards.selected(demand) & cards.whole() & (needed <= memory))

    def unsuited(self, kind: CardKind) -> str:
        """Why it can do nothing with cards of this kind, as a finding; empty where it can."""
        return ""

    # These three are asked of every technology for every pod: its tools read what they know, whoever serves the pod.

    def environment(self, demand: ContainerDemand) -> tuple[Variable, ...]:
        """What the webhook adds to the environment of a container that asks for `demand`."""
        return ()

    def annotations(self, allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
        """What the Binding adds to a pod beside the allocation itself. `assume_time_ns` is now, since the epoch."""
        return {}

    def visible_devices(self, allocation: ContainerAllocation) -> str:
        """What NVIDIA's container runtime is told to give a container of this technology: the cards, by UUID."""
        return ",".join(share.uuid for share in allocation.cards)

    def time_slice(self, allocation: ContainerAllocation) -> str:
        """How long a program keeps the cards while others wait for them, as `nvidia-smi compute-policy` calls it; empty
        where that is left as it is."""
        return ""

    def capacity(self, node: NodeTotals) -> dict[str, int]:
        """What a node publishes for this technology: all it has, under each of its vocabularies."""
        published: dict[str, int] = {}
        for one in VOCABULARIES:
            if one.provisioner == self.name:
                if one.optional and one.name not in node.vocabularies:
                    continue
                published |= {one.cards: one.slices_per_card * node.cards, one.node_only: node.cards}
                published |= {one.memory_percent: 100 * node.cards}
                published |= {one.memory: node.memory_mib // one.memory_unit_mib}
                published |= {one.core: 100 * node.cards, one.tflops: int(node.tflops)}
        published.pop("", None)  # what a vocabulary has no name for
        return published

    def prepare(self, where: str, allocation: ContainerAllocation, minors: Mapping[str, int] | None) -> Preparation:
        """What to set up for a container; `where` names it in messages. `minors` are those of the node's cards by UUID,
        as its driver reports them now: a reboot may have given a card another one. None where another node has them.

        Raises NotSupported for a technology that needs the cards here, and TerminalError when a granted card is not
        there.
        """
        if minors is None:
            if not self.anywhere:
                raise NotSupported(f"{where}: {self.name} cannot use another node's cards")
            return self._plan(allocation, ())
        if absent := [share.uuid for share in allocation.cards if share.uuid not in minors]:
            raise TerminalError(f"{where}: card {absent[0]} is not on this node")
        return self._plan(allocation, tuple(minors[share.uuid] for share in allocation.cards))

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        """`minors` in the order of the allocation; none where another node has the cards."""
        return Preparation(minors)
