"""Numbers as people and API servers write them, with one grammar and one exact value: Kubernetes' `resource.Quantity`.

The unit of a number depends on its place:

- in a **pod** it counts the vocabulary's unit and is whole. The API server rewrites it in its canonical form, so 2000
  comes back as "2k" and 2048 may be "2Ki": still 2000 and 2048 units. Memory with a larger suffix is bytes ("4Gi").
- in a **claim** a bare number counts the vocabulary's unit, and a number with a suffix is bytes (4GB, 4Gi, 4GiB).
"""

import functools
import math
import re
from fractions import Fraction
from typing import Final, NamedTuple

from egpu_base.errors import InvalidQuantity

Quantity = int | float | str

MIB_BYTES: Final = 1024 * 1024
_MAX_LENGTH: Final = 64
_MAX_EXPONENT: Final = 99

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
"""Suffixes for powers of 1024."""
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
"""Suffixes for powers of 1000, from the finest part that Kubernetes keeps."""
_NANO: Final = Fraction(1, 10**9)
_ZERO: Final = Fraction(0)
_FACTORS: Final = {suffix: _NANO * 1000**power for power, suffix in enumerate(_DECIMAL)} | {
    suffix: Fraction(1024**power) for power, suffix in enumerate(_BINARY)
}
_LEAST_MB: Final = 64
"""Fewer MB of GPU memory are of no use, so 20000000 units, which the API server writes as "20M", stay too many."""
_BYTES: Final = {suffix: factor for suffix, factor in _FACTORS.items() if factor >= 1} | {"K": Fraction(1000)}
"""Factors of sizes in claims, where people also write "K", and a "B" behind any of them."""
_NUMBER: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d{1,2})|([A-Za-z]*))", re.ASCII)


class _Written(NamedTuple):
    """A parsed quantity. `number` includes its exponent (`exponent`: whether it had one), but not its suffix. `value`
    includes both, and is None for a suffix that Kubernetes does not know."""

    number: Fraction
    suffix: str
    exponent: bool
    value: Fraction | None


def _parse(text: str) -> _Written | None:
    return None if len(text) > _MAX_LENGTH else _parse_short(text)  # no cache keeps long texts of others


@functools.lru_cache(maxsize=4096)
def _parse_short(text: str) -> _Written | None:
    if not (match := _NUMBER.fullmatch(text)):
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
    """Return the exact value of a Kubernetes quantity. Raises InvalidQuantity naming `field`."""
    written = _read(value, field=field)
    if written.value is None:
        known = ", ".join(filter(None, _FACTORS))
        raise InvalidQuantity(field, f"{value!r} has the unknown suffix {written.suffix!r}; known are {known}")
    return written.value


def quantity_or_zero(value: object) -> Fraction:
    """Return the value, or 0 for a negative or invalid quantity, for sums that must not fail over one entry."""
    written = _parse(str(value))
    return written.value if written and written.value and written.value.numerator > 0 else _ZERO


def is_zero(value: object) -> bool:
    """Return whether this is a zero in any spelling, such as 0, "0Gi" and "0.0"."""
    written = _parse(str(value).strip())
    return written is not None and written.number == 0


def canonical_quantity(value: object) -> str:
    """Return the spelling in which an API server keeps a quantity: no fraction, the largest suffix that stays exact, of
    the family it was written in ("2000" → "2k", "1024Ki" → "1Mi", "0.5" → "500m", "1000e3" → "1e6").

    It is rounded away from zero to a billionth. Beyond the largest decimal suffix the server loses the zeros ("1000E" →
    "1"), and so do we, because pods request the stored value. Source: Kubernetes, `resource.Quantity`, and the
    behaviour of 1.36 for 10⁴⁰. Raises InvalidQuantity.
    """
    if isinstance(value, str) and len(value) <= _MAX_LENGTH:
        return _canonical_text(value)
    return _canonical(value)


