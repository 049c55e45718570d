"""The data side of every machine with executors: check a remote program's token, connect it to its executor, and report
the network's speed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path
from typing import Any, Final

from egpu.adapters.executors.process import Executor
from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import Connection
from egpu.core.leasing import tokens
from egpu_base.errors import NotFound, Unavailable

_NETWORK: Final = Path("/sys/class/net")


async def connect_program(
    connection: Connection, hello: messages.Hello, executor: Executor[Any], *, key: str, lease: str = ""
) -> None:
    """Carry a program's bytes until either side ends. Its token must be signed with `key`, and issued for `lease` (by
    default the executor's name) and to the peer that presents it.

    Raises Refused for any other token, NotFound when the executor is dead, Unavailable when it does not answer.
    """
    tokens.check(hello.token, lease=lease or executor.name, key=key, peer=connection.peer, now=time.time())
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, str(executor.socket))
        except ConnectionRefusedError as error:
            raise NotFound(f"the executor of {executor.name} is dead") from error
        except OSError as error:
            raise Unavailable(f"the executor of {executor.name} does not answer: {error}") from error
        await connection.hand_over(sock, last=messages.Welcome(name=connection.peer))


def fastest_link_mbps(root: Path = _NETWORK) -> int:
    """Return the speed of the fastest interface that is up, or 0 if the kernel does not say."""
    speeds = [0]
    for interface in root.glob("*/speed"):
        with contextlib.suppress(OSError, ValueError):
            speeds.append(int(interface.read_text()))
    return max(speeds)
