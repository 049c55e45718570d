"""What `egpu serve` leaves: nothing after Ctrl-C, its leases for the next one after SIGTERM."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu_sim.machines import machine as simulator
from support.local_pool import LocalPool, built, local_pool, sample
from support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(not built(), reason="the native part is not built")


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    with local_pool(tls=False) as made:
        made.broker()
        made.serve("one")
        yield made


def program(pool: LocalPool) -> subprocess.Popen[bytes]:
    """A command that has a lease."""
    command = pool.run_command([sample("spin"), "--seconds", "600"])
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(pool.held_lease_directories()) == 1)
    return started


def ended(pool: LocalPool, number: signal.Signals) -> Path:
    """The state of its simulated machine, after the server was sent the signal and has ended."""
    state = simulator.open_machine(pool.directory / "one" / "machine").state
    pool.processes["one"].send_signal(number)
    assert pool.processes["one"].wait(DEADLINE_SECONDS) == 0
    return state


def test_ctrl_c_ends_its_leases_and_leaves_nothing(pool: LocalPool) -> None:
    holder = program(pool)
    try:
        state = ended(pool, signal.SIGINT)
        assert not state.exists()
        assert [path.name for path in (pool.directory / "one").iterdir() if path.name != "sharing"] == []
    finally:
        holder.kill()
        holder.wait()


def test_a_shell_completes_the_names_of_leases(pool: LocalPool) -> None:
    holder = program(pool)
    try:
        (lease,) = pool.held_lease_directories()
        done = subprocess.run(
            [sys.executable, "-m", "egpu"],
            env={
                **os.environ,
                "_EGPU_COMPLETE": "complete_bash",
                "COMP_WORDS": "egpu resize le",
                "COMP_CWORD": "2",
                "EGPU_POOL": f"127.0.0.1:{pool.port}",
                "EGPU_POOL_SECRET_FILE": str(pool.directory / "secret"),
            },
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (f"{lease.name}\n", "")
    finally:
        holder.kill()
        holder.wait()


def test_another_signal_leaves_its_leases_to_the_next_one(pool: LocalPool) -> None:
    holder = program(pool)
    try:
        state = ended(pool, signal.SIGTERM)
        assert state.exists()
        assert len(pool.held_lease_directories()) == 1
    finally:
        holder.kill()
        holder.wait()


def test_without_leases_nothing_is_left_either_way(pool: LocalPool) -> None:
    assert not ended(pool, signal.SIGTERM).exists()
