"""Slow answers to the latest question."""

import asyncio
import threading

from egpu.runtime.latest import Latest


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
