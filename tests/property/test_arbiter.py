"""The arbiter of a card: rooms never exceed it, nobody is parked without need, everybody gets a turn."""

import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.adapters.slices.overstays import OVERSTAY_SECONDS
from egpu.core.arbiter import IDLE_SWAPS, REFUSED_SECONDS, TURN_SWAPS, Decision, Park, Tenant, Turn, Why, decide
from support.long import or_long

GIB = 1 << 30
BANDWIDTH = 10.0 * GIB
NOW = 1000.0


@st.composite
def tenants(draw: st.DrawFn) -> tuple[Tenant, ...]:
    """Slices as their pages may say, true or not; their rooms fit the card at first."""
    made: list[Tenant] = []
    for name in range(draw(st.integers(1, 6))):
        limit = draw(st.integers(1, 60))
        floor = draw(st.integers(0, min(limit, 10)))
        used = draw(st.integers(0, limit))
        made.append(
            Tenant(
                name=name, limit_bytes=limit * GIB, floor_bytes=floor * GIB, on_card_bytes=used * GIB,
                movable_bytes=draw(st.integers(0, used)) * GIB, away_bytes=draw(st.integers(0, 80)) * GIB,
                room_bytes=draw(st.integers(floor, limit)) * GIB, asks=draw(st.booleans()),
                active_at=NOW - draw(st.sampled_from([0, 5, 50, 500])), idle_seconds=draw(st.sampled_from([1, 30])),
                priority=draw(st.sampled_from([-1, 0, 5])), stays=draw(st.booleans()), answered=draw(st.booleans()),
            )
        )  # fmt: skip
    return tuple(made)


def turn() -> st.SearchStrategy[Turn]:
    since = st.sampled_from([NOW, NOW - 2, NOW - 60, NOW - 600])
    return st.builds(Turn, since, st.none() | since, st.none() | since, st.sampled_from([0.0, NOW + 3]))


def after(one: Tenant, decision: Decision) -> Tenant:
    return replace(one, room_bytes=decision.rooms.get(one.name, one.room_bytes))


@given(tenants(), st.lists(turn(), min_size=6, max_size=6), st.integers(0, 80))
def test_one_decision(slices: tuple[Tenant, ...], known: list[Turn], spare: int) -> None:
    held = sum(one.committed_bytes for one in slices)
    turns: Mapping[Hashable, Turn] = dict(enumerate(known))
    decision = decide(slices, turns, budget_bytes=held + spare * GIB, bandwidth=BANDWIDTH, now=NOW)
    assert sum(after(one, decision).committed_bytes for one in slices) <= held + spare * GIB
    waits = {one.name for one in slices if one.waits}
    if not waits:
        assert (decision.rooms, decision.parks) == ({}, {})
    for one in slices:
        room = decision.rooms.get(one.name, one.room_bytes)
        assert one.floor_bytes <= room <= max(one.limit_bytes, one.on_card_bytes)
        if one.name in decision.parks:
            check_victim(one, slices, turns[one.name], holds=decision.parks[one.name].holds)
        if (due := decision.turns[one.name].due) is not None:
            assert one.on_card_bytes > one.floor_bytes
            assert not one.stays
            assert due.for_slice in waits - {one.name}
            assert decision.rooms.get(due.for_slice, 0) < slices[int(str(due.for_slice))].wanted_bytes


def check_victim(one: Tenant, slices: tuple[Tenant, ...], known: Turn, *, holds: bool) -> None:
    """A victim has something to give, may be parked, and its turn is over or it is less important."""
    assert one.movable_bytes > 0
    assert not one.stays
    assert known.leaves_since is None or one.answered or NOW - known.leaves_since > 15
    assert known.refused_until <= NOW
    had, idle = NOW - known.since, NOW - one.active_at
    swap = one.movable_bytes / BANDWIDTH
    waiting = [each for each in slices if each.waits and each.name != one.name]
    assert waiting
    most = max(each.priority for each in waiting)
    if not holds:
        assert idle >= one.idle_seconds
        assert had >= IDLE_SWAPS * swap or one.priority < most
    elif not one.waits:
        assert one.priority < most or (one.priority == most and had >= TURN_SWAPS * swap)


