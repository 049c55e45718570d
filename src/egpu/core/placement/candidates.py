"""The cards of some nodes while the containers of one pod are placed on them, one by one, without recording it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from egpu.api.allocation import ContainerDemand, Role
from egpu.api.mig import InstancePlace
from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.mig import WantedInstance, arrange
from egpu.core.placement.card_usage import EXCLUSIVE, FREE, card_mode
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.limit_sums import LimitSums
from egpu.core.provisioners import CardTotals, Needs


@dataclass
class CandidateCards:
    """Cards of the candidate rows while containers are placed on them; arrays of shape (candidates, cards).

    `core_free`, `memory_free` and `mode` change with every app and sidecar. `base_core`, `base_memory` and `base_mode`
    are those of the card without this pod: plain init containers run before the apps, beside some sidecars.
    """

    rows: IntArray
    usable: BoolArray
    core_free: IntArray
    memory_free: IntArray
    mode: IntArray
    base_mode: IntArray
    base_core: IntArray
    base_memory: IntArray
    peak_core: IntArray
    peak_memory: IntArray
    """Amounts left at the pod's peak, init containers included."""
    ledger: Ledger
    instances: dict[tuple[int, int], tuple[InstancePlace, ...]] = field(default_factory=dict[Any, Any])
    """The instances that the pod's containers take of cards in MIG mode; each is used by one container only."""
    sidecars: dict[str, tuple[tuple[IntArray, IntArray], IntArray, IntArray]] = field(default_factory=dict[Any, Any])
    """The cells of each sidecar, and what it takes of them: compute and memory."""
    bounded: bool = False
    """Whether sums of limits count: without a bound on a card or in the pod, none is taken."""

    @classmethod
    def looked_at(cls, ledger: Ledger, rows: IntArray) -> "CandidateCards":
        """Return the cards for reading only: no container can be placed on them."""
        at = slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows
        core, memory, mode = ledger.core_free[at], ledger.memory_free[at], ledger.mode[at]
        usable = ledger.present[at] & ledger.healthy[at]
        return cls(rows, usable, core, memory, mode, mode, core, memory, core, memory, ledger, bounded=ledger.bounded)

    @classmethod
    def of(cls, ledger: Ledger, rows: IntArray, demands: Iterable[ContainerDemand]) -> "CandidateCards":
        """Return the cards for placing containers with these demands on them."""
        core, memory, mode = ledger.core_free[rows], ledger.memory_free[rows], ledger.mode[rows]
        return cls(
            rows=rows,
            usable=ledger.present[rows] & ledger.healthy[rows],
            core_free=core,
            memory_free=memory,
            mode=mode,
            base_mode=mode.copy(),
            base_core=core.copy(),
            base_memory=memory.copy(),
            peak_core=core.copy(),
            peak_memory=memory.copy(),
            ledger=ledger,
            bounded=ledger.bounded or any(demand.max_core_limits for demand in demands),
        )

    @cached_property
    def limit_sums(self) -> LimitSums:
        ledger = self.ledger
        limits, most = ledger.core_limits[self.rows], ledger.max_core_limits[self.rows]
        return LimitSums(limits, most, limits.copy())

    @cached_property
    def totals(self) -> CardTotals:
        return self.ledger.totals(self.rows)

    def fullness(self, needs: Needs) -> FloatArray:
        """Return the allocated share of each card with `needs` added, 0..1, the mean of compute and memory. Without a
        policy, the fullest cards are used first."""
        return self._given_out(self.core_free - needs.core, self.memory_free - needs.memory_mib)

    def mean_fullness(self) -> FloatArray:
        """Return, per row, the allocated share of its usable cards at the pod's peak, 0..1."""
        used = np.where(self.usable, self._given_out(self.peak_core, self.peak_memory), 0)
        return used.sum(axis=1) / np.maximum(self.usable.sum(axis=1), 1)

    def _given_out(self, core_left: IntArray, memory_left: IntArray) -> FloatArray:
        left = (core_left / 100 + memory_left / np.maximum(self.totals.memory_mib, 1)) / 2
        return np.minimum(1 - left, 1)

    def before_apps(self, role: Role) -> tuple[IntArray, IntArray]:
        """Return what is free of each card when a plain init container runs: compute and memory."""
        core, memory = self.base_core, self.base_memory
        for at, taken_core, taken_memory in (self.sidecars[name] for name in role.beside if name in self.sidecars):
            core, memory = core.copy(), memory.copy()
            core[at] -= taken_core
            memory[at] -= taken_memory
        return core, memory

    def eligible(self, demand: ContainerDemand, needs: Needs, role: Role) -> BoolArray:
        """Return the cards that can take `demand` now."""
        init = role.init
        core, memory = self.before_apps(role) if init else (self.core_free, self.memory_free)
        room = self.usable & needs.possible & (core >= needs.core) & (memory >= needs.memory_mib)
        if needs.instances is not None:
            room &= self._with_place(room, needs)
        if not demand.exclusive and (self.bounded or demand.max_core_limits):
            room &= self.limit_sums.eligible(demand, needs, role)
        if demand.exclusive:
            # An init container may use a card exclusively if only its own pod uses it.
            return room & (self.base_mode == FREE if init else self.mode == FREE)
        own = card_mode(demand)
        fits_mode = (self.mode == FREE) | (self.mode == own)
        if init:
            fits_mode |= (self.mode == EXCLUSIVE) & (self.base_mode == FREE)
        return room & fits_mode

    def readiness(self, needs: Needs, eligible: BoolArray) -> FloatArray:
        """Return how ready each card is for an instance, 0..1: an existing one, then one to create, then a larger
        existing one, then a larger one to create; 0 if the card cannot take it."""
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
        """Return the place of a card's next instance; empty if there is none."""
        mig, held = self.ledger.instances(int(self.rows[row]), column)
        wanted = self._wanted(row, column, needs)
        return arrange(mig, (*held, *self.instances.get((row, column), ())), (wanted,)) or ()

    def take(self, demand: ContainerDemand, needs: Needs, at: tuple[IntArray, IntArray], role: Role) -> None:
        """Give the cells `at` to a container."""
        core, memory = needs.core[at], needs.memory_mib[at]
        if self.bounded and not demand.exclusive:
            self.limit_sums.take(demand, needs, at, role)
        if needs.instances is not None:
            for row, column in zip(*(one.tolist() for one in at), strict=True):
                place = self._place(row, column, needs)
                self.instances[row, column] = (*self.instances.get((row, column), ()), *place)
        if role.init:
            core_free, memory_free = self.before_apps(role)
            self.peak_core[at] = np.minimum(self.peak_core[at], core_free[at] - core)
            self.peak_memory[at] = np.minimum(self.peak_memory[at], memory_free[at] - memory)
            # An exclusive card stays exclusive for the pod's life.
            kept = self.mode[at] == EXCLUSIVE
            self.mode[at] = np.where(kept, EXCLUSIVE, card_mode(demand))
            return
        self.core_free[at] -= core
        self.memory_free[at] -= memory
        self.peak_core[at] = np.minimum(self.peak_core[at], self.core_free[at])
        self.peak_memory[at] = np.minimum(self.peak_memory[at], self.memory_free[at])
        self.mode[at] = card_mode(demand)
        if role.sidecar:
            self.sidecars[role.name] = (at, core, memory)
