"""The same posts over HTTP/2: a client whose requests run beside each other has one connection for all of them.

Over HTTP/1.1 Go's client keeps two idle connections. A third request at one time costs another TLS handshake, which is
more processor time than the request itself on both sides. A client over TLS asks for HTTP/2 (ALPN) if it can.
"""

import asyncio
import contextlib
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from uvicorn.server import ServerState

from egpu_base.http.post_server import (
    FULL,
    REQUEST_SECONDS,
    Answer,
    AtOnce,
    Post,
    Posts,
    answer_at_once,
    answered,
    refusal,
)
from egpu_base.http.protocol import MAX_HEAD_BYTES

HTTP_2: Final = "h2"
"""Its name in TLS."""
MAX_STREAMS: Final = 256
"""Requests of one connection at one time. kube-scheduler has one binding under way for each pod just placed."""
WINDOW_BYTES: Final = 1 << 20
"""The bytes of a body that a client sends before we have read the first."""
TAKEN_SECONDS: Final = 30.0
"""The time for a client to take an answer. Until then the connection holds it."""

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class _Stream:
    """A request that is received or answered. `rest`: the part of the answer that the client has no window for yet."""

    post: Post
    parts: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    rest: memoryview | None = None


class StreamsProtocol(asyncio.Protocol):
    """One connection of HTTP/2. The parameters are those of `PostProtocol`."""

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
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._streams: dict[int, _Stream] = {}
        self._idle: asyncio.TimerHandle | None = None
        self._leaving = False
        self._writable = True
        self._stuck: asyncio.TimerHandle | None = None

    # --- what the server calls ---

    def shutdown(self) -> None:
        """End after the requests in hand."""
        self._leaving = True
        self._rest()

    # --- what asyncio calls ---

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._connections.add(self)
        wanted = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
        }
        self._h2.local_settings = Settings(client=False, initial_values=wanted)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(16 * WINDOW_BYTES)
        self._flush()
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._wait_for_more(None)
        self._unstick()
        for number in list(self._streams):
            self._drop(number)

    def pause_writing(self) -> None:
        """Read no more: each frame may have an answer, such as a ping's, and these would pile up."""
        self._writable = False
        self._transport.pause_reading()
        self._stuck = self._loop.call_later(TAKEN_SECONDS, self._transport.abort)

    def resume_writing(self) -> None:
        self._writable = True
        self._unstick()
        self._transport.resume_reading()
        self._pump()

    def _unstick(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
            # A request and its reset may come together; then no answer can be sent.
            given_up = {event.stream_id for event in events if isinstance(event, StreamReset)}
            for event in events:
                self._see(event, given_up)
        except ProtocolError as error:
            log.info("not HTTP/2", reason=str(error))
            self._flush()  # says why
            self._transport.close()
            return
        self._pump()
        self._rest()

    def _see(self, event: Event, given_up: Container[int | None]) -> None:
        match event:
            case RequestReceived():
                if event.stream_id not in given_up:
                    self._begin(event.stream_id, dict(event.headers))
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if event.stream_id not in given_up:
                    self._receive(event.stream_id, event.data)
            case StreamEnded():
                if event.stream_id not in given_up:
                    self._complete(event.stream_id)
            case StreamReset():
                self._drop(event.stream_id)
            case ConnectionTerminated():
                self._leaving = True
            case _:
                pass

    # --- requests ---

    def _begin(self, number: int, headers: dict[bytes, bytes]) -> None:
        # CONNECT has no path.
        path = headers.get(b":path", b"").partition(b"?")[0].decode("ascii", "replace")
        post = self._posts.paths.get(path)
        announced = headers.get(b"content-length", b"0")
        if post is None:
            self._refuse(number, 404, "no such path")
        elif headers[b":method"] != b"POST":
            self._refuse(number, 405, "only POST is supported")
        elif not announced.isdigit() or int(announced) > post.limit_bytes:
            self._refuse(number, 413, f"body: larger than {post.limit_bytes} bytes")
        else:
            stream = self._streams[number] = _Stream(post)
            stream.timer = self._loop.call_later(REQUEST_SECONDS, self._too_slow, number)

    def _receive(self, number: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.size += len(data)
        self._posts.held_bytes += len(data)
        stream.parts.append(data)
        if stream.size > stream.post.limit_bytes:
            self._refuse(number, 413, f"body: larger than {stream.post.limit_bytes} bytes")
        elif self._posts.held_bytes > self._posts.at_most_bytes:
            self._refuse(number, 503, "too many bytes in flight; try again")

    def _complete(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        assert stream.timer is not None
        stream.timer.cancel()
        handler, body = stream.post.handler, b"".join(stream.parts)
        stream.parts.clear()
        if isinstance(handler, AtOnce):
            with self._in_hand() as roomy:
                self._give(number, answer_at_once(handler, body) if roomy else FULL)
            return

        async def wait() -> None:
            with self._in_hand() as roomy:
                answer = await answered(handler, body) if roomy else FULL
            if number in self._streams:
                self._give(number, answer)
                self._pump()
                self._rest()

        stream.task = self._loop.create_task(wait())
        self._state.tasks.add(stream.task)
        stream.task.add_done_callback(self._state.tasks.discard)

    def _too_slow(self, number: int) -> None:
        self._refuse(number, 408, f"body: not complete within {REQUEST_SECONDS:g} s")
        self._pump()
        self._rest()

    # --- answers ---

    def _give(self, number: int, answer: Answer) -> None:
        stream = self._streams[number]
        self._posts.held_bytes -= stream.size
        stream.size = 0
        self._head(number, answer)
        stream.rest = memoryview(answer.body)
        stream.timer = self._loop.call_later(TAKEN_SECONDS, self._not_taken, number)

    def _not_taken(self, number: int) -> None:
        """Give up an answer for which the client opens no window."""
        self._drop(number)
        self._h2.reset_stream(number, ErrorCodes.CANCEL)
        self._flush()
        self._rest()

    def _head(self, number: int, answer: Answer) -> None:
        headers = [
            (b":status", b"%d" % answer.status),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer.body)),
        ]
        self._h2.send_headers(number, headers)

    def _refuse(self, number: int, status: int, why: str) -> None:
        """Answer before the request is complete. The rest of the request is not read."""
        self._drop(number)
        answer = refusal(status, why)
        self._head(number, answer)
        self._h2.send_data(number, answer.body, end_stream=True)
        with contextlib.suppress(StreamClosedError):  # the request is complete
            self._h2.reset_stream(number, ErrorCodes.NO_ERROR)

    def _pump(self) -> None:
        """Send as much of the answers as the client takes."""
        for number, stream in list(self._streams.items()):
            while stream.rest is not None and self._writable:
                room = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
                if room <= 0 and len(stream.rest):
                    break
                part, rest = stream.rest[:room], stream.rest[room:]
                self._h2.send_data(number, bytes(part), end_stream=not len(rest))
                if len(rest):
                    stream.rest = rest
                else:
                    stream.rest = None
                    self._drop(number)
        self._flush()

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)

    def _drop(self, number: int) -> None:
        """Forget a request: it has its answer, or gets none."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        self._posts.held_bytes -= stream.size
        if stream.timer is not None:
            stream.timer.cancel()

    def _rest(self) -> None:
        """Begin to wait for the next request, or end."""
        if self._streams:
            self._wait_for_more(None)
        elif self._leaving:
            self._end()
        elif self._idle is None:
            self._wait_for_more(self._idle_seconds)

    def _wait_for_more(self, seconds: float | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None if seconds is None else self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        """Say which requests were seen, so that the client can send later ones elsewhere, and close."""
        self._h2.close_connection()
        self._flush()
        self._transport.close()
