"""Numbers as people and API servers write them.

Two readings, because the same characters mean different things in the two places:

- in a **pod** a value counts the vocabulary's unit and is a whole number. The API server rewrites it in its canonical
  form, so 2000 comes back as "2k" and 2048 may be "2Ki": still 2000 and 2048 units.
- in a **claim** a bare number counts the vocabulary's unit, and a number with a suffix is bytes (4GB, 4Gi, 4GiB).
"""

import re
from fractions import Fraction
from typing import Final

from egpu.errors import InvalidQuantity

Quantity = int | float | str

MIB_BYTES: Final = 1024 * 1024
_MAX_LENGTH: Final = 64

_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL: Final = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_SMALL: Final = {"m": -1, "u": -2, "n": -3}
_MULTIPLIERS: Final = (
    {"": Fraction(1)}
    | {suffix: Fraction(1024) ** power for suffix, power in _BINARY.items()}
    | {suffix: Fraction(1000) ** power for suffix, power in (_DECIMAL | _SMALL).items()}
)
_BYTES: Final = (
    {suffix: multiplier for suffix, multiplier in _MULTIPLIERS.items() if suffix and suffix not in _SMALL}
    | {suffix + "B": Fraction(1024) ** power for suffix, power in _BINARY.items()}
    | {suffix + "B": Fraction(1000) ** power for suffix, power in _DECIMAL.items()}
    | {"B": Fraction(1)}
)
_NUMBER: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:[eE]([+-]?\d{1,2})|([A-Za-z]*))", re.ASCII)


def _split(value: Quantity, *, field: str) -> tuple[Fraction, str]:
    text = str(value).strip()
    if isinstance(value, bool) or len(text) > _MAX_LENGTH or not (match := _NUMBER.fullmatch(text)):
        raise InvalidQuantity(field, f"{text[:_MAX_LENGTH]!r} is not a number; write a whole number such as 10")
    number, exponent, suffix = match.groups()
    return Fraction(number) * Fraction(10) ** int(exponent or 0), suffix or ""


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
    number, suffix = _split(value, field=field)
    if suffix not in _MULTIPLIERS:
        raise InvalidQuantity(field, f"{value!r} has the suffix {suffix!r}; write a whole number without a suffix")
    return _positive_whole(number * _MULTIPLIERS[suffix], value, field=field)


def parse_claim_memory(value: Quantity, *, field: str, unit_mib: int) -> int:
    """Memory of a claim in MiB: bare numbers count `unit_mib`, suffixed ones are bytes, rounded up to whole MiB.

    Raises InvalidQuantity naming `field`.
    """
    number, suffix = _split(value, field=field)
    if not suffix:
        return _positive_whole(number, value, field=field) * unit_mib
    if suffix not in _BYTES:
        known = "Ki, Mi, Gi, K, M, G, KB, MB, GB, KiB, MiB, GiB"
        raise InvalidQuantity(field, f"{value!r} has the unknown suffix {suffix!r}; use one of {known}")
    size = number * _BYTES[suffix]
    if size <= 0:
        return _positive_whole(size, value, field=field)  # says zero or negative
    return -int(-size // MIB_BYTES)


def parse_memory_mib(text: Quantity, *, field: str = "memory") -> int:
    """Memory as given on a command line, in MiB: "2GiB", "512MiB", "4GB"; bare numbers are MiB."""
    return parse_claim_memory(text, field=field, unit_mib=1)


def format_mib(memory_mib: int) -> str:
    """For people: "2560 MiB", and "16 GiB" where it is exact and large."""
    if memory_mib >= 10 * 1024 and memory_mib % 1024 == 0:
        return f"{memory_mib // 1024} GiB"
    return f"{memory_mib} MiB"


def format_quantity(memory_mib: int) -> str:
    """For objects: the canonical binary form, "2560Mi" or "16Gi"; `parse_memory_mib` reads it back exactly."""
    if memory_mib and memory_mib % 1024 == 0:
        return f"{memory_mib // 1024}Gi"
    return f"{memory_mib}Mi"
