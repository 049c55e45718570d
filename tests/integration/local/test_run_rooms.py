"""Slices of `egpu run` that share the room of a card: who fits, and who arbitrates."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.adapters.cards.nvml import CardReading
from egpu.adapters.local.book import Book, LocalSlice
from egpu.adapters.local.holders import SliceRequest
from egpu.adapters.local.rooms import BookRooms
from egpu.adapters.slices.pages import read_policy
from egpu_base.errors import DoesNotFit
from egpu_base.system.processes import Process

MIB = 1 << 20
CARD = CardReading(uuid="GPU-0", index=0, minor=0, model="Test", memory_mib=1000, compute_capability="8.0")
ME = Process.of(os.getpid())


def take(book: Book, memory_mib: int, resident_percent: int = 0, *, host_mib: int = 10_000) -> LocalSlice:
    request = SliceRequest(
        core=10, memory_mib=memory_mib, parkable=resident_percent > 0, resident_percent=resident_percent,
        idle_seconds=30, host_memory_mib=host_mib,
    )  # fmt: skip
    return book.take((CARD,), request, command="test", processes=(ME,))


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "book")


def test_ten_slices_of_three_quarters_of_a_card(book: Book) -> None:
    for _ in range(10):
        parking = read_policy(take(book, 750, 2).directory / "policy").parking
        assert parking is not None
        assert parking.room_bytes == 15 * MIB


def test_a_slice_with_its_own_room_gets_what_the_others_leave(book: Book) -> None:
    take(book, 750, 2)
    take(book, 500, 2)
    with pytest.raises(DoesNotFit, match=r"240 of 1000 MiB free, held by .* 15 of them resident"):
        take(book, 241)
    take(book, 240)
    with pytest.raises(DoesNotFit, match=r"10 % and 100 MiB \(1 % of it resident\)"):
        take(book, 100, 1)


def test_memory_of_the_machine_is_promised_once(book: Book) -> None:
    take(book, 750, 2, host_mib=1000)
    with pytest.raises(DoesNotFit, match=r"needs 251 MiB of this machine's memory; 250 of 1000 MiB are left"):
        take(book, 251, 2, host_mib=1000)
    take(book, 250, 2, host_mib=1000)


def test_the_arbiter_sees_the_cards_of_living_holders(book: Book) -> None:
    rooms = BookRooms(book)
    plain, one = take(book, 100), take(book, 750, 2)
    (card,) = rooms.cards().values()
    assert card.budget_bytes == 900 * MIB
    (shared,) = card.slices
    assert (shared.limit_bytes, shared.floor_bytes, shared.idle_seconds) == (750 * MIB, 15 * MIB, 30)
    assert shared.policy == one.directory / "policy"
    plain.give_back()
    (card,) = rooms.cards().values()
    assert card.budget_bytes == 1000 * MIB
    one.give_back()
    assert rooms.cards() == {}


LEADER = """
import sys
from pathlib import Path
from egpu.adapters.local.book import Book
from egpu.adapters.local.rooms import BookRooms
rooms = BookRooms(Book(Path(sys.argv[1])))
print(rooms.leads(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def leader(book: Book) -> Iterator["subprocess.Popen[str]"]:
    """Another process that is the arbiter."""
    command = [sys.executable, "-c", LEADER, str(book.directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        yield child
        child.kill()


def test_one_process_is_the_arbiter_and_another_after_its_death(book: Book, leader: "subprocess.Popen[str]") -> None:
    one, other = BookRooms(book), BookRooms(book)
    assert (one.leads(), other.leads()) == (False, False)
    leader.kill()
    leader.wait()
    assert (one.leads(), other.leads(), one.leads()) == (True, False, True)
    one.leave()
    assert other.leads()
