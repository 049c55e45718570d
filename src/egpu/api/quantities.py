"""Numbers as people and API servers write them: one grammar and one exact value, Kubernetes' `resource.Quantity`.

What a number counts differs with its place:

- in a **pod** it counts the vocabulary's unit and is whole. The API server rewrites it in its canonical form, so 2000
  comes back as "2k" and 2048 may be "2Ki": still 2000 and 2048 units.
- in a **claim** a bare number counts the vocabulary's unit, and a number with a suffix is bytes (4GB, 4Gi, 4GiB).
"""

import functools
import math
import re
from fractions import Fraction
from typing import Final, NamedTuple

from egpu.errors import InvalidQuantity

Quantity = int | float | str

MIB_BYTES: Final = 1024 * 1024
_MAX_LENGTH: Final = 64
_MAX_EXPONENT: Final = 99

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
"""Suffixes of the powers of 1024."""
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
"""Suffixes of the powers of 1000, from the finest part that Kubernetes keeps."""
_NANO: Final = Fraction(1, 10**9)
_ZERO: Final = Fraction(0)
_FACTORS: Final = {suffix: _NANO * 1000**power for power, suffix in enumerate(_DECIMAL)} | {
    suffix: Fraction(1024**power) for power, suffix in enumerate(_BINARY)
}
_BYTES: Final = {suffix: factor for suffix, factor in _FACTORS.items() if factor >= 1} | {"K": Fraction(1000)}
"""Factors of sizes in claims, where people also write "K", and a "B" behind any of them."""
_NUMBER: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d{1,2})|([A-Za-z]*))", re.ASCII)


class _Written(NamedTuple):
    """`number` has its exponent counted in (`exponent`: whether there was one), but not its suffix; `value` has both,
    and is None where the suffix is none of Kubernetes'."""

    number: Fraction
    suffix: str
    exponent: bool
    value: Fraction | None


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> _Written | None:
    if len(text) > _MAX_LENGTH or not (match := _NUMBER.fullmatch(text)):
        return None
    digits, exponent, suffix = match.groups(default="")
    number, factor = Fraction(digits + exponent), _FACTORS.get(suffix)
    return _Written(number, suffix, bool(exponent), None if factor is None else number * factor)


def _read(value: object, *, field: str) -> _Written:
    written = _parse(str(value))
    if written is None:
        raise InvalidQuantity(field, f"{str(value)[:_MAX_LENGTH]!r} is not a number; write one such as 10, 500m or 4Gi")
    return written


def parse_quantity(value: object, *, field: str = "quantity") -> Fraction:
    """The exact value of a Kubernetes quantity. Raises InvalidQuantity naming `field`."""
    written = _read(value, field=field)
    if written.value is None:
        known = ", ".join(filter(None, _FACTORS))
        raise InvalidQuantity(field, f"{value!r} has the unknown suffix {written.suffix!r}; known are {known}")
    return written.value


def quantity_or_zero(value: object) -> Fraction:
    """The value; 0 for what is negative or no quantity, for sums that must not fail over one entry."""
    return _amount(str(value))


@functools.lru_cache(maxsize=4096)
def _amount(text: str) -> Fraction:
    written = _parse(text)
    return written.value if written and written.value and written.value > 0 else _ZERO


def canonical_quantity(value: object) -> str:
    """The spelling in which an API server keeps a quantity: no fraction, the largest suffix that stays exact, of the
    family it was written in ("2000" → "2k", "1024Ki" → "1Mi", "0.5" → "500m", "1000e3" → "1e6").

    Rounded away from zero to a billionth. Beyond the largest decimal suffix the server loses the zeros ("1000E" → "1"),
    and so do we: what it has stored is what a pod asks for. Source: Kubernetes, `resource.Quantity`, and what 1.36 made
    of 10⁴⁰. Raises InvalidQuantity.
    """
    return _canonical_text(value) if isinstance(value, str) else _canonical(value)


@functools.lru_cache(maxsize=4096)
def _canonical_text(text: str) -> str:
    """Nearly all are the same few."""
    return _canonical(text)


def _canonical(value: object) -> str:
    amount, written = parse_quantity(value), _read(value, field="")
    size, sign = abs(amount), "-" if amount < 0 else ""
    if written.suffix in _BINARY[1:] and size >= 1024 and size.denominator == 1:
        count, power = _divided(int(size), 1024, most=len(_BINARY) - 1)
        return f"{sign}{count}{_BINARY[power]}"
    billionths = math.ceil(size / _NANO)
    if not billionths:
        return "0"
    count, power = _divided(billionths, 1000, most=_MAX_EXPONENT)
    exponent = 3 * (power - _DECIMAL.index(""))
    if written.exponent:
        return f"{sign}{count}e{exponent}" if exponent else f"{sign}{count}"
    return f"{sign}{count}{_DECIMAL[power] if power < len(_DECIMAL) else ''}"


def _divided(number: int, base: int, *, most: int) -> tuple[int, int]:
    """`number` (not 0) without the factors `base` in it, and how many those were, at most `most`."""
    power = 0
    while power < most and number % base == 0:
        number, power = number // base, power + 1
    return number, power


def _positive_whole(number: Fraction, value: Quantity, *, field: str) -> int:
    if number < 0:
        raise InvalidQuantity(field, f"{value} is negative; ask for at least 1")
    if number == 0:
        raise InvalidQuantity(field, f"{value} is zero; ask for at least 1, or leave it out")
    if number.denominator != 1:
        raise InvalidQuantity(field, f"{value} is a fraction; only whole numbers can be asked for")
    return int(number)


def parse_count(value: Quantity, *, field: str) -> int:
    """A whole number above zero, in any form that the API server may have rewritten it to ("2k", "1e3").

    Raises InvalidQuantity naming `field` for anything else.
    """
    return _positive_whole(parse_quantity(str(value).strip(), field=field), value, field=field)


def parse_claim_memory(value: Quantity, *, field: str, unit_mib: int) -> int:
    """Memory of a claim in MiB: bare numbers count `unit_mib`, suffixed ones are bytes, rounded up to whole MiB.

    Raises InvalidQuantity naming `field`.
    """
    number, suffix, _, _ = _read(str(value).strip(), field=field)
    if not suffix:
        return _positive_whole(number, value, field=field) * unit_mib
    factor = _BYTES.get(suffix.removesuffix("B"))
    if factor is None:
        known = "Ki, Mi, Gi, K, M, G, KB, MB, GB, KiB, MiB, GiB"
        raise InvalidQuantity(field, f"{value!r} has the unknown suffix {suffix!r}; use one of {known}")
    size = number * factor
    if size <= 0:
        return _positive_whole(size, value, field=field)  # says zero or negative
    return math.ceil(size / MIB_BYTES)


def parse_memory_mib(text: Quantity, *, field: str = "memory") -> int:
    """Memory as given on a command line, in MiB: "2GiB", "512MiB", "4GB"; bare numbers are MiB."""
    return parse_claim_memory(text, field=field, unit_mib=1)


def format_mib(memory_mib: int) -> str:
    """For people: "2560 MiB", and "16 GiB" where it is exact and large."""
    if memory_mib >= 10 * 1024 and memory_mib % 1024 == 0:
        return f"{memory_mib // 1024} GiB"
    return f"{memory_mib} MiB"
