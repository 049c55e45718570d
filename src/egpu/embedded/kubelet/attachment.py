"""The streams of a container's own process, as `kubectl attach` asks for: its supervisor passes them on.

The supervisor's side, and what packets there are: `native/enter/attach.h`. It outlives the kubelet, and so does what
the container reads from; who was attached has to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from pathlib import Path

from egpu.embedded.kubelet.objects import Container
from egpu.embedded.streams import CLOSE, ERROR, RESIZE, STDIN, Connection, Question, window_size

SOCKET = "attach"
"""Name of the supervisor's socket in a run's directory."""
TYPED_BYTES = 4096
PACKET_BYTES = 1 + 16384

_SIZE = struct.Struct("=2H")


def call(directory: Path) -> socket.socket:
    """The supervisor of the run in `directory`. Raises OSError where none answers, or too many are attached."""
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
    connection: Connection, question: Question, *, supervisor: socket.socket, container: Container
) -> None:
    """Show what the container says and pass on what is typed for it, until it has ended or the caller leaves. Where
    it reads from one caller only, its input ends with the caller's; a terminal's does not, as in containerd."""
    once = container.stdin_once and not container.tty and STDIN in question.streams
    tasks = [
        asyncio.create_task(_show(connection, question, supervisor)),
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


async def _show(connection: Connection, question: Question, supervisor: socket.socket) -> None:
    """Until the run is over."""
    loop = asyncio.get_running_loop()
    while packet := await loop.sock_recv(supervisor, PACKET_BYTES):
        if packet[0] in question.streams:
            await connection.send(packet[0], packet[1:])


async def _take_input(connection: Connection, question: Question, supervisor: socket.socket, *, once: bool) -> None:
    """Until the caller leaves, which the end of what he types is as well, unless the container is to see it."""
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
    with contextlib.suppress(OSError):  # it has ended, or does not read what came before
        supervisor.send(bytes([CLOSE]))
