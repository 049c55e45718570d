"""Exact placing of a pod's containers on one node's cards, by bounded backtracking.

Greedy placing can fail where a place exists (two containers, of which the first takes the only card that fits the
second). Nodes have few cards and pods few containers, so a small search suffices.

A hostile pod can have many containers of many sizes, and each page and scheduling try asks for all nodes. So equal
containers are placed in one order only, equal nodes are searched once, and steps have a bound.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Final

from egpu.api.allocation import Role
from egpu.api.mig import InstancePlace, Mig
from egpu.core.links import Ranks, joined
from egpu.core.mig import WantedInstance, arrange
from egpu.core.placement.card_usage import EXCLUSIVE, FREE

MAX_STEPS: Final = 20_000
"""Placements tried per node before giving up. A node of 16 cards and a pod of 4 containers stays below it; beyond, a
pod may have to wait although a place exists, never the other way round."""
MAX_STEPS_IN_ALL: Final = 3 * MAX_STEPS
"""Placements tried for one question about many nodes."""
MAX_CONTAINERS: Final = 256
"""Containers of a pod that is searched for; a larger pod gets only the greedy place."""


Places = Mapping[str, tuple[int, ...]]
"""The columns of each container."""
CutCard = tuple[Mig, tuple[InstancePlace, ...]]
"""The possible and existing instances of a card in MIG mode, and which places are held."""


@dataclass(frozen=True)
class ContainerNeeds:
    """The number of cards of one container, and per column the amounts, whether it is possible, and the mode."""

    name: str
    cards: int
    core: list[int]
    memory: list[int]
    possible: list[bool]
    mode: int
    role: Role
    instances: tuple[WantedInstance | None, ...] = ()
    """The MIG instance that it takes of each column; empty if it takes none of any."""
    links: str = ""
    """The requirement for the links between its cards; see `egpu.core.links`."""


@dataclass(frozen=True)
class Cards:
    """Per column: what is free, and the card's mode without this pod."""

    core: list[int]
    memory: list[int]
    mode: list[int]
    cut: Sequence[CutCard | None] = ()
    """The cards in MIG mode."""
    allowed: Callable[[Places], bool] | None = None
    """Whether a place is within bounds that are not in these figures; None for no such bounds."""


