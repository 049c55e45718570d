"""The arbiter of turns as a process: requests in usage files, answers in policy pages, and its end."""

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from egpu.adapters.slices import turns
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, read_policy, write_policy
from egpu.adapters.slices.sharing import TimeSharing, TimeSlice
from egpu.adapters.slices.turns import TurnArbiter, TurnSlice
from egpu.adapters.slices.work import Kind, Work

UUID = "GPU-" + "-".join("1" * length for length in (8, 4, 4, 4, 12))
TURNS, TURN = 64 + 2 * 2112, struct.Struct("<QQQQI4x")
ASKS, ASK = 64 + 16 * 128, struct.Struct("<IIQQ")
FREE = 2**64 - 1
SYS_FUTEX, FUTEX_WAKE = 202, 1
MS = 1_000_000
WAIT_SECONDS = 20


@dataclass
class Slice:
    place: Path
    kind: Kind
    core: int

    @classmethod
    def at(cls, place: Path, kind: Kind, core: int) -> "Slice":
        place.mkdir()
        line = DevicePolicy(
            uuid=UUID, minor=0, mode=Mode.SHARE, core_ppm=core * 10_000, memory_limit_bytes=1 << 30, kind=kind
        )
        write_policy(place / "policy", [line])
        create_usage(place / "usage")
        return cls(place, kind, core)

    def turn_slice(self) -> TurnSlice:
        latency = self.kind is Kind.LATENCY
        return TurnSlice(self.place / "policy", self.place / "usage", 0, self.core * 10_000, latency)

    def until_ns(self) -> int:
        with (self.place / "policy").open("rb") as file:
            return TURN.unpack(os.pread(file.fileno(), TURN.size, TURNS))[0]

    def ask(self, until_ns: int, *, wanted_ns: int = 0) -> None:
        """Write a request, as a program of the slice does, and wake the arbiter."""
        with (self.place / "usage").open("r+b") as file, closing(mmap.mmap(file.fileno(), 4096)) as usage:
            serial = ASK.unpack_from(usage, ASKS)[0]
            ASK.pack_into(usage, ASKS, serial + 1, 0, until_ns, wanted_ns)
            word = ctypes.c_uint32.from_buffer(usage, ASKS)
            ctypes.CDLL(None).syscall(SYS_FUTEX, ctypes.byref(word), FUTEX_WAKE, 1, None)
            del word


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Slice, Slice]:
    return Slice.at(tmp_path / "latency", Kind.LATENCY, 30), Slice.at(tmp_path / "batch", Kind.BATCH, 70)


@pytest.fixture
def arbiter() -> Iterator[TurnArbiter]:
    made = TurnArbiter()
    yield made
    made.close()


def test_a_request_holds_those_who_want_the_card(pair: tuple[Slice, Slice], arbiter: TurnArbiter) -> None:
    latency, batch = pair
    assert arbiter.follow([[latency.turn_slice(), batch.turn_slice()]])
    batch.ask(0, wanted_ns=time.monotonic_ns() + 3_000_000_000)
    asked = time.monotonic_ns() + 400 * MS
    latency.ask(asked)
    eventually(lambda: latency.until_ns() >= asked)
    eventually(lambda: batch.until_ns() == latency.until_ns())
    latency.ask(0)
    eventually(lambda: batch.until_ns() < asked)


def test_nothing_is_held_for_more_than_the_budget(pair: tuple[Slice, Slice], arbiter: TurnArbiter) -> None:
    latency, batch = pair
    assert arbiter.follow([[latency.turn_slice(), batch.turn_slice()]])
    began = time.monotonic_ns()
    batch.ask(0, wanted_ns=began + 60_000_000_000)
    with (latency.place / "usage").open("r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<I", 2**32 - 1), ASKS + 4)  # any turn is of use
    with (latency.place / "usage").open("r+b") as file, closing(mmap.mmap(file.fileno(), 4096)) as usage:
        ASK.pack_into(usage, ASKS, 7, 2**32 - 1, began + 60_000_000_000, 0)
        word = ctypes.c_uint32.from_buffer(usage, ASKS)
        ctypes.CDLL(None).syscall(SYS_FUTEX, ctypes.byref(word), FUTEX_WAKE, 1, None)
        del word
    eventually(lambda: batch.until_ns() > began)
    assert batch.until_ns() <= time.monotonic_ns() + 600 * MS


def test_slices_may_launch_at_any_time_when_the_arbiter_ends(pair: tuple[Slice, Slice], arbiter: TurnArbiter) -> None:
    latency, batch = pair
    assert arbiter.follow([[latency.turn_slice(), batch.turn_slice()]])
    arbiter.close()
    assert latency.until_ns() == FREE
    assert batch.until_ns() == 0


def test_an_arbiter_that_does_not_answer_is_given_up(
    pair: tuple[Slice, Slice], arbiter: TurnArbiter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\nexec sleep 600\n")
    mute.chmod(0o755)
    monkeypatch.setattr(turns, "READY_SECONDS", 0.2)
    with monkeypatch.context() as patched:
        patched.setattr(turns.native, "path", lambda _: mute)
        cards = [[one.turn_slice() for one in pair]] * 2000  # more than a pipe holds
        assert not arbiter.follow(cards)
        assert not arbiter.follow(cards)  # it is not started again at once
    monkeypatch.setattr(turns, "READY_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(turns, "AGAIN_SECONDS", 0)
    assert arbiter.follow([[one.turn_slice() for one in pair]])


def test_a_usage_file_that_shrinks_ends_nothing(pair: tuple[Slice, Slice], arbiter: TurnArbiter) -> None:
    latency, batch = pair
    assert arbiter.follow([[latency.turn_slice(), batch.turn_slice()]])
    os.truncate(latency.place / "usage", 0)
    third = Slice.at(latency.place.parent / "third", Kind.LATENCY, 10)
    assert arbiter.follow([[batch.turn_slice(), third.turn_slice()]])
    third.ask(time.monotonic_ns() + 100 * MS)
    eventually(lambda: third.until_ns() > 0)


def test_batch_work_yields_while_latency_work_is_there(pair: tuple[Slice, Slice]) -> None:
    latency, _ = pair
    now = [100.0]
    slices = [TimeSlice(one.place.name, one.place / "policy", one.place / "usage") for one in pair]
    sharing = TimeSharing(lambda: slices, lambda: len(slices), clock=lambda: now[0])

    def works() -> list[Work]:
        now[0] += 1
        sharing.step()
        return [read_policy(one.place / "policy").devices[0].work for one in pair]

    assert works() == [Work.PLAIN, Work.PLAIN]
    totals = struct.Struct("<Q")
    for step in (1, 2):
        with (latency.place / "usage").open("r+b") as file:
            os.pwrite(file.fileno(), totals.pack(step), 64 + 64 + 4 * 8)  # it launched
        found = works()
    assert found == [Work.LATENCY, Work.YIELDING]
    now[0] += 100
    assert works() == [Work.PLAIN, Work.PLAIN]
