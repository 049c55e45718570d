"""What the processes of a slice are said to use of it: their own claim, as their node's agent publishes it."""

from dataclasses import dataclass
from typing import NamedTuple


class SliceKey(NamedTuple):
    """A container's slice of one card."""

    namespace: str
    pod: str
    container: str
    uuid: str


class ProcessUsage(NamedTuple):
    """A process of a slice, by the pid that its container has for it."""

    pid: int
    memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceUsage:
    """Of one slice: now, and since it was prepared, `age_seconds` ago. `core_ratio` is of the whole card, 0 to 1;
    `gpu_seconds` is for how long the card worked for it, `idle_seconds` since when nothing was asked of the card."""

    memory_bytes: int = 0
    peak_bytes: int = 0
    core_ratio: float = 0.0
    gpu_seconds: float = 0.0
    throttled_seconds: float = 0.0
    refusals: int = 0
    idle_seconds: float = 0.0
    age_seconds: float = 0.0
    processes: tuple[ProcessUsage, ...] = ()
    """Those with most memory first."""
