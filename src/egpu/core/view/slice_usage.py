"""The usage of a slice's processes: their own claim, as their node's agent publishes it."""

from dataclasses import dataclass
from typing import NamedTuple


class SliceKey(NamedTuple):
    """A container's slice of one card."""

    namespace: str
    pod: str
    container: str
    uuid: str


class ProcessUsage(NamedTuple):
    """A process of a slice, by its pid in the container."""

    pid: int
    memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceUsage:
    """The usage of one slice: now, and since it was prepared, `age_seconds` ago. `core_ratio` is of the whole card, 0
    to 1; `parked_bytes` of `memory_bytes` are not on the card; `gpu_seconds` is the card's busy time for it;
    `idle_seconds` is the time since its last request to the card."""

    memory_bytes: int = 0
    parked_bytes: int = 0
    peak_bytes: int = 0
    core_ratio: float = 0.0
    gpu_seconds: float = 0.0
    throttled_seconds: float = 0.0
    refusals: int = 0
    idle_seconds: float = 0.0
    age_seconds: float = 0.0
    processes: tuple[ProcessUsage, ...] = ()
    """The processes with most memory first."""
