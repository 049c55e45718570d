"""Who holds what of this machine's cards: never more than a card, nothing kept by the dead."""

import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.local.book import Book, LocalSlice
from egpu.adapters.local.holders import Holder, SliceRequest
from egpu.adapters.slices.pages import Mode, read_policy
from egpu.core.backoff import FIRST_SECONDS
from egpu_base.errors import DoesNotFit, InvalidInput, TooSoon
from egpu_base.system.processes import Process
from support.waiting import DEADLINE_SECONDS


def card(index: int = 0, memory_mib: int = 1000) -> CardReading:
    return CardReading(
        uuid=f"GPU-{index}", index=index, minor=index, model="Test", memory_mib=memory_mib, compute_capability="8.0"
    )


ME = Process.of(os.getpid())


def take(book: Book, core: int, memory_mib: int, *, cards: tuple[CardReading, ...] = (card(),), gpu: int | None = None,
         count: int = 1, process: Process = ME) -> LocalSlice:  # fmt: skip
    request = SliceRequest(core=core, memory_mib=memory_mib, cards=count, gpu=gpu)
    return book.take(cards, request, command="test", processes=(process,))


def ordinals(local: LocalSlice) -> list[int]:
    return [one.index for one in local.cards]


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "1000"])
    yield child
    child.kill()
    child.wait()


def test_a_slice_has_its_files_and_leaves_nothing(book: Book, tmp_path: Path) -> None:
    local = take(book, 30, 500)
    (policy,) = read_policy(local.directory / "policy").devices
    assert (policy.uuid, policy.core_ppm, policy.memory_limit_bytes, policy.mode) == (
        "GPU-0",
        300_000,
        500 << 20,
        Mode.CAP,
    )
    assert local.interposer.resolve().name == "libegpu-interposer.so"
    local.give_back()
    assert [path.name for path in (tmp_path / "book").iterdir()] == ["lock"]


@pytest.mark.parametrize(("core", "memory"), [(71, 100), (10, 501)])
def test_a_card_is_never_given_out_twice(book: Book, core: int, memory: int) -> None:
    take(book, 30, 500)
    with pytest.raises(DoesNotFit, match=rf"70 % and 500 of 1000 MiB free, held by pid {ME.pid} \(test\)"):
        take(book, core, memory)
    take(book, 70, 500)


