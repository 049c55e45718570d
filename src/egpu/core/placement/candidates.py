"""The cards of some nodes while containers of one pod are put on them, one after the other, without writing it down."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from egpu.api.allocation import ContainerDemand
from egpu.api.mig import InstancePlace
from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.mig import WantedInstance, arrange
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.usage import EXCLUSIVE, FREE, card_mode
from egpu.core.provisioners import CardTotals, Needs


@dataclass
class CandidateCards:
    """Cards of the candidate rows while containers are placed on them; arrays of shape (candidates, cards).

    `core_free`, `memory_free` and `mode` change with every app and sidecar; `init_core`, `init_memory` only with
    sidecars, for plain init containers run before the apps. `base_mode` is what other pods made of the card.
    """

    rows: IntArray
    usable: BoolArray
    core_free: IntArray
    memory_free: IntArray
    mode: IntArray
    base_mode: IntArray
    init_core: IntArray
    init_memory: IntArray
    peak_core: IntArray
    peak_memory: IntArray
    """What is left when the pod uses the most, init containers included."""
    ledger: Ledger
    instances: dict[tuple[int, int], tuple[InstancePlace, ...]] = field(default_factory=dict[Any, Any])
    """What the pod's containers have taken of cards in MIG mode; nothing of it is used by one after another."""

    @classmethod
    def looked_at(cls, ledger: Ledger, rows: IntArray) -> "CandidateCards":
        """As they are: nothing can be put on them."""
        at = slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows
        core, memory, mode = ledger.core_free[at], ledger.memory_free[at], ledger.mode[at]
        usable = ledger.present[at] & ledger.healthy[at]
        return cls(rows, usable, core, memory, mode, mode, core, memory, core, memory, ledger)

    @classmethod
    def of(cls, ledger: Ledger, rows: IntArray) -> "CandidateCards":
        core, memory, mode = ledger.core_free[rows], ledger.memory_free[rows], ledger.mode[rows]
        return cls(
            rows=rows,
            usable=ledger.present[rows] & ledger.healthy[rows],
            core_free=core,
            memory_free=memory,
            mode=mode,
            base_mode=mode.copy(),
            init_core=core.copy(),
            init_memory=memory.copy(),
            peak_core=core.copy(),
            peak_memory=memory.copy(),
            ledger=ledger,
        )

    @cached_property
    def totals(self) -> CardTotals:
        return self.ledger.totals(self.rows)

    def fullness(self, needs: Needs) -> FloatArray:
        """Share of each card that is given out with `needs` taken as well, 0..1, the mean of compute and memory. Cards
        are taken in this order, the fullest first, where no policy says otherwise."""
        return self._given_out(self.core_free - needs.core, self.memory_free - needs.memory_mib)

    def mean_fullness(self) -> FloatArray:
        """Of each row, the share of its usable cards that is given out when the pod uses the most, 0..1."""
        used = np.where(self.usable, self._given_out(self.peak_core, self.peak_memory), 0)
        return used.sum(axis=1) / np.maximum(self.usable.sum(axis=1), 1)

    def _given_out(self, core_left: IntArray, memory_left: IntArray) -> FloatArray:
        left = (core_left / 100 + memory_left / np.maximum(self.totals.memory_mib, 1)) / 2
        return np.minimum(1 - left, 1)

    def eligible(self, demand: ContainerDemand, needs: Needs, *, init: bool) -> BoolArray:
        """Cards that can take `demand` now."""
        core, memory = (self.init_core, self.init_memory) if init else (self.core_free, self.memory_free)
        room = self.usable & needs.possible & (core >= needs.core) & (memory >= needs.memory_mib)
        if needs.instances is not None:
            room &= self._with_place(room, needs)
        if demand.exclusive:
            # An init container may own, for a while, a card that only its own pod uses.
            return room & (self.base_mode == FREE if init else self.mode == FREE)
        own = card_mode(demand)
        fits_mode = (self.mode == FREE) | (self.mode == own)
        if init:
            fits_mode |= (self.mode == EXCLUSIVE) & (self.base_mode == FREE)
        return room & fits_mode

    def readiness(self, needs: Needs, eligible: BoolArray) -> FloatArray:
        """How ready each card is for an instance, 0..1: 1 where it is there, less where it would be made, less still
        where it would be larger than it need be, first there and then made; 0 where the card cannot take it."""
        found = np.zeros(eligible.shape)
        for row, column in np.argwhere(eligible).tolist() if needs.instances is not None else ():
            mig, _ = self.ledger.instances(int(self.rows[row]), column)
            (place,) = self._place(row, column, needs)
            larger = place.profile != self._wanted(row, column, needs).profile
            found[row, column] = (3 + (place in (*mig.own, *mig.others)) - 2 * larger) / 4
        return found

    def _wanted(self, row: int, column: int, needs: Needs) -> WantedInstance:
        assert needs.instances is not None
        assert self.totals.kind is not None
        return needs.instances[int(self.totals.kind[row, column])]

    def _with_place(self, room: BoolArray, needs: Needs) -> BoolArray:
        found: BoolArray = np.zeros_like(room)
        for row, column in np.argwhere(room).tolist():
            found[row, column] = bool(self._place(row, column, needs))
        return found

    def _place(self, row: int, column: int, needs: Needs) -> tuple[InstancePlace, ...]:
        """Where a card's next instance would be; nothing where there is no place."""
        mig, held = self.ledger.instances(int(self.rows[row]), column)
        wanted = self._wanted(row, column, needs)
        return arrange(mig, (*held, *self.instances.get((row, column), ())), (wanted,)) or ()

    def take(
        self, demand: ContainerDemand, needs: Needs, at: tuple[IntArray, IntArray], *, init: bool, sidecar: bool
    ) -> None:
        """Give the cells `at` to a container."""
        core, memory = needs.core[at], needs.memory_mib[at]
        if needs.instances is not None:
            for row, column in zip(*(one.tolist() for one in at), strict=True):
                place = self._place(row, column, needs)
                self.instances[row, column] = (*self.instances.get((row, column), ()), *place)
        if init:
            self.peak_core[at] = np.minimum(self.peak_core[at], self.init_core[at] - core)
            self.peak_memory[at] = np.minimum(self.peak_memory[at], self.init_memory[at] - memory)
            # Once exclusive, a card stays so for the pod's life.
            kept = self.mode[at] == EXCLUSIVE
            self.mode[at] = np.where(kept, EXCLUSIVE, card_mode(demand))
            return
        self.core_free[at] -= core
        self.memory_free[at] -= memory
        self.peak_core[at] = np.minimum(self.peak_core[at], self.core_free[at])
        self.peak_memory[at] = np.minimum(self.peak_memory[at], self.memory_free[at])
        self.mode[at] = card_mode(demand)
        if sidecar:
            self.init_core[at] -= core
            self.init_memory[at] -= memory
