"""Slices that do nothing are only glanced at; the first of them that does something is looked at as often as ever."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from egpu.adapters.slices import sharing as sharing_module
from egpu.adapters.slices.pages import (
    USAGE_HEADER,
    DevicePolicy,
    Mode,
    Policy,
    create_usage,
    read_policy,
    write_policy,
)
from egpu.adapters.slices.sharing import (
    BUSY_SECONDS,
    CALM_SECONDS,
    RESCAN_SECONDS,
    STILL_AFTER_SECONDS,
    STILL_RESCAN_SECONDS,
    STILL_SECONDS,
    TimeSharing,
    TimeSlice,
)

LAUNCHES_OFFSET = 96
LINE = DevicePolicy(uuid="GPU-1", minor=0, mode=Mode.CAP, core_ppm=300_000, memory_limit_bytes=1 << 30)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slices:
    """Slices of one card in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.listed = 0
        self.unused = False

    def add(self, name: str) -> Path:
        (self.root / name).mkdir()
        write_policy(self.root / name / "policy", [LINE])
        create_usage(self.root / name / "usage")
        return self.root / name / "usage"

    def __call__(self) -> Iterator[TimeSlice]:
        self.listed += 1
        for place in sorted(self.root.iterdir()):
            yield TimeSlice(place.name, place / "policy", place / "usage", unused=lambda: self.unused)

    def stamp(self) -> tuple[str, ...]:
        return tuple(sorted(place.name for place in self.root.iterdir()))


def moves(usage: Path) -> None:
    """A launch was counted for the first device."""
    handle = os.open(usage, os.O_WRONLY)
    os.pwrite(handle, b"\x01", USAGE_HEADER.size + LAUNCHES_OFFSET)
    os.close(handle)


@pytest.fixture
def slices(tmp_path: Path) -> Slices:
    return Slices(tmp_path)


def sharing(slices: Slices, clock: Clock) -> TimeSharing:
    made = TimeSharing(slices, slices.stamp, clock=clock)
    assert made.pause() is None, "at first it is looked at"
    made.step()
    return made


def test_who_does_something_is_looked_at_at_once(slices: Slices) -> None:
    clock = Clock()
    usage, _ = slices.add("a"), slices.add("b")
    shared = sharing(slices, clock)
    assert shared.pause() is not None
    moves(usage)
    assert shared.pause() is None
    assert shared.step() == BUSY_SECONDS
    assert shared.pause() is None, "it may go on"
    clock.now += STILL_AFTER_SECONDS
    assert STILL_SECONDS <= (shared.pause() or 0) < 1


def test_of_slices_that_no_program_uses_nothing_is_read(slices: Slices) -> None:
    clock = Clock()
    usage, _ = slices.add("a"), slices.add("b")
    slices.unused = True
    shared = sharing(slices, clock)
    clock.now += STILL_RESCAN_SECONDS / 2
    moves(usage)
    assert shared.pause() is not None
    slices.unused = False
    assert shared.pause() is None, "what it does first is seen as of anybody"
    assert shared.step() == BUSY_SECONDS
    assert shared.pause() is None


def test_slices_are_listed_when_one_comes_and_not_meanwhile(slices: Slices) -> None:
    clock = Clock()
    slices.add("a")
    shared = sharing(slices, clock)
    assert (shared.pause() or 0) >= CALM_SECONDS, "alone on its card"
    clock.now += STILL_RESCAN_SECONDS / 2
    assert shared.pause() is not None
    assert slices.listed == 1
    slices.add("b")
    assert shared.pause() is None, "not listed for long, so at once"
    assert shared.step() == BUSY_SECONDS
    assert slices.listed == 2
    clock.now += STILL_RESCAN_SECONDS
    assert shared.pause() is None, "directories may have said nothing"


def test_a_page_is_read_again_when_somebody_wrote_it(slices: Slices, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(page: Path) -> Policy:
        read.append(page)
        return read_policy(page)

    monkeypatch.setattr(sharing_module, "read_policy", counted)
    clock = Clock()
    pages = [slices.add(name).with_name("policy") for name in ("a", "b")]
    shared = sharing(slices, clock)
    for page in pages:
        os.utime(page, (1, 1))  # long ago
    clock.now += STILL_RESCAN_SECONDS
    shared.next()
    read.clear()
    clock.now += STILL_RESCAN_SECONDS
    assert shared.next() == BUSY_SECONDS, "two of one card"
    assert (slices.listed, read) == (3, [])
    write_policy(pages[1], [replace(LINE, uuid="GPU-2")])
    clock.now += STILL_RESCAN_SECONDS
    assert shared.next() == CALM_SECONDS, "each alone on its card"
    assert read == [pages[1]]


def test_slots_that_come_one_by_one_are_not_listed_for_each(slices: Slices) -> None:
    clock = Clock()
    slices.add("a")
    shared = sharing(slices, clock)
    for number in range(10):
        clock.now += RESCAN_SECONDS / 20
        slices.add(f"b{number}")
        assert shared.pause() is not None
    assert slices.listed == 1
    clock.now += RESCAN_SECONDS
    shared.next()
    assert slices.listed == 2
    assert shared.pause() is not None, "they do nothing"


def test_the_longer_it_is_still_the_more_seldom_it_is_looked_at(slices: Slices) -> None:
    clock = Clock()
    usage, _ = slices.add("a"), slices.add("b")
    shared = sharing(slices, clock)
    pauses: list[float] = []
    for _ in range(6):
        clock.now += 5
        shared.next()
        pauses.append(shared.pause() or 0)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (pytest.approx(0.1), CALM_SECONDS)
    moves(usage)
    assert shared.next() == BUSY_SECONDS
    clock.now += STILL_AFTER_SECONDS
    assert shared.pause() == STILL_SECONDS, "it may soon go on"


def test_whose_grant_is_his_own_share_needs_no_other_page(slices: Slices) -> None:
    clock = Clock()
    usage, _ = slices.add("a"), slices.add("b")
    shared = sharing(slices, clock)
    page = usage.with_name("policy")
    assert read_policy(page).generation == 1, "nobody is active"
    moves(usage)
    shared.next()
    clock.now += STILL_AFTER_SECONDS
    shared.next()
    assert read_policy(page).generation == 1, "and alone it needs no window"


def test_a_slice_that_is_removed_meanwhile_is_not_in_doubt(slices: Slices) -> None:
    clock = Clock()
    usages = [slices.add(name) for name in ("a", "b", "c", "d")]
    shared = sharing(slices, clock)
    for usage in usages[:2]:
        shutil.rmtree(usage.parent)
    shared.step()
    assert shared.pause() is not None, "nobody did anything"
    usages[2].unlink()
    shared.next()
    assert shared.pause() is None, "what it does cannot be seen"
