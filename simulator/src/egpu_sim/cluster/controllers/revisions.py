"""Revisions: a short name for a template, made from its content."""

import hashlib
from typing import Any, Final

import msgspec

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # as in generated names: spells no words
_LENGTH: Final = 10
_encoder: Final = msgspec.json.Encoder(order="sorted")


def revision_of(template: dict[str, Any]) -> str:
    """Return a name that is equal for equal templates, in every process."""
    number = int.from_bytes(hashlib.sha256(_encoder.encode(template)).digest()[:8])
    letters: list[str] = []
    for _ in range(_LENGTH):
        number, rest = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[rest])
    return "".join(letters)
