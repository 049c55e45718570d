"""Work queue, reconcile loop and supervisor."""

import asyncio
import os
import signal

import pytest

from egpu_base.errors import Conflict, Refused, Unavailable
from egpu_base.runtime.reconcile import DONE, Loop, Result
from egpu_base.runtime.supervisor import Supervisor, TaskEndedError
from egpu_base.runtime.workqueue import WorkQueue, WorkQueueFullError
from support.waiting import DEADLINE_SECONDS


async def test_a_key_added_twice_is_worked_on_once():
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.02)


async def test_a_key_added_while_worked_on_waits_for_that_work_to_end():
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await queue.get()
    queue.add("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.02)
    queue.done("a")
    assert await asyncio.wait_for(queue.get(), 1) == "a"


async def test_retries_come_later_and_later_and_an_add_overtakes_them():
    queue: WorkQueue[str] = WorkQueue()
    delays = [queue.retry(key) for key in "aaa"]
    assert delays[0] < delays[1] < delays[2]
    queue.add("a")
    assert await asyncio.wait_for(queue.get(), 0.02) == "a"
    queue.done("a")
    with pytest.raises(TimeoutError):  # the delayed entries of the overtaken key are dropped
        await asyncio.wait_for(queue.get(), 0.3)
    queue.forget("a")
    assert queue.retry("a") < delays[1]


async def test_the_queue_is_bounded():
    queue: WorkQueue[int] = WorkQueue(max_keys=2)
    queue.add(1)
    queue.add_after(2, 60)
    with pytest.raises(WorkQueueFullError):
        queue.add(3)
    queue.add(1)  # already there


async def test_reconcile_is_repeated_until_it_succeeds_and_whenever_it_asks():
    seen: list[str] = []
    done = asyncio.Event()

    async def reconcile(key: str) -> Result:
        seen.append(key)
        match len(seen):
            case 1:
                raise Conflict("changed")
            case 2:
                raise KeyError("a mistake of ours must not end the loop")
            case 3:
                return Result(again_after_seconds=0.01)
            case _:
                done.set()
                return DONE

    loop: Loop[str] = Loop("test", reconcile)
    loop.queue.add("k")
    task = asyncio.create_task(loop.run())
    await asyncio.wait_for(done.wait(), 5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == ["k"] * 4


async def test_a_terminal_error_is_left_alone_until_the_key_is_added_again():
    seen: list[str] = []
    looked = asyncio.Event()

    async def reconcile(key: str) -> Result:
        seen.append(key)
        if key == "bad":
            raise Refused("the same request will fail again")
        looked.set()
        return DONE

    loop: Loop[str] = Loop("test", reconcile, workers=1)
    loop.queue.add("bad")
    task = asyncio.create_task(loop.run())
    loop.queue.add("good")
    await asyncio.wait_for(looked.wait(), DEADLINE_SECONDS)
    assert len(loop.queue) == 0, "nothing waits for another time"
    looked.clear()
    loop.queue.add("bad")
    loop.queue.add("good")
    await asyncio.wait_for(looked.wait(), DEADLINE_SECONDS)
    assert seen == ["bad", "good", "bad", "good"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_between_two_keys_everybody_else_has_a_turn():
    """A reconcile that finds all it needs in a cache waits for nothing, and a sweep adds every key at once."""
    keys, behind = 100, list[int]()

    async def reconcile(key: int) -> Result:
        return DONE

    loop: Loop[int] = Loop("test", reconcile, workers=1)
    for key in range(keys):
        loop.queue.add(key)
    task = asyncio.create_task(loop.run())
    while len(loop.queue):
        await asyncio.sleep(0)
        behind.append(len(loop.queue))
    assert len(behind) >= keys
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_one_failing_task_ends_the_others_and_its_error_is_raised():
    ended = asyncio.Event()

    async def works() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def fails() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails_inside())

    async def fails_inside() -> None:
        raise Unavailable("no answer")

    supervisor = Supervisor()
    supervisor.add("works", works())
    supervisor.add("fails", fails())
    with pytest.raises(Unavailable, match="no answer"):
        await supervisor.run()
    assert ended.is_set()


async def test_a_task_that_returns_is_a_failure_unless_it_may():
    async def returns() -> None:
        return

    supervisor = Supervisor()
    supervisor.add("returns", returns())
    with pytest.raises(TaskEndedError, match="returns"):
        await supervisor.run()


async def test_sigterm_ends_the_process_in_good_order():
    cleaned = asyncio.Event()

    async def works() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.set()

    supervisor = Supervisor()
    supervisor.add("works", works())
    async with asyncio.timeout(DEADLINE_SECONDS):  # wait_for would let the task run before the handlers are there
        await supervisor.run()
    assert cleaned.is_set()
