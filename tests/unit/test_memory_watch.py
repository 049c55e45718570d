"""Slices are listed to be compared with the driver's word only when that can have changed."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from egpu.adapters.cards.nvml import CardProcess
from egpu.adapters.slices import membership
from egpu.adapters.slices.attribution import MAPPINGS_SECONDS, Attribution, WatchedSlice
from egpu.adapters.slices.overruns import ALERT_SECONDS, BEHIND_SECONDS, IDLE_SECONDS, MemoryWatch
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy

UUID = "GPU-1"
LINE = DevicePolicy(uuid=UUID, minor=0, mode=Mode.CAP, core_ppm=300_000, memory_limit_bytes=1 << 30)
STRANGER = 1


class Driver:
    pids: tuple[int, ...] = ()

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]:
        return {UUID: tuple(CardProcess(pid, 1 << 20) for pid in self.pids)}

    def used_bytes(self) -> Mapping[str, int]:
        return {UUID: len(self.pids) << 20}


class Slices:
    """One, below a directory; `listed` is how often it was asked for."""

    def __init__(self, root: Path) -> None:
        self._policy, self._usage = root / "policy", root / "usage"
        write_policy(self._policy, [LINE])
        create_usage(self._usage)
        self.listed = 0

    def __call__(self) -> Iterator[WatchedSlice]:
        self.listed += 1
        yield WatchedSlice(key="a", policy=self._policy, usage=self._usage)


def test_slices_are_listed_while_somebody_is_on_a_card_or_one_came(tmp_path: Path) -> None:
    driver, slices, now = Driver(), Slices(tmp_path), 0.0
    watch = MemoryWatch(driver, clock=lambda: now)

    def listed(stamp: int) -> bool:
        nonlocal now
        now += IDLE_SECONDS
        assert watch.is_due()
        before = slices.listed
        assert watch.step(slices(), stamp=stamp) == ()
        return slices.listed > before

    assert listed(1)
    assert watch.findings.keys() == {("a", UUID)}
    assert not listed(1), "as it was"
    assert listed(2), "one came"
    assert not listed(2)
    driver.pids = (STRANGER,)
    assert listed(2)
    assert listed(2), "as long as it is there: whose it is may come out"
    driver.pids = ()
    assert listed(2), "once more when it is gone"
    assert not listed(2)


def test_mappings_are_read_of_the_largest_process_first_and_the_next_look_is_due_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def slow(pid: int, wanted: Collection[membership.PageIdentity]) -> set[membership.PageIdentity]:
        read.append(pid)
        return set()

    monkeypatch.setattr(membership, "pages_mapped", slow)
    parent, mine = os.getppid(), os.getpid()
    held = {parent: 1 << 20, mine: 2 << 20}

    class TwoProcesses(Driver):
        def processes(self) -> Mapping[str, tuple[CardProcess, ...]]:
            return {UUID: tuple(CardProcess(pid, size) for pid, size in held.items())}

    attribution = Attribution(clock=lambda: len(read) * MAPPINGS_SECONDS)
    watch = MemoryWatch(TwoProcesses(), clock=lambda: 0.0, attribution=attribution)
    slices = Slices(tmp_path)
    watch.step(slices())
    assert read == [mine]
    assert watch.is_due()
    assert watch.pause_seconds == BEHIND_SECONDS < ALERT_SECONDS
    for _ in range(64):  # our parents, one in each look
        watch.step(slices())
        if watch.pause_seconds != BEHIND_SECONDS:
            break
    assert not watch.is_due()
    assert parent in read
