"""Slow answers to the latest question: worked out in a thread, one at a time."""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Latest(Generic[Question, Answer]):
    """`ask` from the event loop, where `use` is called with each answer; `run` beside it. Of the questions that come
    while one is worked out, only the last is kept. After each it rests `rest` times as long as that took."""

    def __init__(
        self, work_out: Callable[[Question], Answer], use: Callable[[Answer], object], *, rest: float = 0.0
    ) -> None:
        self._work_out = work_out
        self._use = use
        self._rest = rest
        self._questions: asyncio.Queue[Question] = asyncio.Queue(1)

    def ask(self, question: Question) -> None:
        if self._questions.full():
            self._questions.get_nowait()
        self._questions.put_nowait(question)

    async def run(self) -> None:
        """Without end. Raises what working out or using raises."""
        while True:
            question = await self._questions.get()
            began = time.monotonic()
            self._use(await asyncio.to_thread(self._work_out, question))
            await asyncio.sleep(self._rest * (time.monotonic() - began))
