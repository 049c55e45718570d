"""The ASGI application: paths, authentication, limits, and errors as Status objects."""

import json
import re
from urllib.parse import parse_qsl

import structlog
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.access.authorization import Authorizer, Wanted
from egpu_sim.cluster.apiserver.access.identities import Tokens
from egpu_sim.cluster.apiserver.calls import Call, User
from egpu_sim.cluster.apiserver.http import discovery, openapi_protobuf
from egpu_sim.cluster.apiserver.http.handlers import Answer, Handlers
from egpu_sim.cluster.apiserver.http.negotiation import Form, accepted_form
from egpu_sim.cluster.apiserver.http.openapi import Documents
from egpu_sim.cluster.apiserver.kinds.resources import Registry
from egpu_sim.cluster.apiserver.nodes.streaming import STREAMED, Streaming
from egpu_sim.cluster.apiserver.status import (
    PAGE_NOT_FOUND,
    internal,
    method_not_allowed,
    no_such_path,
    page_not_found,
    too_large,
    unauthorized,
)
from egpu_sim.cluster.trees import encode

log = structlog.get_logger(__name__)

BODY_LIMIT = 3 * 1024 * 1024
"""The most bytes of a request's body, as in the real server."""
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/livez", "/version"})
"""Served without authentication."""

_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_UNSAFE_IN_HEADER = re.compile(r"[^\x20-\x7e]")


