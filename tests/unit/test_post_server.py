"""What is posted to a few paths: read whole or refused with a reason, answered once and in order."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from unittest.mock import ANY

import httpx2
import pytest

from egpu_base.http import listening, web
from egpu_base.http import post_server as posts
from egpu_base.http.post_server import Answer, AtOnce, Post, Posts
from support.waiting import until

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIMIT_BYTES = 200_000
CHUNKED = b"POST /say HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(**paths: posts.Handler | AtOnce) -> AsyncGenerator[tuple[Posts, listening.Listen]]:
    sock = listening.open_socket(listening.Listen.parse("127.0.0.1:0"))
    address = listening.bound(sock)
    made = Posts({f"/{path}": Post(each, LIMIT_BYTES) for path, each in paths.items()}, at_most_bytes=2 * LIMIT_BYTES)
    running = asyncio.create_task(web.serve(made, [sock]))
    try:
        yield made, address
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def echo(body: bytes) -> Answer:
    return Answer(body)


BOTH = pytest.mark.parametrize("say", [echo, AtOnce(Answer)], ids=["awaited", "at once"])


def head(path: str, length: int, *more: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {length}", *more, "", ""]).encode()


async def opened(address: listening.Listen) -> Connection:
    return await asyncio.open_connection(address.host, address.port)


async def told(connection: Connection) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    lines = (await connection[0].readuntil(b"\r\n\r\n")).split(b"\r\n")
    length = next(int(line.split()[1]) for line in lines if line.startswith(b"content-length:"))
    return int(lines[0].split()[1]), await connection[0].readexactly(length)


async def ended(connection: Connection) -> bool:
    """The server has hung up, and has said nothing more."""
    return await asyncio.wait_for(connection[0].read(), 60) == b""


@BOTH
async def test_a_body_is_answered_whole_again_and_again(say: posts.Handler | AtOnce) -> None:
    async with serving(say=say) as (held, address), httpx2.AsyncClient(base_url=f"http://{address}") as client:
        for size in (0, 1, 100_000, LIMIT_BYTES):
            answer = await client.post("/say?of=no+interest", content=b"a" * size)
            assert (answer.status_code, answer.content) == (200, b"a" * size)
            assert answer.headers["content-type"] == "application/json"
            assert "date" in answer.headers
        assert held.held_bytes == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /say HTTP/1.1\r\nHost: here\r\n\r\n", 405),
        (head("/other", 0), 404),
        (b"GET /other HTTP/1.1\r\nHost: here\r\n\r\n", 404),
        (head("/say", LIMIT_BYTES + 1), 413),
        (CHUNKED + b"30d41\r\n" + b"a" * 200_001, 413),
        (b"no request\r\n\r\n", 400),
        (b"POST /say HTTP/1.1\r\n" + b"X: y\r\n" * 30_000, 400),
        (head("/say", 1, "Connection: upgrade", "Upgrade: websocket") + b"a", 400),
    ],
    ids=["method", "path", "both", "announced", "in chunks", "nonsense", "headers without end", "an upgrade"],
)
async def test_who_is_refused_hears_why_and_the_connection_ends(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, status: int
) -> None:
    monkeypatch.setattr(posts, "LINGER_SECONDS", 0.1)
    async with serving(say=echo) as (held, address):
        connection = await opened(address)
        connection[1].write(sent)
        assert (await told(connection))[0] == status
        connection[1].write(b"a" * 100)
        assert await ended(connection)
        await until(lambda: held.held_bytes == 0)
        connection[1].close()


@BOTH
async def test_requests_sent_together_are_answered_in_order_and_not_too_many(say: posts.Handler | AtOnce) -> None:
    gate = asyncio.Event()

    async def wait(body: bytes) -> Answer:
        await gate.wait()
        return Answer(body)

    async with serving(wait=wait, say=say) as (_, address):
        connection = await opened(address)
        connection[1].write(head("/wait", 1) + b"1" + head("/say", 1) + b"2")
        gate.set()
        assert [await told(connection) for _ in range(2)] == [(200, b"1"), (200, b"2")]
        gate.clear()
        connection[1].write((head("/wait", 1) + b"x") * (posts.MAX_PIPELINED + 3))
        assert (await told(connection))[0] == 503
        gate.set()
        connection[1].close()


@BOTH
async def test_a_request_that_comes_drop_by_drop_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, say: posts.Handler | AtOnce
) -> None:
    monkeypatch.setattr(posts, "REQUEST_SECONDS", 0.1)
    async with serving(say=say) as (held, address):
        for sent in (head("/say", 10) + b"a", b"POST /say HTTP/1.1\r\nX"):
            connection = await opened(address)
            connection[1].write(sent)
            assert (await told(connection))[0] == 408
            connection[1].close()
        connection = await opened(address)
        connection[1].write(head("/say", 1) + b"1" + head("/say", 10) + b"2")
        assert [await asyncio.wait_for(told(connection), 60) for _ in range(2)] == [(200, b"1"), (408, ANY)]
        connection[1].close()
        assert held.held_bytes == 0


@BOTH
async def test_bodies_that_come_at_once_are_bounded_together_and_leave_nothing(say: posts.Handler | AtOnce) -> None:
    async with serving(say=say) as (held, address):
        coming = [await opened(address) for _ in range(3)]
        for connection in coming[:2]:
            connection[1].write(head("/say", LIMIT_BYTES) + b"a" * (LIMIT_BYTES - 1))
        await until(lambda: held.held_bytes == 2 * (LIMIT_BYTES - 1))
        coming[2][1].write(head("/say", 3) + b"aaa")
        assert (await told(coming[2]))[0] == 503
        coming[0][1].write(b"a")
        assert await told(coming[0]) == (200, b"a" * LIMIT_BYTES)
        for connection in coming:
            connection[1].close()
        await until(lambda: held.held_bytes == 0)


async def test_a_handler_s_mistake_is_no_end_of_the_connection() -> None:
    async def wrong(body: bytes) -> Answer:
        raise ValueError(body)

    def at_once(body: bytes) -> Answer:
        raise ValueError(body)

    async with serving(wrong=wrong, at_once=AtOnce(at_once), say=echo) as (held, address):
        connection = await opened(address)
        for path in ("/wrong", "/at_once"):
            connection[1].write(head(path, 1) + b"1")
            assert (await told(connection))[0] == 500
        connection[1].write(head("/say", 1, "Expect: 100-continue"))
        assert await connection[0].readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection[1].write(b"2")
        assert await told(connection) == (200, b"2")
        connection[1].write(head("/say", 1, "Connection: close") + b"3")
        assert await told(connection) == (200, b"3")
        assert await ended(connection)
        assert held.held_bytes == 0
        connection[1].close()


async def test_what_is_in_hand_is_answered_before_the_server_ends() -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    async def wait(body: bytes) -> Answer:
        began.set()
        await gate.wait()
        return Answer(body)

    async with contextlib.AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(serving(wait=wait))
        busy, idle = await opened(address), await opened(address)
        busy[1].write(head("/wait", 1) + b"1")
        await began.wait()
        ending = asyncio.create_task(stack.aclose())
        assert await ended(idle)
        gate.set()
        assert await told(busy) == (200, b"1")
        assert await ended(busy)
        await ending
        for connection in (busy, idle):
            connection[1].close()


@pytest.mark.parametrize("at_once", [True, False])
async def test_who_does_not_read_is_sent_no_more(*, at_once: bool) -> None:
    answered = 0

    def much(_: bytes) -> Answer:
        nonlocal answered
        answered += 1
        return Answer(b"a" * 20_000_000)

    async def awaited(body: bytes) -> Answer:
        return much(body)

    async with serving(much=AtOnce(much) if at_once else awaited) as (_, address):
        connection = await opened(address)
        connection[1].write((head("/much", 1) + b"x") * 3)
        await until(lambda: answered == 1)
        assert len((await told(connection))[1]) == 20_000_000
        await until(lambda: answered == 2)
        connection[1].close()
    assert answered == 2, "the second answer was never read"
