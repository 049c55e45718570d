"""Serving HTTP: what a server of ours owes its clients."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx2
import pytest
from prometheus_client import CollectorRegistry, Gauge
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from egpu.api.admission import AdmissionRequest, AdmissionResponse
from egpu.apps.webhook import server
from egpu_base.http import listening, web
from egpu_base.http import protocol as http_protocol
from egpu_base.http import server as http_server
from egpu_base.tls import certificates
from egpu_base.tls import followed as certificate_files
from support.waiting import until

GO_CLIENT_IDLE_SECONDS: Final = 90
"""How long Go's default transport, and with it kube-apiserver and kube-scheduler, keeps an idle connection."""


async def test_the_client_is_the_one_who_closes_an_idle_connection() -> None:
    assert web.IDLE_SECONDS > GO_CLIENT_IDLE_SECONDS

    sock = listening.open_socket(listening.Listen.parse("127.0.0.1:0"))
    address = listening.bound(sock)
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


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET: Final = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, tls: web.TLS | None = None) -> AsyncGenerator[listening.Listen]:
    sock = listening.open_socket(listening.Listen.parse("127.0.0.1:0"))
    address = listening.bound(sock)
    running = asyncio.create_task(web.serve(app, [sock], tls=tls))
    try:
        yield address
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def our_tls() -> web.TLS:
    tls, made = web.TLS(), certificates.issue(["127.0.0.1"], now=datetime.now(UTC))
    tls.load(made.certificate, made.key)
    return tls


