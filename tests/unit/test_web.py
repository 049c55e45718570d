"""Serving HTTP: what a server of ours owes its clients."""

import asyncio
import contextlib
from typing import Final

import httpx2
from starlette.applications import Starlette

from egpu.adapters import web

GO_CLIENT_IDLE_SECONDS: Final = 90
"""How long Go's default transport, and with it kube-apiserver and kube-scheduler, keeps an idle connection."""


async def test_the_client_is_the_one_who_closes_an_idle_connection() -> None:
    assert web.IDLE_SECONDS > GO_CLIENT_IDLE_SECONDS

    sock = web.open_socket(web.Listen.parse("127.0.0.1:0"))
    address = web.bound(sock)
    before = asyncio.all_tasks()
    serving = asyncio.create_task(web.serve(Starlette(routes=web.health_routes(lambda: None)), [sock]))
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def remembering(delay: float, *args: object, **kwargs: object) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, *args, **kwargs)  # type: ignore[arg-type]

    loop.call_later = remembering  # type: ignore[method-assign]
    try:
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"http://{address}/healthz")).status_code == 200
    finally:
        loop.call_later = call_later  # type: ignore[method-assign]
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    assert web.IDLE_SECONDS in timers, "the server does not wait that long for the next request"
    assert asyncio.all_tasks() == before
