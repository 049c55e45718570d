"""HTTP to the API server, against a socket that answers what a test tells it to."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager

import httpx2
import pytest

from egpu_base.kubernetes import transport
from egpu_base.kubernetes.exchanges import Exchanges
from egpu_base.kubernetes.transport import Transport
from support.waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next of `answers`; after None it closes. `requests` are those that came."""

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.client: Transport | None = None
        """What talks to it."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                writer.write(answer or b"")
                if answer is None or b"Connection: close" in answer:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client went, or the test is over
        finally:
            writer.close()


@asynccontextmanager
async def talking(
    *answers: bytes | None, keepalive_seconds: float = 60.0, at_most: int = 4
) -> AsyncGenerator[tuple[Server, httpx2.AsyncClient]]:
    told = Server(answers)
    listening = await asyncio.start_server(told.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    own = told.client = Transport(None, at_most=at_most, keepalive_seconds=keepalive_seconds)
    async with listening, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", transport=own, timeout=5.0) as http:
        yield told, http


async def test_a_connection_is_used_again_and_requests_arrive_whole() -> None:
    async with talking(OK, OK) as (server, http):
        for body in (b"x" * 100_000, b"y"):
            answer = await http.post("/a?b=c%20d", content=body, headers={"Accept": "application/json"})
            assert (answer.status_code, answer.content) == (200, b"ok")
        assert server.connections == 1
        assert server.requests[0].startswith(b"POST /a?b=c%20d HTTP/1.1\r\n")
        assert server.requests[0].endswith(b"\r\n\r\n" + b"x" * 100_000)
        assert server.requests[1].endswith(b"\r\n\r\ny")


async def test_it_is_not_used_when_it_was_idle_for_long_or_the_server_said_so() -> None:
    async with talking(OK, OK, keepalive_seconds=0.0) as (server, http):
        await http.get("/")
        await asyncio.sleep(0.01)
        await http.get("/")
        assert server.connections == 2
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    async with talking(closing, OK) as (server, http):
        assert [(await http.get("/")).content for _ in range(2)] == [b"ok", b"ok"]
        assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 201 Created\r\nConnection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nz", b"z"),
    ],
)
async def test_bodies_end_as_the_server_says(answer: bytes, body: bytes) -> None:
    async with talking(answer) as (_, http):
        found = await http.get("/")
        assert (found.status_code, found.content) == (201, body)


async def test_a_body_larger_than_what_is_held_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BUFFERED_BYTES", 1000)
    body = b"0123456789" * 500_000
    server = talking(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    async with server as (_, http), http.stream("GET", "/") as answer:
        await asyncio.sleep(0.05)
        assert await answer.aread() == body


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, httpx2.ReadError),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nshort", httpx2.ReadError),
        (b"SSH-2.0-OpenSSH\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 600_000, httpx2.RemoteProtocolError),
    ],
)
async def test_half_an_answer_is_none(answer: bytes | None, error: type[Exception]) -> None:
    async with talking(answer) as (_, http):
        with pytest.raises(error):
            await http.get("/")


async def test_what_nobody_asked_for_is_not_taken_for_the_next_answer() -> None:
    async with talking(OK + OK.replace(b"ok", b"no"), OK) as (server, http):
        assert [(await http.get("/")).content for _ in range(2)] == [b"ok", b"ok"]
        assert server.connections == 2


async def test_what_was_never_sent_is_told_from_what_was_not_answered() -> None:
    async with talking(b"") as (_, http):
        with pytest.raises(httpx2.ReadTimeout):
            await http.get("/", timeout=0.05)
    with pytest.raises(httpx2.ConnectError):
        await http_to_nobody().get("/")
    async with talking(b"", at_most=1) as (server, http):
        first = asyncio.create_task(http.get("/", timeout=httpx2.Timeout(5.0, read=0.5)))
        await until(lambda: bool(server.requests))
        with pytest.raises(httpx2.PoolTimeout):
            await http.get("/", timeout=httpx2.Timeout(5.0, pool=0.05))
        with pytest.raises(httpx2.ReadTimeout):
            await first
        server.answers.append(OK)
        assert (await http.get("/")).content == b"ok", "its place is free again"


def http_to_nobody() -> httpx2.AsyncClient:
    own = Transport(None, at_most=1, keepalive_seconds=1.0)
    return httpx2.AsyncClient(base_url="http://127.0.0.1:1", transport=own)


class Token(httpx2.Auth):
    """One that is read again when the server does not know it any more, as lightkube's are."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self.tokens[0]}"
        if (yield request).status_code == 401:
            self.tokens.pop(0)
            request.headers["Authorization"] = f"Bearer {self.tokens[0]}"
            yield request


REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
ACCEPT = {"Accept": "application/json"}


async def test_what_every_request_must_have_is_said_by_those_that_go_straight() -> None:
    async with talking(OK, OK) as (server, http):
        http.auth = Token("one")
        exchanges = Exchanges(http, server.client)
        for _ in range(2):
            assert await exchanges.ask("PUT", "/a", content=b"body", headers=ACCEPT) == (200, b"ok")
        first, second = (request.split(b"\r\n") for request in server.requests)
        assert second[0] == b"PUT /a HTTP/1.1"
        assert second[-1] == b"body"
        said = {line.lower() for line in first}
        assert {line.lower() for line in second} <= said
        assert b"authorization: bearer one" in {line.lower() for line in second}
        assert b"accept-encoding: gzip" not in b"\r\n".join(second).lower(), "answers are taken as they come"


async def test_a_token_that_was_replaced_is_read_again_and_then_kept() -> None:
    async with talking(OK, REFUSED, REFUSED, OK, OK) as (server, http):
        http.auth = Token("one", "two")
        exchanges = Exchanges(http, server.client)
        answers = [await exchanges.ask("GET", "/a", headers=ACCEPT) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 200]
        tokens = [request.lower().partition(b"bearer ")[2][:3] for request in server.requests]
        assert tokens == [b"one", b"one", b"one", b"two", b"two"]


async def test_a_name_that_is_no_address_does_not_become_another_request() -> None:
    async with talking(OK, OK) as (server, http):
        exchanges = Exchanges(http, server.client)
        await exchanges.ask("GET", "/a", headers=ACCEPT)
        await exchanges.ask("GET", "/pods/x y?z", headers=ACCEPT)
        assert server.requests[1].startswith(b"GET /pods/x%20y?z HTTP/1.1\r\n")
        with pytest.raises(httpx2.InvalidURL):
            await exchanges.ask("GET", "/pods/x HTTP/1.1\r\nHost: other\r\n\r\n", headers=ACCEPT)
        assert len(server.requests) == 2
