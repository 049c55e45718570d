"""Failures of simulated cards, for tests and demonstrations."""

import mmap
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from egpu_base.errors import InvalidInput, Unavailable
from egpu_sim.machines.machine import Machine, SimulatedCard
from egpu_sim.machines.state import CARD_BYTES, CARDS_OFFSET, read_header

# Within a card's record (simulator/native/gpu/sim_machine.h).
_LOST: Final = 2080
_FAULT_COUNT: Final = 2088
_FAULTS: Final = 2096
_MAX_FAULTS: Final = 64
_ECC_CORRECTED: Final = 3120
_ECC_UNCORRECTED: Final = 3128
_FAULT: Final = struct.Struct("<QII")
_XID, _CORRECTED, _UNCORRECTED = 1, 2, 3
_XID_DOUBLE_BIT_ECC: Final = 48
_XID_FALLEN_OFF_THE_BUS: Final = 79


@dataclass(frozen=True)
class Xid:
    """The driver reports an error by number (NVIDIA's list of XIDs). Programs continue."""

    number: int


@dataclass(frozen=True)
class EccError:
    """Memory errors. Corrected ones are counted; uncorrected ones end every program that uses the card (XID 48)."""

    corrected: bool = False
    count: int = 1


@dataclass(frozen=True)
class FallOffBus:
    """The card is lost (XID 79). NVML reports it, programs fail, and new programs do not see the card."""


@dataclass(frozen=True)
class Restore:
    """A lost card returns. Programs that used it stay broken, as on a real card."""


Fault = Xid | EccError | FallOffBus | Restore


def inject(machine: Machine, card: SimulatedCard | int, fault: Fault) -> None:
    """Make a card of a machine fail, or return.

    Only one process at a time may do this to a card. All users of the machine see it at once.

    Raises:
        InvalidInput: no such card, or a number out of range.
        Unavailable: the machine's state is gone.
    """
    index = card if isinstance(card, int) else card.index
    if not 0 <= index < len(machine.cards):
        raise InvalidInput("card", f"{index}: the machine has {len(machine.cards)} cards")
    if read_header(machine.state) is None:
        raise Unavailable(f"the state of {machine.node_name} is gone ({machine.state})")
    with (
        machine.state.open("r+b") as file,
        mmap.mmap(file.fileno(), CARDS_OFFSET + (index + 1) * CARD_BYTES) as memory,
    ):
        _apply(_Record(memory, CARDS_OFFSET + index * CARD_BYTES), fault)


class _Record:
    def __init__(self, memory: mmap.mmap, base: int) -> None:
        self._memory = memory
        self._base = base

    def change(self, layout: str, offset: int, to: Callable[[int], int]) -> None:
        value = int(struct.unpack_from(layout, self._memory, self._base + offset)[0])
        struct.pack_into(layout, self._memory, self._base + offset, to(value))

    def report(self, kind: int, data: int = 0) -> None:
        """Write the entry first, then the count that makes it visible."""
        count = int(struct.unpack_from("<Q", self._memory, self._base + _FAULT_COUNT)[0])
        at = self._base + _FAULTS + count % _MAX_FAULTS * _FAULT.size
        _FAULT.pack_into(self._memory, at, time.time_ns(), kind, data)
        struct.pack_into("<Q", self._memory, self._base + _FAULT_COUNT, count + 1)


def _apply(record: _Record, fault: Fault) -> None:
    match fault:
        case Xid(number):
            if not 1 <= number <= 999:
                raise InvalidInput("number", f"{number} is not an XID (1 to 999)")
            record.report(_XID, number)
        case EccError(corrected, count):
            if count < 1:
                raise InvalidInput("count", f"{count} errors")
            offset = _ECC_CORRECTED if corrected else _ECC_UNCORRECTED
            record.change("<Q", offset, lambda before: before + count)
            record.report(_CORRECTED if corrected else _UNCORRECTED)
            if not corrected:
                record.report(_XID, _XID_DOUBLE_BIT_ECC)
        case FallOffBus():
            record.change("<I", _LOST, lambda before: before | 1)
            record.report(_XID, _XID_FALLEN_OFF_THE_BUS)
        case Restore():
            record.change("<I", _LOST, lambda before: before + before % 2)
