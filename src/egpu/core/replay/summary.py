"""Results of many runs together: means with 95 % intervals (Student's t), and paired differences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_T_95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
                2.045, 2.042)  # fmt: skip
"""Two-sided 95 % points of Student's t for 1 to 30 degrees of freedom."""
_NORMAL_95: Final = 1.960


@dataclass(frozen=True)
class Interval:
    """A mean and the half-width of its 95 % interval; 0 for a single value."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.half:.2f}"


def interval(values: Sequence[float]) -> Interval:
    """Return the interval of one or more values."""
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return Interval(mean, 0.0)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    point = _T_95[count - 2] if count - 2 < len(_T_95) else _NORMAL_95
    return Interval(mean, point * deviation / math.sqrt(count))


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the interval of the differences ours - theirs, run by run, for common random numbers."""
    return interval([mine - other for mine, other in zip(ours, theirs, strict=True)])
