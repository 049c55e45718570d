"""Batch work whose kernels delay latency work on the same card, by what its slice reports of itself.

A kernel that runs is never cut short, so latency work waits for it. The length is the slice's own account: a mean of
GPU time by launch. A slice that reports too much names itself, and one that reports too little is not named. Nothing
else depends on it: turns are charged by the arbiter's clock.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

LONG_NS: Final = 10_000_000
"""Kernels from this length on are named: the wait for one is longer than most steps of latency work."""


@dataclass(frozen=True)
class Seen:
    """A slice on a card, as seen lately. `kernel_ns`: the mean length of its launches, by its own account."""

    key: Hashable
    latency: bool
    active: bool
    kernel_ns: int


@dataclass(frozen=True)
class LongKernels:
    """A slice with long kernels, and the slices of latency work that they delay."""

    key: Hashable
    uuid: str
    kernel_ns: int
    delays: tuple[Hashable, ...]


def long_kernels(uuid: str, slices: Sequence[Seen]) -> list[LongKernels]:
    """Return the slices of this card that delay latency work which was there lately."""
    delays = tuple(one.key for one in slices if one.latency and one.active)
    return [
        LongKernels(one.key, uuid, one.kernel_ns, delays)
        for one in slices
        if delays and not one.latency and one.active and one.kernel_ns >= LONG_NS
    ]