def test_whose_slice_was_ended_for_an_overrun_waits_and_longer_each_time(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    local = take(book, 30, 500)
    for wait in (FIRST_SECONDS, 2 * FIRST_SECONDS):
        local.note_overrun()
        with pytest.raises(TooSoon, match=rf"a slice of yours .* try again in {wait:.0f} s"):
            take(Book(book.directory), 10, 100)
        now[0] += wait
        take(book, 10, 100).give_back()
    (book.directory / "overruns").write_text("garbage")
    take(book, 10, 100)


def test_the_fullest_card_with_room_is_taken(book: Book) -> None:
    cards = (card(0), card(1))
    assert ordinals(take(book, 40, 400, cards=cards, gpu=1)) == [1]
    assert ordinals(take(book, 40, 400, cards=cards)) == [1]
    assert ordinals(take(book, 40, 400, cards=cards)) == [0]


def test_a_slice_of_several_cards_has_its_share_of_each(book: Book) -> None:
    cards = (card(0), card(1), card(2, memory_mib=100), card(3))
    take(book, 40, 400, cards=cards, gpu=3)
    local = take(book, 60, 400, cards=cards, count=2)
    assert ordinals(local) == [0, 3]
    devices = read_policy(local.directory / "policy").devices
    assert [(one.uuid, one.core_ppm, one.memory_limit_bytes) for one in devices] == [
        ("GPU-0", 600_000, 400 << 20),
        ("GPU-3", 600_000, 400 << 20),
    ]
    with pytest.raises(DoesNotFit, match="fewer than 2 cards have 50 % and 400 MiB free now: GPU 1 has 100 %"):
        take(book, 50, 400, cards=cards, count=2)
    assert ordinals(take(book, 40, 400, cards=cards, count=2)) == [0, 1]
    local.give_back()
    assert ordinals(take(book, 60, 400, cards=cards, count=3)) == [0, 1, 3]


@pytest.mark.parametrize(
    ("count", "gpu", "memory", "words"),
    [
        (3, None, 100, "--gpus: this machine has 2 of the 3 cards"),
        (2, 1, 100, "--gpu: it names one card, and --gpus asks for 2"),
        (2, None, 600, "--memory: 600 MiB is more than a card has: GPU 1 .* has 500 MiB"),
    ],
)
def test_cards_that_the_machine_does_not_have_are_refused(
    book: Book, count: int, gpu: int | None, memory: int, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        take(book, 10, memory, cards=(card(0), card(1, memory_mib=500)), count=count, gpu=gpu)


def test_a_refusal_is_one_line_whatever_holds_the_cards(book: Book) -> None:
    cards = tuple(card(index) for index in range(8))
    request = SliceRequest(core=10, memory_mib=10)
    for _ in range(4):
        book.take(cards, request, command="/usr/bin/python train.py --token secret\nmore", processes=(ME,))
    with pytest.raises(DoesNotFit) as refused:
        take(book, 100, 1, cards=cards[:1])
    said = str(refused.value)
    assert "secret" not in said
    assert "\n" not in said
    assert said.endswith(f"held by {', '.join([f'pid {ME.pid} (python): 10 % and 10 MiB'] * 2)} and 2 more")
    for one in cards[1:]:
        take(book, 50, 1, cards=(one,))
    with pytest.raises(DoesNotFit, match=r"100 % and 1 MiB free now: GPU 0 has 60 % .*; GPU 1 has .* and 6 more$"):
        take(book, 100, 1, cards=cards)


def test_the_dead_hold_nothing(book: Book, tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    dead = take(book, 100, 1000, process=Process.of(other.pid))
    with pytest.raises(DoesNotFit):
        take(book, 1, 1)
    other.kill()
    other.wait()
    take(book, 100, 1000)
    assert not dead.directory.exists()


def test_a_pid_that_somebody_else_got_holds_nothing(book: Book) -> None:
    take(book, 100, 1000, process=Process(ME.pid, ME.start_time - 1))
    take(book, 100, 1000)


def test_the_command_holds_on_when_its_runner_is_gone(book: Book, other: subprocess.Popen[bytes]) -> None:
    local = take(book, 100, 1000, process=Process(ME.pid, ME.start_time - 1))
    local.add_process(Process.of(other.pid))
    with pytest.raises(DoesNotFit):
        take(book, 1, 1)


def _race(directory: Path, results: "multiprocessing.Queue[int]", barrier: "multiprocessing.Barrier") -> None:  # type: ignore[valid-type]
    barrier.wait()
    taken = 0
    for _ in range(5):
        try:
            take(Book(directory), 10, 100, process=Process.of(os.getpid()))
            taken += 1
        except DoesNotFit:
            pass
    results.put(taken)
    barrier.wait()


def test_racing_runs_share_exactly_one_card(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results, barrier = context.Queue(), context.Barrier(5)
    racers = [context.Process(target=_race, args=(tmp_path / "book", results, barrier)) for _ in range(5)]
    for racer in racers:
        racer.start()
    assert sum(results.get(timeout=DEADLINE_SECONDS) for _ in racers) == 10
    for racer in racers:
        racer.join(30)


def test_a_file_that_is_no_holder_s_holds_nothing(book: Book, tmp_path: Path) -> None:
    for name, content in (("a", ""), ("b", "{}"), ("c", '{"processes": 3}'), ("d", "[1]")):
        (tmp_path / "book" / f"{name}.holder").write_text(content)
    take(book, 100, 1000)


@pytest.mark.parametrize(
    ("core", "memory", "gpu", "message"),
    [
        (0, 1, None, "--core: 0"),
        (101, 1, None, "--core: 101"),
        (-5, 1, None, "--core"),
        (1, 0, None, "--memory"),
        (1, 1001, None, r"--memory: 1001 MiB is more than a card has: GPU 0 \(Test\) has 1000 MiB"),
        (1, 1, 7, "--gpu: this machine has no GPU 7; it has 0"),
    ],
)
def test_what_no_card_can_give_is_refused(
    book: Book, tmp_path: Path, core: int, memory: int, gpu: int | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        take(book, core, memory, gpu=gpu)
    assert [path.name for path in (tmp_path / "book").iterdir() if path.name != "lock"] == []


def test_a_holder_reads_back(book: Book, tmp_path: Path) -> None:
    local = take(book, 30, 500)
    with book.locked():
        assert book.holders() == [local.holder]
    assert isinstance(local.holder, Holder)
