"""Posts reviews to webhooks: over connections that are kept, one set for each address, name and authority."""

import base64
import ssl
from collections import OrderedDict
from typing import Final, NamedTuple

import httpx2

from egpu.adapters.kubernetes.connection import KEEPALIVE_SECONDS
from egpu.adapters.kubernetes.transport import Answer, Transport

SERVERS_LIMIT: Final = 32
"""Servers whose connections are kept; those that nobody asked for longest are closed first."""
CONNECTIONS: Final = 32
"""To one server at a time. A real API server asks all at once over one connection of HTTP/2; here a question more would
begin with a handshake, which costs more than to wait for a connection that is there."""
_UNTIMED: Final = httpx2.Timeout(None)
"""Whoever asks has a time limit for all of it."""


class Address(NamedTuple):
    """Where a webhook is. `server_name`: whom its certificate has to name, where that is not the host of the URL;
    `authority`: who signed it, base64 of PEM; empty for those that the machine trusts."""

    url: str
    server_name: str
    authority: str


class _Server(NamedTuple):
    transport: Transport
    url: httpx2.URL
    head: bytes


class WebhookClient:
    """Knows no proxy of the environment: it has no business between this server and its webhooks."""

    def __init__(self) -> None:
        self._servers: OrderedDict[Address, _Server] = OrderedDict()

    async def close(self) -> None:
        while self._servers:
            await self._servers.popitem()[1].transport.aclose()

    async def post(self, address: Address, body: bytes) -> Answer:
        """Raises httpx2.HTTPError where no whole answer came, ValueError and OSError for an authority that is none."""
        transport, url, head = await self._server(address)
        return await transport.exchange(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body), url, _UNTIMED)

    async def _server(self, address: Address) -> _Server:
        found = self._servers.get(address)
        if found is None:
            authority = base64.b64decode(address.authority).decode() if address.authority else None
            transport = Transport(
                ssl.create_default_context(cadata=authority),
                at_most=CONNECTIONS,
                keepalive_seconds=KEEPALIVE_SECONDS,
                server_name=address.server_name or None,
            )
            url = httpx2.URL(address.url)
            lines = (b"POST %b HTTP/1.1" % url.raw_path, b"Host: %b" % url.netloc, b"Content-Type: application/json")
            found = self._servers[address] = _Server(transport, url, b"".join(b"%b\r\n" % line for line in lines))
            if len(self._servers) > SERVERS_LIMIT:
                await self._servers.popitem(last=False)[1].transport.aclose()
        self._servers.move_to_end(address)
        return found
