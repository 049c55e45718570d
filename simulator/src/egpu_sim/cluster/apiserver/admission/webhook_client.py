"""Posts reviews to webhooks. Connections are kept, one set for each server (name and authority), whatever the paths of
its webhooks."""

import base64
import ssl
from collections import OrderedDict
from functools import lru_cache
from typing import Final, NamedTuple

import httpx2

from egpu_base.kubernetes.connection import KEEPALIVE_SECONDS
from egpu_base.kubernetes.transport import Answer, Transport

SERVERS_LIMIT: Final = 32
"""Servers whose connections are kept; the least recently used are closed first."""
CONNECTIONS: Final = 16
"""Connections to one server. A real API server multiplexes all requests over one connection of HTTP/2. Here one more
request would need a handshake, which costs more than waiting for a connection."""
_UNTIMED: Final = httpx2.Timeout(None)
"""The caller has a time limit for the whole request."""


class Address(NamedTuple):
    """The address of a webhook. `server_name`: the name in its certificate, if not the URL's host; `authority`: base64
    of the PEM of its CA; empty for those that the machine trusts."""

    url: str
    server_name: str
    authority: str


class WebhookClient:
    """Ignores proxies of the environment, which do not belong between this server and its webhooks."""

    def __init__(self) -> None:
        self._servers: OrderedDict[Address, Transport] = OrderedDict()

    async def close(self) -> None:
        while self._servers:
            await self._servers.popitem()[1].aclose()

    async def post(self, address: Address, body: bytes) -> Answer:
        """Post a review. Raises httpx2.HTTPError without a whole answer, ValueError and OSError for an invalid
        authority."""
        url, head, server = _target(address.url)
        transport = await self._server(address._replace(url=server))
        return await transport.exchange(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body), url, _UNTIMED)

    async def _server(self, address: Address) -> Transport:
        """Return the connections to the server of an address without a path."""
        found = self._servers.get(address)
        if found is None:
            authority = base64.b64decode(address.authority).decode() if address.authority else None
            found = self._servers[address] = Transport(
                ssl.create_default_context(cadata=authority),
                at_most=CONNECTIONS,
                keepalive_seconds=KEEPALIVE_SECONDS,
                server_name=address.server_name or None,
            )
            if len(self._servers) > SERVERS_LIMIT:
                await self._servers.popitem(last=False)[1].aclose()
        self._servers.move_to_end(address)
        return found


@lru_cache(maxsize=4 * SERVERS_LIMIT)
def _target(text: str) -> tuple[httpx2.URL, bytes, str]:
    """Return a URL, the head of requests there but for their length, and the URL of its server."""
    url = httpx2.URL(text)
    lines = (b"POST %b HTTP/1.1" % url.raw_path, b"Host: %b" % url.netloc, b"Content-Type: application/json")
    return url, b"".join(b"%b\r\n" % line for line in lines), f"{url.scheme}://{url.netloc.decode()}"
