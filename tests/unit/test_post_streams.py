"""Posts over HTTP/2: many at one time on one connection, each bounded as over HTTP/1.1."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import httpx2
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from uvicorn.server import ServerState

from egpu_base.http import listening, post_streams, web
from egpu_base.http import post_server as posts
from egpu_base.http.post_server import Answer, AtOnce, Post, Posts
from egpu_base.http.server import POST_VERSIONS
from egpu_base.tls.certificates import issue, store
from support.waiting import until

LIMIT_BYTES = 200_000


@dataclass
class Served:
    posts: Posts
    address: listening.Listen
    folder: Path

    def tls(self, *versions: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        context.set_alpn_protocols(versions)
        return context


@contextlib.asynccontextmanager
async def serving(folder: Path, **paths: posts.Handler | AtOnce) -> AsyncGenerator[Served]:
    store(folder, issue(["127.0.0.1"], now=datetime.now(UTC)))
    tls = web.TLS(versions=POST_VERSIONS)
    tls.load_files(folder / "tls.crt", folder / "tls.key")
    sock = listening.open_socket(listening.Listen.parse("127.0.0.1:0"))
    address = listening.bound(sock)
    made = Posts({f"/{path}": Post(each, LIMIT_BYTES) for path, each in paths.items()}, at_most_bytes=2 * LIMIT_BYTES)
    running = asyncio.create_task(web.serve(made, [sock], tls=tls))
    try:
        yield Served(made, address, folder)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def echo(body: bytes) -> Answer:
    return Answer(body)


BOTH = pytest.mark.parametrize("say", [echo, AtOnce(Answer)], ids=["awaited", "at once"])


@dataclass
class Told:
    """An answer as far as it has come."""

    status: int = 0
    body: bytes = b""
    ended: bool = False


@dataclass
class Client:
    """One connection of HTTP/2, frame by frame."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    h2: H2Connection
    told: dict[int, Told] = field(default_factory=dict[int, Told])
    reads: bool = True
    over: bool = False

    def ask(self, path: str, body: bytes = b"", *, method: str = "POST", end: bool = True, length: int = -1) -> int:
        number = self.h2.get_next_available_stream_id()
        self.told[number] = Told()
        headers = [(":method", method), (":authority", "here")]
        if method != "CONNECT":
            headers[1:1] = [(":path", path), (":scheme", "https")]
        if length >= 0:
            headers.append(("content-length", str(length)))
        self.h2.send_headers(number, headers, end_stream=end and not body)
        for at in range(0, len(body), 16_000):
            self.h2.send_data(number, body[at : at + 16_000], end_stream=end and at + 16_000 >= len(body))
        self.flush()
        return number

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    async def read(self) -> None:
        """Read until the end of the connection."""
        while data := await self.reader.read(1 << 16):
            for event in self.h2.receive_data(data):
                self._see(event)
            self.flush()
        self.over = True

    def _see(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                self.told[event.stream_id].status = int(dict(event.headers)[b":status"])
            case DataReceived():
                self.told[event.stream_id].body += event.data
                if self.reads:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded() | StreamReset():
                self.told[event.stream_id].ended = True
            case ConnectionTerminated():
                self.over = True
            case _:
                pass

    async def answer(self, number: int) -> tuple[int, bytes]:
        await until(lambda: self.told[number].ended)
        return self.told[number].status, self.told[number].body


@contextlib.asynccontextmanager
async def connected(served: Served, *, window: int = 65_535) -> AsyncGenerator[Client]:
    reader, writer = await asyncio.open_connection(
        served.address.host, served.address.port, ssl=served.tls("h2"), server_hostname="127.0.0.1"
    )
    client = Client(reader, writer, H2Connection(H2Configuration(header_encoding=None)))
    client.h2.initiate_connection()
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
    client.flush()
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.close()


@BOTH
@pytest.mark.parametrize("versions", [("h2", "http/1.1"), ("http/1.1",), ()], ids=["both", "old", "none"])
async def test_a_client_gets_the_version_it_asks_for(
    tmp_path: Path, say: posts.Handler | AtOnce, versions: tuple[str, ...]
) -> None:
    async with serving(tmp_path, say=say) as served:
        context = served.tls(*versions) if versions else ssl.create_default_context(cafile=tmp_path / "ca.crt")
        _, writer = await asyncio.open_connection(
            served.address.host, served.address.port, ssl=context, server_hostname="127.0.0.1"
        )
        agreed = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.close()
        assert agreed == (versions[0] if versions else None)
        async with httpx2.AsyncClient(
            base_url=f"https://{served.address}", http2="h2" in versions, verify=served.tls(), trust_env=False
        ) as client:
            for size in (0, 1, 100_000, LIMIT_BYTES):
                answer = await client.post("/say?of=no+interest", content=b"a" * size)
                assert (answer.status_code, answer.content) == (200, b"a" * size)
                assert answer.headers["content-type"] == "application/json"
                assert answer.http_version == ("HTTP/2" if "h2" in versions else "HTTP/1.1")
        assert served.posts.held_bytes == 0


async def test_requests_run_beside_each_other_on_one_connection(tmp_path: Path) -> None:
    gate, waiting = asyncio.Event(), 0

    async def wait(body: bytes) -> Answer:
        nonlocal waiting
        waiting += 1
        await gate.wait()
        return Answer(body)

    async with serving(tmp_path, wait=wait, say=AtOnce(Answer)) as served, connected(served) as client:
        held = [client.ask("/wait", b"%d" % number) for number in range(50)]
        await until(lambda: waiting == 50)
        assert await client.answer(client.ask("/say", b"now")) == (200, b"now")
        gate.set()
        assert [await client.answer(number) for number in held] == [(200, b"%d" % number) for number in range(50)]
        assert served.posts.held_bytes == 0


async def test_who_is_refused_hears_why_and_the_connection_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_streams, "REQUEST_SECONDS", 0.1)
    async with serving(tmp_path, say=echo) as served, connected(served) as client:
        for status, asked in (
            (404, client.ask("/other", b"a")),
            (404, client.ask("", method="CONNECT")),
            (405, client.ask("/say", method="GET")),
            (413, client.ask("/say", length=LIMIT_BYTES + 1, end=False)),
            (408, client.ask("/say", b"a", end=False)),
        ):
            assert (await client.answer(asked))[0] == status
        assert await client.answer(client.ask("/say", b"well")) == (200, b"well")
        assert served.posts.held_bytes == 0


