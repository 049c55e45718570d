"""Leases that share the room of a card of `egpu serve`: idle programs leave it for others, and their next call brings
their memory back, on the server's own machine and over the network."""

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Generator, Iterator

import pytest

from support.local_pool import FAR, LocalPool, built, local_pool
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(not built(), reason="the executor and the remote client are not built")

ROOM_MIB = 120
"""What a lease that fills the card leaves."""
LEASE_MIB = 100
HELD_MIB = 80

FILLS = """
from cuda.bindings import driver as d
d.cuInit(0)
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
print(d.cuMemAlloc(d.cuMemGetInfo()[1])[0].name, flush=True)
input()
"""

HOLDS = f"""
import sys
import numpy as np
from cuda.bindings import driver as d

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None

ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
data = np.random.default_rng(SEED).integers(0, 1 << 32, {HELD_MIB} << 18, dtype=np.uint32)
pointer = ok(d.cuMemAlloc(data.nbytes))
ok(d.cuMemcpyHtoD(pointer, data.ctypes.data, data.nbytes))
print("ready", flush=True)
for line in sys.stdin:
    back = np.zeros_like(data)
    ok(d.cuMemcpyDtoH(back.ctypes.data, pointer, back.nbytes))
    print(bool((back == data).all()), flush=True)
"""


class Program:
    """A program of the pool that answers a line with a line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def hear(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def ask(self) -> str:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.hear()


@contextlib.contextmanager
def running(pool: LocalPool, code: str, *options: str, far: bool = False) -> Generator[Program]:
    command = pool.run_command([sys.executable, "-c", textwrap.dedent(code)], "--core", "10", *options)
    if far:
        command[1:3] = ["-c", FAR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Program(process)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with local_pool(tls=False) as made:
        made.environment["EGPU_SIM_CONTEXT_MIB"] = "4"
        made.broker()
        made.serve("one", 1, "--parking-memory", "1000")
        yield made


def sharing(pool: LocalPool, seed: int, *, far: bool = False) -> contextlib.AbstractContextManager[Program]:
    options = ("--memory", str(LEASE_MIB), "--parkable", "--parking-resident", "10%", "--parking-idle", "1s")
    return running(pool, HOLDS.replace("SEED", str(seed)), *options, far=far)


def parked(pool: LocalPool) -> list[int]:
    """How much of each lease that shares room is parked, by the last reports."""
    return sorted(lease["parkedMiB"] for lease in pool.leases() if lease["residentMiB"] == LEASE_MIB // 10)


@pytest.mark.parametrize("far", [False, True])
def test_two_programs_of_eighty_in_a_room_of_a_hundred(pool: LocalPool, far: bool) -> None:
    (server,) = pool.servers()
    fills = running(pool, FILLS, "--memory", str(server["memoryFreeMiB"] - ROOM_MIB))
    with fills as full, sharing(pool, 1, far=far) as one:
        assert full.hear() == "CUDA_SUCCESS"
        assert one.hear() == "ready"
        with sharing(pool, 2, far=far) as two:
            assert two.hear() == "ready", "it got the room of the first, which was idle"
            wait_until(lambda: parked(pool) == [0, HELD_MIB], "the broker hears of it with the next report")
            for _ in range(2):
                assert one.ask() == "True"
                assert two.ask() == "True"
            wait_until(lambda: parked(pool) == [0, HELD_MIB] and pool.servers()[0]["parkedMiB"] == HELD_MIB)
            assert pool.servers()[0]["parkingMemoryFreeMiB"] == 1000 - 2 * LEASE_MIB
            pool.kill("one")
            pool.again("one")
            assert one.ask() == "True", "the next daemon goes on as arbiter"
            assert two.ask() == "True"
    wait_until(lambda: pool.leases() == [])