def tenant(name: str, used: int, *, wants: int = 0) -> Tenant:
    """Return a slice with so many GiB on the card, which wants so many more."""
    return Tenant(
        name=name, limit_bytes=60 * GIB, floor_bytes=GIB, on_card_bytes=used * GIB, movable_bytes=used * GIB,
        room_bytes=max(1, used) * GIB, away_bytes=wants * GIB, asks=wants > 0, active_at=NOW, idle_seconds=30,
    )  # fmt: skip


LONG_AGO: Mapping[str, Turn] = {name: Turn(0.0) for name in "abcdefgh"}


def decided(*slices: Tenant, turns: Mapping[str, Turn] = LONG_AGO, budget: int = 82) -> Decision:
    known: dict[Hashable, Turn] = {**turns}
    return decide(slices, known, budget_bytes=budget * GIB, bandwidth=BANDWIDTH, now=NOW)


def parked(decision: Decision) -> dict[Hashable, bool]:
    """Return the slices to park, and whether calls of each are held."""
    return {name: park.holds for name, park in decision.parks.items()}


def test_nobody_is_parked_while_there_is_room() -> None:
    decision = decided(replace(tenant("a", 40), active_at=0.0), tenant("b", 0, wants=30))
    assert decision.parks == {}
    assert decision.rooms == {"b": 42 * GIB}, "alone it gets what is free"


def test_room_that_nobody_uses_is_taken_back_before_anybody_is_parked() -> None:
    greedy = replace(tenant("a", 10), room_bytes=60 * GIB)
    decision = decided(greedy, tenant("b", 0, wants=60))
    assert (decision.parks, decision.rooms) == ({}, {"a": 10 * GIB})
    decision = decided(replace(greedy, room_bytes=10 * GIB), tenant("b", 0, wants=60))
    assert decision.rooms == {"b": 60 * GIB}


def test_the_slice_that_was_idle_for_longest_is_parked() -> None:
    slices = [
        replace(tenant(name, 20), active_at=NOW - idle) for name, idle in (("a", 40), ("b", 90), ("c", 60), ("d", 5))
    ]
    assert parked(decided(*slices, tenant("e", 0, wants=20))) == {"b": False}
    assert parked(decided(*slices, tenant("e", 0, wants=40))) == {"b": False, "c": False}


def test_idle_time_is_weighed_by_size_and_priority() -> None:
    large, small = replace(tenant("a", 60), active_at=NOW - 90), replace(tenant("b", 10), active_at=NOW - 60)
    assert parked(decided(large, small, tenant("e", 0, wants=14))) == {"b": False}, "60 GiB for 2 is a long way"
    dear = replace(tenant("a", 20), active_at=NOW - 90, priority=9)
    cheap = replace(tenant("b", 20), active_at=NOW - 60)
    assert parked(decided(dear, cheap, tenant("c", 40), tenant("e", 0, wants=20))) == {"b": False}


def test_busy_slices_have_turns() -> None:
    busy, other = tenant("a", 60), tenant("b", 0, wants=60)  # a swap takes 12 seconds
    early = decided(busy, other, turns={"a": Turn(NOW - 119)})
    assert (early.parks, early.contended) == ({}, True)
    late = decided(busy, other, turns={"a": Turn(NOW - 121)})
    assert (late.parks, late.contended) == ({"a": Park("b", Why.TURN)}, True)
    assert late.rooms == {"a": GIB}, "it cannot come back before the other has its turn"


def test_a_more_important_slice_parks_others_at_once() -> None:
    just_now = {"a": Turn(NOW)}
    important = replace(tenant("b", 0, wants=60), priority=1)
    assert decided(tenant("a", 60), important, turns=just_now).parks == {"a": Park("b", Why.BELOW)}
    assert parked(decided(replace(tenant("a", 60), priority=1), tenant("b", 0, wants=60))) == {}
    idle = replace(tenant("a", 60), priority=1, active_at=0.0)
    assert decided(idle, tenant("b", 0, wants=60)).parks == {"a": Park("b", Why.IDLE)}, "an idle one leaves for anybody"