class App:
    def __init__(
        self, registry: Registry, handlers: Handlers, streaming: Streaming, tokens: Tokens, authorizer: Authorizer
    ) -> None:
        self._registry = registry
        self._handlers = handlers
        self._streaming = streaming
        self._authorizer = authorizer
        self._tokens = tokens
        self._documents = Documents(registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._streamed(WebSocket(scope, receive, send))
            return
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        warnings: list[str] = []
        try:
            answer = await self._answer(request, warnings)
        except RequestRefused as error:
            answer = _refusal(error)
        except ClientDisconnect:
            return
        except Exception as error:
            log.exception("request.failed", method=request.method, path=request.url.path)
            answer = Answer(encode(internal(f"{type(error).__name__}: {error}").status), 500)
        answer.headers += [("Warning", _warning(text)) for text in warnings[:16]]
        await _respond(answer, scope, receive, send)

    async def _streamed(self, socket: WebSocket) -> None:
        """Return the streaming subresource of a WebSocket request. It needs the right to `create`."""
        parts = str(socket.scope["path"]).strip("/").split("/")
        await socket.receive()
        try:
            user = self._tokens.user(socket.headers.get("authorization", ""))
            if user is None:
                raise unauthorized()
            if parts[:2] != ["api", "v1"] or parts[-1] not in STREAMED:
                raise no_such_path()
            call = self._call(socket, "POST", user, group="", version="v1", rest=parts[2:])
            self._authorizer.check(user, Wanted.by(call))
            await self._streaming.serve(call, socket)
        except RequestRefused as error:
            await socket.send_denial_response(Response(encode(error.status), error.code))
        except WebSocketDisconnect:
            return

    async def _answer(self, request: Request, warnings: list[str]) -> Answer:
        path = str(request.scope["path"]).rstrip("/") or "/"
        if path in OPEN_PATHS:
            return Answer(encode(discovery.VERSION)) if path == "/version" else Answer(b"ok", content_type="text/plain")
        user = self._tokens.user(request.headers.get("authorization", ""))
        if user is None:
            raise unauthorized()
        parts = path.strip("/").split("/")
        if parts[0] in ("api", "apis"):
            return await self._api(request, user, parts, warnings)
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        self._authorizer.check(user, Wanted("get", path=path))
        return self._document(request, path)

    def _document(self, request: Request, path: str) -> Answer:
        accept = request.headers.get("accept", "")
        if path == "/openapi/v2":
            if "proto-openapi.spec.v2" in accept:
                return Answer(self._documents.v2_protobuf(), content_type=openapi_protobuf.MEDIA_TYPE)
            return Answer(self._documents.v2_json())
        if path == "/openapi/v3":
            return Answer(self._documents.v3_index())
        document = self._documents.v3(path.removeprefix("/openapi/v3/")) if path.startswith("/openapi/v3/") else None
        if document is not None:
            return Answer(document)
        if path == "/":
            groups = [f"/apis/{g}/{v}" if g else f"/api/{v}" for g, vs in self._registry.groups().items() for v in vs]
            paths = ["/api", "/apis", *sorted(groups), *sorted(OPEN_PATHS), "/openapi/v2", "/openapi/v3"]
            return Answer(encode({"paths": paths}))
        raise no_such_path()

    async def _api(self, request: Request, user: User, parts: list[str], warnings: list[str]) -> Answer:
        depth = 2 if parts[0] == "api" else 3
        form = accepted_form(request.headers.get("accept", ""))
        if len(parts) <= depth:
            if request.method not in ("GET", "HEAD"):
                raise method_not_allowed()
            self._authorizer.check(user, Wanted("get", path=f"/{'/'.join(parts)}"))
            return self._discover(request, parts, form)
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        call = self._call(request, request.method, user, group=group, version=version, rest=parts[depth:])
        call.warnings = warnings
        self._authorizer.check(user, Wanted.by(call))
        if call.verb in ("get", "list", "watch"):
            return await self._handlers.handle(call, b"", "", form)
        raw = await _read(request)
        return await self._handlers.handle(call, raw, request.headers.get("content-type", ""), form)

    def _discover(self, request: Request, parts: list[str], form: Form) -> Answer:
        core = parts[0] == "api"
        if len(parts) == 1:
            if form.kind == "APIGroupDiscoveryList":
                media = f"application/json;g=apidiscovery.k8s.io;v={form.version};as=APIGroupDiscoveryList"
                document = discovery.aggregated(self._registry, core=core, version=form.version)
                return Answer(encode(document), content_type=media)
            if core:
                return Answer(encode(discovery.api_versions(request.url.netloc)))
            return Answer(encode(discovery.group_list(self._registry)))
        if not core and len(parts) == 2:
            document = discovery.group(self._registry, parts[1])
            if document is None:
                raise no_such_path()
            return Answer(encode(document))
        group, version = ("", parts[1]) if core else (parts[1], parts[2])
        if not self._registry.has_version(group, version):
            raise page_not_found()
        return Answer(encode(discovery.resource_list(self._registry, group, version)))

    def _call(
        self, request: HTTPConnection, method: str, user: User, *, group: str, version: str, rest: list[str]
    ) -> Call:
        namespace = ""
        # /namespaces/NAME and /namespaces/NAME/status are the namespace itself; deeper paths are inside it
        if rest[0] == "namespaces" and len(rest) >= 3 and not (group == "" and rest[2] == "status" and len(rest) == 3):
            namespace, rest = rest[1], rest[2:]
        if not self._registry.has_version(group, version):
            raise page_not_found()
        resource = self._registry.get(group, version, rest[0])
        if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
            raise no_such_path()
        name, subresource = (*rest[1:], "", "")[:2]
        verb = _VERBS.get(method)
        if verb is None:
            raise method_not_allowed()
        query = dict(parse_qsl(request.scope["query_string"].decode(), keep_blank_values=True))
        if resource.namespaced and not namespace and (name or verb not in ("get", "delete")):
            raise no_such_path()
        if not name:
            if verb in ("update", "patch"):
                raise method_not_allowed()
            verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
        elif verb == "create" and not subresource:
            raise method_not_allowed()
        if verb in ("list", "get") and query.get("watch") in ("true", "1") and not subresource:
            verb = "watch"
        return Call(verb, resource, user, namespace, name, subresource, query, manager=_manager(request, query))


def _refusal(error: RequestRefused) -> Answer:
    if error.status["message"] == PAGE_NOT_FOUND:
        return Answer(f"{PAGE_NOT_FOUND}\n".encode(), error.code, content_type="text/plain; charset=utf-8")
    return Answer(encode(error.status), error.code)


def _manager(request: HTTPConnection, query: dict[str, str]) -> str:
    """Return the field manager: the request's, else the client program's name."""
    program = request.headers.get("user-agent", "").partition("/")[0]
    return (query.get("fieldManager") or program or "unknown")[:128]


async def _read(request: Request) -> bytes:
    """Return the whole body. Raises RequestRefused when it is too long."""
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_LIMIT:
            raise too_large(BODY_LIMIT)
        parts.append(chunk)
    return b"".join(parts)


def _warning(text: str) -> str:
    """Return a Warning header's value (RFC 7234, code 299)."""
    plain = _UNSAFE_IN_HEADER.sub("?", text)[:1024]
    return f"299 - {json.dumps(plain)}"


async def _respond(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    if isinstance(answer.body, bytes):
        response: Response = Response(answer.body, answer.code)
    else:
        response = StreamingResponse(answer.body, answer.code)
    response.headers["content-type"] = answer.content_type
    response.headers["cache-control"] = "no-cache, private"
    for name, value in answer.headers:
        response.headers.append(name, value)
    await response(scope, receive, send)
