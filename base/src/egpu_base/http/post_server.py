"""Answer bodies that are posted on a few paths: HTTP/1.1 for one known caller that asks all the time.

An ASGI server's work for a request (a scope, a task that wakes for every part of the body, a look at each header) costs
more than most of the answers. Here a request is its path and its whole body, and an answer is written at once. A
refused caller gets the reason, and the connection ends.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import httptools
import msgspec
import structlog
from uvicorn.server import ServerState

from egpu_base.http.protocol import MAX_HEAD_BYTES

REQUEST_SECONDS: Final = 20.0
"""The limit for receiving a whole request, so that a slow sender cannot keep its place for ever."""
LINGER_SECONDS: Final = 2.0
"""The time that a refused caller may go on sending, unread. If we closed at once, it would not see the answer."""
MAX_PIPELINED: Final = 16
"""The number of requests sent before the answer to the first. No client that we know sends a second one."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

log = structlog.get_logger(__name__)


class Answer(NamedTuple):
    """A JSON answer."""

    body: bytes
    status: int = 200


Handler = Callable[[bytes], Awaitable[Answer]]


class AtOnce(NamedTuple):
    """A handler that answers without waiting, so that it needs no task."""

    answer: Callable[[bytes], Answer]


class Post(NamedTuple):
    """A path's handler, and the limit of its body."""

    handler: Handler | AtOnce
    limit_bytes: int


@dataclass
class Posts:
    """The handlers by path. `at_most_bytes` limits all bodies that are being received or answered."""

    paths: dict[str, Post]
    at_most_bytes: int
    held_bytes: int = 0


