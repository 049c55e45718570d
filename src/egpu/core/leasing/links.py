"""Links between networks of servers, so that ranks of one caller in leases on several servers can communicate. Pure.

Only leases count that their caller has attached to over its own connection: a server can invent leases in any name, and
would otherwise reach that caller's networks on other servers. Servers without collectives have no links.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from egpu.core.leasing.state import Lease, Server

MAX_LINKED: Final = 64
"""Servers on which one caller's networks are linked: the first ones by name (`native/link/main.c`)."""
_NETWORK: Final = 10 << 24
_HOSTS: Final = (1 << 24) - 2


class LinkRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The network of `caller` on a server is linked with the one on `server`, whose listener is at `address`."""

    caller: str
    server: str
    address: str


def network_address(server: str) -> int:
    """Return the address that networks of executors have on this server, in 10.0.0.0/8."""
    digest = hashlib.sha256(f"network {server}".encode()).digest()
    return _NETWORK + 1 + int.from_bytes(digest[:8], "big") % _HOSTS


def links(leases: Iterable[Lease], servers: Mapping[str, Server]) -> dict[str, tuple[LinkRecord, ...]]:
    """Return, by server, the links of its networks, in the order of callers and servers."""
    if not any(server.collectives for server in servers.values()):
        return {}
    places: dict[str, set[str]] = {}
    for lease in leases:
        if not lease.is_adopted and lease.state != "ending":
            able = (name for name in lease.parts if name in servers and servers[name].collectives)
            places.setdefault(lease.peer, set()).update(able)
    found: dict[str, list[LinkRecord]] = {}
    for caller, names in sorted(places.items()):
        linked = sorted(names)[:MAX_LINKED]
        for name in linked:
            found.setdefault(name, []).extend(
                LinkRecord(caller=caller, server=other, address=servers[other].address)
                for other in linked
                if other != name
            )
    return {name: tuple(records) for name, records in found.items() if records}