async def test_bodies_are_bounded_one_by_one_and_together(tmp_path: Path) -> None:
    async with serving(tmp_path, say=echo) as served, connected(served) as client:
        await until(lambda: client.h2.remote_settings.initial_window_size == post_streams.WINDOW_BYTES)
        await until(lambda: client.h2.outbound_flow_control_window > 4 * LIMIT_BYTES)
        assert (await client.answer(client.ask("/say", b"a" * (LIMIT_BYTES + 1))))[0] == 413
        first, second = (client.ask("/say", b"a" * (LIMIT_BYTES - 1), end=False) for _ in range(2))
        await until(lambda: served.posts.held_bytes == 2 * (LIMIT_BYTES - 1))
        assert (await client.answer(client.ask("/say", b"aaa")))[0] == 503
        client.h2.reset_stream(second)
        client.h2.send_data(first, b"a", end_stream=True)
        client.flush()
        assert await client.answer(first) == (200, b"a" * LIMIT_BYTES)
        await until(lambda: served.posts.held_bytes == 0)


async def test_a_handler_s_mistake_is_no_end_of_the_connection(tmp_path: Path) -> None:
    def wrong(body: bytes) -> Answer:
        raise ValueError(body)

    async def later(body: bytes) -> Answer:
        return wrong(body)

    async with (
        serving(tmp_path, wrong=AtOnce(wrong), later=later, say=echo) as served,
        connected(served) as client,
    ):
        for path in ("/wrong", "/later"):
            assert (await client.answer(client.ask(path, b"a")))[0] == 500
        assert await client.answer(client.ask("/say", b"well")) == (200, b"well")


@BOTH
async def test_a_client_is_sent_as_much_as_it_has_room_for(tmp_path: Path, say: posts.Handler | AtOnce) -> None:
    async with serving(tmp_path, say=say) as served, connected(served, window=1000) as client:
        client.reads = False
        asked = client.ask("/say", b"a" * 50_000)
        await until(lambda: len(client.told[asked].body) == 1000)
        other = client.ask("/say", b"b")
        assert await client.answer(other) == (200, b"b")
        assert len(client.told[asked].body) == 1000
        client.reads = True
        client.h2.increment_flow_control_window(50_000, asked)
        client.flush()
        assert await client.answer(asked) == (200, b"a" * 50_000)


