"""Several slices share the room of a simulated card, under an arbiter: together they have more than the card."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from egpu.adapters.slices.asking import set_room
from egpu.adapters.slices.pages import Parking, UsageReader, read_policy
from egpu_sim.machines.machine import Machine
from integration.isolation.test_parking import WORKER
from support.long import or_long
from support.parking_slices import CARD, CONTEXT, SIZE, Arbiter, Slice, ends_right, filler, shared, start, used
from support.waiting import wait_until

CARDS = ("A100-80G", 1)


@pytest.fixture
def make(sim: Machine, tmp_path: Path) -> Iterator[Callable[[], Slice]]:
    made: list[Slice] = []

    def new() -> Slice:
        made.append(Slice(sim, tmp_path / f"slice-{len(made)}", limit=SIZE + CONTEXT))
        return made[-1]

    yield new
    assert used(sim) == 0, "nothing is left on the card"


def test_ten_programs_of_sixty_on_a_card_of_eighty(sim: Machine, make: Callable[[], Slice]) -> None:
    """None is out of memory, none ends, and every bit is right. GiB are scaled to MiB."""
    count, turns = or_long(5, 10), or_long(3, 20)
    slices = [make() for _ in range(count)]
    with ExitStack() as stack:
        programs = [stack.enter_context(start(one, at, turns=turns, pause=0.5)) for at, one in enumerate(slices)]
        for program in programs:
            assert program.hear() == "ready"
        stack.enter_context(filler(sim, CARD))
        arbiter = stack.enter_context(Arbiter([shared(one) for one in slices], count * CONTEXT + CARD))
        for program in programs:
            program.go()
        assert all(ends_right(program, turns) for program in programs)
        assert arbiter.rooms.totals.parks["GPU"] >= count - 1
        assert len(arbiter.told) == arbiter.rooms.totals.parks["GPU"]
        names = {one.directory.name for one in slices}
        assert all(key != park.for_slice and {key, park.for_slice} <= names for key, park in arbiter.told)


def test_busy_programs_have_turns(sim: Machine, make: Callable[[], Slice]) -> None:
    """Neither makes a pause: the arbiter holds their calls when a turn is over."""
    turns = 400
    slices = [make(), make()]
    with ExitStack() as stack:
        programs = [stack.enter_context(start(one, at, turns=turns, pause=0)) for at, one in enumerate(slices)]
        for program in programs:
            assert program.hear() == "ready"
        stack.enter_context(filler(sim, CARD))
        arbiter = stack.enter_context(Arbiter([shared(one) for one in slices], 2 * CONTEXT + CARD))
        for program in programs:
            program.go()
        assert all(ends_right(program, turns) for program in programs)
        assert arbiter.rooms.totals.parks["GPU"] >= 1


GROWS = """
SIZE = 60 * MIB
say("ready")
wait()
first = upload(numbers(SEED, 40 * MIB // 4))
say("has 40")
wait()
second = ok(d.cuMemAlloc(20 * MIB))
ok(d.cuMemcpyDtoD(second, first, 20 * MIB))
say(bool((download(second, numbers(SEED, 5 * MIB)) == numbers(SEED, 40 * MIB // 4)[: 5 * MIB]).all()))
wait()
"""


def test_two_that_wait_with_half_of_the_card_each(sim: Machine, make: Callable[[], Slice]) -> None:
    """The one that waits behind the other is parked inside its allocation."""
    slices = [make(), make()]
    with ExitStack() as stack:
        programs = [stack.enter_context(one.start(f"SEED = {at}\n{GROWS}")) for at, one in enumerate(slices)]
        for program in programs:
            assert program.hear() == "ready"
        stack.enter_context(filler(sim, CARD))
        never = [shared(one, idle_seconds=1e6) for one in slices]
        stack.enter_context(Arbiter(never, 2 * CONTEXT + CARD))
        for program in programs:
            program.go()
            assert program.hear() == "has 40"
        for program in programs:
            program.go()
        first = programs[0].hear()
        programs[0].go()  # it ends, and the other goes on
        assert (first, programs[1].hear()) == (True, True)


def test_arbiters_and_programs_that_are_killed(sim: Machine, make: Callable[[], Slice]) -> None:
    """Each new arbiter knows only the pages. A program that is killed, wherever it is, leaves its room to others."""
    turns, chance = or_long(4, 40), random.Random(5)
    *slices, last = (make() for _ in range(4))
    with ExitStack() as stack:
        programs = [stack.enter_context(start(one, at, turns=turns, pause=0.3)) for at, one in enumerate(slices)]
        victim = stack.enter_context(last.start(f"SEED = 9\n{GROWS}"))
        for program in (*programs, victim):
            program.hear()
        stack.enter_context(filler(sim, CARD))
        terms = [shared(one) for one in (*slices, last)]
        over: list[bool] = []
        said = threading.Thread(target=lambda: over.extend(ends_right(program, turns) for program in programs))
        for program in programs:
            program.go()
        said.start()
        victim.go()
        while said.is_alive():
            with Arbiter(terms, 4 * CONTEXT + CARD):
                time.sleep(chance.random())
            if chance.random() < 0.3:
                victim.kill()
        assert over == [True] * 3


def test_without_an_arbiter_programs_go_on_by_themselves(sim: Machine, make: Callable[[], Slice]) -> None:
    one = make()
    with one.start(WORKER + "work(); say(0); wait(); say(right())") as program:
        program.hear()
        assert one.ask(park=True)
        set_room(one.directory / "policy", room_bytes=CONTEXT, until_ns=time.monotonic_ns() + 2 * 10**9)
        program.go()
        wait_until(lambda: asked(one), "it asks")
        assert one.state()[0] > 0, "it waits"
        assert program.hear() == [True] * 4, "until the arbiter's last word is no longer in force"


def asked(one: Slice) -> int:
    return UsageReader(one.directory / "usage").read().devices[0].room_asked_ns


def test_a_slice_that_stays_is_not_parked(sim: Machine, make: Callable[[], Slice]) -> None:
    resident, other = make(), make()
    with ExitStack() as stack:
        programs = [stack.enter_context(one.start(f"SEED = 1\n{GROWS}")) for one in (resident, other)]
        for program in programs:
            program.hear()
        stack.enter_context(filler(sim, CARD))
        stack.enter_context(Arbiter([shared(resident, stays=True), shared(other)], 2 * CONTEXT + CARD))
        programs[0].go()
        assert programs[0].hear() == "has 40"
        programs[0].go()
        assert programs[0].hear() is True
        programs[1].go()
        wait_until(lambda: asked(other), "it asks")
        time.sleep(1)
        assert resident.state()[1] == 0
        resident_page = read_policy(resident.directory / "policy").parking
        assert resident_page is not None
        assert resident_page.request == Parking().request
        programs[0].go()  # it ends
        assert programs[1].hear() == "has 40"
