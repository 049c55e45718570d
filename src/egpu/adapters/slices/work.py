"""The kind of a slice's work, and its part in turns: words of the policy page (`native/include/egpu_abi.h`)."""

from enum import IntEnum


class Kind(IntEnum):
    """The kind of a slice's work: on a shared card, `LATENCY` has turns before the others."""

    BATCH = 0
    LATENCY = 1


class Work(IntEnum):
    """A slice's part in turns now: none, it asks for them, or it yields to those who do."""

    PLAIN = 0
    LATENCY = 1
    YIELDING = 2
