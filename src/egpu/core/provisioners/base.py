"""The questions to a technology, from admission to the node, with default answers for one that provides plain devices.

Sharing rules are the same for all: a whole card has one holder, and a shared card is shared by one technology
(`egpu.core.placement.ledger`).
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
from egpu_base.errors import NotSupported, TerminalError


@dataclass(frozen=True)
class CardTotals:
    """The amounts and attributes of empty cards: `memory_mib` and, per precision, `tflops`, arrays of one shape.
    `kind`, of that shape too, is an index into `kinds` (None if only amounts are known)."""

    memory_mib: IntArray
    tflops: Mapping[str, FloatArray]
    kind: IntArray | None = None
    kinds: Sequence[CardKind] = ()

    def selected(self, demand: ContainerDemand) -> BoolArray:
        """Return the cards that `demand` selects; all of them without a selection, or without known kinds."""
        if self.kind is None or not (demand.select and self.kinds):
            return np.ones(self.memory_mib.shape, dtype=np.bool_)
        return np.array([selects(demand.select, kind) for kind in self.kinds], dtype=np.bool_)[self.kind]

    def whole(self) -> BoolArray:
        """Return the cards that are not in MIG mode, where only instances can be used."""
        return self.where(lambda kind: not kind.profiles)

    def where(self, holds: Callable[[CardKind], bool]) -> BoolArray:
        """Return the cards of the kinds for which `holds` is true; all if only amounts are known."""
        held = [holds(kind) for kind in self.kinds]
        if self.kind is None or all(held):
            return np.ones(self.memory_mib.shape, dtype=np.bool_)
        return np.array(held, dtype=np.bool_)[self.kind]

    def liking(self, demand: ContainerDemand) -> FloatArray:
        """Return how much `demand` prefers each card, 0..1; all 0 without a preference."""
        if self.kind is None or not (demand.prefer and self.kinds):
            return np.zeros(self.memory_mib.shape)
        ordered = sorted({kind.strength for kind in self.kinds}, reverse=demand.prefer == WEAKEST)
        place = {strength: at / len(ordered) for at, strength in enumerate(ordered, 1)}
        return np.array([place[kind.strength] for kind in self.kinds])[self.kind]


@dataclass(frozen=True)
class Needs:
    """The amounts that one demand takes of each card; `possible` is False for cards that can never serve it."""

    core: IntArray
    memory_mib: IntArray
    possible: BoolArray
    instances: Mapping[int, WantedInstance] | None = None
    """The MIG instance that it takes on each kind of card, if it takes one."""


@dataclass(frozen=True)
class Profile:
    """A named size of a class: percent of a card's compute, and memory."""

    core: int
    memory_mib: int


@dataclass(frozen=True)
class NodeTotals:
    """The cards of a node, and their memory and TFLOPS (fp32) in total. `pool_slots`: containers that the node can run
    with cards of the pool; 0 outside the pool. `vocabularies`: the optional ones that are turned on."""

    cards: int
    memory_mib: int
    tflops: float
    pool_slots: int = 0
    vocabularies: Collection[str] = ()
    cut_cards: int = 0
    """Further cards, in MIG mode, which the other fields do not count."""
    cut_memory_mib: int = 0
    """The memory of the cards in MIG mode."""
    instances: Mapping[str, int] = field(default_factory=dict[str, int])
    """The most instances of each profile on the cards in MIG mode."""
    mps_cards: int = 0
    """The cards among `cards` that can have an MPS server."""


@dataclass(frozen=True)
class Variable:
    """An environment variable of a container: a value, or the pod's annotation that has it."""

    name: str
    value: str = ""
    annotation: str = ""


