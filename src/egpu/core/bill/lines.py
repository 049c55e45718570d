"""The lines of the bill: lost GPU time, in seconds of a whole card."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from egpu.core.view import PendingPod, SliceUsage, SliceView, Waits
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.api.wire import seconds_since

IDLE_SECONDS: Final = 600.0
"""A slice without requests for so long is idle; a shorter pause may be between two batches."""
HISTORY_SECONDS: Final = 3600.0
"""The shortest history after which a slice can be under-used."""
UNDER_USED: Final = 0.5
"""A slice that uses less than this part of its share is under-used."""
SECONDS_PER_DAY: Final = 86_400.0
SECONDS_PER_HOUR: Final = 3_600.0
_NO_LOSS: Final = (Waits.GATE, Waits.INVALID)
"""Pods that wait for people, not for cards."""


class Looked(Protocol):
    """The input of a bill: a `ClusterView`, or the part of one that a user may see."""

    @property
    def pending(self) -> Sequence[PendingPod]:
        """The pods that wait."""
        ...

    @property
    def now(self) -> datetime:
        """The time of the view."""
        ...

    def slices(self) -> Iterator[SliceView]:
        """Return the slices of all cards."""
        ...


class Cause(StrEnum):
    """The cause of lost GPU time."""

    PENDING = "pending"
    """A pod waits for cards."""
    IDLE = "idle"
    """The program of a slice does not use its card."""
    UNUSED = "unused"
    """No pod uses the slice of a claim."""
    UNDER_USED = "under-used"
    """Less than half of a slice is used."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a waiting pod (`pending`) or of a slice (`slice`). `history_seconds`: the time that it covers."""

    cause: Cause
    lost_gpu_seconds: float
    lost_gpu_seconds_per_day: float
    history_seconds: float
    pending: PendingPod | None = None
    slice: SliceView | None = None

    @property
    def subject(self) -> PendingPod | SliceView:
        """The pod or slice of the line."""
        subject = self.pending or self.slice
        assert subject is not None
        return subject

    @property
    def namespace(self) -> str:
        return self.subject.namespace

    def label(self, name: str) -> str:
        """Return a label of the line's pod or claim; "" without one."""
        return self.subject.labels.get(name, "")


@dataclass(frozen=True)
class Bill:
    """The lines, sorted by loss per day, the largest first."""

    lines: tuple[Line, ...]

    @property
    def lost_gpu_seconds(self) -> float:
        return sum(line.lost_gpu_seconds for line in self.lines)

    @property
    def lost_gpu_seconds_per_day(self) -> float:
        return sum(line.lost_gpu_seconds_per_day for line in self.lines)


def bill_of(view: Looked) -> Bill:
    """Compute the loss of the cluster. Slices without published usage are left out."""
    lines = [_waiting(pod) for pod in view.pending if pod.reason not in _NO_LOSS and pod.gpus]
    lines += [line for one in view.slices() if (line := _of_slice(one, view.now)) is not None]
    return Bill(tuple(sorted(lines, key=lambda line: -line.lost_gpu_seconds_per_day)))


def summed(bill: Bill, key: Callable[[Line], str]) -> dict[str, Bill]:
    """Group the lines by a key, such as the namespace; the largest loss per day comes first."""
    found: dict[str, list[Line]] = {}
    for line in bill.lines:
        found.setdefault(key(line), []).append(line)
    parts = [(name, Bill(tuple(lines))) for name, lines in found.items()]
    return dict(sorted(parts, key=lambda part: (-part[1].lost_gpu_seconds_per_day, part[0])))


def lost_gpu_seconds(share: float, used: SliceUsage, *, card_memory_mib: int) -> float:
    """Return the unused part of a slice since it was created. `share` is its part of a card, 0 to 1."""
    return max(0.0, share * used.age_seconds - _used_gpu_seconds(used, card_memory_mib))


def is_idle(used: SliceUsage) -> bool:
    """Return whether a slice has not used its card for long."""
    return used.idle_seconds >= IDLE_SECONDS


def _used_gpu_seconds(used: SliceUsage, card_memory_mib: int) -> float:
    """Return the used time. Memory that is held while nothing is computed for long does not count as work."""
    memory = used.peak_bytes / (card_memory_mib * MIB_BYTES) if card_memory_mib else 0.0
    at_work = used.age_seconds - used.idle_seconds if is_idle(used) else used.age_seconds
    return max(used.gpu_seconds, memory * max(0.0, at_work))


def _waiting(pod: PendingPod) -> Line:
    return Line(
        cause=Cause.PENDING,
        lost_gpu_seconds=pod.gpus * pod.seconds,
        lost_gpu_seconds_per_day=pod.gpus * SECONDS_PER_DAY,
        history_seconds=pod.seconds,
        pending=pod,
    )


def _of_slice(one: SliceView, now: datetime) -> Line | None:
    """Return the line of a slice; None if it is used, or if its usage is unknown or too recent."""
    used = one.used
    if not one.users and one.holder.kind in ("claim", "resourceclaim", "slice"):
        seconds = seconds_since(one.made, now)
        return _line(one, Cause.UNUSED, one.share * seconds, one.share * SECONDS_PER_DAY, seconds)
    if used is None or one.init or not used.age_seconds:
        return None
    lost = lost_gpu_seconds(one.share, used, card_memory_mib=one.card_memory_mib)
    if is_idle(used):
        return _line(one, Cause.IDLE, lost, one.share * SECONDS_PER_DAY, used.age_seconds)
    granted = one.share * used.age_seconds
    if used.age_seconds < HISTORY_SECONDS or granted - lost >= UNDER_USED * granted:
        return None
    return _line(one, Cause.UNDER_USED, lost, lost / used.age_seconds * SECONDS_PER_DAY, used.age_seconds)


def _line(one: SliceView, cause: Cause, lost: float, per_day: float, history: float) -> Line:
    return Line(
        cause=cause, lost_gpu_seconds=lost, lost_gpu_seconds_per_day=per_day, history_seconds=history, slice=one
    )