def test_two_that_wait_with_half_of_the_memory_each() -> None:
    first, second = Turn(NOW, NOW - 2), Turn(NOW, NOW - 1)
    decision = decided(tenant("a", 40, wants=20), tenant("b", 40, wants=20), turns={"a": first, "b": second})
    assert decision.parks == {"b": Park("a", Why.WAITS)}


def test_a_small_one_is_not_behind_a_large_one_for_ever() -> None:
    busy = tenant("a", 60)
    large, small = tenant("b", 0, wants=60), tenant("c", 0, wants=10)
    turns = {"a": Turn(NOW - 60), "b": Turn(NOW, NOW - 9), "c": Turn(NOW, NOW - 1)}
    assert decided(busy, large, small, turns=turns).rooms == {"c": 10 * GIB}, "free, and of no use to the large one"
    turns = {"a": Turn(NOW - 1), "b": Turn(NOW, NOW - 130), "c": Turn(NOW, NOW - 1)}
    assert decided(busy, large, small, turns=turns).rooms == {}, "it has waited for a turn's length: it is next"


def test_who_stays_and_who_did_not_park_is_left_alone() -> None:
    waiting = tenant("b", 0, wants=60)
    assert parked(decided(replace(tenant("a", 60), active_at=0.0, stays=True), waiting)) == {}
    leaves = {"a": Turn(0.0, None, NOW - 1)}
    assert parked(decided(replace(tenant("a", 60), active_at=0.0, answered=False), waiting, turns=leaves)) == {}
    refused = decided(replace(tenant("a", 60), active_at=0.0, answered=True), waiting, turns=leaves)
    assert (refused.parks, refused.turns["a"].refused_until) == ({}, NOW + REFUSED_SECONDS)


def due(decision: Decision) -> dict[Hashable, tuple[float, Hashable]]:
    """Return the slices that are due: since when, and for which."""
    return {name: (turn.due.since, turn.due.for_slice) for name, turn in decision.turns.items() if turn.due is not None}


def test_a_slice_is_due_after_its_turn_while_another_waits_whether_its_memory_can_leave_or_not() -> None:
    waiting = tenant("b", 0, wants=60)
    for keeper in (tenant("a", 60), replace(tenant("a", 60), movable_bytes=0)):
        assert due(decided(keeper, waiting, turns={"a": Turn(NOW)})) == {}, "its turn is not over"
        first = decided(keeper, waiting)
        assert due(first) == {"a": (NOW, "b")}
        later = decide((keeper, waiting), first.turns, budget_bytes=82 * GIB, bandwidth=BANDWIDTH, now=NOW + 50)
        assert due(later) == {"a": (NOW, "b")}, "since then"
        alone = decide((keeper,), first.turns, budget_bytes=82 * GIB, bandwidth=BANDWIDTH, now=NOW + 50)
        assert due(alone) == {}, "nobody waits"


def test_a_slice_that_may_stay_or_has_no_more_than_its_own_room_or_is_more_important_is_never_due() -> None:
    waiting = tenant("b", 0, wants=82)
    for one in (
        replace(tenant("a", 60), stays=True),
        replace(tenant("a", 60), floor_bytes=60 * GIB),
        replace(tenant("a", 60), priority=1),
    ):
        assert due(decided(one, replace(waiting, limit_bytes=90 * GIB))) == {}


def test_a_slice_that_waits_itself_is_due_for_the_second_in_the_queue() -> None:
    """Whoever asks for more all the time would be the first of the queue, and due for nobody."""
    keeper = tenant("a", 60, wants=60)
    turns = {"a": Turn(NOW, NOW - 200), "b": Turn(NOW, NOW - 100)}
    keeper = replace(keeper, limit_bytes=90 * GIB, movable_bytes=0)
    assert due(decided(keeper, tenant("b", 0, wants=60), turns=turns)) == {"a": (NOW, "b")}


@dataclass
class Program:
    """A program that works on all of its memory, for `work` seconds, and pauses for `pause`."""

    tenant: Tenant
    work: float
    pause: float
    until: float = 0.0
    busy: bool = True
    worked: float = 0.0
    longest_wait: float = 0.0
    waits_since: float | None = None
    moves: float = 0.0
    swaps: int = 0