class Provisioner:
    """One technology. A subclass sets the names and overrides methods; one line of the package registers it."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    oversubscribes: ClassVar[bool] = False
    """True if programs may allocate more than their share, the rest in managed memory."""
    anywhere: ClassVar[bool] = False
    """True if the cards may be on another node than the pod."""
    resizable: ClassVar[bool] = True
    """True if a slice can change its size while it runs."""
    bursts: ClassVar[bool] = False
    """True if a slice may use the compute that others leave idle, up to its limit."""
    shareable: ClassVar[bool] = False
    """True if several pods of one node can share one slice."""
    parks: ClassVar[bool] = False
    """True if the memory of idle programs can leave the card."""
    driver_limits: ClassVar[bool] = False
    """True if the driver can limit its programs' memory, if the driver supports limits by control group."""
    caution: ClassVar[str] = ""
    """What the author of a class must know about its isolation; the API server passes it on as a warning."""
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The class parameters of this technology alone, and their values."""
    texts: ClassVar[Collection[str]] = ()
    """The class parameters of this technology alone that have no fixed set of values."""
    claim_vocabulary: ClassVar[Vocabulary] = ELASTIC
    """The vocabulary in which the webhook writes a claim's amounts onto its container."""

    def memory_unit_mib(self, vocabulary: Vocabulary, parameters: Mapping[str, str]) -> int:
        """Return MiB per bare number of memory in a claim of a class with `parameters`. `vocabulary` is one of this
        technology's own."""
        return vocabulary.memory_unit_mib

    def problem(self, demand: ContainerDemand) -> str | None:
        """Return why this technology can never serve `demand`, whatever the cards; None if it can."""
        return None

    def profiles(self, parameters: Mapping[str, str]) -> Mapping[str, Profile]:
        """Return the named sizes of a class with these `parameters`, by resource name; claims ask for a number of cards
        of each. Raises InvalidDemand, naming the parameter."""
        return {}

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        """Apply the technology's own `parameters` of a class to a claim's `demand`."""
        return demand

    def needs(self, demand: ContainerDemand, cards: CardTotals) -> Needs:
        """Return what `demand` takes of each card of `cards` (same shape).

        Compute is in percent of the card; TFLOPS are converted by the card's figure, rounded up. Memory is in MiB;
        without an amount it is a percentage of the card's, or in proportion to the compute share, rounded down so that
        100 shares of 1 % always fit.
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
        """Return why it does not support cards of this kind; empty if it does."""
        return ""

    # Every technology answers these for every pod: its tools read them, whichever technology serves the pod.

    def environment(self, demand: ContainerDemand) -> tuple[Variable, ...]:
        """Return what the webhook adds to the environment of a container that asks for `demand`."""
        return ()

    def annotations(self, allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
        """Return what the Binding adds to a pod beside the allocation. `assume_time_ns` is now, since the epoch."""
        return {}

    def visible_devices(self, allocation: ContainerAllocation) -> str:
        """Return the cards, by UUID, that NVIDIA's container runtime gives a container."""
        return ",".join(share.uuid for share in allocation.cards)

    def time_slice(self, allocation: ContainerAllocation) -> str:
        """Return how long a program keeps the cards while others wait, in the words of `nvidia-smi compute-policy`;
        empty to leave it unchanged."""
        return ""

    def capacity(self, node: NodeTotals) -> dict[str, int]:
        """Return what a node publishes for this technology: its totals, under each of its vocabularies."""
        published: dict[str, int] = {}
        for one in VOCABULARIES:
            if one.provisioner == self.name:
                if one.optional and one.name not in node.vocabularies:
                    continue
                published |= {one.cards: one.slices_per_card * node.cards, one.node_only: node.cards}
                published |= {one.memory_percent: 100 * node.cards}
                published |= {one.memory: node.memory_mib // one.memory_unit_mib}
                published |= {one.core: 100 * node.cards, one.tflops: int(node.tflops)}
        published.pop("", None)  # amounts without a name
        return published

    def prepare(self, where: str, allocation: ContainerAllocation, minors: Mapping[str, int] | None) -> Preparation:
        """Return what to set up for a container; `where` names it in messages. `minors`: the node's cards by UUID, as
        its driver reports them now (a reboot may renumber cards); None if another node has the cards.

        Raises NotSupported for a technology that needs the cards on this node, and TerminalError if an allocated card
        is missing.
        """
        if minors is None:
            if not self.anywhere:
                raise NotSupported(f"{where}: {self.name} cannot use another node's cards")
            return self._plan(allocation, ())
        if absent := [share.uuid for share in allocation.cards if share.uuid not in minors]:
            raise TerminalError(f"{where}: card {absent[0]} is not on this node")
        return self._plan(allocation, tuple(minors[share.uuid] for share in allocation.cards))

    def _plan(self, allocation: ContainerAllocation, minors: tuple[int, ...]) -> Preparation:
        """Return the preparation. `minors` are in the order of the allocation; empty if another node has the cards."""
        return Preparation(minors)
