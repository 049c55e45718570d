"""Frames on a stream: a length (u32, big-endian) and that many bytes of one message. Then, when both agree, raw
bytes, which the relay carries.

Everything is bounded: messages of a caller before it is identified and after, and the bytes that wait for a peer that
does not read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, TypeVar

from egpu.adapters.pool import messages
from egpu_base.errors import CorruptData, Unavailable

MAX_HELLO_BYTES: Final = 8 * 1024
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""A report of 16 cards with 48 leases each is about 0.5 MB; a list of all leases of a full pool is about 6 MB."""
STREAM_BYTES: Final = 256 * 1024
"""The bytes that are read ahead; twice that at most."""
SEND_SECONDS: Final = 30.0
"""A peer that takes longer to read a message counts as stuck, and is dropped."""
CLOSE_SECONDS: Final = 1.0
"""The time for the rest when a connection is closed."""
_LENGTH: Final = struct.Struct(">I")
M = TypeVar("M", bound=messages.Message)


class Connection:
    """One stream. `peer` is the other side's proven name; "" until then."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.peer = ""
        self._relayed: socket.socket | None = None
        sock = writer.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    async def over(cls, relayed: socket.socket) -> Connection:
        """Return a connection over our end of one that the relay carries."""
        reader, writer = await asyncio.open_unix_connection(sock=relayed, limit=STREAM_BYTES)
        writer.transport.set_write_buffer_limits(0)  # so that `drain` means sent
        connection = cls(reader, writer)
        connection._relayed = relayed
        return connection

    async def hand_over(
        self, sock: socket.socket, *, last: messages.Message | None = None, farewell: bool = False
    ) -> None:
        """Make `sock` this side of a relayed connection. Return when either side has closed; closing us closes both.

        `last` is our last message: the answer to it goes to `sock`, however soon it comes.
        With `farewell` the session ends at once when the process at the other end of `sock` dies.
        Raises Unavailable when the relay has ended.
        """
        assert self._relayed is not None, "only a relayed connection can be handed over"
        try:
            await self.writer.drain()
            words = b"" if last is None else framed(last)
            # In one piece, so that the relay knows the new socket before the other side can react.
            socket.send_fds(self._relayed, [words + (b"G" if farewell else b"J")], [sock.fileno()])
            await self.reader.read()
        except OSError as error:
            raise Unavailable(f"the relay has ended: {error}") from error

    async def receive(self, *, limit_bytes: int = MAX_MESSAGE_BYTES) -> messages.AnyMessage:
        """Return the next message. Raises Unavailable when the stream ends, CorruptData for an invalid one."""
        try:
            (length,) = _LENGTH.unpack(await self.reader.readexactly(_LENGTH.size))
            if length > limit_bytes:
                raise CorruptData(f"a message of {length} bytes; the limit is {limit_bytes}")
            return messages.decode(await self.reader.readexactly(length))
        except asyncio.IncompleteReadError as error:
            raise Unavailable("the connection ended: the other side closed it") from error
        except OSError as error:
            raise Unavailable(f"the connection ended: {error}") from error

    async def expect(self, kind: type[M], *, limit_bytes: int = MAX_MESSAGE_BYTES) -> M:
        """Return the next message, which must be of this kind. Raises as `receive`."""
        message = await self.receive(limit_bytes=limit_bytes)
        if not isinstance(message, kind):
            raise CorruptData(f"{type(message).__name__} arrived instead of {kind.__name__}")
        return message

    async def send(self, message: messages.Message) -> None:
        """Send a message, as `send_frame`."""
        await self.send_frame(framed(message))

    async def send_frame(self, frame: bytes) -> None:
        """Send, and return when the peer has read most of the earlier bytes: a fast sender waits for that.

        Raises Unavailable when the stream has ended, or the peer does not read within SEND_SECONDS.
        """
        try:
            async with asyncio.timeout(SEND_SECONDS):
                self.writer.write(frame)
                await self.writer.drain()
        except TimeoutError as error:
            raise Unavailable(f"the other side has read nothing for {SEND_SECONDS:g} s") from error
        except OSError as error:
            raise Unavailable(f"the connection ended: {error}") from error

    async def close(self) -> None:
        """Send the rest if the peer reads it within a moment, and drop the connection."""
        try:
            self.writer.close()
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.writer.wait_closed()
        except OSError:  # TimeoutError is one, too
            pass
        finally:
            self.writer.transport.abort()


def framed(message: messages.Message) -> bytes:
    """Return a message as `Connection.send` sends it, for repeated sending."""
    body = messages.encode(message)
    return _LENGTH.pack(len(body)) + body
