"""Bytes that a slice's processes say they have parked, read from its usage file at every look of the agent."""

import struct
from collections import Counter
from typing import Final

from egpu.adapters.slices.pages import MAX_DEVICES, SLOT_LIVE, USAGE_ROW, USAGE_ROWS_OFFSET, USAGE_SIZE

_ROW_PARKED: Final = struct.Struct(f"<II32xQ{USAGE_ROW.size - 48}x")
"""Of a row: its state, its device, and its parked bytes."""


def parked_bytes(content: bytes | str) -> Counter[int]:
    """Return the bytes that the processes of a usage file say they have parked, by device; none for an error. Asked for
    at every look: a container may have filled all rows, and to read one as a process takes twenty times as long."""
    found = Counter[int]()
    if len(content) == USAGE_SIZE and isinstance(content, bytes):
        for state, device, parked in _ROW_PARKED.iter_unpack(memoryview(content)[USAGE_ROWS_OFFSET:]):
            if state == SLOT_LIVE and device < MAX_DEVICES:
                found[device] += parked
    return found
