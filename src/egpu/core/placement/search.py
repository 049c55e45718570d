"""Exact placing of a pod's containers on one node's cards, by bounded backtracking.

Greedy placing can fail where a place exists (two containers, of which the first takes the only card that fits the
second). Nodes have few cards and pods few containers, so a small search settles it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from egpu.api.mig import InstancePlace, Mig
from egpu.core.links import Ranks, joined
from egpu.core.mig import WantedInstance, arrange
from egpu.core.placement.usage import EXCLUSIVE, FREE

MAX_STEPS: Final = 20_000
"""Placements tried per node before giving up. A node of 16 cards and a pod of 4 containers stays below it; beyond, a
pod may be told to wait although a place exists, never the other way round."""


CutCard = tuple[Mig, tuple[InstancePlace, ...]]
"""What a card in MIG mode can be cut into, and is, and which places of it are held."""


@dataclass(frozen=True)
class ContainerNeeds:
    """How many cards one container needs, and per column the amounts, whether it is possible, and the mode."""

    name: str
    cards: int
    core: list[int]
    memory: list[int]
    possible: list[bool]
    mode: int
    init: bool
    sidecar: bool
    instances: tuple[WantedInstance | None, ...] = ()
    """Which instance of MIG it takes of each column; empty where it takes none of any."""
    links: str = ""
    """What must join every two of its cards; see `egpu.core.links`."""


@dataclass(frozen=True)
class Cards:
    """Per column: what is free, and the mode that other pods put the card in."""

    core: list[int]
    memory: list[int]
    mode: list[int]
    cut: Sequence[CutCard | None] = ()
    """Those in MIG mode."""


class _Search:
    def __init__(self, containers: list[ContainerNeeds], cards: Cards, ranks: Ranks | None) -> None:
        self.ranks = ranks
        self.containers = containers
        self.base_mode = cards.mode
        self.mode = list(cards.mode)
        self.core, self.memory = list(cards.core), list(cards.memory)
        self.init_core, self.init_memory = list(cards.core), list(cards.memory)
        self.cut = cards.cut
        self.wanted: list[list[WantedInstance]] = [[] for _ in cards.mode]
        self.chosen: dict[str, tuple[int, ...]] = {}
        self.steps = 0

    def fits(self, needs: ContainerNeeds, column: int) -> bool:
        core, memory = (self.init_core, self.init_memory) if needs.init else (self.core, self.memory)
        if not needs.possible[column] or core[column] < needs.core[column] or memory[column] < needs.memory[column]:
            return False
        if needs.instances and not self._has_places(needs, column):
            return False
        mode, base = self.mode[column], self.base_mode[column]
        if needs.mode == EXCLUSIVE:
            return (base if needs.init else mode) == FREE
        return mode in (FREE, needs.mode) or (needs.init and mode == EXCLUSIVE and base == FREE)

    def _has_places(self, needs: ContainerNeeds, column: int) -> bool:
        """Whether the card has places for this instance and those of the other containers put there, in any order."""
        wanted, card = needs.instances[column], self.cut[column]
        if wanted is None or card is None:
            return False
        return arrange(*card, (*self.wanted[column], wanted)) is not None

    def alike(self, needs: ContainerNeeds, column: int) -> tuple[int, ...]:
        """Columns with equal values are interchangeable from this container on: only one need be tried."""
        later = [w for w in self.containers if w.name not in self.chosen]
        if any(one.links or one.instances for one in later):
            return (column,)  # no two cards are joined to the same others, or have the same places
        per_container = (v for w in later for v in (w.core[column], w.memory[column], int(w.possible[column])))
        return (
            self.core[column],
            self.memory[column],
            self.init_core[column],
            self.init_memory[column],
            self.mode[column],
            self.base_mode[column],
            *per_container,
        )

    def run(self, position: int = 0) -> bool:
        if position == len(self.containers):
            return True
        needs = self.containers[position]
        candidates = [column for column in range(len(self.mode)) if self.fits(needs, column)]
        kinds = {column: self.alike(needs, column) for column in candidates}
        tried: set[tuple[tuple[int, ...], ...]] = set()
        for columns in combinations(candidates, needs.cards):
            self.steps += 1
            if self.steps > MAX_STEPS:
                return False
            if not joined(self.ranks, columns, needs.links):
                continue
            kind = tuple(sorted(kinds[column] for column in columns))
            if kind in tried:
                continue
            tried.add(kind)
            modes = [self.mode[column] for column in columns]
            self._shift(needs, columns, -1)
            self._want(needs, columns)
            for column in columns:
                self.mode[column] = EXCLUSIVE if self.mode[column] == EXCLUSIVE else needs.mode
            self.chosen[needs.name] = columns
            if self.run(position + 1):
                return True
            del self.chosen[needs.name]
            for column in columns if needs.instances else ():
                self.wanted[column].pop()
            for column, mode in zip(columns, modes, strict=True):
                self.mode[column] = mode
            self._shift(needs, columns, +1)
        return False

    def _want(self, needs: ContainerNeeds, columns: tuple[int, ...]) -> None:
        for column in columns if needs.instances else ():
            wanted = needs.instances[column]
            assert wanted is not None  # fits() saw to it
            self.wanted[column].append(wanted)

    def _shift(self, needs: ContainerNeeds, columns: tuple[int, ...], sign: int) -> None:
        if needs.init:
            return  # runs before the apps, after which its share is theirs
        for column in columns:
            self.core[column] += sign * needs.core[column]
            self.memory[column] += sign * needs.memory[column]
            if needs.sidecar:
                self.init_core[column] += sign * needs.core[column]
                self.init_memory[column] += sign * needs.memory[column]


def place(
    containers: list[ContainerNeeds], cards: Cards, ranks: Ranks | None = None
) -> dict[str, tuple[int, ...]] | None:
    """Columns per container, or None. `containers` in order: apps and sidecars first, then plain init containers.
    `ranks`: how the cards are joined."""
    search = _Search(containers, cards, ranks)
    return search.chosen if search.run() else None
