"""Pages of a component for kubelet, Prometheus and people: health for everyone, the rest for authorized readers.

The API server authorizes, as for Kubernetes' own components: a TokenReview identifies the bearer token, a
SubjectAccessReview checks that a role gives that user `get` on the path (`nonResourceURLs`). No answer: no access.
"""

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from egpu_base.errors import ElasticGPUError
from egpu_base.http.listening import bound
from egpu_base.http.web import TLS, Handler, health_routes, serve
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.reviews import Remembered, Reviews, bearer_token
from egpu_base.tls.certificates import issue

MAX_REMEMBERED = 256


@dataclass(frozen=True)
class Verdict:
    """The result of a check: 200, or the status and text of a refusal."""

    status: int
    words: str = ""
    headers: tuple[tuple[str, str], ...] = ()


_ALLOWED = Verdict(200)
_WHO = Verdict(401, "send a bearer token", (("WWW-Authenticate", "Bearer"),))


class Guard:
    """Ask the API server, and cache its answers for a while."""

    def __init__(self, client: Client) -> None:
        self._reviews = Reviews(client)
        self._verdicts = Remembered[Verdict](MAX_REMEMBERED)

    def around(self, handler: Handler) -> Handler:
        """Wrap the handler: only authorized readers of its path reach it."""

        async def guarded(request: Request) -> Response:
            verdict = await self.verdict(request.headers.get("authorization", ""), request.url.path)
            if verdict.status == 200:
                return await handler(request)
            return PlainTextResponse(f"{verdict.words}\n", verdict.status, headers=dict(verdict.headers))

        return guarded

    async def verdict(self, authorization: str, path: str) -> Verdict:
        """Check whether the bearer of an `Authorization` header may get the path."""
        token = bearer_token(authorization)
        if token is None:
            return _WHO
        try:
            return await self._verdicts.get(f"{path}\0{token}", lambda: self._ask(token, path))
        except ElasticGPUError as error:
            return Verdict(503, f"the API server cannot authorize this request now: {error}")

    async def _ask(self, token: str, path: str) -> Verdict:
        asker = await self._reviews.asker(token)
        if asker is None:
            return _WHO
        if await self._reviews.may(asker, nonResourceAttributes={"path": path, "verb": "get"}):
            return _ALLOWED
        return Verdict(403, f"{asker.name} may not get {path}: a ClusterRole with this nonResourceURL is needed")


def token_needed(file: Path) -> Callable[[Handler], Handler]:
    """Return a wrapper that requires the bearer token in a file, which may be replaced at any time. It is for
    components without an API server."""

    def around(handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            shown = bearer_token(request.headers.get("authorization", "")) or ""
            wanted = await asyncio.to_thread(_read_token, file)
            if wanted and hmac.compare_digest(shown.encode(), wanted.encode()):
                return await handler(request)
            return PlainTextResponse(f"{_WHO.words}\n", _WHO.status, headers=dict(_WHO.headers))

        return guarded

    return around


def _read_token(file: Path) -> str:
    """Return the token, or "" without one: then no token matches."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def monitoring_app(
    guard: Guard,
    not_ready: Callable[[], str | None],
    *,
    registry: CollectorRegistry = REGISTRY,
    more: Sequence[BaseRoute] = (),
    series: Callable[[], Awaitable[bytes]] | None = None,
) -> Starlette:
    """Return an application: /healthz and /readyz for everyone, /metrics behind the guard, and `more`, which guard
    themselves. `series` are added to the registry's, in Prometheus' text format."""
    routes = health_routes(not_ready, registry=registry, around=guard.around, more=series)
    return Starlette(routes=[*routes, *more])


async def serve_monitoring(app: Starlette, sock: socket.socket) -> None:
    """Serve the application until cancelled. Beyond loopback it uses TLS, so that tokens cannot be read on the way; it
    makes a self-signed certificate, as kubelet's probes and Prometheus' `insecure_skip_verify` expect."""
    listen = bound(sock)
    tls = None
    if not listen.loopback:
        made = issue([socket.gethostname()], now=datetime.now(UTC))
        tls = TLS()
        tls.load(made.certificate, made.key)
    await serve(app, [sock], tls=tls)
