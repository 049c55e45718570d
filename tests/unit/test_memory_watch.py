"""Slices are listed to be compared with the driver's word only when that can have changed."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from egpu.adapters.cards.nvml import CardProcess
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import IDLE_SECONDS, MemoryWatch
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