@functools.lru_cache(maxsize=4096)
def _canonical_text(text: str) -> str:
    """Cache the text: nearly all quantities are the same few."""
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
    """Return `number` (not 0) without its factors `base`, and their number, at most `most`."""
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
    """Parse a whole number above zero, in any form that the API server may have rewritten it to ("2k", "1e3").

    Raises InvalidQuantity naming `field` for anything else.
    """
    return _positive_whole(parse_quantity(str(value).strip(), field=field), value, field=field)


def parse_claim_memory(value: Quantity, *, field: str, unit_mib: int) -> int:
    """Parse a claim's memory in MiB: bare numbers count `unit_mib`, suffixed ones are bytes, rounded up to whole MiB.

    Raises InvalidQuantity naming `field`.
    """
    number, suffix = _read_memory(value, field=field, unit_mib=unit_mib)
    return int(number) * unit_mib if not suffix else math.ceil(number * _BYTES[suffix.removesuffix("B")] / MIB_BYTES)


def parse_pod_memory(value: Quantity, *, field: str, unit_mib: int, most_mib: int) -> int:
    """Memory of a container's resource in MiB, a multiple of `unit_mib`.

    A number in k, Ki or M is a count that the API server rewrote (4000 → "4k"); one in M is bytes if it is beyond
    `most_mib` as a count, and is enough for a program. Other suffixed numbers are bytes ("4Gi", "10G"), rounded up.
    Raises InvalidQuantity naming `field`.
    """
    number, suffix = _read_memory(value, field=field, unit_mib=unit_mib)
    count = number * _FACTORS[suffix] if suffix in ("", "k", "Ki", "M") else _ZERO
    if not count or (suffix == "M" and number >= _LEAST_MB and count * unit_mib > most_mib):
        count = Fraction(math.ceil(number * _BYTES[suffix.removesuffix("B")] / (unit_mib * MIB_BYTES)))
    if count.denominator != 1:
        raise InvalidQuantity(field, f"{value!r} is not a whole number of {_unit(unit_mib)}; {memory_advice(unit_mib)}")
    return int(count) * unit_mib


def _read_memory(value: Quantity, *, field: str, unit_mib: int) -> tuple[Fraction, str]:
    """Return the number, above zero, and the suffix of an amount of memory; without a suffix it is whole."""
    written = _parse(str(value).strip())
    if written is None:
        said = f"{str(value)[:_MAX_LENGTH]!r} is not an amount of memory"
        raise InvalidQuantity(field, f"{said}; {memory_advice(unit_mib)}")
    number, suffix, _, _ = written
    if suffix in ("m", "u", "n") or (not suffix and number.denominator != 1):
        raise InvalidQuantity(field, f"{value!r} is not a whole number of {_unit(unit_mib)}; {memory_advice(unit_mib)}")
    if suffix and suffix.removesuffix("B") not in _BYTES:
        known = "Ki, Mi, Gi, K, M, G, KB, MB, GB, KiB, MiB, GiB"
        raise InvalidQuantity(field, f"{value!r} has the unknown suffix {suffix!r}; use one of {known}")
    if number <= 0:
        raise InvalidQuantity(field, f"{value} is {'negative' if number else 'zero'}; {memory_advice(unit_mib)}")
    return number, suffix


def _unit(unit_mib: int) -> str:
    return {1: "MiB", 1024: "GiB"}.get(unit_mib, f"blocks of {unit_mib} MiB")


def memory_advice(unit_mib: int) -> str:
    """Return how to write an amount of memory where a bare number counts `unit_mib`, for error messages."""
    return f"write a number of {_unit(unit_mib)} such as {4096 // unit_mib}, or an amount with a unit such as 4Gi"


def parse_memory_mib(text: Quantity, *, field: str = "memory") -> int:
    """Parse memory as given on a command line, in MiB: "2GiB", "512MiB", "4GB"; bare numbers are MiB."""
    return parse_claim_memory(text, field=field, unit_mib=1)


def format_mib(memory_mib: int) -> str:
    """Return MiB for people: "2560 MiB", and "16 GiB" where it is exact and large."""
    if memory_mib >= 10 * 1024 and memory_mib % 1024 == 0:
        return f"{memory_mib // 1024} GiB"
    return f"{memory_mib} MiB"
