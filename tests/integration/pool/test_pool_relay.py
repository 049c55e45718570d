"""Connections that end before TLS is agreed on are made anew; those that somebody refused are not."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from egpu.adapters.pool import authority, messages
from egpu.adapters.pool.client import dial
from egpu.adapters.pool.relay import Relay
from egpu_base.errors import Refused, Unavailable
from egpu_base.http.listening import Listen

HELLO = messages.Hello(role="data")


@contextlib.asynccontextmanager
async def listening(after_bytes: int) -> AsyncGenerator[Listen]:
    """Somebody who reads that much of a greeting and ends the connection."""

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readexactly(after_bytes)
        writer.close()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    async with server:
        yield Listen("127.0.0.1", server.sockets[0].getsockname()[1])


@pytest.mark.parametrize("relayed", [True, False], ids=["relay", "Python"])
@pytest.mark.parametrize("after_bytes", [0, 20, 200])
async def test_a_connection_that_ends_during_the_handshake_may_be_tried_again(
    tmp_path: Path, relayed: bool, after_bytes: int
) -> None:
    ours = authority.issue(tmp_path / "pki", "client", "ann")
    relay = Relay(ours) if relayed else None
    try:
        async with listening(after_bytes) as address:
            with pytest.raises(Unavailable):
                await dial(address, ours, HELLO, expect="server", relay=relay)
    finally:
        if relay is not None:
            await relay.close()


@pytest.mark.parametrize("relayed", [True, False], ids=["relay", "Python"])
async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, relayed: bool) -> None:
    ours = authority.issue(tmp_path / "pki", "client", "ann")
    theirs = authority.issue(tmp_path / "foreign", "server", "one")
    relay = Relay(ours) if relayed else None
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0, ssl=theirs.server_context())
    try:
        async with server:
            address = Listen("127.0.0.1", server.sockets[0].getsockname()[1])
            with pytest.raises(Refused):
                await dial(address, ours, HELLO, expect="server", relay=relay)
    finally:
        if relay is not None:
            await relay.close()
