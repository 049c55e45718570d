"""Slow answers to the latest question."""

import asyncio
import threading
import time

import pytest

from egpu_base.runtime.latest import Latest


async def test_of_the_questions_asked_meanwhile_the_last_is_answered() -> None:
    may_go_on, begun = threading.Event(), threading.Event()
    answers: asyncio.Queue[int] = asyncio.Queue()

    def double(number: int) -> int:
        begun.set()
        may_go_on.wait(10)
        return 2 * number

    latest: Latest[int, int] = Latest(double, answers.put_nowait)
    latest.ask(1)
    running = asyncio.create_task(latest.run())
    await asyncio.to_thread(begun.wait, 10)
    for number in (2, 3, 4):
        latest.ask(number)
    may_go_on.set()
    async with asyncio.timeout(10):
        assert [await answers.get(), await answers.get()] == [2, 8]
    assert answers.empty()
    running.cancel()


async def test_it_rests_in_proportion_and_answers_the_last_question_then(monkeypatch: pytest.MonkeyPatch) -> None:
    rested: asyncio.Queue[float] = asyncio.Queue()
    enough = asyncio.Event()

    async def rest(seconds: float) -> None:
        rested.put_nowait(seconds)
        await enough.wait()

    answers: asyncio.Queue[int] = asyncio.Queue()

    def double(number: int) -> int:
        time.sleep(0.02)
        return 2 * number

    latest: Latest[int, int] = Latest(double, answers.put_nowait, rest=9)
    with monkeypatch.context() as patched:
        patched.setattr("egpu_base.runtime.latest.asyncio.sleep", rest)
        latest.ask(1)
        running = asyncio.create_task(latest.run())
        async with asyncio.timeout(60):
            assert await rested.get() >= 9 * 0.02
            for number in (2, 3):
                latest.ask(number)
            assert answers.get_nowait() == 2
            assert answers.empty()
            enough.set()
            assert await answers.get() == 6
        running.cancel()
