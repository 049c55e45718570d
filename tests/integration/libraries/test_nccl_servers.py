"""NCCL across servers: ranks on cards of several, in leases of one caller or in one lease that spans them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from egpu.adapters.executors.networks import TUN
from support.linked_networks import executor_of, link_processes
from support.local_pool import LocalPool, built, local_pool
from support.nccl_programs import ANSWERS, LOSES, RANK
from support.simulated_gpu import source
from support.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: networks of executors are shared and get a device"),
    pytest.mark.skipif(not TUN.exists(), reason="needs /dev/net/tun"),
    pytest.mark.skipif(not built(), reason="needs the native programs"),
]

STRANGER: Final = (
    RANK
    + """
    made = pointer()
    say(nccl.ncclCommInitRank(ctypes.byref(made), ranks, Id.from_buffer_copy(open(meet, "rb").read()), rank))
"""
)

# Two ranks of one program, each a process with its own card, as torchrun starts them.
SPREADS: Final = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", os.environ["CODE"]], env={**os.environ, "RANK": each, "ORDINAL": each},
                          stdout=subprocess.PIPE, text=True) for each in "01"]
for rank in ranks:  # one after the other: what both say at the same time would stand in each other's lines
    print(rank.communicate()[0], end="", flush=True)
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with local_pool(tls=True) as made:
        made.broker()
        made.serve("one", 1, "--collectives")
        made.serve("two", 1, "--collectives")
        yield made


class Rank:
    """A program in a lease of its own on one of the servers, and what it says."""

    def __init__(self, pool: LocalPool, code: str, rank: int, meet: Path, who: str = "ann") -> None:
        self.process = subprocess.Popen(
            pool.run_command([sys.executable, "-c", source(code)], "--core", "60", who=who),
            env={**os.environ, "RANK": str(rank), "RANKS": "2", "MEET": str(meet)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def hear(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait(30)}"
        return json.loads(line)

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Rank:
        return self

    def kill(self) -> None:
        """With `egpu run` and all."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.kill()
        self.process.communicate()


def test_ranks_in_two_leases_on_two_servers_exchange_data(pool: LocalPool, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(Rank(pool, ANSWERS, each, tmp_path / "meet")) for each in range(2)]
        weights = [rank.hear() for rank in ranks]
    assert weights[0] == weights[1]


def test_ranks_of_one_lease_on_two_servers_exchange_data(pool: LocalPool, tmp_path: Path) -> None:
    done = subprocess.run(
        pool.run_command([sys.executable, "-c", SPREADS], "--gpus", "2"),
        env={**os.environ, "RANKS": "2", "MEET": str(tmp_path / "meet"), "CODE": source(ANSWERS)},
        stdout=subprocess.PIPE, text=True, check=True, timeout=120,
    )  # fmt: skip
    weights = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(weights) == 2
    assert weights[0] == weights[1]


@pytest.mark.parametrize("what", ["rank", "executor", "link"])
def test_a_lost_rank_is_an_error_for_the_one_elsewhere(pool: LocalPool, tmp_path: Path, what: str) -> None:
    with contextlib.ExitStack() as stack:
        stays, goes = (stack.enter_context(Rank(pool, LOSES, each, tmp_path / "meet")) for each in range(2))
        assert [stays.hear(), goes.hear()] == ["together"] * 2
        stays.go()
        if what == "rank":
            goes.kill()
        elif what == "link":
            os.kill(link_processes(pool, "one")[0], signal.SIGKILL)
        else:
            os.killpg(executor_of(pool, goes.process.pid), signal.SIGKILL)
        assert stays.hear() == 6  # ncclRemoteError


def test_the_unique_id_of_another_caller_leads_nowhere(pool: LocalPool, tmp_path: Path) -> None:
    with Rank(pool, RANK + "    join(meet, rank, ranks)\n", 0, tmp_path / "meet"):
        wait_until((tmp_path / "meet").exists)
        with Rank(pool, STRANGER, 1, tmp_path / "meet", who="bob") as stranger:
            assert stranger.hear() == 6  # ncclRemoteError
