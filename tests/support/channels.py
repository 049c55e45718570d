"""A client of pods/exec and pods/attach: channels by WebSocket, as kubectl speaks them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
)

from support.waiting import DEADLINE_SECONDS

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
V5 = "v5.channel.k8s.io"


class Refused(Exception):
    """The server did not take the connection: `code` and the Status."""

    def __init__(self, code: int, body: bytes) -> None:
        super().__init__(f"{code}: {body.decode()}")
        self.code = code
        self.status: dict[str, Any] = json.loads(body)


@dataclass
class Channels:
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _connection: WSConnection = field(default_factory=lambda: WSConnection(ConnectionType.CLIENT))
    _events: list[Event] = field(default_factory=list[Event])
    _message: bytes = b""
    said: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """All that came, by channel."""

    async def send(self, channel: int, payload: bytes) -> None:
        await self.write(BytesMessage(bytes([channel]) + payload))

    async def write(self, event: Event) -> None:
        self._writer.write(self._connection.send(event))
        await self._writer.drain()

    async def event(self) -> Event | None:
        """The next one; None when the connection has ended."""
        while not self._events:
            data = await asyncio.wait_for(self._reader.read(65536), DEADLINE_SECONDS)
            if not data:
                return None
            self._connection.receive_data(data)
            self._events += self._connection.events()
        return self._events.pop(0)

    async def hear(self, channel: int, text: bytes) -> None:
        """Until the channel has said it."""
        while text not in self.said.get(channel, b""):
            assert await self._take(), f"ended; it had said {self.said}"

    async def end(self) -> dict[str, Any]:
        """Hear all; the Status with which it ended."""
        while await self._take():
            pass
        return json.loads(self.said[ERROR])

    async def _take(self) -> bool:
        event = await self.event()
        if isinstance(event, BytesMessage):
            self._message += event.data
            if event.message_finished:
                channel = self._message[0]
                self.said[channel] = self.said.get(channel, b"") + self._message[1:]
                self._message = b""
        elif isinstance(event, Ping):
            await self.write(event.response())
        return event is not None and not isinstance(event, CloseConnection)


@contextlib.asynccontextmanager
async def channels(
    kubeconfig: str, path: str, *, protocol: str = V5, token: str | None = None, **query: Any
) -> AsyncGenerator[Channels]:
    """`kubeconfig` is its text; `token` stands in for the one in it. A list in `query` is the same parameter several
    times. Raises Refused."""
    config = yaml.safe_load(kubeconfig)
    cluster = config["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    at = urlsplit(cluster["server"])
    reader, writer = await asyncio.open_connection(
        at.hostname, at.port, ssl=ssl.create_default_context(cadata=authority)
    )
    opened = Channels(reader, writer)
    try:
        bearer = config["users"][0]["user"]["token"] if token is None else token
        headers = [(b"authorization", f"Bearer {bearer}".encode())] if bearer else []
        target = f"{path}?{urlencode(query, doseq=True)}"
        await opened.write(Request(at.netloc, target, subprotocols=[protocol], extra_headers=headers))
        answer = await opened.event()
        if isinstance(answer, RejectConnection):
            body = b""
            while isinstance(more := await opened.event(), RejectData):
                body += more.data
                if more.body_finished:
                    break
            raise Refused(answer.status_code, body)
        assert isinstance(answer, AcceptConnection), answer
        assert answer.subprotocol == protocol
        yield opened
    finally:
        writer.close()