class _Search:
    def __init__(self, containers: list[ContainerNeeds], cards: Cards, ranks: Ranks | None, *, most_steps: int) -> None:
        self.ranks = ranks
        self.most_steps = most_steps
        self.containers = containers
        self.base_mode = cards.mode
        self.mode = list(cards.mode)
        self.core, self.memory = list(cards.core), list(cards.memory)
        self.base_core, self.base_memory = cards.core, cards.memory
        self.sidecars = [one for one in containers if one.role.sidecar]
        self.cut = cards.cut
        self.allowed = cards.allowed
        self.wanted: list[list[WantedInstance]] = [[] for _ in cards.mode]
        self.chosen: dict[str, tuple[int, ...]] = {}
        self.steps = 0
        self.later, self.distinct = _suffixes(containers, len(cards.mode))
        """Per position and column, a key of what this and later containers need of the column. Per position, whether no
        two columns are interchangeable, as cards differ by their links or places."""
        self.repeats = [False, *(_alike(one, other) for one, other in pairwise(containers))]
        """Per position, whether the container needs the same as the one before."""

    def hopeless(self) -> bool:
        """Return whether the containers that run together need more than all cards have that one of them fits on."""
        apps = [one for one in self.containers if not one.role.init]
        columns = [column for column in range(len(self.mode)) if any(self.fits(one, column) for one in apps)]
        needed_core = sum(one.cards * min((one.core[c] for c in columns), default=0) for one in apps)
        needed_memory = sum(one.cards * min((one.memory[c] for c in columns), default=0) for one in apps)
        core, memory = sum(self.core[c] for c in columns), sum(self.memory[c] for c in columns)
        return needed_core > core or needed_memory > memory

    def fits(self, needs: ContainerNeeds, column: int) -> bool:
        core, memory = self.room(needs, column)
        if not needs.possible[column] or core < needs.core[column] or memory < needs.memory[column]:
            return False
        if needs.instances and not self._has_places(needs, column):
            return False
        mode, base = self.mode[column], self.base_mode[column]
        if needs.mode == EXCLUSIVE:
            return (base if needs.role.init else mode) == FREE
        return mode in (FREE, needs.mode) or (needs.role.init and mode == EXCLUSIVE and base == FREE)

    def room(self, needs: ContainerNeeds, column: int) -> tuple[int, int]:
        """Return what is free of a card when the container runs: compute and memory."""
        if not needs.role.init:
            return self.core[column], self.memory[column]
        running = [one for one in self._on(column) if one.name in needs.role.beside]
        core, memory = sum(one.core[column] for one in running), sum(one.memory[column] for one in running)
        return self.base_core[column] - core, self.base_memory[column] - memory

    def _on(self, column: int) -> list[ContainerNeeds]:
        """Return the sidecars that have the card."""
        return [one for one in self.sidecars if column in self.chosen.get(one.name, ())]

    def _has_places(self, needs: ContainerNeeds, column: int) -> bool:
        """Return whether the card has places for this instance and those of the other containers on it."""
        wanted, card = needs.instances[column], self.cut[column]
        if wanted is None or card is None:
            return False
        return arrange(*card, (*self.wanted[column], wanted)) is not None

    def alike(self, position: int, column: int) -> tuple[int, ...]:
        """Return a key of the column: columns with equal keys are interchangeable from here on, so one is tried."""
        if self.distinct[position] or self.allowed is not None:
            return (column,)
        return (
            self.core[column],
            self.memory[column],
            self.base_core[column],
            self.base_memory[column],
            self.mode[column],
            self.base_mode[column],
            self.later[position][column],
            *(int(column in self.chosen.get(one.name, ())) for one in self.sidecars),
        )

    def run(self, position: int = 0) -> bool:
        if position == len(self.containers):
            return self.allowed is None or self.allowed(self.chosen)
        needs = self.containers[position]
        candidates = [column for column in range(len(self.mode)) if self.fits(needs, column)]
        if self.repeats[position] and needs.cards == 1:
            # Any place of equal containers is also one with their cards in order.
            candidates = [
                column for column in candidates if column >= self.chosen[self.containers[position - 1].name][0]
            ]
        kinds = {column: self.alike(position, column) for column in candidates}
        tried: set[tuple[tuple[int, ...], ...]] = set()
        for columns in combinations(candidates, needs.cards):
            self.steps += 1
            if self.steps > self.most_steps:
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
            assert wanted is not None  # fits() checked it
            self.wanted[column].append(wanted)

    def _shift(self, needs: ContainerNeeds, columns: tuple[int, ...], sign: int) -> None:
        if needs.role.init:
            return  # runs before the apps, which then get its share
        for column in columns:
            self.core[column] += sign * needs.core[column]
            self.memory[column] += sign * needs.memory[column]


def _alike(one: ContainerNeeds, other: ContainerNeeds) -> bool:
    """Return whether two containers are interchangeable. Sidecars are not: init containers may run between them."""
    role = one.role._replace(name=other.role.name)
    return not one.role.sidecar and replace(one, name=other.name, role=role) == other


def _suffixes(containers: Sequence[ContainerNeeds], columns: int) -> tuple[list[list[int]], list[bool]]:
    """Return `_Search.later` and `_Search.distinct`."""
    later, distinct = [[0] * columns], [False]
    for one in reversed(containers):
        keys: dict[tuple[int, int, bool, int], int] = {}
        needs = zip(one.core, one.memory, one.possible, later[-1], strict=True)
        later.append([keys.setdefault(key, len(keys)) for key in needs])
        distinct.append(distinct[-1] or bool(one.links or one.instances))
    return later[::-1], distinct[::-1]


class Searches:
    """Searches for the containers of one pod on many nodes, with a bound for all."""

    def __init__(self, most_steps: int = MAX_STEPS_IN_ALL) -> None:
        self._left = most_steps
        self.steps = 0
        self._found: dict[object, dict[str, tuple[int, ...]] | None] = {}

    def place(
        self, containers: list[ContainerNeeds], cards: Cards, ranks: Ranks | None = None
    ) -> dict[str, tuple[int, ...]] | None:
        """Return columns per container, or None. `containers` in order: apps and sidecars first, then plain init
        containers. `ranks`: the links between the cards."""
        if len(containers) > MAX_CONTAINERS:
            return None
        search = _Search(containers, cards, ranks, most_steps=min(MAX_STEPS, self._left))
        if search.hopeless():
            return None
        if search.distinct[0] or cards.allowed is not None:
            return self._run(search)
        key = (*map(tuple, (cards.core, cards.memory, cards.mode)), *(
            (tuple(one.core), tuple(one.memory), tuple(one.possible)) for one in containers
        ))  # fmt: skip
        if key not in self._found:
            self._found[key] = self._run(search)
        return self._found[key]

    def _run(self, search: _Search) -> dict[str, tuple[int, ...]] | None:
        found = search.chosen if search.run() else None
        self._left -= search.steps
        self.steps += search.steps
        return found