class PostProtocol(asyncio.Protocol):
    """One connection. `in_hand` counts a request, and returns whether there is room for it. `idle_seconds` limits the
    time that the connection may stay without a request."""

    def __init__(
        self,
        posts: Posts,
        state: ServerState,
        in_hand: Callable[[], AbstractContextManager[bool]],
        *,
        idle_seconds: float,
    ) -> None:
        self._posts, self._state, self._in_hand, self._idle_seconds = posts, state, in_hand, idle_seconds
        self._connections: set[Any] = state.connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._waiting: deque[tuple[Handler | AtOnce, bytes, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._refused = self._leaving = self._useful = False
        self._aside_bytes = 0
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._post: Post | None = None
        self._parts: list[bytes] = []
        self._size = self._announced = 0
        self._asks_to_continue = False

    # --- what the server calls ---

    def shutdown(self) -> None:
        """End after the requests in hand."""
        self._leaving = True
        if self._task is None:
            self._transport.close()

    # --- what asyncio calls ---

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._expect(None)
        self._posts.held_bytes -= self._size
        self._begin()
        self._refused = True
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._useful = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, "not an HTTP/1.1 request")
        self._aside_bytes = 0 if self._useful else self._aside_bytes + len(data)
        if self._aside_bytes > MAX_HEAD_BYTES:
            self._refuse(400, f"headers: larger than {MAX_HEAD_BYTES} bytes")

    # --- what the parser calls ---

    def on_message_begin(self) -> None:
        if self._refused:
            return
        self._begin()
        self._expect(REQUEST_SECONDS, self._too_slow)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-length":
                self._announced = int(value)
            case b"expect":
                self._asks_to_continue = value.lower() == b"100-continue"
            case _:
                pass

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        path = self._url.partition(b"?")[0].decode("ascii", "replace")
        self._post = self._posts.paths.get(path)
        if self._post is None:
            self._refuse(404, "no such path")
        elif self._parser.get_method() != b"POST":
            self._refuse(405, "only POST is supported")
        elif self._announced > self._post.limit_bytes:
            self._too_large(self._post)
        elif self._asks_to_continue:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._useful = True
        if self._refused or self._post is None:
            return
        self._size += len(body)
        self._posts.held_bytes += len(body)
        self._parts.append(body)
        if self._size > self._post.limit_bytes:
            self._too_large(self._post)
        elif self._posts.held_bytes > self._posts.at_most_bytes:
            self._refuse(503, "too many bytes in flight; try again")

    def on_message_complete(self) -> None:
        self._useful = True
        if self._refused or self._post is None:
            return
        self._expect(None)
        handler, body, kept_alive = self._post.handler, b"".join(self._parts), self._parser.should_keep_alive()
        self._begin()
        if isinstance(handler, AtOnce) and self._task is None and self._writable.is_set():
            with self._in_hand() as roomy:
                self._give(answer_at_once(handler, body) if roomy else FULL, body, kept_alive=kept_alive)
            self._rest()
            return
        self._waiting.append((handler, body, kept_alive))
        if len(self._waiting) > MAX_PIPELINED:
            self._refuse(503, "too many requests before the first answer")
        elif self._task is None:
            self._task = self._loop.create_task(self._answer_all())
            self._state.tasks.add(self._task)
            self._task.add_done_callback(self._state.tasks.discard)

    # --- answers ---

    async def _answer_all(self) -> None:
        """Answer one after the other, in the order of the requests."""
        try:
            while self._waiting and await self._writes():
                handler, body, kept_alive = self._waiting.popleft()
                with self._in_hand() as roomy:
                    answer = await answered(handler, body) if roomy else FULL
                self._give(answer, body, kept_alive=kept_alive)
        finally:
            self._task = None
            self._posts.held_bytes -= sum(len(body) for _, body, _ in self._waiting)
            self._waiting.clear()
        self._rest()

    async def _writes(self) -> bool:
        """Return whether anything more will be written, once the written bytes are under way."""
        await self._writable.wait()
        return not self._refused

    def _give(self, answer: Answer, body: bytes, *, kept_alive: bool) -> None:
        """Write the answer to a body; none follows the last."""
        self._posts.held_bytes -= len(body)
        if self._refused:
            return
        last = self._leaving or not kept_alive
        self._write(answer, last=last)
        if last:
            self._refused = True
            self._transport.close()

    def _rest(self) -> None:
        """Begin to wait for the next request."""
        if not self._refused and self._timer is None:  # otherwise the next request has begun
            self._expect(self._idle_seconds, self._transport.close)

    def _write(self, answer: Answer, *, last: bool) -> None:
        status = HTTPStatus(answer.status)
        standing = b"".join(b"%b: %b\r\n" % header for header in self._state.default_headers)
        head = b"HTTP/1.1 %d %b\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n" % (
            status, status.phrase.encode(), standing, len(answer.body), b"connection: close\r\n" if last else b""
        )  # fmt: skip
        self._transport.write(head + answer.body)

    def _refuse(self, status: int, why: str) -> None:
        """Write the last answer on this connection. Requests still in hand get none: no client reads two at once."""
        if self._refused:
            return
        self._refused = True
        self._posts.held_bytes -= self._size
        self._begin()
        self._write(refusal(status, why), last=True)
        self._expect(LINGER_SECONDS, self._transport.abort)

    def _too_large(self, post: Post) -> None:
        self._refuse(413, f"body: larger than {post.limit_bytes} bytes")

    def _too_slow(self) -> None:
        self._refuse(408, f"body: not complete within {REQUEST_SECONDS:g} s")

    def _expect(self, seconds: float | None, otherwise: Callable[[], None] = lambda: None) -> None:
        """Call `otherwise` after so many seconds, unless something happens before; None cancels that."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, otherwise)


def refusal(status: int, why: str) -> Answer:
    return Answer(msgspec.json.encode({"Error": why}), status)


async def answered(handler: Handler | AtOnce, body: bytes) -> Answer:
    if isinstance(handler, AtOnce):
        return answer_at_once(handler, body)
    try:
        return await handler(body)
    except Exception:
        return _failed()


def answer_at_once(handler: AtOnce, body: bytes) -> Answer:
    try:
        return handler.answer(body)
    except Exception:
        return _failed()


def _failed() -> Answer:
    """Return the answer after an exception, which is being handled."""
    log.exception("request failed")
    return refusal(500, "internal error: see the log")


FULL: Final = refusal(503, "too many requests at once")
