"""The control of an executor whose sessions can move: `move.sock` in its directory, which only its daemon reaches.

A line of JSON each way. A new connection replaces an earlier one, whose unread lines are dropped: after the answer to a
first `look`, nothing happens any more that an earlier daemon has said.

    look      whether anything prevents a move; stops nothing
    send      prepare the target, stop, and send all sessions over the descriptor that comes with the line; answered
              when they are restored
    finish    leave: the point of no return
    cancel    go on here, as at the end of the connection before `finish`
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from egpu_base.errors import CorruptData, Unavailable

SOCKET: Final = "move.sock"
LOOK_SECONDS: Final = 5.0
SEND_SECONDS: Final = 600.0
FINISH_SECONDS: Final = 30.0
MAX_LINE: Final = 1024 * 1024
A = TypeVar("A")


class SessionLook(msgspec.Struct, frozen=True):
    """A session: its memory, and what prevents a move."""

    session: str
    bytes: int = 0
    prevents: tuple[str, ...] = ()


class ExecutorLook(msgspec.Struct, frozen=True):
    """The answer to `look`."""

    movable: bool
    bytes: int = 0
    sessions: tuple[SessionLook, ...] = ()

    @property
    def prevents(self) -> tuple[str, ...]:
        """Return what prevents a move, without repetitions."""
        named = tuple(dict.fromkeys(word for one in self.sessions for word in one.prevents))
        return named or (() if self.movable else ("the executor does not say why",))


class Progress(msgspec.Struct, frozen=True):
    """The answer to `send` and `finish`: "restored" with the times for stopping and for sending, "left", or "refused"
    with the reason."""

    state: str
    why: str = ""
    bytes: int = 0
    quiesced_ns: int = 0
    copied_ns: int = 0


class Control:
    """A connection to an executor. Closing it before `finish` cancels what it began."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._left = b""

    @classmethod
    async def connect(cls, directory: Path) -> Control:
        """Connect to the executor in this directory, in place of any earlier connection. Raises Unavailable."""
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, str(directory / SOCKET))
        except OSError as error:
            sock.close()
            raise Unavailable(f"the executor in {directory} cannot be asked to move: {error.strerror}") from error
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    def close(self) -> None:
        self._sock.close()

    async def look(self) -> ExecutorLook:
        """Return whether its sessions can move. Raises Unavailable, CorruptData."""
        return await self._ask("look", ExecutorLook, seconds=LOOK_SECONDS)

    async def send(self, stream: socket.socket) -> Progress:
        """Stop the sessions and send them over the stream. Raises Unavailable, CorruptData."""
        return await self._ask("send", Progress, seconds=SEND_SECONDS, descriptor=stream)

    async def finish(self) -> Progress:
        """Leave for good. Raises Unavailable, CorruptData: then only the executor's events say whether it has left."""
        return await self._ask("finish", Progress, seconds=FINISH_SECONDS)

    async def _ask(self, what: str, kind: type[A], *, seconds: float, descriptor: socket.socket | None = None) -> A:
        line = msgspec.json.encode({"do": what}) + b"\n"
        try:
            async with asyncio.timeout(seconds):
                if descriptor is None:
                    await asyncio.get_running_loop().sock_sendall(self._sock, line)
                else:
                    socket.send_fds(self._sock, [line], [descriptor.fileno()])
                return msgspec.json.decode(await self._line(), type=kind)
        except TimeoutError as error:
            raise Unavailable(f"the executor did not answer {what!r} within {seconds:g} s") from error
        except OSError as error:
            raise Unavailable(f"the executor has ended its control connection: {error}") from error
        except msgspec.MsgspecError as error:
            raise CorruptData(f"the executor's answer to {what!r} is not valid: {error}") from error

    async def _line(self) -> bytes:
        while b"\n" not in self._left:
            data = await asyncio.get_running_loop().sock_recv(self._sock, 65536)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._left += data
            if len(self._left) > MAX_LINE:
                raise CorruptData(f"the executor answers with more than {MAX_LINE} bytes")
        line, _, self._left = self._left.partition(b"\n")
        return line


@contextlib.contextmanager
def listening(directory: Path, *, movable: bool, restore: int | None) -> Generator[tuple[list[str], list[int]]]:
    """Return arguments and descriptors for an executor in this directory: its control, and the stream `restore` from
    which it restores sessions; nothing for one that cannot move."""
    if not movable:
        yield [], []
        return
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        path = directory / SOCKET
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(1)
        arguments = ["--movable", "--moves-fd", str(sock.fileno())]
        if restore is not None:
            arguments += ["--restore-fd", str(restore)]
        yield arguments, [sock.fileno(), *([] if restore is None else [restore])]
