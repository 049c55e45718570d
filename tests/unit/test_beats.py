"""When tasks that look now and then wake up."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from egpu_base.runtime.beats import BEAT_SECONDS, rest, within


@given(seconds=st.floats(0.001, 100), now=st.floats(0, 1e7))
def test_nobody_rests_longer_than_he_said(seconds: float, now: float) -> None:
    assert now < within(seconds, now=now) <= now + seconds


@given(seconds=st.sampled_from([0.5, 1.0, 2.0, 5.0]), beats=st.integers(0, 10_000), late=st.floats(0, 0.1))
def test_who_is_late_is_back_in_step(seconds: float, beats: int, late: float) -> None:
    """And who is not, rests for as long as he said."""
    now = beats * BEAT_SECONDS + late
    assert within(seconds, now=now) == beats * BEAT_SECONDS + seconds


@given(first=st.floats(0, 1e6), apart=st.floats(0, 0.4))
def test_tasks_that_began_at_different_times_wake_together(first: float, apart: float) -> None:
    one, other = within(2.0, now=first), within(2.0, now=first + apart)
    assert (one / BEAT_SECONDS).is_integer()
    assert (other / BEAT_SECONDS).is_integer()


def test_what_is_shorter_than_a_beat_is_as_long_as_it_is() -> None:
    assert within(0.1, now=7.05) == 7.05 + 0.1


async def test_rest_ends_in_time() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await rest(0.01)
    assert loop.time() >= began
