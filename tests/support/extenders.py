"""Leading extenders over a pretend API server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from egpu.apps.extender import Extender, ExtenderConfig
from support.fake_api import FakeAPI
from support.waiting import until


@asynccontextmanager
async def extender(api: FakeAPI, **config: object) -> AsyncGenerator[Extender]:
    """A leading extender with its caches in order; on leaving it is cut off as by SIGKILL."""
    one = Extender(ExtenderConfig(**config), api.client())  # type: ignore[arg-type]
    task = asyncio.create_task(one.lead())
    try:
        await until(lambda: one.not_ready() is None or task.done())
        if task.done():
            task.result()
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
