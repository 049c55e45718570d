"""Room reserved for pods that need several untouched cards on one node.

Such a pod is refused if no node can host it, however much is free in pieces. Hosts come back slowly, as a node must
drain; so the last few are worth keeping as long as other pods fit elsewhere. How many: if about n such pods run at a
time, their number swings by about sqrt(n), and the reserve has to cover the same swing (the square-root rule for
staffing loss systems). The charge for using up a host falls from the pod's whole GPU to nothing as the hosts left
exceed that reserve. No pod is refused for it: if only a host fits, the host is taken.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.policies.base import Marks
from egpu.core.policies.fleet import CPU, RAM, Fleet
from egpu.core.policies.shapes import WHOLE_CARD, Mix, Shape

MAX_KINDS: Final = 8
"""Kinds of demands that hosts are counted for; marks are sets of kinds, so tables have 2**MAX_KINDS entries."""
_PLENTY = 16.0
"""Softness units above the reserve from which the charge, e**-16 of the worth, is left out."""
FINENESS: Final = 1_000_000
"""Parts of a thousandth of a card to which costs are rounded, so that equals are exactly equal everywhere."""
_ALIKE = 0.1
"""Demands of as many cards whose CPU and RAM differ by less than this share are one kind."""


@dataclass(frozen=True)
class _Kind:
    cards: int
    cpu_milli: int
    ram_mib: int
    running: float

    def merged(self, shape: Shape, running: float) -> "_Kind":
        cpu, ram = max(self.cpu_milli, shape.cpu_milli), max(self.ram_mib, shape.ram_mib)
        return _Kind(self.cards, cpu, ram, self.running + running)

    def like(self, shape: Shape) -> bool:
        return (
            self.cards == shape.cards
            and abs(self.cpu_milli - shape.cpu_milli) <= _ALIKE * self.cpu_milli
            and abs(self.ram_mib - shape.ram_mib) <= 2 * _ALIKE * self.ram_mib
        )

    def covers(self, other: "_Kind") -> bool:
        """Return whether a host for this kind is, more or less, one for the other."""
        return (
            self.cards >= other.cards
            and self.cpu_milli >= 0.95 * other.cpu_milli
            and self.ram_mib >= 0.95 * other.ram_mib
        )


def _kinds(mix: Mix, capacity_milli: int) -> list[_Kind]:
    """Return the demands for several cards, with how many of each would run on a full cluster."""
    mean_gpu = sum(shape.gpu_milli * weight for shape, weight in mix.weights.items()) / max(mix.total, 1e-9)
    pods = capacity_milli / max(mean_gpu, 1e-9)
    several = [(shape, weight / mix.total * pods) for shape, weight in mix.weights.items() if shape.cards > 1]
    kinds: list[_Kind] = []
    for shape, running in sorted(several, key=lambda item: -item[1] * item[0].cards):
        alike = [place for place, kind in enumerate(kinds) if kind.like(shape)]
        if not alike and len(kinds) >= MAX_KINDS:
            same = [place for place, kind in enumerate(kinds) if kind.cards == shape.cards] or list(range(len(kinds)))
            alike = [min(same, key=lambda place: abs(kinds[place].cpu_milli - shape.cpu_milli))]
        if alike:
            kinds[alike[0]] = kinds[alike[0]].merged(shape, running)
        else:
            kinds.append(_Kind(shape.cards, shape.cpu_milli, shape.ram_mib, running))
    return kinds


class _Thresholds:
    """Tells which kinds an amount is enough for: a set of bits for each interval between their requests."""

    def __init__(self, asked: list[int]) -> None:
        self._levels: IntArray = np.unique(np.array(asked, dtype=np.int64))
        enough: BoolArray = np.array(asked)[:, None] <= np.array([-1, *self._levels.tolist()])
        sets = np.packbits(enough, axis=0, bitorder="little")[:1]
        self._sets: Marks = sets[0] if len(sets) else np.zeros(1, dtype=np.uint8)

    def met(self, amounts: IntArray) -> Marks:
        """Return, for each amount, bit k for kind k."""
        return self._sets.take(self._levels.searchsorted(amounts, side="right"))


class Reserve:
    """Counts hosts per kind as the fleet changes, and prices them.

    `swings` is the reserve in standard deviations, `width` how softly the charge sets in (same unit), `worth` the
    highest charge as a share of the demand's GPU.
    """

    def __init__(self, mix: Mix, fleet: Fleet, *, swings: float, width: float, worth: float) -> None:
        self._list = _kinds(mix, fleet.capacity_milli)
        kinds = self._list
        self._by_cpu = _Thresholds([kind.cpu_milli for kind in kinds])
        self._by_ram = _Thresholds([kind.ram_mib for kind in kinds])
        self._by_cards = _Thresholds([kind.cards for kind in kinds])
        # Hosts of a demanding kind serve modest kinds too: its pods use the same nodes.
        running = np.array([sum(other.running for other in kinds if other.covers(kind)) for kind in kinds])
        swing = np.sqrt(running)
        self._wanted = swings * swing
        self._softness = np.maximum(width * swing, 0.3)
        self._worth = worth * np.array([kind.cards for kind in kinds], dtype=np.float64) * WHOLE_CARD
        bits: IntArray = 1 << np.arange(len(kinds))
        self._member: BoolArray = (np.arange(1 << len(kinds))[:, None] & bits) > 0
        self._host: Marks = np.zeros(len(fleet), dtype=np.uint8)
        self._hosts: IntArray = np.zeros(len(kinds), dtype=np.int64)
        self._version = -1
        self._charges: FloatArray | None = None

    def __bool__(self) -> bool:
        return bool(self._list)

    def marks(self, rows: IntArray, host: IntArray, untouched: IntArray) -> Marks:
        """Return the kinds that each row stops being a host for, given what is left there: `host` is CPU and RAM, shape
        (2, rows), `untouched` the number of untouched cards."""
        marks = self._host.take(rows)
        if len(marks.nonzero()[0]):
            marks &= ~self._set(host[CPU], host[RAM], untouched)
        return marks

    def _set(self, cpu: IntArray, ram: IntArray, untouched: IntArray) -> Marks:
        """Return the kinds that a node with so much left is a host for, as bits."""
        return self._by_cpu.met(cpu) & self._by_ram.met(ram) & self._by_cards.met(untouched)

    def charges(self) -> FloatArray | None:
        """Return the charge per set of kinds, in whole parts of `FINENESS`, shape (2 ** kinds,): the largest of the
        set. None while hosts are plentiful, or there are none to lose."""
        return self._charges

    def attend(self, fleet: Fleet) -> None:
        """Count the hosts again where nodes changed. Call it before `marks` and `charges`."""
        version = fleet.version
        if self._version == version or not self._list:
            return
        changed = fleet.changed_since(self._version) if self._version >= 0 else fleet.all_rows
        if self._version < 0 or len(changed) > len(fleet) // 4:
            self._host = self._set(fleet.cpu, fleet.ram, fleet.full)
            self._hosts = np.array(
                [((self._host >> place) & 1).sum() for place in range(len(self._list))], dtype=np.int64
            )
            self._price()
        else:
            moved = False
            for row in set(changed.tolist()):
                moved |= self._recount(fleet, row)
            if moved:
                self._price()
        self._version = version

    def _recount(self, fleet: Fleet, row: int) -> bool:
        full, now = int(fleet.full[row]), 0
        if full > 1:
            cpu, ram = int(fleet.cpu[row]), int(fleet.ram[row])
            for place, kind in enumerate(self._list):
                if full >= kind.cards and cpu >= kind.cpu_milli and ram >= kind.ram_mib:
                    now |= 1 << place
        before = int(self._host[row])
        if now == before:
            return False
        self._host[row] = now
        for place in range(len(self._list)):
            self._hosts[place] += ((now >> place) & 1) - ((before >> place) & 1)
        return True

    def _price(self) -> None:
        plenty = (self._hosts - self._wanted) / self._softness
        if plenty.min(initial=_PLENTY) >= _PLENTY or not self._hosts.any():
            self._charges = None
            return
        scarcity = 1 / (1 + np.exp(np.clip(plenty, -40, 40)))
        self._charges = np.rint((self._member * (self._worth * scarcity)).max(axis=1) * FINENESS)
