"""The process in a network of executors that passes TCP to those of the same caller on other servers: `egpu-link`
(native/link), controlled from here. Its main.c describes the commands and reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Final

from egpu.adapters import native
from egpu_base.errors import Unavailable

PROGRAM: Final = "egpu-link"
START_SECONDS: Final = 10.0


class LinkProcess:
    """The process of one network. Closing it ends its links; the network keeps its address."""

    def __init__(self, inode: int, control: socket.socket, process: asyncio.subprocess.Process) -> None:
        self.inode = inode
        """The network's address."""
        self._control = control
        self._process = process

    @classmethod
    async def start(cls, network: int, address: int) -> LinkProcess:
        """Start it in the network of this descriptor, which gets a device with the address.

        Raises Unavailable, NativeMissing.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with contextlib.closing(theirs):
                process = await asyncio.create_subprocess_exec(
                    str(native.path(PROGRAM)), str(theirs.fileno()), str(network), f"{address:08x}",
                    pass_fds=[theirs.fileno(), network], stdin=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
            made = cls(os.fstat(network).st_ino, ours, process)
            async with asyncio.timeout(START_SECONDS):
                ready = await asyncio.get_running_loop().sock_recv(ours, 1)
        except BaseException as error:
            ours.close()
            if isinstance(error, TimeoutError | OSError):
                raise Unavailable(f"{PROGRAM} cannot start: {error}") from error
            raise
        if not ready:
            await made.close()
            raise Unavailable(f"{PROGRAM} does not start; see its message on standard error")
        return made

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def join(self, address: int, stream: socket.socket, *, answers: bool) -> None:
        """Link the network with the one of this address, whose own process is at the other end of the stream. The side
        that `answers` sends nothing before it receives something. Raises Unavailable when the process has ended."""
        message = (b"A" if answers else b"L") + address.to_bytes(4, "big")
        try:
            socket.send_fds(self._control, [message], [stream.fileno()])
        except OSError as error:
            raise Unavailable(f"{PROGRAM} does not accept a link: {error}") from error

    async def close(self) -> None:
        self._control.close()
        await self._process.wait()
