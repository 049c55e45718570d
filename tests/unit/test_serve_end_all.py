"""Ctrl-C of `egpu serve`: all leases end together, and one that the kernel does not end delays no other."""

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from egpu.adapters.executors.parents import Parent
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.apps.serve import supervisor
from egpu.apps.serve.arrivals import Arrivals
from egpu.apps.serve.owners import LeaseOwner
from egpu.apps.serve.supervisor import LeaseSupervisor


class FakeExecutor:
    """An executor that dies when it is killed, or not even then."""

    def __init__(self, name: str, *, stuck: bool) -> None:
        self.name = name
        self._alive = True
        self._stuck = stuck

    def kill(self) -> None:
        self._alive = self._stuck

    def is_alive(self) -> bool:
        return self._alive


class FakeParent:
    """Waits for an executor until it is dead, as long as the test runs."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def end(self, executor: FakeExecutor) -> None:
        while executor.is_alive() and not self.over.wait(0.01):
            executor.kill()


@pytest.mark.parametrize("stuck", [0, 40])
async def test_leases_that_do_not_end_delay_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: int
) -> None:
    monkeypatch.setattr(supervisor, "END_ALL_SECONDS", 0.5)
    parent = FakeParent()
    executors = ExecutorSupervisor(tmp_path / "leases", LeaseOwner, parent=cast(Parent, parent))
    leases = LeaseSupervisor(executors, Arrivals("one"), watch_seconds=1)
    for number in range(50):
        name = f"lease-{number}"
        executors.running[name] = cast(Any, FakeExecutor(name, stuck=number < stuck))
    try:
        async with asyncio.timeout(10):
            await leases.end_all()
        assert sorted(executors.running) == sorted(f"lease-{number}" for number in range(stuck))
    finally:
        parent.over.set()
