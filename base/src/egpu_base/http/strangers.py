"""Limit who may connect, and how often. Connections count from the moment they are accepted. Callers that are not
identified yet have places of their own, so they never take the place of an identified one.

When there is no more room, the newest is accepted and the oldest is dropped: a good client identifies itself within a
moment, and a silent one is the oldest. One address has only a part of the room, so that it cannot push out others.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import structlog

log = structlog.get_logger(__name__)

MAX_STRANGERS: Final = 512
MAX_PER_ADDRESS: Final = 128
IPV6_SITE_BITS: Final = 64
"""The IPv6 addresses of one customer of a network; all of them count as one."""
OWN_DESCRIPTORS: Final = 256
"""The number of descriptors that a process needs beside its callers' connections."""
ACCEPT_AGAIN_SECONDS: Final = 0.1
LOCAL: Final = "this machine"
"""All of loopback is one address, shared by every process here: it may have all the room."""


class Strangers:
    """The callers that are accepted and not identified yet. Not thread-safe: for one event loop."""

    def __init__(self, *, at_most: int = MAX_STRANGERS, per_address: int = MAX_PER_ADDRESS) -> None:
        self._at_most = at_most
        self._per_address = per_address
        self._by_address: dict[str, dict[int, Callable[[], object]]] = {}
        self._addresses: dict[int, str] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._addresses)

    def add(self, address: str, drop: Callable[[], object]) -> int:
        """Add one, and return its number. `drop` is called if it has to go, and is the last call about it. Without
        room, the oldest goes: of its own address if that is full, otherwise of the address with the most."""
        site = _site(address)
        room = self._at_most if site == LOCAL else self._per_address
        if len(self._by_address.get(site, ())) >= room:
            self._turn_out(site)
        elif len(self) >= self._at_most:
            self._turn_out(max(self._by_address, key=lambda each: len(self._by_address[each])))
        self._last += 1
        self._by_address.setdefault(site, {})[self._last] = drop
        self._addresses[self._last] = site
        return self._last

    def remove(self, number: int) -> None:
        """Remove a caller that is identified now, or gone; do nothing if it was dropped."""
        site = self._addresses.pop(number, None)
        if site is None:
            return
        del self._by_address[site][number]
        if not self._by_address[site]:
            del self._by_address[site]

    def _turn_out(self, site: str) -> None:
        number, drop = next(iter(self._by_address[site].items()))
        self.remove(number)
        drop()


def places_for(callers: int, *, descriptors: int) -> int:
    """Return how many callers with so many descriptors each this process has room for, `callers` at most. Raise its
    soft limit on open files as far as needed and allowed."""
    needed = callers * descriptors + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return callers
    return max(2, min(callers, (soft - OWN_DESCRIPTORS) // descriptors))


async def accept(listener: socket.socket, take: Callable[[socket.socket, str], None]) -> None:
    """Give every connection and its caller's address to `take`, until cancelled; then close the socket."""
    loop = asyncio.get_running_loop()
    with contextlib.closing(listener):
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:  # no descriptors left, or the caller has gone already
                log.warning("cannot accept a connection", reason=str(error))
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            try:
                take(sock, address[0])
            except Exception:  # whatever this caller is, the next one comes in
                log.exception("a caller was not taken", address=address[0])
                sock.close()


@lru_cache(maxsize=1024)
def _site(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    if ip.is_loopback:
        return LOCAL
    if ip.version == 6:
        return str(ipaddress.ip_network((ip, IPV6_SITE_BITS), strict=False))
    return str(ip)
