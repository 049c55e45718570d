"""Values of CEL that JSON does not have: Kubernetes' quantities and semantic versions, and their functions."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering
from typing import Any, Final, Self

from egpu_base.api.quantities import parse_quantity
from egpu_base.cel.values import EvaluationError, text
from egpu_base.errors import InvalidQuantity

SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)
"""A version of semver.org 2.0.0."""
MAX_VERSION: Final = 1024
"""Python makes no number of several thousand digits."""
MAX_MATCHED: Final = 64
"""The longest text to which a pattern of a tenant is applied: no attribute of a device is longer."""
MAX_MATCHES: Final = 4
"""Patterns in one expression of a tenant."""
MAX_REPEATED: Final = 3
_ATOM: Final = r"(?:[^\\(){}\[\]*+?]|\\[dws]|\\[^\w\s]|\[\^?[^\\\[\]]++\])"
_SIMPLE: Final = re.compile(rf"(?:{_ATOM}++[*+?]?+){{0,{MAX_REPEATED}}}+{_ATOM}*+")
"""Python's patterns go back and try again. With few repetitions side by side that is a power of the text's length."""


@total_ordering
@dataclass(frozen=True)
class QuantityValue:
    amount: Fraction

    def __lt__(self, other: Self) -> bool:
        return self.amount < other.amount


@total_ordering
@dataclass(frozen=True)
class SemverValue:
    """A version; build metadata does not count."""

    numbers: tuple[int, int, int]
    prerelease: tuple[str, ...] = ()

    def __lt__(self, other: Self) -> bool:
        if self.numbers != other.numbers:
            return self.numbers < other.numbers
        if not self.prerelease or not other.prerelease:
            return bool(self.prerelease) and not other.prerelease
        return [_identifier(one) for one in self.prerelease] < [_identifier(one) for one in other.prerelease]


class Domains(dict[str, Any]):
    """Attributes or capacities of a device by domain. Any other domain is empty."""

    def __missing__(self, name: str) -> dict[str, Any]:
        return {}


def _identifier(part: str) -> tuple[bool, int, str]:
    """Return a part of a prerelease for comparison: numbers come before words."""
    return (False, int(part), "") if part.isdecimal() else (True, 0, part)


def quantity(value: Any) -> QuantityValue:
    """Evaluate `quantity("4Gi")`. Raises EvaluationError."""
    try:
        return QuantityValue(parse_quantity(text(value)))
    except InvalidQuantity as error:
        raise EvaluationError(f"quantity({value!r}): {error.reason}") from error


def semver(value: Any) -> SemverValue:
    """Evaluate `semver("1.2.3")`. Raises EvaluationError."""
    found = SEMVER.fullmatch(text(value))
    if found is None:
        raise EvaluationError(f"semver({value!r}): must be a version such as 1.2.3")
    major, minor, patch, prerelease, _ = found.groups()
    if len(text(value)) > MAX_VERSION:
        raise EvaluationError(f"semver(): the version has more than {MAX_VERSION} characters")
    return SemverValue((int(major), int(minor), int(patch)), tuple(prerelease.split(".")) if prerelease else ())


def ordered(left: Any, right: Any) -> int:
    """Return -1, 0 or 1. Raises EvaluationError for values of types that have no order, or that differ."""
    numbers = (int, float)
    if type(left) in numbers and type(right) in numbers:
        return (left > right) - (left < right)
    if type(left) is type(right) and isinstance(left, str | QuantityValue | SemverValue):
        return (left > right) - (left < right)
    raise EvaluationError(f"no such overload: {left!r} and {right!r} cannot be compared")


def _amounts(left: Any, right: Any) -> tuple[Fraction, Fraction]:
    if not isinstance(left, QuantityValue) or not isinstance(right, QuantityValue):
        raise EvaluationError(f"no such overload: {left!r} and {right!r} are not quantities")
    return left.amount, right.amount


def _typed(left: Any, right: Any) -> int:
    if not isinstance(left, QuantityValue | SemverValue):
        raise EvaluationError(f"no such overload: {left!r} is neither a quantity nor a version")
    return ordered(left, right)


def _version_part(index: int) -> Callable[[Any], Any]:
    def part(value: Any) -> int:
        if not isinstance(value, SemverValue):
            raise EvaluationError(f"no such overload: {value!r} is not a version")
        return value.numbers[index]

    return part


def matches_simply(value: Any, pattern: Any) -> bool:
    """Evaluate `matches()` with a pattern whose time is bounded. Raises EvaluationError for another pattern."""
    wanted = text(pattern)
    if len(text(value)) > MAX_MATCHED:
        raise EvaluationError(f"matches({wanted!r}): the text has more than {MAX_MATCHED} characters")
    if not _SIMPLE.fullmatch(wanted):
        raise EvaluationError(
            f"matches({wanted!r}): the pattern has groups, counts, or more than {MAX_REPEATED} of *, + and ?"
        )
    try:
        return re.search(wanted, text(value), re.ASCII) is not None
    except re.error as error:
        raise EvaluationError(f"matches({wanted!r}): {error}") from error


def _integer(value: Any) -> int:
    amount, _ = _amounts(value, value)
    if amount.denominator != 1:
        raise EvaluationError(f"{value!r} cannot be converted to an integer")
    return int(amount)


def _substring(value: Any, start: Any) -> str:
    """Return the text from a place on. Raises EvaluationError for a place outside of it."""
    whole = text(value)
    if not isinstance(start, int) or not 0 <= start <= len(whole):
        raise EvaluationError(f"index out of range: {start}")
    return whole[start:]


FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {"quantity": quantity, "semver": semver}
METHODS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "lowerAscii": lambda value: text(value).lower(),
    "upperAscii": lambda value: text(value).upper(),
    "asInteger": _integer,
    "major": _version_part(0),
    "minor": _version_part(1),
    "patch": _version_part(2),
}
METHODS_OF_TWO: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "startsWith": lambda left, right: text(left).startswith(text(right)),
    "endsWith": lambda left, right: text(left).endswith(text(right)),
    "contains": lambda left, right: text(right) in text(left),
    "matches": lambda left, right: re.search(text(right), text(left)) is not None,
    "substring": _substring,
    "compareTo": _typed,
    "isGreaterThan": lambda left, right: _typed(left, right) > 0,
    "isLessThan": lambda left, right: _typed(left, right) < 0,
    "add": lambda left, right: QuantityValue(sum(_amounts(left, right), Fraction(0))),
    "sub": lambda left, right: QuantityValue(_amounts(left, right)[0] - _amounts(left, right)[1]),
}
COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<=": lambda left, right: ordered(left, right) <= 0,
    ">=": lambda left, right: ordered(left, right) >= 0,
    "<": lambda left, right: ordered(left, right) < 0,
    ">": lambda left, right: ordered(left, right) > 0,
}
