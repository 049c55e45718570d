"""Many who ask the same at once."""

import asyncio

import pytest

from egpu_base.errors import Unavailable
from egpu_base.runtime.coalescing import Coalescer


class Asked:
    """Counts the questions, and answers each when it is told to."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[int]] = []

    async def __call__(self) -> int:
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_asks_at_once_is_answered_by_one_question() -> None:
    asked = Asked()
    together = Coalescer(asked)
    tasks = [asyncio.create_task(together.answer()) for _ in range(10)]
    await _turns()
    asked.answers[0].set_result(1)
    assert await asyncio.gather(*tasks) == [1] * 10
    assert len(asked.answers) == 1


async def test_it_is_idle_once_nobody_waits() -> None:
    asked = Asked()
    together = Coalescer(asked)
    assert together.idle
    task = asyncio.create_task(together.answer())
    await _turns()
    assert not together.idle
    asked.answers[0].set_result(1)
    await task
    assert together.idle


async def test_nobody_is_answered_by_a_question_that_was_sent_before_he_asked() -> None:
    asked = Asked()
    together = Coalescer(asked)
    first = asyncio.create_task(together.answer())
    await _turns()
    late = [asyncio.create_task(together.answer()) for _ in range(3)]
    await _turns()
    assert len(asked.answers) == 1, "one at a time"
    asked.answers[0].set_result(1)
    await _turns()
    assert first.result() == 1
    assert not any(task.done() for task in late)
    asked.answers[1].set_result(2)
    assert await asyncio.gather(*late) == [2, 2, 2]
    again = asyncio.create_task(together.answer())
    await _turns()
    asked.answers[2].set_result(3)
    assert await again == 3, "an answer is not kept"


async def test_an_error_is_everybodys_and_the_next_question_is_asked() -> None:
    asked = Asked()
    together = Coalescer(asked)
    tasks = [asyncio.create_task(together.answer()) for _ in range(2)]
    await _turns()
    late = asyncio.create_task(together.answer())
    asked.answers[0].set_exception(Unavailable("gone"))
    for task in tasks:
        with pytest.raises(Unavailable):
            await task
    await _turns()
    asked.answers[1].set_result(2)
    assert await late == 2


async def test_who_gives_up_does_so_alone() -> None:
    asked = Asked()
    together = Coalescer(asked)
    one, other = (asyncio.create_task(together.answer()) for _ in range(2))
    await _turns()
    one.cancel()
    await _turns()
    assert one.cancelled()
    asked.answers[0].set_result(1)
    assert await other == 1
