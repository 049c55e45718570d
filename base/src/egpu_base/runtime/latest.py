"""Work out slow answers to the latest question in a thread, one at a time."""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Latest(Generic[Question, Answer]):
    """Call `ask` in the event loop, beside `run`; `use` is called there with each answer. Of the questions that arrive
    during one answer, only the last is kept. After each answer it rests `rest` times as long as that took."""

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
        """Run until cancelled. Raises the errors of working out and using."""
        while True:
            question = await self._questions.get()
            began = time.monotonic()
            self._use(await asyncio.to_thread(self._work_out, question))
            await asyncio.sleep(self._rest * (time.monotonic() - began))
