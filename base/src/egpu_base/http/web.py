"""Serve HTTP from inside a process that also does other work: health, readiness, metrics, TLS, clean shutdown."""

import asyncio
import contextlib
import os
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from egpu_base.errors import InvalidInput
from egpu_base.http.post_server import Posts
from egpu_base.http.protocol import BoundedProtocol
from egpu_base.http.server import Server

GRACE_SECONDS = 2
IDLE_SECONDS = 120
"""The time that a connection may be idle: longer than any client of ours keeps one (Go's HTTP client, and with it
kube-apiserver and kube-scheduler, 90 s). A server that closes earlier sometimes does so while the next request is on
its way; a POST is then not sent again, and a pod is refused or not placed without need."""
BODY_SECONDS = 20.0
"""The limit for receiving a request's body, so that a slow sender cannot keep its place for ever."""

Handler = Callable[[Request], Awaitable[Response]]


class TLS:
    """A server's TLS whose certificate, and whose clients' authority, can be replaced while it serves. `context` is for
    the next handshake; existing connections keep theirs."""

    def __init__(self, *, client_ca: Path | None = None, versions: Sequence[str] = ()) -> None:
        """Accept only clients with a certificate from `client_ca`, if given. `versions` of HTTP are offered, the best
        first. Raises InvalidInput."""
        self.client_ca = client_ca
        self._versions = versions
        self.context = self._new_context()

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._versions:
            context.set_alpn_protocols(list(self._versions))
        if self.client_ca is not None:
            try:
                context.load_verify_locations(cafile=self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise InvalidInput("client-ca", f"cannot use {self.client_ca}: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def load_files(self, certificate: Path, key: Path) -> None:
        """Load both files, or change nothing. Raises InvalidInput."""
        context = self._new_context()  # a trusted authority cannot be removed from a context
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput("tls", f"cannot use {certificate} with {key}: {error}") from error
        self.context = context

    def load(self, certificate: bytes, key: bytes) -> None:
        """Load PEM texts, by way of files that only we can read, for a moment. Raises InvalidInput."""
        with tempfile.TemporaryDirectory(prefix="egpu-tls-") as folder:
            paths = Path(folder, "tls.crt"), Path(folder, "tls.key")
            for path, content in zip(paths, (certificate, key), strict=True):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
            self.load_files(*paths)


def health_routes(
    not_ready: Callable[[], str | None] = lambda: None,
    *,
    registry: CollectorRegistry = REGISTRY,
    around: Callable[[Handler], Handler] = lambda handler: handler,
    more: Callable[[], Awaitable[bytes]] | None = None,
) -> list[BaseRoute]:
    """Return the routes of `open_routes` and /metrics, whose handler `around` may restrict. `more` are series beside
    the registry's, in Prometheus' text format."""

    async def metrics(_: Request) -> Response:
        page = generate_latest(registry) + (b"" if more is None else await more())
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    return [*open_routes(not_ready), Route("/metrics", around(metrics))]


def open_routes(not_ready: Callable[[], str | None]) -> list[BaseRoute]:
    """Return /healthz (the event loop runs) and /readyz (503 with the reason from `not_ready`), for everyone."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = not_ready()
        return PlainTextResponse("ok\n") if reason is None else PlainTextResponse(f"{reason}\n", status_code=503)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


async def body_within(
    request: Request,
    limit_bytes: int,
    *,
    on_chunk: Callable[[int, asyncio.Timeout], None] = lambda size, deadline: None,
) -> bytes:
    """Return the request's body, held once. Raises HTTPException (413) as soon as it announces or shows that it is
    larger than the limit, without reading on, and (408) when it takes longer than BODY_SECONDS. `on_chunk` gets every
    part before it is kept, and may raise, or move the deadline forward."""
    too_large = HTTPException(413, f"body: larger than {limit_bytes} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS) as deadline:
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit_bytes:
                    raise too_large
                if on_chunk is not None:
                    on_chunk(len(chunk), deadline)
                body += chunk
    except TimeoutError as error:
        raise HTTPException(408, f"body: not complete within {BODY_SECONDS:g} s (less under load)") from error
    return bytes(body)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand in for an application where there is none."""


async def serve(app: ASGIApp | Posts, sockets: Sequence[socket.socket], *, tls: TLS | None = None) -> None:
    """Serve until cancelled, then finish requests that have begun within GRACE_SECONDS."""
    config = uvicorn.Config(
        _nothing if isinstance(app, Posts) else app,
        http=BoundedProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=IDLE_SECONDS,
    )
    posts = app if isinstance(app, Posts) else None
    server = Server(config, tls=None if tls is None else lambda: tls.context, posts=posts)
    serving = asyncio.create_task(server.serve(list(sockets)))
    try:
        await asyncio.shield(serving)
    finally:
        server.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([serving], timeout=GRACE_SECONDS + 1)
        for sock in sockets:
            sock.close()
