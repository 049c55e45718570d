"""The protocol between the API server and a kubelet of this machine, over the kubelet's unix socket.

    question    one line of JSON: a `Question`
    answer      one line of JSON: an `Answer`; with `refused`, nothing follows
    frames      channel (1 byte), length (4 bytes, big-endian), payload; in both directions

Channels are those of Kubernetes' remote command protocol, version 5 (`v5.channel.k8s.io`), so the API server forwards
frames unchanged. Both ends are processes of one user, and each checks that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from egpu_base.errors import Unavailable

SOCKET = "kubelet.sock"
"""Name of the socket in a kubelet's directory."""
ANNOTATION = "elasticgpu.io/kubelet-socket"
"""A node's annotation with the path of its kubelet's socket."""
LOGS_ANNOTATION = "elasticgpu.io/pod-logs"
"""A node's annotation with the directory of its pods' logs."""
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
FRAME_BYTES = 1024 * 1024
LINE_BYTES = 1024 * 1024
CHUNK_BYTES = 32 * 1024
GONE_SECONDS = 0.5
"""Pause between checks that the other end is still there."""

_HEAD = struct.Struct("!BI")
_PEER = struct.Struct("3i")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`wants`: `exec` (a command in a container), `attach` (the streams of its own process) or `usage` (usage of this
    node's containers)."""

    wants: str
    pod_uid: str = ""
    container: str = ""
    command: list[str] = []
    streams: list[int] = []
    """The caller's streams among STDIN, STDOUT and STDERR."""
    terminal: bool = False


class _WindowSize(msgspec.Struct):
    Height: Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
    Width: Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    refused: str = ""
    """The reason for a refusal; "" for success."""
    found: Any = None


@dataclass(frozen=True)
class Connection:
    """One end. Raises ConnectionError and asyncio's IncompleteReadError when the other end has gone."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, message: Question | Answer) -> None:
        self.writer.write(msgspec.json.encode(message) + b"\n")
        await self.writer.drain()

    async def hear(self) -> bytes:
        """Read a line of JSON."""
        return await self.reader.readuntil(b"\n")

    async def send(self, channel: int, payload: bytes) -> None:
        self.writer.write(_HEAD.pack(channel, len(payload)) + payload)
        await self.writer.drain()

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next frame; None when the other end has gone."""
        try:
            channel, length = _HEAD.unpack(await self.reader.readexactly(_HEAD.size))
            if length > FRAME_BYTES:
                return None
            return channel, await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def gone(self) -> None:
        """Return once the other end is closed, even before its last frames are read."""
        poll = select.poll()
        poll.register(
            self.writer.get_extra_info("socket").fileno(), 0
        )  # The kernel reports hang-ups without being asked.
        while True:
            await asyncio.sleep(GONE_SECONDS)
            if poll.poll(0):
                return


def window_size(payload: bytes) -> tuple[int, int] | None:
    """Return the rows and columns of a frame of channel RESIZE, or None."""
    try:
        size = msgspec.json.decode(payload, type=_WindowSize)
    except msgspec.MsgspecError:
        return None
    return size.Height, size.Width


def is_ours(writer: asyncio.StreamWriter) -> bool:
    """Return whether the process at the other end is of our user."""
    peer: socket.socket = writer.get_extra_info("socket")
    _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return uid == os.geteuid()


@contextlib.asynccontextmanager
async def connect(path: Path, question: Question) -> AsyncGenerator[tuple[Connection, Answer], None]:
    """Ask a kubelet. Raises Unavailable without an answer."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=LINE_BYTES)
    except OSError as error:
        raise Unavailable(f"the kubelet does not answer at {path}: {error.strerror}") from error
    connection = Connection(reader, writer)
    try:
        if not is_ours(writer):
            raise Unavailable(f"{path} is not of this user")
        try:
            await connection.say(question)
            answer = msgspec.json.decode(await connection.hear(), type=Answer)
        except (ConnectionError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            raise Unavailable(f"the kubelet at {path} closed the connection: {error}") from error
        yield connection, answer
    finally:
        writer.close()
