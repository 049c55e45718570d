"""Quantities as the API server keeps them: parsed exactly, written back in canonical form.

Grammar and canonical form: Kubernetes, `resource.Quantity` ("2000" becomes "2k", "1024Ki" becomes "1Mi", "0.5" "500m").
Values are exact fractions; anything finer than a nano unit is rounded up.
"""

import functools
import re
from decimal import Decimal
from fractions import Fraction

_PATTERN = re.compile(r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?[0-9]{1,3}))?$")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {power: suffix for suffix, power in _DECIMAL.items()} | {0: ""}


class NotAQuantity(ValueError):
    """The text is no quantity."""


def _split(text: object) -> tuple[Fraction, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise NotAQuantity(f"{text!r} is not a quantity")
    return _split_text(str(text))


@functools.lru_cache(maxsize=4096)
def _split_text(text: str) -> tuple[Fraction, str]:
    """(value, family) with family "binary", "exponent" or "decimal"."""
    match = _PATTERN.match(text)
    if match is None:
        raise NotAQuantity(f"{text!r} is not a quantity: expected a number with an optional suffix such as m, k, M, Gi")
    number, binary, decimal, exponent = match.groups()
    value = Fraction(Decimal(number))
    if binary:
        return value * 1024 ** _BINARY[binary], "binary"
    if exponent:
        return value * Fraction(10) ** int(exponent), "exponent"
    return value * Fraction(10) ** (_DECIMAL[decimal] if decimal else 0), "decimal"


def parse(text: object) -> Fraction:
    """The value. Raises NotAQuantity."""
    return _split(text)[0]


def canonical(text: object) -> str:
    """The canonical spelling of the same value. Raises NotAQuantity."""
    value, family = _split(text)
    nano = -((-value * 10**9) // 1)  # rounded up to a nano unit
    if nano == 0:
        return "0"
    if family == "binary" and abs(nano) >= 1024 * 10**9 and nano % 10**9 == 0:
        return _binary(nano // 10**9)
    return _decimal(nano, exponent=family == "exponent")


def _binary(value: int) -> str:
    power = 0
    while power < 6 and value % 1024 == 0:
        value //= 1024
        power += 1
    suffix = next((name for name, exponent in _BINARY.items() if exponent == power), "")
    return f"{value}{suffix}"


def _decimal(nano: int, *, exponent: bool) -> str:
    power = -9
    while power < 18 and nano % 1000 == 0:
        nano //= 1000
        power += 3
    if exponent:
        return f"{nano}e{power}" if power else str(nano)
    return f"{nano}{_DECIMAL_SUFFIX[power]}"
