"""Lease tokens: short-lived proof that the bearer may reach the executors of one lease, checked offline.

    base64url(JSON: lease, holder, peer, expires) "." base64url(HMAC-SHA256 with the lease's own key)

The key is created with the lease, and known to the broker and to the servers that run it. A token names the holder (a
pod's UID, or a process) and the *peer*: the authenticated caller that took the lease. A stolen token is refused under
another name. A token of another lease fails because its key is another.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec

from egpu_base.errors import Refused, Unavailable

LIFETIME_SECONDS: Final = 60.0
"""Tokens are renewed with the lease, every few seconds. This is wall-clock time, unlike a lease's own deadline, so
clocks of the machines must agree to well within it."""
MAX_LENGTH: Final = 1024


class Claims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a token. `expires`: seconds since the epoch."""

    lease: str
    holder: str
    peer: str
    expires: float


def issue(claims: Claims, key: str) -> str:
    """Return the token's text. `key` is the lease's, any non-empty text."""
    body = _text(msgspec.json.encode(claims))
    return f"{body}.{_signature(body, key)}"


def check(token: str, *, lease: str, key: str, peer: str, now: float) -> Claims:
    """Return the content of a token that is valid for `lease` from `peer` at `now` (seconds since the epoch).

    Raises Refused, with the problem but without the token; Unavailable if it has expired: a new one, or a corrected
    clock, may be valid.
    """
    body, dot, signature = token.partition(".")
    if not dot or len(token) > MAX_LENGTH or not key or not token.isascii():
        raise Refused("that is not a lease token")
    if not hmac.compare_digest(signature, _signature(body, key)):
        raise Refused(f"the token was not issued for lease {lease}")
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body), type=Claims)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise Refused("that is not a lease token") from error
    if claims.lease != lease:
        raise Refused(f"the token is for lease {claims.lease}, not for {lease}")
    if claims.peer != peer:
        raise Refused(f"the token was issued to {claims.peer}; {peer} may not use it")
    if now >= claims.expires:
        raise Unavailable(f"the token expired {now - claims.expires:.0f} s ago; renew the lease")
    return claims


def _signature(body: str, key: str) -> str:
    return _text(hmac.digest(key.encode(), body.encode(), hashlib.sha256))


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()
