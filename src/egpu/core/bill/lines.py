"""What is lost: GPU time, in seconds of a whole card."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from egpu.api.quantities import MIB_BYTES
from egpu.api.wire import seconds_since
from egpu.core.view import PendingPod, SliceUsage, SliceView, Waits

IDLE_SECONDS: Final = 600.0
"""A slice that asked nothing of its card for so long is idle; before, it may be between two batches."""
HISTORY_SECONDS: Final = 3600.0
"""A slice is called under-used by no shorter history."""
UNDER_USED: Final = 0.5
"""Below this part of what it was given it is."""
SECONDS_PER_DAY: Final = 86_400.0
SECONDS_PER_HOUR: Final = 3_600.0
_NO_LOSS: Final = (Waits.GATE, Waits.INVALID)
"""Who waits for that, waits for people."""


class Looked(Protocol):
    """What a bill is made of: a `ClusterView`, or what somebody may see of one."""

    @property
    def pending(self) -> Sequence[PendingPod]:
        """Pods that wait."""
        ...

    @property
    def now(self) -> datetime:
        """When it was so."""
        ...

    def slices(self) -> Iterator[SliceView]:
        """Of all cards."""
        ...


class Cause(StrEnum):
    """Why GPU time is lost."""

    PENDING = "pending"
    """A pod waits for it."""
    IDLE = "idle"
    """A slice whose program asks nothing of its card."""
    UNUSED = "unused"
    """A claim's slice that no pod uses."""
    UNDER_USED = "under-used"
    """A slice of which less than half was used."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line: of a waiting pod (`pending`), or of a slice (`slice`). `history_seconds` is for how long it was looked
    at."""

    cause: Cause
    lost_gpu_seconds: float
    lost_gpu_seconds_per_day: float
    history_seconds: float
    pending: PendingPod | None = None
    slice: SliceView | None = None

    @property
    def subject(self) -> PendingPod | SliceView:
        """Whose line it is."""
        subject = self.pending or self.slice
        assert subject is not None
        return subject

    @property
    def namespace(self) -> str:
        return self.subject.namespace

    def label(self, name: str) -> str:
        """The value of a label of its pod or claim; "" without one."""
        return self.subject.labels.get(name, "")


@dataclass(frozen=True)
class Bill:
    """The lines, the dearest per day first."""

    lines: tuple[Line, ...]

    @property
    def lost_gpu_seconds(self) -> float:
        return sum(line.lost_gpu_seconds for line in self.lines)

    @property
    def lost_gpu_seconds_per_day(self) -> float:
        return sum(line.lost_gpu_seconds_per_day for line in self.lines)


def bill_of(view: Looked) -> Bill:
    """What the cluster loses, as far as agents published what is used: of other slices nothing is said."""
    lines = [_waiting(pod) for pod in view.pending if pod.reason not in _NO_LOSS and pod.gpus]
    lines += [line for one in view.slices() if (line := _of_slice(one, view.now)) is not None]
    return Bill(tuple(sorted(lines, key=lambda line: -line.lost_gpu_seconds_per_day)))


def summed(bill: Bill, key: Callable[[Line], str]) -> dict[str, Bill]:
    """The lines by what `key` says of each, such as its namespace; the dearest per day first."""
    found: dict[str, list[Line]] = {}
    for line in bill.lines:
        found.setdefault(key(line), []).append(line)
    parts = [(name, Bill(tuple(lines))) for name, lines in found.items()]
    return dict(sorted(parts, key=lambda part: (-part[1].lost_gpu_seconds_per_day, part[0])))


def lost_gpu_seconds(share: float, used: SliceUsage, *, card_memory_mib: int) -> float:
    """What a slice of `share` of a card (0 to 1) was given since it was made, and did not use."""
    return max(0.0, share * used.age_seconds - _used_gpu_seconds(used, card_memory_mib))


def is_idle(used: SliceUsage) -> bool:
    """Whether nothing was asked of the card for long."""
    return used.idle_seconds >= IDLE_SECONDS


def _used_gpu_seconds(used: SliceUsage, card_memory_mib: int) -> float:
    """What is held while nothing is computed for long keeps others away, and does no work."""
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
    """None: it is used, or nobody says, or it is too early to tell."""
    used = one.used
    if not one.users and one.holder.kind in ("claim", "slice"):
        seconds = seconds_since(one.made, now)
        return _line(one, Cause.UNUSED, one.share * seconds, one.share * SECONDS_PER_DAY, seconds)
    if used is None or one.init or not used.age_seconds:
        return None
    lost = lost_gpu_seconds(one.share, used, card_memory_mib=one.card_memory_mib)
    if is_idle(used):
        return _line(one, Cause.IDLE, lost, one.share * SECONDS_PER_DAY, used.age_seconds)
    given = one.share * used.age_seconds
    if used.age_seconds < HISTORY_SECONDS or given - lost >= UNDER_USED * given:
        return None
    return _line(one, Cause.UNDER_USED, lost, lost / used.age_seconds * SECONDS_PER_DAY, used.age_seconds)


def _line(one: SliceView, cause: Cause, lost: float, per_day: float, history: float) -> Line:
    return Line(
        cause=cause, lost_gpu_seconds=lost, lost_gpu_seconds_per_day=per_day, history_seconds=history, slice=one
    )
