"""native/wire/ops.txt: the numbers of operations and of kinds of handles. Append-only."""
# ruff: noqa: E501  one case per form of parameter, and lines of C read better unbroken

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

FIRST_OP = 64
HEADER = """\
# Numbers on the wire: `op NUMBER NAME` and `kind NUMBER NAME`. Append-only: a number is never reused and never changes its meaning.
# scripts/generate_remote.py appends what is new. Names in capitals have forms of their own (special.h); the others are functions of the driver and of libraries.
"""

SPECIAL = (
    "COPY_IN", "COPY_OUT", "COPY_RECT_IN", "COPY_RECT_OUT", "COPY_RECT", "COPY_IN_SHARED", "COPY_OUT_SHARED", "IMAGE", "MODULE_LOAD",
    "LIBRARY_LOAD", "FUNCTION_INFO", "LAUNCH", "HOST_CALLBACK", "HOST_MAP", "HOST_UNMAP", "POINTER_ATTRIBUTE", "COPY_HOST_IN", "COPY_HOST_OUT",
    "DEVICE_STATUS", "LIBRARY_GROUP", "NCCL_INIT", "NCCL_INIT_ALL", "NCCL_SPLIT", "NCCL_SHRINK",
    "CAPTURE_INFO", "CAPTURE_MODE", "GRAPH_NODE", "GRAPH_UPDATE", "ROOM", "ROOM_IN", "ROOM_OUT", "COPY_ARRAY", "COPY_ARRAY_IN", "COPY_ARRAY_OUT",
    "CLUSTERS", "NODE_ATTRIBUTE", "PRINTED", "TENSOR_MAP", "VARIABLE", "VARIABLE_DONE",
)  # fmt: skip


@dataclass
class Numbers:
    """Names and their numbers, in the file's order."""

    ops: dict[str, int] = field(default_factory=dict[str, int])
    kinds: dict[str, int] = field(default_factory=dict[str, int])

    def lines(self) -> list[str]:
        """Return the file's lines without comments; the table hash covers them."""
        return [f"kind {n} {name}" for name, n in self.kinds.items()] + [
            f"op {n} {name}" for name, n in self.ops.items()
        ]

    def text(self) -> str:
        """Return the whole file."""
        return HEADER + "".join(line + "\n" for line in self.lines())

    def hash(self) -> int:
        """Return FNV-1a 64 over the lines, each with its newline."""
        value = 14695981039346656037
        for byte in "".join(line + "\n" for line in self.lines()).encode():
            value = ((value ^ byte) * 1099511628211) % (1 << 64)
        return value


def read(path: Path) -> Numbers:
    """Read the file; an absent one is empty. Raises ValueError for a line that is no op, kind or comment."""
    numbers = Numbers()
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("#") or not line:
            continue
        what, number, name = line.split()
        if what not in ("op", "kind"):
            raise ValueError(f"{path}: {line!r}: expected `op NUMBER NAME` or `kind NUMBER NAME`")
        target = numbers.ops if what == "op" else numbers.kinds
        if name in target or int(number) in target.values():
            raise ValueError(f"{path}: {line!r}: named or numbered twice")
        target[name] = int(number)
    return numbers


def extend(numbers: Numbers, ops: list[str], kinds: list[str]) -> None:
    """Append new names, with the next free numbers."""
    for name in (*SPECIAL, *ops):
        if name not in numbers.ops:
            numbers.ops[name] = max(numbers.ops.values(), default=FIRST_OP - 1) + 1
    for name in kinds:
        if name not in numbers.kinds:
            numbers.kinds[name] = max(numbers.kinds.values(), default=0) + 1
