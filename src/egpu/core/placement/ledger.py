"""The holders of cards, and what is left: every card of every node as rows and columns of numpy arrays.

Fitting and policies read the arrays over all nodes at once. The holders per card are kept beside them, and every cell
is recomputed from its holders, so that a double release or a double hold cannot shift a sum. Holders of missing cards
(a driver was reloaded, an agent is away) are remembered, and count again when the card is back.

Not here: choosing (`egpu.core.placement.fit`) and reading objects (`egpu.core.placement.cache`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final, Literal, NamedTuple

import numpy as np

from egpu.api.allocation import ContainerDemand, PodAllocation
from egpu.api.mig import InstancePlace, Mig
from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.attributes import CardKind
from egpu.core.changes import Changes, Verdicts
from egpu.core.links import Ranks, link_domains, ranks_of
from egpu.core.placement.card_usage import (
    CONFLICT,
    EXCLUSIVE,
    FREE,
    CardKey,
    Usage,
    card_usage,
    limit_sums,
    mode_name,
    overcommit,
)
from egpu.core.placement.cards import Card, NodeCards
from egpu.core.placement.known_needs import KnownNeeds
from egpu.core.placement.node_names import Found, NodeNames
from egpu.core.provisioners import CardTotals, Needs

_FEWEST_ROWS: Final = 16
SPARE_KINDS: Final = 256
"""Kinds that no card has any more, beside one for each kind in use: agents may change what they say of a card."""


class Holder(NamedTuple):
    """A holder: a pod, claim or ResourceClaim by UID, a slice by the name of its ElasticGPU, a lease of the pool by
    LEASE@SERVER, or a reservation or a promise by the UID of the waiting pod."""

    kind: Literal["pod", "claim", "resourceclaim", "slice", "lease", "reservation", "promise"]
    id: str


@dataclass(frozen=True)
class OverCommit:
    """A card with more allocated than it has: an allocation was not written by us."""

    node: str
    uuid: str
    reason: str


@dataclass(frozen=True)
class PoolNode:
    """A node of the pool. `serving`: whether pods of other nodes may get its cards now."""

    link_mbps: int
    serving: bool


class Ledger:
    """Arrays of shape (nodes, cards): `present`, `healthy`, `memory_mib`, `core_free`, `memory_free`, `mode`, `kind`
    (an index into `kinds`), and `tflops` by precision. Values computed from rows follow `changes`, or are kept in
    `verdicts`. `cards_version` counts changes of the cards themselves."""

    def __init__(self) -> None:
        self.present: BoolArray = np.zeros((0, 0), dtype=np.bool_)
        self.healthy: BoolArray = np.zeros((0, 0), dtype=np.bool_)
        self.memory_mib: IntArray = np.zeros((0, 0), dtype=np.int64)
        self.core_free: IntArray = np.zeros((0, 0), dtype=np.int64)
        self.memory_free: IntArray = np.zeros((0, 0), dtype=np.int64)
        self.shared_mib: IntArray = np.zeros((0, 0), dtype=np.int64)
        """The room that parkable slices share on each card, as large as the largest of them needs."""
        self.core_limits: IntArray = np.zeros((0, 0), dtype=np.int64)
        """The sum of the limits of compute of each card's holders."""
        self.max_core_limits: IntArray = np.zeros((0, 0), dtype=np.int64)
        """The most that it may be, by the holders' classes; 0: any."""
        self.bounded = False
        """Whether a card has ever had such a bound: without any, the sums are not looked at."""
        self.mode: IntArray = np.zeros((0, 0), dtype=np.int64)
        self.kind: IntArray = np.zeros((0, 0), dtype=np.int64)
        self.kinds: list[CardKind] = []
        """The kinds of the cards: a few models, each with its NUMA nodes and link domains. Some have no card left."""
        self._most_kinds = SPARE_KINDS
        self.tflops: dict[str, FloatArray] = {}
        self.changes = Changes()
        self.verdicts = Verdicts(self.changes)
        self.cards_version = 0
        self.pool: dict[str, PoolNode] = {}
        """The nodes of the pool, with cards or without."""
        self._host_mib: dict[str, int] = {}
        self.links: dict[int, Ranks] = {}
        """The links between the cards of a row; rows without known links are absent."""
        self.names: list[str] = []
        """The node of each row, "" for a free row."""
        self._kind_of: dict[CardKind, int] = {}
        self._needs = KnownNeeds()
        self._rows: dict[str, int] = {}
        self._rows_version = 0
        """Counts how often a name got a row, or lost it."""
        self._free_rows: list[int] = []
        self._cards: dict[str, tuple[Card, ...]] = {}
        self._cells: dict[CardKey, tuple[int, int]] = {}
        self._by_card: dict[CardKey, tuple[tuple[Holder, Usage], ...]] = {}
        """Tuples, as most held cards have one holder, for which a mapping would be twice as large."""
        self._by_holder: dict[Holder, PodAllocation] = {}
        self._overcommits: dict[CardKey, str] = {}

    # --- nodes ------------------------------------------------------------------------------------------------------

    def set_node(self, node: NodeCards) -> None:
        """Add a node, or replace its cards. Holders of its cards stay holders."""
        ordered = tuple(sorted(node.cards, key=lambda card: (card.index, card.uuid)))
        if self._cards.get(node.name) == ordered:
            return
        row = self._row_for(node.name, len(ordered))
        self._clear(node.name, row)
        if len(self.kinds) > self._most_kinds:
            self._forget_kinds()
        self._cards[node.name] = ordered
        if (ranks := ranks_of(ordered)) is not None:
            self.links[row] = ranks
        for column, (card, domain) in enumerate(zip(ordered, link_domains(ordered), strict=True)):
            cell = (row, column)
            self.kind[cell] = self._known_kind(card, domain)
            self.present[cell] = True
            self.healthy[cell] = card.healthy
            self.memory_mib[cell] = card.memory_mib
            for precision, figure in card.tflops.items():
                if precision not in self.tflops:
                    self.tflops[precision] = np.zeros(self.present.shape)
                self.tflops[precision][cell] = figure
            key = CardKey(node.name, card.uuid)
            self._cells[key] = cell
            self._recount(key)
        self.changes.note(row)
        self.cards_version += 1

    def remove_node(self, name: str) -> None:
        """Remove a node's cards. Its holders stay holders until they are released."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._clear(name, row)
            del self._cards[name]
            self._free_rows.append(row)
            self._rows_version += 1
            self.names[row] = ""
            self.changes.note(row)
            self.cards_version += 1

    def row(self, node: str) -> int | None:
        """Return the row of a node in the arrays, or None if it has no known cards."""
        return self._rows.get(node)

    def rows_of(self, nodes: Sequence[str]) -> Found:
        """Return the rows of the nodes with cards, and their places in `nodes`, both of shape (found,)."""
        if isinstance(nodes, NodeNames):
            return nodes.found(self._rows_version, self._look_up)
        rows = self._look_up(nodes)
        places = np.flatnonzero(rows >= 0)
        return rows[places], places

    def known(self, nodes: Sequence[str]) -> BoolArray:
        """Return which of the nodes have cards or are part of the pool, shape (nodes,)."""
        found = np.zeros(len(nodes), dtype=np.bool_)
        found[self.rows_of(nodes)[1]] = True
        if self.pool:
            found |= np.array([node in self.pool for node in nodes], dtype=np.bool_)
        return found

    def _look_up(self, names: Sequence[str]) -> IntArray:
        return np.fromiter(map(self._rows.get, names, repeat(-1)), dtype=np.int64, count=len(names))

    def totals(self, rows: IntArray | int) -> CardTotals:
        """Return the totals of the cards of these rows."""
        figures = {precision: every[rows] for precision, every in self.tflops.items()}
        return CardTotals(self.memory_mib[rows], figures, self.kind[rows], self.kinds)

    def whole_needs(self, demand: ContainerDemand, rows: IntArray | int) -> Needs:
        """Return the slice that `demand` gets of each card of these rows; undefined where no card is `present`."""
        each, kind = self._needs.of(demand, self.kinds), self.kind[rows]
        return Needs(each.core[kind], each.memory_mib[kind], each.possible[kind], each.instances)

    def needs(self, demand: ContainerDemand, rows: IntArray | int) -> Needs:
        """Return what `demand` takes of what is free of each card of these rows: less than the slice that it gets if it
        shares room that others there share already."""
        whole = self.whole_needs(demand, rows)
        if not demand.resident_percent:
            return whole
        own = -(-whole.memory_mib * demand.resident_percent // 100)
        more = np.maximum(whole.memory_mib - own - self.shared_mib[rows], 0)
        return replace(whole, memory_mib=own + more)

    def set_host_memory(self, node: str, memory_mib: int) -> None:
        """Record how much of a node's own memory parked slices may take."""
        if self._host_mib.get(node, 0) != memory_mib:
            self._host_mib[node] = memory_mib
            if (row := self.row(node)) is not None:
                self.changes.note(row)

    def host_memory(self, node: str) -> tuple[int, int]:
        """Return how much of a node's own memory parked slices may take, and how much of it is left."""
        total = self._host_mib.get(node, 0)
        held = (usage for card in self.cards(node) for _, usage in self._by_card.get(CardKey(node, card.uuid), ()))
        return total, total - sum(usage.host_mib for usage in held)

    def nodes(self) -> list[str]:
        return list(self._rows)

    def cards(self, node: str) -> tuple[Card, ...]:
        """Return the cards of a node in the order of the arrays' columns."""
        return self._cards.get(node, ())

    # --- holders ----------------------------------------------------------------------------------------------------

    def hold(self, holder: Holder, allocation: PodAllocation) -> None:
        """Record that `holder` holds exactly `allocation`, in place of what it held before (so it is idempotent).

        More than a card has is recorded too and reported by `overcommits()`; the card then counts as full.
        """
        if self._by_holder.get(holder) == allocation:
            return
        self.release(holder)
        self._by_holder[holder] = allocation
        for key, usage in card_usage(allocation).items():
            self._by_card[key] = (*self._by_card.get(key, ()), (holder, usage))
            self._recount(key)

    def release(self, holder: Holder) -> None:
        """Release everything that `holder` holds; does nothing if it holds nothing."""
        allocation = self._by_holder.pop(holder, None)
        if allocation is None:
            return
        for key in card_usage(allocation):
            left = tuple(held for held in self._by_card[key] if held[0] != holder)
            if left:
                self._by_card[key] = left
            else:
                del self._by_card[key]
            self._recount(key)

    def holding(self, holder: Holder) -> PodAllocation | None:
        return self._by_holder.get(holder)

    def holders(self) -> dict[Holder, PodAllocation]:
        return dict(self._by_holder)

    def card_holders(self, node: str, uuid: str) -> dict[Holder, Usage]:
        """Return the holders of a card, and how much each holds."""
        return dict(self._by_card.get(CardKey(node, uuid), ()))

    def is_cut(self, row: int, column: int) -> bool:
        """Return whether there is a card in MIG mode."""
        cards = self._cards[self.names[row]]
        return column < len(cards) and cards[column].mig is not None

    def instances(self, row: int, column: int) -> tuple[Mig, tuple[InstancePlace, ...]]:
        """Return the possible and existing instances of a card in MIG mode, and which of its places are held."""
        node = self.names[row]
        card = self._cards[node][column]
        assert card.mig is not None
        held = self._by_card.get(CardKey(node, card.uuid), ())
        return card.mig, tuple(dict.fromkeys(place for _, usage in held for place in usage.instances))

    def overcommits(self) -> list[OverCommit]:
        return [OverCommit(key.node, key.uuid, reason) for key, reason in sorted(self._overcommits.items())]

    def overcommit(self, key: CardKey) -> str:
        """Return how a card is over-committed; "" if it is not."""
        return self._overcommits.get(key, "")

    def snapshot(self) -> dict[tuple[str, str], tuple[int, int, str, bool]]:
        """Return (node, uuid) → (free core, free memory, mode name, healthy): for comparing ledgers, and for people."""
        return {
            (key.node, key.uuid): (
                int(self.core_free[cell]),
                int(self.memory_free[cell]),
                mode_name(int(self.mode[cell])),
                bool(self.healthy[cell]),
            )
            for key, cell in self._cells.items()
        }

    # --- cells ------------------------------------------------------------------------------------------------------

    def _recount(self, key: CardKey) -> None:
        """Recompute a card's cell from its holders. Reserved cards may still be held by the victims: then nothing is
        left, but the card is not over-committed."""
        held = self._by_card.get(key, ())
        usages = [usage for _, usage in held]
        cell = self._cells.get(key)
        total = int(self.memory_mib[cell]) if cell else None
        reason = overcommit([usage for holder, usage in held if holder.kind != "reservation"], total)
        if reason:
            self._overcommits[key] = reason
        else:
            self._overcommits.pop(key, None)
        if cell is None:
            return
        modes = {usage.mode for usage in usages}
        mode = modes.pop() if len(modes) == 1 else (CONFLICT if modes else FREE)
        full = bool(reason) or mode in (EXCLUSIVE, CONFLICT)
        self.mode[cell] = mode
        core, memory = sum(usage.core for usage in usages), sum(usage.memory_mib for usage in usages)
        self.shared_mib[cell] = max((usage.shared_mib for usage in usages), default=0)
        memory += int(self.shared_mib[cell])
        self.core_limits[cell], self.max_core_limits[cell] = limit_sums(usages)
        self.bounded = self.bounded or bool(self.max_core_limits[cell])
        self.core_free[cell] = 0 if full else max(0, 100 - core)
        self.memory_free[cell] = 0 if full else max(0, int(self.memory_mib[cell]) - memory)
        self.changes.note(cell[0])

    def _known_kind(self, card: Card, domain: int) -> int:
        figures = tuple(sorted(card.tflops.items()))
        known = (card.model, card.memory_mib, card.compute_capability, figures, card.numa, domain)
        profiles = tuple(card.mig.profiles) if card.mig is not None else ()
        kind = CardKind(*known, card.memory_isolation, profiles, card.mps)
        if kind not in self._kind_of:
            self._kind_of[kind] = len(self.kinds)
            self.kinds.append(kind)
        return self._kind_of[kind]

    def _forget_kinds(self) -> None:
        """Forget the kinds that no card has, and number the others anew. So nothing that is kept may have a number; the
        first kind stays, which cells without a card have."""
        used = np.union1d([0], self.kind[self.present])
        numbers = np.zeros(len(self.kinds), dtype=np.int64)
        numbers[used] = np.arange(len(used))
        self.kind[:] = np.where(self.present, numbers[self.kind], 0)
        self.kinds = [self.kinds[number] for number in used]
        self._kind_of = {kind: number for number, kind in enumerate(self.kinds)}
        self._needs = KnownNeeds()
        self._most_kinds = 2 * len(self.kinds) + SPARE_KINDS

    def _row_for(self, name: str, width: int) -> int:
        rows, columns = self.present.shape
        row = self._rows.get(name)
        if row is None:
            row = self._free_rows.pop() if self._free_rows else len(self._rows)
            self._rows[name] = row
            self._rows_version += 1
        if row >= rows or width > columns:
            self._grow(max(2 * rows, _FEWEST_ROWS) if row >= rows else rows, max(columns, width))
        self.names[row] = name
        return row

    def _grow(self, rows: int, columns: int) -> None:
        old_rows, old_columns = self.present.shape
        pad = ((0, rows - old_rows), (0, columns - old_columns))
        self.present = np.pad(self.present, pad)
        self.healthy = np.pad(self.healthy, pad)
        self.memory_mib = np.pad(self.memory_mib, pad)
        self.core_free = np.pad(self.core_free, pad)
        self.memory_free = np.pad(self.memory_free, pad)
        self.shared_mib = np.pad(self.shared_mib, pad)
        self.core_limits = np.pad(self.core_limits, pad)
        self.max_core_limits = np.pad(self.max_core_limits, pad)
        self.mode = np.pad(self.mode, pad)
        self.kind = np.pad(self.kind, pad)
        self.tflops = {precision: np.pad(figures, pad) for precision, figures in self.tflops.items()}
        self.changes.grow(rows)
        self.names += [""] * pad[0][1]

    def _clear(self, name: str, row: int) -> None:
        self.links.pop(row, None)
        for card in self._cards.get(name, ()):
            self._cells.pop(CardKey(name, card.uuid), None)
        for array in (
            self.memory_mib,
            self.core_free,
            self.memory_free,
            self.shared_mib,
            self.core_limits,
            self.max_core_limits,
            self.mode,
            *self.tflops.values(),
        ):
            array[row] = 0
        self.present[row] = False
        self.healthy[row] = False