async def test_a_certificate_and_its_clients_authority_are_replaced_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection goes on, and whoever only the old authority knows is refused from then on."""
    monkeypatch.setattr(certificate_files, "POLL_SECONDS", 0.02)
    files = [tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt")]

    def write(made: certificates.Certificates) -> ssl.SSLContext:
        """Into the server's files; returns the client's side."""
        for file, content in zip(files, (made.certificate, made.key, made.ca_bundle), strict=True):
            file.write_bytes(content)
        context = ssl.create_default_context(cadata=made.ca_bundle.decode())
        (tmp_path / "client.crt").write_bytes(made.client_certificate)
        (tmp_path / "client.key").write_bytes(made.client_key)
        context.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
        return context

    old = write(issued())
    tls = web.TLS(client_ca=files[2])
    loading = certificate_files.FileCertificate(tls, files[0], files[1])
    following = asyncio.create_task(loading.run())
    await loading.loaded.wait()
    app = Starlette(routes=web.open_routes(lambda: None))
    async with serving(app, tls) as address, httpx2.AsyncClient(verify=old, base_url=f"https://{address}") as before:
        assert (await before.get("/healthz")).status_code == 200
        new = write(issued())

        async def known() -> bool:
            with contextlib.suppress(httpx2.HTTPError):
                async with httpx2.AsyncClient(verify=new, base_url=f"https://{address}") as after:
                    return (await after.get("/healthz")).status_code == 200
            return False

        await until(known, "the new certificate is served")
        assert (await before.get("/healthz")).status_code == 200, "its connection is still there"
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE  # it takes the new one for good, and is not
        async with httpx2.AsyncClient(verify=old, base_url=f"https://{address}") as late:
            with pytest.raises(httpx2.HTTPError):
                await late.get("/healthz")
    following.cancel()


def issued() -> certificates.Certificates:
    return certificates.issue(["127.0.0.1"], now=datetime.now(UTC), client="kube-scheduler")


async def opened(address: listening.Listen, count: int) -> list[Connection]:
    return [await asyncio.open_connection(address.host, address.port) for _ in range(count)]


async def closed(connections: list[Connection]) -> int:
    return sum(reader.at_eof() or reader.exception() is not None for reader, _ in connections)


async def healthy(address: listening.Listen, *, tls: bool) -> bool:
    async with httpx2.AsyncClient(verify=False) as client:
        return (await client.get(f"{'https' if tls else 'http'}://{address}/healthz")).status_code == 200


@pytest.mark.parametrize(
    "begins",
    [
        b"GET /healthz HTTP/1.1\r\nHost: here\r\nX: ",
        b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 10_000,
        b"GET /",
        b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ",
    ],
    ids=["one header", "many headers", "a path", "what follows a body"],
)
async def test_headers_are_not_kept_without_end(begins: bytes) -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(30)
        return PlainTextResponse("")

    app = Starlette(routes=[*web.health_routes(), Route("/healthz", slow, methods=["POST"])])
    async with serving(app) as address:
        ((reader, writer),) = await opened(address, 1)
        writer.write(begins)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and not writer.is_closing() and sent < 64 * http_protocol.MAX_HEAD_BYTES:
                writer.write(b"a" * 16_384)
                sent += 16_384
                await writer.drain()
                await asyncio.sleep(0)
        assert sent < 64 * http_protocol.MAX_HEAD_BYTES, "it took everything"
        assert await healthy(address, tls=False)
        writer.close()


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
async def test_silent_connections_go_when_others_come(monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    monkeypatch.setattr(http_server, "MAX_STRANGERS", 8)
    async with serving(Starlette(routes=web.open_routes(lambda: None)), our_tls() if tls else None) as address:
        silent = await opened(address, 40)
        await until(lambda: _at_least(silent, 32))
        assert await healthy(address, tls=tls)
        for _, writer in silent:
            writer.close()


async def _at_least(connections: list[Connection], count: int) -> bool:
    return await closed(connections) >= count


async def test_who_asked_once_and_waits_goes_when_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_STRANGERS", 8)
    async with serving(Starlette(routes=web.open_routes(lambda: None))) as address:
        idle: list[Connection] = []
        for _ in range(20):
            idle += await opened(address, 1)
            reader, writer = idle[-1]
            writer.write(GET)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"ok\n")
        await until(lambda: _at_least(idle, 12))
        last, writer = idle[-1]
        writer.write(GET)
        assert (await last.readline()).startswith(b"HTTP/1.1 200"), "the newest stay"
        for _, each in idle:
            each.close()


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
async def test_a_connection_without_a_request_does_not_stay(monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE_SECONDS", 0.2)
    monkeypatch.setattr(http_server, "FIRST_REQUEST_SECONDS", 0.2)
    async with serving(Starlette(routes=web.open_routes(lambda: None)), our_tls() if tls else None) as address:
        ((reader, writer),) = await opened(address, 1)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()


async def test_one_with_a_request_in_hand_stays_and_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_STRANGERS", 8)
    monkeypatch.setattr(http_server, "MAX_REQUESTS", 2)
    monkeypatch.setattr(http_server, "FIRST_REQUEST_SECONDS", 0.2)
    go_on = asyncio.Event()

    async def slow(_: Request) -> Response:
        await go_on.wait()
        return PlainTextResponse("done\n")

    async with serving(Starlette(routes=[Route("/slow", slow), *web.health_routes()])) as address:
        async with httpx2.AsyncClient() as client:
            asking = asyncio.create_task(client.get(f"http://{address}/slow"))
            await until(lambda: _busy(address))
            silent = await opened(address, 20)
            await until(lambda: _at_least(silent, 12))
            go_on.set()
            assert (await asking).text == "done\n"
            assert await healthy(address, tls=False)
        for _, writer in silent:
            writer.close()


async def _busy(address: listening.Listen) -> bool:
    async with httpx2.AsyncClient() as client:
        return (await client.get(f"http://{address}/healthz")).status_code == 503


async def test_a_body_that_comes_drop_by_drop_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "BODY_SECONDS", 0.2)

    async def take(request: Request) -> Response:
        await web.body_within(request, 1000)
        return PlainTextResponse("all of it")

    async with serving(Starlette(routes=[Route("/", take, methods=["POST"])])) as address:
        ((reader, writer),) = await opened(address, 1)
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\na")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_reviews_that_are_still_coming_take_no_more_than_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may send the webhook some. The oldest goes, and who sends his at once is answered."""
    monkeypatch.setattr(server, "MAX_HELD_BYTES", 4096)

    async def pass_all(asked: AdmissionRequest) -> AdmissionResponse:
        return AdmissionResponse(uid=asked.uid, allowed=True)

    app = server.make_app(mutate=pass_all, validate=pass_all, not_ready=lambda: None)
    async with serving(app) as address:
        slow: list[Connection] = []
        for _ in range(6):
            slow += await opened(address, 1)
            slow[-1][1].write(b"POST /mutate HTTP/1.1\r\nHost: here\r\nContent-Length: 1800\r\n\r\n" + b" " * 1000)
            await slow[-1][1].drain()
        for reader, _ in slow[:2]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        resource = {"group": "", "version": "v1", "kind": "Pod", "resource": "pods"}
        asked = {"uid": "u", "kind": resource, "resource": resource, "operation": "CREATE", "object": {}}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
        async with httpx2.AsyncClient() as client:
            for _ in range(3):
                answer = await client.post(f"http://{address}/mutate", json=review)
                assert (answer.status_code, answer.json()["response"]["allowed"]) == (200, True)
        for _, writer in slow:
            writer.close()


async def test_series_that_somebody_else_writes_follow_the_registry_s() -> None:
    async def more() -> bytes:
        return b"of_others 1\n"

    registry = CollectorRegistry(auto_describe=False)
    Gauge("ours", "One.", registry=registry).set(2)
    app = Starlette(routes=web.health_routes(registry=registry, more=more))
    async with serving(app) as address, httpx2.AsyncClient() as client:
        said = (await client.get(f"http://{address}/metrics")).text
    assert [line for line in said.splitlines() if not line.startswith("#")] == ["ours 2.0", "of_others 1"]
