"""All rows of a usage file at once, for readers that look again and again.

A container may fill all rows, and to read one as a process takes a hundred times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from egpu.adapters.slices.pages import MAX_DEVICES, SLOT_LIVE, USAGE_ROW, USAGE_ROWS_OFFSET, usage_problem

PHYSICAL_PAGE: Final = 2 << 20
"""Smaller allocations stay on the card."""
MOST_BYTES: Final = 1 << 50
"""Of one class of memory in one row: far above any card, and sums of all rows fit into 64 bits."""
_DEVICE, _SPILL = 0, 6
"""Places of two classes of memory. Memory that spills is beyond the limit, and on the host."""
_CLASSES: Final = 8
_LAYOUT: Final = np.dtype(
    {
        "names": [
            "state", "device", "pid", "start_time", "pid_namespace", "heartbeat_ns", "parked", "parks", "wakes",
            "answered", "reserved", "released",
        ],
        "formats": ["<u4", "<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8", ("<u8", 8), ("<u8", 8)],
        "offsets": [0, 4, 8, 16, 24, 32, 40, 48, 52, 72, 128, 192],
        "itemsize": USAGE_ROW.size,
    }
)  # fmt: skip


class Row(NamedTuple):
    """A row that is in use: its number, and the process that it is said to be of."""

    number: int
    device: int
    pid: int
    start_time: int
    pid_namespace: int


@dataclass(frozen=True)
class Memory:
    """What the processes of a slice say together. Of `counted_bytes`, `away_bytes` are parked or wait for room, and
    `movable_bytes` can leave the card. `active_ns`: the last call. `answered`: the requests to park that the processes
    with movable memory have answered last."""

    counted_bytes: int = 0
    away_bytes: int = 0
    movable_bytes: int = 0
    active_ns: int = 0
    answered: frozenset[int] = frozenset()


def rows_of(content: bytes) -> list[Row]:
    """Return the rows in use; none of an invalid file."""
    found, numbers = _live(content)
    fields = (found[name].tolist() for name in ("device", "pid", "start_time", "pid_namespace"))
    return [Row(*each) for each in zip(numbers.tolist(), *fields, strict=True)]


def memory_of(content: bytes) -> Memory:
    """Return what the processes say of their memory; nothing for an invalid file."""
    found, _ = _live(content)
    reserved, released = found["reserved"], found["released"]
    held = np.minimum(np.where(reserved > released, reserved - released, 0), MOST_BYTES)
    counted = int(held.sum() - held[:, _SPILL].sum())
    # No more is parked than is held: the rest would be a false claim.
    parked = np.minimum(found["parked"], held.sum(axis=1))
    large = held[:, _DEVICE] >= PHYSICAL_PAGE
    stays = ~large | ((parked > 0) & (found["parks"] > found["wakes"]))
    device = held[:, _DEVICE]
    movable = np.where(stays | (parked > device), 0, device - parked)
    return Memory(
        counted,
        min(int(parked.sum()), counted),
        int(movable.sum()),
        int(found["heartbeat_ns"].max(initial=0)),
        frozenset(found["answered"][large].tolist()),
    )


def _live(content: bytes) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the rows in use, shape (rows,), and their numbers."""
    if usage_problem(content):
        return np.zeros(0, dtype=_LAYOUT), np.zeros(0, dtype=np.int64)
    every = np.frombuffer(content, dtype=_LAYOUT, offset=USAGE_ROWS_OFFSET)
    numbers = np.flatnonzero((every["state"] == SLOT_LIVE) & (every["device"] < MAX_DEVICES))
    return every[numbers], numbers