STEP = 0.25
FAST = 60.0 * GIB


class Simulation:
    """Programs that do what the interposer does, on a card with an arbiter."""

    def __init__(self, programs: list[Program], budget: int) -> None:
        self.programs, self.budget, self.now = programs, budget, 0.0
        self.turns: Mapping[Hashable, Turn] = {}
        self.parking: dict[Hashable, float] = {}

    def run(self, seconds: float) -> None:
        while self.now < seconds:
            self.now += STEP
            for one in self.programs:
                self.go_on(one)
            self.decide()
            assert sum(one.tenant.on_card_bytes for one in self.programs) <= self.budget
            for turn in self.turns.values():
                assert turn.due is None or self.now - turn.due.since < OVERSTAY_SECONDS, (
                    "who leaves is not due for long"
                )

    def go_on(self, one: Program) -> None:
        mine = one.tenant
        if mine.name in self.parking:
            if self.now < self.parking[mine.name]:
                return
            del self.parking[mine.name]
            gone = mine.movable_bytes
            one.tenant = mine = replace(mine, on_card_bytes=0, movable_bytes=0, away_bytes=gone, answered=True)
        if self.now < one.moves:
            return
        if one.busy and mine.away_bytes:
            if mine.away_bytes <= mine.room_bytes:
                one.moves = self.now + mine.away_bytes / FAST
                one.swaps += 1
                back = mine.away_bytes
                one.tenant = replace(mine, on_card_bytes=back, movable_bytes=back, away_bytes=0, asks=False)
                one.longest_wait = max(one.longest_wait, self.now - (one.waits_since or self.now))
                one.waits_since = None
            else:
                one.waits_since = one.waits_since or self.now
                one.tenant = replace(mine, asks=True)
            one.until += STEP
            return
        if one.busy:
            one.worked += STEP
            one.tenant = replace(mine, active_at=self.now)
        if self.now >= one.until:
            one.busy = not one.busy
            one.until = self.now + (one.work if one.busy else one.pause)

    def decide(self) -> None:
        slices = [one.tenant for one in self.programs]
        decision = decide(slices, self.turns, budget_bytes=self.budget, bandwidth=FAST, now=self.now)
        self.turns = decision.turns
        for one in self.programs:
            one.tenant = after(one.tenant, decision)
            if one.tenant.name in decision.parks:
                one.tenant = replace(one.tenant, answered=False)
                self.parking[one.tenant.name] = self.now + one.tenant.movable_bytes / FAST


def program(name: str, gib: int, *, work: float = 1e9, pause: float = 0.0) -> Program:
    mine = replace(tenant(name, 0, wants=gib), limit_bytes=gib * GIB, floor_bytes=0, room_bytes=0, idle_seconds=2)
    return Program(replace(mine, active_at=0.0), work, pause, until=work)


def test_two_busy_slices_share_the_card_and_swap_seldom() -> None:
    both = [program("a", 60), program("b", 60)]
    Simulation(both, 80 * GIB).run(200)
    assert all(one.worked > 60 for one in both)
    assert sum(one.worked for one in both) > 0.8 * 200, "swaps take less than a fifth of the time"


@pytest.mark.parametrize("seed", range(or_long(6, 200)))
def test_everybody_gets_a_turn(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [(chance.randint(5, 60), chance.random() < 0.5) for _ in range(chance.randint(2, 5))]
    programs = [program(str(at), gib, work=5.0 if rests else 1e9, pause=20.0) for at, (gib, rests) in enumerate(sizes)]
    Simulation(programs, 80 * GIB).run(200)
    for one in programs:
        assert one.worked >= 1, f"{one.tenant.name} of {sizes}"
        assert one.longest_wait < 100, f"{one.tenant.name} of {sizes}"


@pytest.mark.parametrize("small", [1, 5])
def test_small_slices_do_not_starve_beside_large_ones(small: int) -> None:
    programs = [program("a", 60), program("b", 60), program("c", 60), program("s", small)]
    Simulation(programs, 62 * GIB).run(200)
    assert programs[-1].worked > 15
