"""What a component shows to kubelet, to Prometheus and to people: health for anybody, the rest for whoever may read it.

Who may is the API server's to say, as for Kubernetes' own components: a TokenReview tells whose bearer token it is, a
SubjectAccessReview whether a role gives that user `get` on the path (`nonResourceURLs`). Without an answer nobody may.
"""

import asyncio
import hashlib
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from egpu.adapters.certificates import issue
from egpu.adapters.kubernetes import Client
from egpu.adapters.web import TLS, Handler, bound, health_routes, serve
from egpu.errors import ElasticGPUError

REMEMBER_SECONDS = 30.0
"""How long an answer counts: so long a right may outlive the role that gave it."""
MAX_REMEMBERED = 256
MAX_ASKING = 4
"""Questions to the API server at once; made-up tokens must not keep it busy."""
MAX_WAITING = 64
MAX_TOKEN_CHARACTERS = 16 * 1024


@dataclass(frozen=True)
class Verdict:
    """200, or the status and the words of a refusal."""

    status: int
    words: str = ""
    headers: tuple[tuple[str, str], ...] = ()


_ALLOWED = Verdict(200)
_WHO = Verdict(401, "a bearer token of the cluster is needed", (("WWW-Authenticate", "Bearer"),))


class Guard:
    """Asks the API server, and remembers its answers for a while."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: OrderedDict[bytes, tuple[float, Verdict]] = OrderedDict()
        self._asking = asyncio.Semaphore(MAX_ASKING)
        self._waiting = 0

    def around(self, handler: Handler) -> Handler:
        """The handler, for those who may read its path."""

        async def guarded(request: Request) -> Response:
            verdict = await self.verdict(request.headers.get("authorization", ""), request.url.path)
            if verdict.status == 200:
                return await handler(request)
            return PlainTextResponse(f"{verdict.words}\n", verdict.status, headers=dict(verdict.headers))

        return guarded

    async def verdict(self, authorization: str, path: str) -> Verdict:
        """Whether the bearer of an `Authorization` header may get the path."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not 0 < len(token) <= MAX_TOKEN_CHARACTERS:
            return _WHO
        key = hashlib.sha256(f"{path}\0{token}".encode()).digest()
        since, known = self._known.get(key, (0.0, None))
        if known is not None and time.monotonic() - since < REMEMBER_SECONDS:
            return known
        if self._waiting >= MAX_WAITING:
            return Verdict(503, "too many are asking at once; try again")
        self._waiting += 1
        try:
            async with self._asking:
                verdict = await self._ask(token, path)
        except ElasticGPUError as error:
            return Verdict(503, f"the API server does not say who may read this: {error}")
        finally:
            self._waiting -= 1
        self._known[key] = time.monotonic(), verdict
        self._known.move_to_end(key)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return verdict

    async def _ask(self, token: str, path: str) -> Verdict:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        said = (await self._client.raw("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=review))["status"]
        if said.get("authenticated") is not True:
            return _WHO
        user: dict[str, Any] = said["user"]
        spec: dict[str, Any] = {
            "user": user.get("username", ""),
            "groups": user.get("groups") or [],
            "uid": user.get("uid", ""),
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        question = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._client.raw("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=question)
        if answer["status"].get("allowed") is True:
            return _ALLOWED
        return Verdict(403, f"{spec['user']} may not get {path}: a ClusterRole with this nonResourceURL is needed")


def monitoring_app(
    guard: Guard,
    not_ready: Callable[[], str | None],
    *,
    registry: CollectorRegistry = REGISTRY,
    more: Sequence[BaseRoute] = (),
    in_thread: bool = False,
) -> Starlette:
    """/healthz and /readyz for anybody, /metrics behind the guard, and `more`, which guard themselves. `in_thread`: the
    metrics take long, and may be collected beside the event loop."""
    routes = health_routes(not_ready, registry=registry, around=guard.around, in_thread=in_thread)
    return Starlette(routes=[*routes, *more])


async def serve_monitoring(app: Starlette, sock: socket.socket) -> None:
    """Serves it until cancelled. Beyond loopback in TLS, lest tokens be read on the way; the certificate is made at the
    start and signed by nobody, as kubelet's probes and Prometheus' `insecure_skip_verify` expect of components."""
    listen = bound(sock)
    tls = None
    if not listen.loopback:
        made = issue([socket.gethostname()], now=datetime.now(UTC))
        tls = TLS()
        tls.load(made.certificate, made.key)
    await serve(app, [sock], tls=tls)