async def test_what_is_in_hand_is_answered_before_the_server_ends(tmp_path: Path) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    async def wait(body: bytes) -> Answer:
        began.set()
        await gate.wait()
        return Answer(body)

    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(tmp_path, wait=wait))
        async with connected(served) as busy, connected(served) as idle:
            asked = busy.ask("/wait", b"1")
            await began.wait()
            ending = asyncio.create_task(stack.aclose())
            await until(lambda: idle.over)
            gate.set()
            assert await busy.answer(asked) == (200, b"1")
            await until(lambda: busy.over)
            await ending


async def test_a_request_that_the_client_gives_up_gets_no_answer(tmp_path: Path) -> None:
    gate, waiting, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(body: bytes) -> Answer:
        waiting.set()
        await gate.wait()
        done.set()
        return Answer(body)

    async with serving(tmp_path, wait=wait, say=echo) as served, connected(served) as client:
        asked = client.ask("/wait", b"1")
        await waiting.wait()
        client.h2.reset_stream(asked)
        client.flush()
        await until(lambda: served.posts.held_bytes == 0)
        gate.set()
        await done.wait()
        assert await client.answer(client.ask("/say", b"well")) == (200, b"well")
        assert client.told[asked].status == 0


@BOTH
async def test_a_request_given_up_in_the_same_breath_is_no_end_of_the_connection(
    tmp_path: Path, say: posts.Handler | AtOnce
) -> None:
    async with serving(tmp_path, say=say) as served, connected(served) as client:
        number = client.h2.get_next_available_stream_id()
        client.told[number] = Told()
        headers = [(":method", "POST"), (":path", "/say"), (":scheme", "https"), (":authority", "here")]
        client.h2.send_headers(number, headers)
        client.h2.send_data(number, b"a", end_stream=True)
        client.h2.reset_stream(number)
        client.flush()
        assert await client.answer(client.ask("/say", b"well")) == (200, b"well")
        assert (served.posts.held_bytes, client.told[number].status) == (0, 0)


async def test_no_more_streams_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_streams, "MAX_STREAMS", 2)
    gate = asyncio.Event()

    async def wait(body: bytes) -> Answer:
        await gate.wait()
        return Answer(body)

    async with serving(tmp_path, wait=wait) as served, connected(served) as client:
        for _ in range(3):  # before the server's settings come
            client.ask("/wait", b"1")
        await until(lambda: client.over)
    assert served.posts.held_bytes == 0


async def test_what_is_not_http_2_ends_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, say=echo) as served:
        reader, writer = await asyncio.open_connection(
            served.address.host, served.address.port, ssl=served.tls("h2"), server_hostname="127.0.0.1"
        )
        writer.write(b"POST /say HTTP/1.1\r\nHost: here\r\n\r\n")
        await asyncio.wait_for(reader.read(), 60)
        writer.close()


async def test_an_idle_connection_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "IDLE_SECONDS", 0.2)
    async with serving(tmp_path, say=echo) as served, connected(served) as client:
        assert await client.answer(client.ask("/say", b"well")) == (200, b"well")
        await until(lambda: client.over)


async def test_an_answer_that_the_client_does_not_take_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_streams, "TAKEN_SECONDS", 0.2)
    async with serving(tmp_path, say=echo) as served, connected(served, window=1000) as client:
        client.reads = False
        asked = client.ask("/say", b"a" * 50_000)
        await until(lambda: client.told[asked].ended)
        assert len(client.told[asked].body) == 1000
        assert await client.answer(client.ask("/say", b"b")) == (200, b"b")


async def test_who_reads_nothing_is_not_read_either_and_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ping has an answer, which the server would keep."""
    monkeypatch.setattr(post_streams, "TAKEN_SECONDS", 0.1)
    made = Posts({}, at_most_bytes=1)
    one = post_streams.StreamsProtocol(
        made, ServerState(), lambda: contextlib.nullcontext(enter_result=True), idle_seconds=60
    )
    transport = mock.create_autospec(asyncio.Transport, instance=True)
    one.connection_made(transport)
    one.pause_writing()
    transport.pause_reading.assert_called_once()
    one.resume_writing()
    transport.resume_reading.assert_called_once()
    await asyncio.sleep(0.2)
    transport.abort.assert_not_called()
    one.pause_writing()
    await until(lambda: transport.abort.called)
    one.connection_lost(None)
