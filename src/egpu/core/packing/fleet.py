"""Free resources of many nodes as arrays, and a log of which rows changed."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from egpu.core.arrays import BoolArray, IntArray
from egpu.core.packing.shapes import WHOLE_CARD, Machine, Shape

LOG_LIMIT: Final = 1 << 18
"""Changes remembered; a reader that is further behind looks at every row again."""
TURNOVER_MEMORY: Final = 1000.0
_WORTH_SORTING = 64
"""From so many changes on, dropping repeated rows is cheaper than scoring them twice."""


class Placement(NamedTuple):
    """A pod's place: a row of the fleet and columns of its cards."""

    row: int
    cards: tuple[int, ...]


class Fleet:
    """`core` and `card_memory` have shape (nodes, cards); `cpu`, `ram`, `gpu` (sum of `core`) and `model` (nodes,);
    `host` is CPU and RAM as one array of shape (2, nodes), of which `cpu` and `ram` are the rows. `lanes` and
    `memory_lanes` are `core` and `card_memory` the other way round, as they lie in memory: scoring reduces over the few
    cards of many nodes, which is several times faster along the first axis.

    All are what is free now. Where a node has fewer cards than the widest, the missing ones have nothing free.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        count, width = len(machines), max((m.cards for m in machines), default=0)
        self.width = max(width, 1)
        """Cards of the widest node."""
        self.models = tuple(sorted({m.model for m in machines}))
        index = {name: code for code, name in enumerate(self.models)}
        self.model: IntArray = np.array([index[m.model] for m in machines], dtype=np.int64)
        self.count: IntArray = np.array([m.cards for m in machines], dtype=np.int64)
        there: BoolArray = np.arange(self.width)[None, :] < self.count[:, None]
        memory = np.array([m.card_memory_mib for m in machines], dtype=np.int64)
        self.lanes: IntArray = np.ascontiguousarray(np.where(there, WHOLE_CARD, 0).T.astype(np.int64))
        self.memory_lanes: IntArray = np.ascontiguousarray(np.where(there, memory[:, None], 0).T.astype(np.int64))
        self.core, self.card_memory = self.lanes.T, self.memory_lanes.T
        self.card_memory_total: IntArray = memory
        self.host: IntArray = np.array([[m.cpu_milli for m in machines], [m.ram_mib for m in machines]], dtype=np.int64)
        self.host = self.host.reshape(2, count)
        self.cpu, self.ram = self.host[0], self.host[1]
        self.cpu_total, self.ram_total = self.cpu.copy(), self.ram.copy()
        self.gpu: IntArray = self.core.sum(axis=1)
        self.full: IntArray = self.count.copy()
        """Cards with nothing taken, per node."""
        self.largest: IntArray = self.core.max(axis=1, initial=0)
        """The most compute that one card of the node has free."""
        self.capacity_milli = int(self.gpu.sum())
        self.allocated_milli = 0
        self.departures = 0.0
        """Share of departures among the latest changes (some `TURNOVER_MEMORY` of them): 0.5 is a steady state."""
        self._log: IntArray = np.zeros(LOG_LIMIT, dtype=np.int64)
        self._logged = 0
        self._log_start = 0
        self.all_rows: IntArray = np.arange(count)

    def __len__(self) -> int:
        return len(self.machines)

    @property
    def version(self) -> int:
        """Grows with every change; see `changed_since`."""
        return self._log_start + self._logged

    def changed_since(self, version: int) -> IntArray:
        """Rows that changed since `version`, in no promised order, perhaps repeated. Valid until the next change."""
        start = version - self._log_start
        if start < 0 or self._logged - start > 2 * len(self):
            return self.all_rows
        rows = self._log[start : self._logged]
        return np.unique(rows) if len(rows) > _WORTH_SORTING else rows

    def allowed(self, shape: Shape) -> BoolArray | None:
        """Nodes whose model the shape accepts, shape (nodes,); None for all."""
        if not shape.models or not shape.cards:
            return None
        codes = [code for code, name in enumerate(self.models) if name in shape.models]
        return np.isin(self.model, codes)

    def take(self, shape: Shape, place: Placement) -> None:
        """Give the pod its place. The caller has made sure that it fits (`place_fits`)."""
        self._shift(shape, place, 1)

    def release(self, shape: Shape, place: Placement) -> None:
        """Undo `take`."""
        self._shift(shape, place, -1)

    def place_fits(self, shape: Shape, place: Placement) -> bool:
        """Whether exactly this place can take the pod now."""
        row, cards = place
        return (
            len(cards) == len(set(cards)) == shape.cards
            and bool(self.cpu[row] >= shape.cpu_milli and self.ram[row] >= shape.ram_mib)
            and all(c < self.count[row] for c in cards)
            and all(self.core[row, c] >= shape.core_milli for c in cards)
            and all(self.card_memory[row, c] >= self.memory_asked(shape, row) for c in cards)
        )

    def memory_asked(self, shape: Shape, row: int) -> int:
        """Memory that the pod takes of each card there: of a whole card all."""
        return max(shape.card_memory_mib, int(self.card_memory_total[row]) if shape.whole else 0)

    def set_row(self, row: int, core: IntArray, memory: IntArray, cpu_milli: int, ram_mib: int) -> None:
        """Make a node's free resources what somebody else keeps account of; `core` and `memory` have shape (width,)."""
        before = int(self.gpu[row])
        self.core[row], self.card_memory[row] = core, memory
        self.cpu[row], self.ram[row] = cpu_milli, ram_mib
        self.gpu[row] = core.sum()
        self.largest[row] = core.max()
        own = slice(0, int(self.count[row]))
        self.full[row] = ((core[own] == WHOLE_CARD) & (memory[own] == self.card_memory_total[row])).sum()
        taken = before - int(self.gpu[row])
        self.allocated_milli += taken
        self._changed(row, -1 if taken < 0 else 1)

    def _shift(self, shape: Shape, place: Placement, sign: int) -> None:
        row, cards = place
        self.cpu[row] -= sign * shape.cpu_milli
        self.ram[row] -= sign * shape.ram_mib
        if cards:
            core, memory = self.core[row], self.card_memory[row]
            total = int(self.card_memory_total[row])
            taken = self.memory_asked(shape, row)
            for card in cards:
                before = core[card] == WHOLE_CARD and memory[card] == total
                core[card] -= sign * shape.core_milli
                memory[card] -= sign * taken
                after = core[card] == WHOLE_CARD and memory[card] == total
                self.full[row] += int(after) - int(before)
            self.largest[row] = core.max()
            self.gpu[row] -= sign * shape.gpu_milli
            self.allocated_milli += sign * shape.gpu_milli
        self._changed(row, sign)

    def _changed(self, row: int, sign: int) -> None:
        self.departures += ((sign < 0) - self.departures) / TURNOVER_MEMORY
        if self._logged == LOG_LIMIT:
            half = LOG_LIMIT // 2
            self._log[: LOG_LIMIT - half] = self._log[half:]
            self._logged -= half
            self._log_start += half
        self._log[self._logged] = row
        self._logged += 1
