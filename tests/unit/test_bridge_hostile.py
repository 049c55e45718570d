"""A container reaches its bridge's socket. All bridges of a node share one process, whose descriptors none may take."""

import asyncio
import os
import socket
from pathlib import Path

from egpu.adapters.pool.bridge import MAX_PROGRAMS, Bridge, Target
from egpu.adapters.pool.security import Credentials, create_secret
from egpu_base.errors import Unavailable
from support.waiting import until


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def connected(path: Path) -> socket.socket:
    """In a thread, as another process: the socket has room for few that wait."""
    program = socket.socket(socket.AF_UNIX)
    await asyncio.to_thread(program.connect, str(path))
    return program


async def test_programs_beyond_what_an_executor_serves_wait_in_the_socket(tmp_path: Path) -> None:
    create_secret(tmp_path / "secret")
    answered = asyncio.Event()
    asked = 0

    async def take() -> Target:
        nonlocal asked
        asked += 1
        await answered.wait()
        raise Unavailable("not now")

    one = Bridge(tmp_path, Credentials(secret_file=tmp_path / "secret"), take)
    await one.open()
    before = descriptors()
    programs = [await connected(tmp_path / "lease0.sock") for _ in range(MAX_PROGRAMS + 50)]
    await asyncio.sleep(0.1)
    assert descriptors() - before - len(programs) <= MAX_PROGRAMS
    answered.set()
    await until(lambda: asked == len(programs))  # the others have their turn
    await one.close()
    for program in programs:
        program.close()
