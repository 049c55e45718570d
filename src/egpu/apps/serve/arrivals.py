"""Leases that move to this server: each has an executor that restores sessions from a stream, whose other end waits
here for the source that the broker named."""

from __future__ import annotations

import contextlib
import hmac
import socket

from egpu.adapters.pool import messages
from egpu.adapters.pool.security import LOCAL_PEER
from egpu.api.text import escaped
from egpu.core.leasing.records import LeaseRecord, MoveRecord, executor_name
from egpu_base.errors import Refused, Unavailable

MAX_NAME = 64
"""Longest part of a stranger's name that messages quote."""


class Arrivals:
    """The moves to this server."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._moves: dict[str, MoveRecord] = {}
        self._waiting: dict[str, socket.socket] = {}
        """Our ends of the streams, by executor."""
        self._ready: set[str] = set()

    def order(self, orders: messages.Orders) -> None:
        self._moves = {
            executor_name(one.lease, one.place): one for one in orders.moves if one.target == self._name
        }  # fmt: skip
        for name in self._waiting.keys() - self._moves.keys():
            self._waiting.pop(name).close()

    def expects(self, record: LeaseRecord) -> bool:
        """Return whether this place of the lease is the target of a move, and not final."""
        return record.executor in self._moves

    def open(self, record: LeaseRecord) -> socket.socket:
        """Return the stream for an executor that is about to start; ours waits for the source."""
        ours, theirs = socket.socketpair()
        self.close(record.executor)
        self._waiting[record.executor] = ours
        return theirs

    def is_ready(self, executor: str) -> None:
        """Let the source come: this executor reads its stream."""
        self._ready.add(executor)

    def close(self, executor: str) -> None:
        """Drop the stream of an executor that is gone, or has restored its sessions."""
        self._ready.discard(executor)
        with contextlib.suppress(KeyError):
            self._waiting.pop(executor).close()

    def claim(self, peer: str, hello: messages.Hello) -> socket.socket:
        """Return the stream for the source, once. Raises Refused if the broker has not ordered that this peer sends it,
        Unavailable while the executor is not there yet, or while the source may have heard of the move before us."""
        name = executor_name(hello.lease, hello.place or 0)
        move, who = self._moves.get(name), f"{escaped(peer[:MAX_NAME])} moves this lease here"
        is_source = bool(hello.token) and peer in (f"server/{hello.name}", LOCAL_PEER)
        if move is None and is_source:
            raise Unavailable(f"the broker has not ordered yet that {who}")
        if (
            move is None
            or not is_source
            or hello.name != move.source
            or not hmac.compare_digest(hello.token.encode(), move.token.encode())
        ):
            raise Refused(f"the broker has not ordered that {who}")
        found = self._waiting.pop(name, None) if name in self._ready else None
        if found is None:
            raise Unavailable("the executor for this lease is not ready, or has its stream already")
        return found
