"""Free resources of many nodes as arrays, and which rows changed when."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from egpu.core.arrays import BoolArray, IntArray
from egpu.core.changes import Changes
from egpu.core.policies.shapes import WHOLE_CARD, Machine, Shape

TURNOVER_MEMORY: Final = 1000.0

CPU, RAM, LARGEST, FULL, GPU = range(5)
"""Rows of `Fleet.state`."""


class Placement(NamedTuple):
    """A pod's place: a row of the fleet and columns of its cards."""

    row: int
    cards: tuple[int, ...]


class Fleet:
    """The free resources, node by node.

    `state` holds, per node (columns), CPU, RAM, the most compute that one card has free, the number of untouched cards,
    and compute over all cards: rows `CPU` to `GPU`, so that one `take` brings all that most scores need. `cpu`, `ram`,
    `largest`, `full`, `gpu` and `host` (CPU and RAM) are views of it. `core` and `card_memory` have shape (nodes,
    cards). `lanes` and `memory_lanes` are the same, transposed, as they lie in memory: scoring reduces over the few
    cards of many nodes, which is several times faster along the first axis. On a node with fewer cards than the widest,
    the missing ones have nothing free.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        count, width = len(machines), max((m.cards for m in machines), default=0)
        self.width = max(width, 1)
        """The number of cards of the widest node."""
        self.models = tuple(sorted({m.model for m in machines}))
        index = {name: code for code, name in enumerate(self.models)}
        self.model: IntArray = np.array([index[m.model] for m in machines], dtype=np.int64)
        self.count: IntArray = np.array([m.cards for m in machines], dtype=np.int64)
        there: BoolArray = np.arange(self.width)[None, :] < self.count[:, None]
        memory = np.array([m.card_memory_mib for m in machines], dtype=np.int64)
        self.lanes: IntArray = np.ascontiguousarray(np.where(there, WHOLE_CARD, 0).T.astype(np.int64))
        self.memory_lanes: IntArray = np.ascontiguousarray(np.where(there, memory[:, None], 0).T.astype(np.int64))
        self.core, self.card_memory = self.lanes.T, self.memory_lanes.T
        self._shared_lanes: IntArray = np.zeros_like(self.memory_lanes)
        self._sharing: dict[tuple[int, int], list[int]] = {}
        """What each pod that shares the room of a card needs of it, by card and node."""
        self.card_memory_total: IntArray = memory
        self.state: IntArray = np.zeros((5, count), dtype=np.int64)
        self.state[CPU] = [m.cpu_milli for m in machines]
        self.state[RAM] = [m.ram_mib for m in machines]
        self.state[LARGEST] = self.lanes.max(axis=0, initial=0)
        self.state[FULL] = self.count
        self.state[GPU] = self.lanes.sum(axis=0)
        self.cpu: IntArray = self.state[CPU]
        self.ram: IntArray = self.state[RAM]
        self.host: IntArray = self.state[: RAM + 1]
        self.largest: IntArray = self.state[LARGEST]
        self.full: IntArray = self.state[FULL]
        self.gpu: IntArray = self.state[GPU]
        self.pristine: BoolArray = np.ones(count, dtype=bool)
        """The nodes that are completely free."""
        kinds: dict[Machine, int] = {}
        self._kind: IntArray = np.array(
            [kinds.setdefault(replace(m, name=""), len(kinds)) for m in machines], dtype=np.int64
        )
        self._kinds = len(kinds)
        self.cpu_total, self.ram_total = self.cpu.copy(), self.ram.copy()
        self.capacity_milli = int(self.gpu.sum())
        self.allocated_milli = 0
        self.cpu_taken = self.ram_taken = 0
        """Amounts on nodes that have cards."""
        self.departures = 0.0
        """Share of departures among the latest changes (some `TURNOVER_MEMORY` of them): 0.5 is a steady state."""
        self._changes = Changes(count)
        self.all_rows: IntArray = np.arange(count)

    def __len__(self) -> int:
        return len(self.machines)

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._changes.version

    def changed_since(self, version: int) -> IntArray:
        """Return the rows that changed after `version`, unordered, maybe repeated. Valid until the next change."""
        return self._changes.since(version)

    def alike(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return rows of which no two are pristine nodes of one kind; all pristine rows; and for each of those its
        representative among the first."""
        pristine = self.pristine.nonzero()[0]
        kinds = self._kind.take(pristine)
        one: IntArray = np.zeros(self._kinds, dtype=np.int64)
        one[kinds] = pristine
        stand_in = one.take(kinds)
        distinct = ~self.pristine
        distinct[stand_in] = True
        return distinct.nonzero()[0], pristine, stand_in

    def allowed(self, shape: Shape) -> BoolArray | None:
        """Return the nodes whose model the shape accepts, shape (nodes,); None for all."""
        if not shape.models or not shape.cards:
            return None
        codes = [code for code, name in enumerate(self.models) if name in shape.models]
        return np.isin(self.model, codes)

    def take(self, shape: Shape, place: Placement) -> None:
        """Give the pod its place. The caller has checked that it fits."""
        self._shift(shape, place, 1)

    def release(self, shape: Shape, place: Placement) -> None:
        """Undo `take`."""
        self._shift(shape, place, -1)

    def eligible_cards(self, shape: Shape, row: int) -> list[int]:
        """Return the columns of a row that could take the shape's share of one card."""
        core, memory = self.core[row].tolist(), self.memory_room(shape, self.all_rows[row : row + 1])[:, 0].tolist()
        asked = self.memory_asked(shape, row)
        return [
            column
            for column in range(int(self.count[row]))
            if core[column] >= shape.core_milli and memory[column] >= asked
        ]

    def memory_room(self, shape: Shape, rows: IntArray) -> IntArray:
        """Return how much memory the pod finds on each card, shape (cards, rows): what is free, and the room there that
        others share already."""
        free = self.memory_lanes.take(rows, axis=1)
        if not shape.shared_mib:
            return free
        return free + np.minimum(self._shared_lanes.take(rows, axis=1), shape.shared_mib)

    def memory_asked(self, shape: Shape, row: int) -> int:
        """Return the memory that the pod takes of each card there: all of a whole card."""
        return max(shape.card_memory_mib, int(self.card_memory_total[row]) if shape.whole else 0)

    def set_row(self, row: int, core: IntArray, memory: IntArray, cpu_milli: int, ram_mib: int) -> None:
        """Set a node's free resources from another record; `core` and `memory` have shape (width,)."""
        before = int(self.gpu[row])
        self._note_taken(row, int(self.cpu[row]) - cpu_milli, int(self.ram[row]) - ram_mib)
        self.core[row], self.card_memory[row] = core, memory
        self.cpu[row], self.ram[row] = cpu_milli, ram_mib
        self.gpu[row] = core.sum()
        self.largest[row] = core.max()
        own = slice(0, int(self.count[row]))
        self.full[row] = ((core[own] == WHOLE_CARD) & (memory[own] == self.card_memory_total[row])).sum()
        self._note_pristine(row)
        taken = before - int(self.gpu[row])
        self.allocated_milli += taken
        self._changed(row, -1 if taken < 0 else 1)

    def _shift(self, shape: Shape, place: Placement, sign: int) -> None:
        row, cards = place
        self.cpu[row] -= sign * shape.cpu_milli
        self.ram[row] -= sign * shape.ram_mib
        self._note_taken(row, sign * shape.cpu_milli, sign * shape.ram_mib)
        if cards:
            lanes, memory = self.lanes, self.memory_lanes
            total = int(self.card_memory_total[row])
            core_taken, memory_asked = sign * shape.core_milli, sign * self.memory_asked(shape, row)
            gained = 0
            for card in cards:
                core, left = int(lanes[card, row]), int(memory[card, row])
                gained -= core == WHOLE_CARD and left == total
                memory_taken = self._share(shape, card, row, sign) if shape.shared_mib else memory_asked
                core, left = core - core_taken, left - memory_taken
                gained += core == WHOLE_CARD and left == total
                lanes[card, row], memory[card, row] = core, left
            self.full[row] += gained
            self.largest[row] = max(self.core[row].tolist())
            self.gpu[row] -= sign * shape.gpu_milli
            self.allocated_milli += sign * shape.gpu_milli
        self._note_pristine(row)
        self._changed(row, sign)

    def _share(self, shape: Shape, card: int, row: int, sign: int) -> int:
        """Let the pod share the room of a card, or no more; return how much of the card's memory that takes. The room
        is as large as the largest of them needs."""
        sharing = self._sharing.setdefault((card, row), [])
        before = max(sharing, default=0)
        if sign > 0:
            sharing.append(shape.shared_mib)
        else:
            sharing.remove(shape.shared_mib)
        room = self._shared_lanes[card, row] = max(sharing, default=0)
        return sign * shape.resident_mib + room - before

    def _note_taken(self, row: int, cpu_milli: int, ram_mib: int) -> None:
        if self.count[row]:
            self.cpu_taken += cpu_milli
            self.ram_taken += ram_mib

    def _note_pristine(self, row: int) -> None:
        self.pristine[row] = (
            self.full[row] == self.count[row]
            and self.cpu[row] == self.cpu_total[row]
            and self.ram[row] == self.ram_total[row]
        )

    def _changed(self, row: int, sign: int) -> None:
        self.departures += ((sign < 0) - self.departures) / TURNOVER_MEMORY
        self._changes.note(row)
