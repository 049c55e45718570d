"""Both ends of a plain connection prove that they know the pool's secret, without sending it.

    caller → listener    Challenge(nonce)        a number of the caller's, used once
    listener → caller    Proof(nonce, digest)    a number of its own, and its digest
    caller → listener    Hello(…, proof)         the caller's digest

A digest is HMAC-SHA256 under the secret, over its owner, both numbers, and both ends of this TCP connection. So a
process that has taken the listener's port learns nothing useful: a digest fits no other connection, and the real
listener has another address. The rest is plain: on loopback only root reads or writes the streams of others.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
from typing import Final, Literal

import msgspec

from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import MAX_HELLO_BYTES, Connection
from egpu_base.errors import Refused, Unavailable

NONCE_BYTES: Final = 32
_Side = Literal["caller", "listener"]


def ends(sock: socket.socket, *, accepted: bool) -> str:
    """Return both ends of a TCP connection, the caller's first. Raises Unavailable when it has ended already."""
    try:
        ours, theirs = sock.getsockname()[:2], sock.getpeername()[:2]
    except OSError as error:
        raise Unavailable(f"the connection ended: {error}") from error
    return "{}:{} {}:{}".format(*theirs, *ours) if accepted else "{}:{} {}:{}".format(*ours, *theirs)


async def prove(connection: Connection, secret: str, between: str) -> str:
    """Prove our side as the caller: return the proof for its Hello, once the listener has proved the secret, too.

    Raises Refused when the listener cannot, Unavailable, CorruptData.
    """
    ours = secrets.token_hex(NONCE_BYTES)
    await connection.send(messages.Challenge(nonce=ours))
    answer = await connection.receive(limit_bytes=MAX_HELLO_BYTES)
    if isinstance(answer, messages.Rejected):
        raise (Unavailable if answer.retryable else Refused)(answer.reason)
    if not isinstance(answer, messages.Proof) or not hmac.compare_digest(
        answer.digest.encode(), _digest(secret, "listener", ours, answer.nonce, between).encode()
    ):
        raise Refused("the listener does not know the pool's secret; nothing was sent to it")
    return _digest(secret, "caller", ours, answer.nonce, between)


async def demand(connection: Connection, secret: str, between: str) -> messages.Hello:
    """Return the Hello of a caller that has proved itself to us. Raises Refused, Unavailable, CorruptData."""
    challenge = await connection.expect(messages.Challenge, limit_bytes=MAX_HELLO_BYTES)
    ours = secrets.token_hex(NONCE_BYTES)
    digest = _digest(secret, "listener", challenge.nonce, ours, between)
    await connection.send(messages.Proof(nonce=ours, digest=digest))
    hello = await connection.expect(messages.Hello, limit_bytes=MAX_HELLO_BYTES)
    if not hmac.compare_digest(
        hello.proof.encode(), _digest(secret, "caller", challenge.nonce, ours, between).encode()
    ):
        raise Refused("wrong secret; use the --secret-file of this pool")
    return hello


def _digest(secret: str, side: _Side, callers: str, listeners: str, between: str) -> str:
    # A JSON list has one reading: no number can run into the next.
    said = msgspec.json.encode(["egpu pool", side, callers, listeners, between])
    return hmac.digest(secret.encode(), said, hashlib.sha256).hex()
