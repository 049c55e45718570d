"""FNV-1a, 64 bits: the checksum of policy pages."""

from typing import Final

_BASIS: Final = 14695981039346656037
_PRIME: Final = 1099511628211
_MODULUS: Final = 2**64


def fnv1a(content: bytes) -> int:
    """Hash content; many trailing zero bytes are as quick as none, because only multiplications remain."""
    said = content.rstrip(b"\0")
    value = _BASIS
    for byte in said:
        value = ((value ^ byte) * _PRIME) % _MODULUS
    return value * pow(_PRIME, len(content) - len(said), _MODULUS) % _MODULUS
