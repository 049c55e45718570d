"""The streams of a container's own process, for `kubectl attach`. The process's supervisor passes them on.

`native/enter/attach.h` defines the packets. The supervisor and the container's input outlive the kubelet; attached
clients must attach again.

A client sees what is written from now on. Two clients also see earlier output, from the container's log: one that
attaches to a container that has ended, and the first one of a container that reads input once (`kubectl run -i`). Such
a container is made for this client, and may write and even end before the client can attach.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from pathlib import Path

from egpu_sim.cluster.kubelet.objects import Container
from egpu_sim.cluster.log_lines import parse
from egpu_sim.cluster.streams import (
    CHUNK_BYTES,
    CLOSE,
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    Connection,
    Question,
    window_size,
)

SOCKET = "attach"
"""Name of the supervisor's socket in a run's directory."""
TYPED_BYTES = 4096
LOG = "log"
"""Name of the link to the container's log there."""
SHOWN = "shown"
"""Name of the file there that says that a client has seen the run's output from its beginning."""
BEFORE = 5
PACKET_BYTES = 1 + 8 + 16384

_SIZE = struct.Struct("=2H")
_BEFORE = struct.Struct("=xQ")


def call(directory: Path) -> socket.socket:
    """Connect to the supervisor of the run in `directory`. Raises OSError without one, or with too many attached
    clients."""
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        supervisor.setblocking(False)
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            supervisor.connect(f"/proc/self/fd/{held}/{SOCKET}")  # an address has room for short paths only
        finally:
            os.close(held)
    except OSError:
        supervisor.close()
        raise
    return supervisor


async def attach(
    connection: Connection, question: Question, *, supervisor: socket.socket, container: Container, directory: Path
) -> None:
    """Pass on the container's output and the caller's input, until the container has ended or the caller leaves. Input
    of a container that reads from only one caller ends with the caller's; a terminal's does not, as in containerd."""
    once = container.stdin_once and not container.tty and STDIN in question.streams
    tasks = [
        asyncio.create_task(_show(connection, question, supervisor, directory, once=container.stdin_once)),
        asyncio.create_task(_take_input(connection, question, supervisor, once=once)),
        asyncio.create_task(connection.gone()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(ConnectionError):
            await connection.send(ERROR, json.dumps({"metadata": {}, "status": "Success"}).encode())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if once:
            _end_input(supervisor)


async def replay(connection: Connection, question: Question, directory: Path) -> None:
    """Pass on all output of the run in `directory`, which has ended."""
    await _replay(connection, question, directory)
    await connection.send(ERROR, json.dumps({"metadata": {}, "status": "Success"}).encode())


async def _show(
    connection: Connection, question: Question, supervisor: socket.socket, directory: Path, *, once: bool
) -> None:
    loop = asyncio.get_running_loop()
    before = [await loop.sock_recv(supervisor, PACKET_BYTES) for _ in (STDOUT, STDERR)]
    if not all(before):  # The supervisor has ended: the log is complete.
        await _replay(connection, question, directory)
        return
    if once and _is_first(directory):
        await _replay(connection, question, directory, most_bytes=_BEFORE.unpack_from(before[0])[0])
        for stream, packet in zip((STDOUT, STDERR), before, strict=True):
            if stream in question.streams and (begun := packet[_BEFORE.size :]):
                await connection.send(stream, begun)
    while packet := await loop.sock_recv(supervisor, PACKET_BYTES):
        if packet[0] in question.streams:
            await connection.send(packet[0], packet[1:])


def _is_first(directory: Path) -> bool:
    """Return True once for a run, also if the kubelet is restarted."""
    try:
        (directory / SHOWN).touch(exist_ok=False)
    except OSError:
        return False
    return True


async def _replay(
    connection: Connection, question: Question, directory: Path, *, most_bytes: int | None = None
) -> None:
    """Pass on the output in the log of a run, or in its first bytes, which end with a line."""
    passed = 0
    with await asyncio.to_thread((directory / LOG).open, "rb") as file:
        while lines := await asyncio.to_thread(file.readlines, CHUNK_BYTES):
            for line in lines:
                passed += len(line)
                if most_bytes is not None and passed > most_bytes:
                    return
                found = parse(line)
                stream = STDERR if found is not None and found.stream == "stderr" else STDOUT
                if found is not None and stream in question.streams:
                    await connection.send(stream, found.text)


async def _take_input(connection: Connection, question: Question, supervisor: socket.socket, *, once: bool) -> None:
    """Pass on input until the caller leaves. The end of the caller's input counts too, unless the container must see
    it."""
    loop = asyncio.get_running_loop()
    while (frame := await connection.receive()) is not None:
        channel, payload = frame
        if channel == STDIN and STDIN in question.streams:
            for at in range(0, len(payload), TYPED_BYTES):
                await loop.sock_sendall(supervisor, bytes([STDIN]) + payload[at : at + TYPED_BYTES])
        elif channel == RESIZE and (size := window_size(payload)) is not None:
            await loop.sock_sendall(supervisor, bytes([RESIZE]) + _SIZE.pack(*size))
        elif channel == CLOSE and payload == bytes([STDIN]):
            if not once:
                return
            _end_input(supervisor)


def _end_input(supervisor: socket.socket) -> None:
    with contextlib.suppress(OSError):  # It has ended, or does not read earlier input.
        supervisor.send(bytes([CLOSE]))
