"""`kubectl port-forward`: connections to ports of a pod, which are ports of this machine. SPDY inside a WebSocket.

Each connection is two streams with one `requestid`: `error`, with the reason for a failure, and `data`.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field

from starlette.websockets import WebSocket, WebSocketDisconnect

from egpu_sim.cluster.apiserver.nodes import spdy
from egpu_sim.cluster.streams import CHUNK_BYTES

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
HOST = "127.0.0.1"
MAX_CONNECTIONS = 128
WAITING_CHUNKS = 16
"""Bytes of one connection that wait for a program to read them."""


@dataclass
class _Connection:
    port: str
    error_stream: int
    to_pod: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(WAITING_CHUNKS))
    """Data from the client; b"" is the end."""
    task: asyncio.Task[None] | None = None


class Forwarding:
    """All connections of one `kubectl port-forward`."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._framer = spdy.Framer()
        self._errors: dict[str, int] = {}
        """Error streams that wait for their data stream, by request."""
        self._connections: dict[int, _Connection] = {}
        """Connections by data stream."""

    async def serve(self) -> None:
        try:
            with contextlib.suppress(WebSocketDisconnect, spdy.Malformed):
                while True:
                    for frame in self._framer.feed(await self._socket.receive_bytes()):
                        if frame.kind == spdy.Kind.GO_AWAY:
                            return
                        await self._take(frame)
        finally:
            tasks = [each.task for each in self._connections.values() if each.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, frame: spdy.Frame) -> None:
        connection = self._connections.get(frame.stream)
        match frame.kind:
            case spdy.Kind.OPEN:
                await self._open(frame)
            case spdy.Kind.DATA if connection is not None:
                if frame.payload:
                    await connection.to_pod.put(frame.payload)
                if frame.finished:
                    await connection.to_pod.put(b"")
            case spdy.Kind.RESET if connection is not None and connection.task is not None:
                connection.task.cancel()
            case spdy.Kind.PING:
                await self._socket.send_bytes(spdy.pong(frame.stream))
            case _:
                pass  # a frame of an ended stream, or one without an answer

    async def _open(self, frame: spdy.Frame) -> None:
        request = frame.headers.get("requestid", "")
        is_error = frame.headers.get("streamtype") == "error"
        full = len(self._errors if is_error else self._connections) >= MAX_CONNECTIONS
        if full or not (is_error or request in self._errors):
            await self._socket.send_bytes(spdy.reset(frame.stream, spdy.REFUSED_STREAM))
            return
        await self._socket.send_bytes(self._framer.opened(frame.stream))
        if is_error:
            self._errors[request] = frame.stream
            return
        connection = _Connection(frame.headers.get("port", ""), self._errors.pop(request))
        self._connections[frame.stream] = connection
        connection.task = asyncio.create_task(self._connect(frame.stream, connection))

    async def _connect(self, stream: int, connection: _Connection) -> None:
        problem = ""
        try:
            reader, writer = await asyncio.open_connection(HOST, int(connection.port))
            try:
                await self._copy(stream, connection, reader, writer)
            finally:
                writer.close()
        except (OSError, ValueError) as error:
            problem = f"error forwarding port {connection.port} to the pod: {error}"
        except WebSocketDisconnect:
            problem = "the client has gone"
        finally:
            del self._connections[stream]
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await self._socket.send_bytes(spdy.data(stream, b"", finished=True))
                await self._socket.send_bytes(spdy.data(connection.error_stream, problem.encode(), finished=True))

    async def _copy(
        self, stream: int, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Copy until the pod closes the connection."""
        sending = asyncio.create_task(_send(connection.to_pod, writer))
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                await self._socket.send_bytes(spdy.data(stream, chunk))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send(chunks: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
    while chunk := await chunks.get():
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()
