"""CUDA programs whose leases move between real servers and executors: the same results as without moves, over loopback
TCP and TLS."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.pool import bridge
from egpu_base.errors import Refused
from egpu_sim.machines.machine import Machine
from support import simulated_gpu
from support.local_pool import built
from support.long import or_long
from support.mixed_load import COUNT
from support.moving_pool import world
from support.waiting import until

pytestmark = pytest.mark.skipif(not built(), reason="the native part is not built")

MOVES = or_long(3, 50)
WORK = f"""
    context()
    import select
    u32 = ctypes.c_uint32
    f, g = function({COUNT!r}, "count"), function(VECTOR_ADD, "add")
    counter, launched, right = upload(np.zeros(1, np.uint32)), 0, True
    x, y = (np.random.default_rng(7).random(1000, np.float32) for _ in range(2))
    px, py, pz = upload(x), upload(y), ok(d.cuMemAlloc(x.nbytes))
    big = np.arange(1 << 20, dtype=np.uint32)
    pb = upload(big)
    s = ok(d.cuStreamCreate(1))
    say(0)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(20):
            ok(launch(f, 1, 1, counter, (1, u32), stream=s))
        launched += 20
        ok(d.cuStreamSynchronize(s))
        right = right and int(download(counter, np.zeros(1, np.uint32))[0]) == launched
        ok(launch(g, 8, 128, px, py, pz, (1000, u32)))
        right = right and bool((download(pz, x) == x + y).all())
        if launched % 200 == 0:
            right = right and bool((download(pb, big) == big).all())
            say(launched)
    say([right, launched, int(download(counter, np.zeros(1, np.uint32))[0])])
"""


class CudaProgram:
    """A process that counts on the GPU of the socket in its directory."""

    def __init__(self, directory: Path) -> None:
        bridge.fill(directory)
        self.process = subprocess.Popen(
            [sys.executable, "-c", simulated_gpu.source(WORK)], env=simulated_gpu.environment(directory),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.said: list[Any] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    async def goes_on(self) -> None:
        """Wait until it has said something new."""
        before = len(self.said)
        await until(lambda: len(self.said) > before + 1 or self.process.poll() is not None)
        assert self.process.poll() is None

    async def end(self) -> None:
        """End it, and check what it counted."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert await asyncio.to_thread(self.process.wait, 60) == 0
        self._reading.join(10)
        right, launched, counted = self.said[-1]
        assert right
        assert launched == counted > 0

    async def close(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.wait, 30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are as on another machine: the sockets of executors are not to be seen."""
    monkeypatch.setattr(bridge, "_connectable", lambda _: False)


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("tls", [False, True], ids=["TCP", "TLS"])
async def test_a_program_counts_on_through_moves_between_servers(
    tmp_path: Path, machine: Machine, state_dir: Path, tls: bool
) -> None:
    async with world(tmp_path, machine, state_dir, tls=tls, program_of=CudaProgram) as made:
        assert (await made.asker.movable(made.lease)).look.prevents == ()
        for _ in range(MOVES):
            target = made.elsewhere
            arrived = await made.asker.move(made.lease, server=target)
            assert arrived.bytes > 4 << 20
            await until(lambda target=target: made.where == target)
            await made.program.goes_on()
        await made.program.end()


@pytest.mark.parametrize("near", [False, True], ids=["far", "near"])
async def test_a_program_counts_on_through_moves_between_cards(
    tmp_path: Path, machine: Machine, state_dir: Path, request: pytest.FixtureRequest, near: bool
) -> None:
    """A program that is near shares memory with its executor."""
    if not near:
        request.getfixturevalue("far")
    async with world(tmp_path, machine, state_dir, program_of=CudaProgram) as made:
        server, card = made.where, ""
        for _ in range(MOVES):
            arrived = await made.asker.move(made.lease, server=server)
            assert arrived.lease.cards[0].share.uuid != card
            card = arrived.lease.cards[0].share.uuid
            await made.program.goes_on()
            await until(lambda: len(made.broker.service.pool.ledger.holders()) == 1)
        await made.program.end()


async def test_a_program_that_shares_memory_stays_on_its_machine(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir, program_of=CudaProgram) as made:
        assert (await made.asker.movable(made.lease)).look.prevents == ()
        with pytest.raises(Refused, match="shared memory: the target is on another machine"):
            await made.asker.move(made.lease, server=made.elsewhere)
        await made.program.goes_on()
        await made.program.end()


@pytest.mark.usefixtures("far")
async def test_a_program_counts_on_when_daemons_die_during_its_move(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    async with world(tmp_path, machine, state_dir, program_of=CudaProgram) as made:
        for victim in ("source", "target") * or_long(1, 10):
            name = made.where if victim == "source" else made.elsewhere
            moving = asyncio.create_task(made.asker.move(made.lease, server=made.elsewhere))
            await until(lambda moving=moving: len(made.daemons.processes()) > 1 or moving.done())
            await made.daemons.stop(name)
            await made.daemons.start(name)
            await asyncio.gather(moving, return_exceptions=True)
            await made.program.goes_on()
            await until(lambda: len(made.broker.service.pool.ledger.holders()) == 1)
        await made.program.end()
