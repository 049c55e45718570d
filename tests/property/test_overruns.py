"""What time over a limit weighs, and how long somebody waits: no order of breaks, sizes and looks gets around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.core.backoff import FIRST_SECONDS, FORGOTTEN_SECONDS, MAX_REMEMBERED, MOST_SECONDS, Backoff, Backoffs
from egpu.core.overruns import (
    CONTEXT_BYTES,
    LOOKS,
    MOST_ELAPSED_SECONDS,
    MOST_WEIGHT,
    OVERRUN_SECONDS,
    RECOVERY,
    Lasting,
    Overtime,
    allowed,
)

ALERT = 0.05
excesses = st.integers(-(1 << 40), 1 << 40)
seconds = st.floats(0, 100)


def after(*looks: tuple[int, float]) -> Overtime:
    overtime = Overtime()
    for excess, elapsed in looks:
        overtime = overtime.after(excess, elapsed_seconds=elapsed)
    return overtime


@given(st.lists(st.tuples(excesses, seconds), max_size=50))
def test_overtime_is_bounded_and_nobody_is_ended_for_contexts(looks: list[tuple[int, float]]) -> None:
    found = after(*looks)
    assert 0 <= found.seconds <= OVERRUN_SECONDS
    if all(excess <= CONTEXT_BYTES for excess, _ in looks):
        assert found.seconds == 0


@given(st.lists(st.tuples(excesses, seconds), max_size=20), excesses, excesses, seconds)
def test_more_never_weighs_less(looks: list[tuple[int, float]], one: int, other: int, elapsed: float) -> None:
    before = after(*looks)
    less, more = sorted((one, other))
    assert before.after(less, elapsed_seconds=elapsed).seconds <= before.after(more, elapsed_seconds=elapsed).seconds


@given(st.integers(1, 20), st.integers(1, 60), st.integers(CONTEXT_BYTES + 1, 1 << 40))
def test_breaks_help_nobody_who_is_over_for_more_than_a_fifth_of_the_time(over: int, below: int, excess: int) -> None:
    """In looks of ALERT, again and again, as `unloaded every 2 s, and there half of the time` was."""
    overtime = Overtime()
    for _ in range(400):
        for look in range(over + below):
            overtime = overtime.after(excess if look < over else 0, elapsed_seconds=ALERT)
            if overtime.is_full:
                return
    assert over < below * RECOVERY + 1e-9


@given(st.integers(1, 8))
def test_the_farther_beyond_the_limit_the_sooner_the_end(times: int) -> None:
    overtime, looks = Overtime(), 0
    while not overtime.is_full:
        overtime, looks = overtime.after(times * CONTEXT_BYTES + 1, elapsed_seconds=ALERT), looks + 1
    assert looks * ALERT == pytest.approx(OVERRUN_SECONDS / times, abs=2 * ALERT)
    assert OVERRUN_SECONDS / MOST_WEIGHT < 1


@given(excesses, seconds)
def test_who_was_ended_recovers_slowly_and_one_look_ends_nobody(excess: int, elapsed: float) -> None:
    assert not Overtime().after(excess, elapsed_seconds=elapsed).is_full
    full = Overtime(OVERRUN_SECONDS).after(0, elapsed_seconds=elapsed)
    assert full.seconds >= OVERRUN_SECONDS - RECOVERY * min(elapsed, MOST_ELAPSED_SECONDS) - 1e-9


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(-5, 9)), min_size=1, max_size=60), st.floats(0.1, 2))
def test_what_lasts_was_there_all_the_time(steps: list[tuple[int, int]], wanted: float) -> None:
    lasting, now, seen = Lasting(wanted), 0.0, list[tuple[float, int]]()
    for ticks, value in steps:
        now += ticks * ALERT
        found = lasting.see(value, now=now)
        seen.append((now, max(0, value)))
        recent = [each for at, each in seen if now - at < wanted]
        assert 0 <= found <= min(recent)
        if len(seen) < LOOKS or now - seen[0][0] < wanted:
            assert found == 0
        elif all(each == value for _, each in seen):
            assert found == max(0, value)


@given(st.integers(0, 100), st.lists(st.tuples(st.integers(0, 100), st.integers(0, 10**6)), min_size=1))
def test_no_count_gives_more_than_was_given(given: int, steps: list[tuple[int, int]]) -> None:
    """Whatever is counted, and however often: `steps` are limits and counts."""
    most, before = given, given
    for limit, counted in steps:
        found = allowed(limit=limit, before=before, counted=counted)
        most = max(most, limit)
        assert limit <= found <= max(limit, before) <= most
        if counted >= before:
            assert found == max(limit, before), "what it held when its limit was lowered it may keep"
        if counted <= limit:
            assert found == limit
        before = found


@given(st.lists(st.floats(0, 2 * FORGOTTEN_SECONDS), min_size=1, max_size=30))
def test_waiting_grows_is_bounded_and_ends(gaps: list[float]) -> None:
    backoff, now, before = Backoff(), 0.0, 0.0
    assert backoff.wait_seconds(now) == 0
    for gap in gaps:
        now += gap
        forgotten = backoff.is_forgotten(now)
        backoff = backoff.again(now)
        wait = backoff.wait_seconds(now)
        assert wait == pytest.approx(FIRST_SECONDS if forgotten else min(2 * before, MOST_SECONDS))
        assert backoff.wait_seconds(now + wait) == pytest.approx(0)
        assert backoff.wait_seconds(now - 10**6) <= MOST_SECONDS, "a clock that was set back"
        before = wait


def test_only_so_many_are_remembered_and_nobody_waits_for_another() -> None:
    backoffs = Backoffs()
    for number in range(MAX_REMEMBERED + 1):
        backoffs.again(number, float(number) / MAX_REMEMBERED)
    assert backoffs.of(0).wait_seconds(1.0) == 0, "the oldest is forgotten"
    assert backoffs.of(MAX_REMEMBERED).wait_seconds(1.0) > 0
    assert backoffs.of("another").wait_seconds(1.0) == 0
    assert "client/a exceeded its GPU memory limit" in backoffs.of(1).why("client/a", 1.0)
