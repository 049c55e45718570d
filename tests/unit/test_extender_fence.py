"""One question about the lease serves every object that had been read before it was sent, and no other."""

import asyncio
import contextlib
import time
from typing import cast

import pytest

from egpu.apps.extender.fence import Fence
from egpu_base.errors import LeadershipLost
from egpu_base.kubernetes import Client, LeaseElection


class Election:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()
        self.lost = False

    async def verify(self) -> None:
        self.asked += 1
        await self.answer.wait()
        if self.lost:
            raise LeadershipLost("another one leads")


@pytest.fixture
async def election() -> Election:
    return Election()


@pytest.fixture
async def fence(election: Election) -> Fence:
    return Fence(cast(Client, None), cast(LeaseElection, election))


async def test_objects_read_before_a_question_wait_for_its_answer(fence: Fence, election: Election) -> None:
    read_at = time.monotonic()
    checks = [asyncio.create_task(fence.check(read_at)) for _ in range(5)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in checks)
    election.answer.set()
    await asyncio.gather(*checks)
    await fence.check(read_at)
    assert election.asked == 1


async def test_objects_read_after_a_question_was_sent_share_the_next(fence: Fence, election: Election) -> None:
    first = asyncio.create_task(fence.check(time.monotonic()))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(fence.check(time.monotonic()))
    third = asyncio.create_task(fence.check())  # read just now
    await asyncio.sleep(0.01)
    assert election.asked == 1
    election.answer.set()
    await asyncio.gather(first, second, third)
    assert election.asked == 2


async def test_all_that_wait_for_an_answer_learn_that_the_lease_is_lost(fence: Fence, election: Election) -> None:
    read_at, election.lost = time.monotonic(), True
    checks = [asyncio.create_task(fence.check(read_at)) for _ in range(3)]
    election.answer.set()
    found = await asyncio.gather(*checks, return_exceptions=True)
    assert [type(one) for one in found] == [LeadershipLost] * 3
    with pytest.raises(LeadershipLost):
        await fence.check(read_at)
    assert election.asked == 2


async def test_a_cancelled_caller_does_not_take_the_answer_from_others(fence: Fence, election: Election) -> None:
    read_at = time.monotonic()
    first, second = (asyncio.create_task(fence.check(read_at)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    election.answer.set()
    await second
    assert election.asked == 1
