"""A small typed Kubernetes client: one method per verb, our own errors, no client-side rate limit.

Reads and repeatable writes are tried again with backoff while the API server is unavailable. Creating, binding and
evicting are sent once: when no answer comes they raise OutcomeUnknown, and the caller reads again to learn the truth.

Our types hold only the fields we use, so `replace` is for kinds that are wholly ours; everything else is patched.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import msgspec
import structlog

from egpu.adapters.kubernetes.connection import connect
from egpu.adapters.kubernetes.exchanges import Exchanges
from egpu.adapters.kubernetes.failures import Status, from_answer, from_status, from_transport
from egpu.adapters.kubernetes.lists import Identified, Listed, Page, ReadLine, T, WatchEvent, WatchLine
from egpu.adapters.kubernetes.paths import path_of
from egpu.adapters.kubernetes.transport import Answer, Transport
from egpu.api.kubernetes import Pod
from egpu.errors import CorruptData, Gone, Unavailable

PAGE_SIZE = 500
ATTEMPTS = 4
BACKOFF_SECONDS = 0.1
MAX_WATCH_LINE_BYTES = 16 * 1024 * 1024
WATCH_SECONDS = 240

log = structlog.get_logger(__name__)


class Client:
    """Talks to one API server. Use as an async context manager, or call `close()`."""

    def __init__(
        self, http: httpx2.AsyncClient, *, namespace: str = "default", transport: Transport | None = None
    ) -> None:
        """`transport`: that of `http`, where it is ours."""
        self._http = http
        self._exchanges = Exchanges(http, transport)
        self.namespace = namespace

    @classmethod
    def from_kubeconfig(cls, kubeconfig: Path | str | None = None, *, context: str | None = None) -> Self:
        """See `connection.connect`; None means in-cluster, $KUBECONFIG or ~/.kube/config. Raises InvalidInput."""
        found = connect(kubeconfig, context=context)
        return cls(found.http, namespace=found.namespace, transport=found.transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # ------------------------------------------------------------------ reads

    async def get(self, kind: type[T], name: str, *, namespace: str | None = None) -> T:
        """Raises NotFound, Unavailable, Refused, CorruptData."""
        path = path_of(kind, namespace, name)
        return self._decode(kind, await self._send("GET", path), f"GET {path}")

    async def find(self, kind: type[T], name: str, *, namespace: str | None = None) -> T | None:
        """The object, or None where there is none."""
        path = path_of(kind, namespace, name)
        content = await self._exchange("GET", path, allow_missing=True)
        return None if content is None else self._decode(kind, content, f"GET {path}")

    async def list(
        self,
        kind: type[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Sequence[T]:
        """All objects, page by page. One that does not decode is logged and left out."""
        objects, _ = await self.list_at(kind, namespace=namespace, labels=labels, fields=fields)
        return objects

    async def list_at(
        self,
        kind: type[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> tuple[Sequence[T], str]:
        """All objects and the resourceVersion to watch from. A list whose page token expired is started over once."""
        for last in (False, True):
            try:
                pages = [one async for one in self.pages(kind, namespace=namespace, labels=labels, fields=fields)]
            except Gone:
                if last:
                    raise
            else:
                return [one for page in pages for one in page.objects], pages[-1].version
        raise AssertionError("unreachable")

    async def pages(
        self,
        kind: type[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> AsyncGenerator[Listed[T]]:
        """All objects, page by page, at least one. Raises Gone where a page token expired."""
        params: dict[str, str] = {"limit": str(PAGE_SIZE)} | _selectors(labels, fields)
        while True:
            content = await self._send("GET", path_of(kind, namespace), params=params)
            page = msgspec.json.decode(content, type=Page)
            found = [one for raw in page.items or [] if (one := self._decode_or_skip(kind, raw)) is not None]
            yield Listed(found, page.metadata.resource_version)
            if not page.metadata.continue_:
                return
            params["continue"] = page.metadata.continue_

    async def watch(
        self,
        kind: type[T],
        *,
        resource_version: str,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        timeout_seconds: int = WATCH_SECONDS,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Changes after `resource_version` until the server ends the stream (which it does after `timeout_seconds`).

        Raises:
            Gone: the version is no longer kept; list again.
            Unavailable: the stream broke or fell silent.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        } | _selectors(labels, fields)
        what = f"watch {kind.resource.plural}"
        silent = httpx2.Timeout(10.0, read=timeout_seconds + 15.0)
        try:
            async with self._http.stream("GET", path_of(kind, namespace), params=params, timeout=silent) as response:
                if response.status_code != 200:
                    raise from_answer(Answer(response.status_code, await response.aread()), what)
                reader = _reader(kind)
                async for line in _lines(response):
                    yield self._event(kind, reader, line, what)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise Unavailable(f"{what}: {type(error).__name__} {error}") from error

    def _event(self, kind: type[T], reader: msgspec.json.Decoder[ReadLine[T]], line: bytes, what: str) -> WatchEvent[T]:
        """Most lines say that an object changed, and can be read in one go."""
        try:
            read = reader.decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return self._any_event(kind, line, what)
        match read.type:
            case "ADDED" | "MODIFIED" | "DELETED" as change:
                return WatchEvent(change, read.object.metadata, read.object)
            case _:
                return self._any_event(kind, line, what)

    def _any_event(self, kind: type[T], line: bytes, what: str) -> WatchEvent[T]:
        try:
            event = msgspec.json.decode(line, type=WatchLine)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Unavailable(f"{what}: not a watch event: {line[:200]!r}") from error
        if event.type == "ERROR":
            raise from_status(msgspec.json.decode(event.object, type=Status), what)
        identity = msgspec.json.decode(event.object, type=Identified).metadata
        match event.type:
            case "BOOKMARK":
                return WatchEvent("BOOKMARK", identity, None)
            case "ADDED" | "MODIFIED" | "DELETED" as change:
                return WatchEvent(change, identity, self._decode_or_skip(kind, event.object))
            case other:
                raise Unavailable(f"{what}: unknown event type {other!r}")

    # ------------------------------------------------------------------ writes

    async def create(self, kind: type[T], obj: T, *, namespace: str | None = None) -> T:
        """Raises AlreadyExists, Refused, OutcomeUnknown."""
        path = path_of(kind, namespace or obj.namespace or None)
        return self._decode(kind, await self._send("POST", path, body=obj, attempts=1), f"POST {path}")

    async def replace(self, kind: type[T], obj: T, *, subresource: str | None = None) -> T:
        """PUT of an object that carries its resourceVersion. Raises Conflict when it changed meanwhile."""
        path = path_of(kind, obj.namespace or None, obj.name, subresource)
        return self._decode(kind, await self._send("PUT", path, body=obj), f"PUT {path}")

    async def patch(
        self,
        kind: type[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> T:
        """JSON merge patch; put metadata.resourceVersion (and uid) inside to raise Conflict when it has changed."""
        path = path_of(kind, namespace, name, subresource)
        content = await self._send("PATCH", path, body=patch, content_type="application/merge-patch+json")
        return self._decode(kind, content, f"PATCH {path}")

    async def patch_json(
        self,
        kind: type[T],
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> T:
        """RFC 6902 patch. Sent once, because an operation such as "add" to a list is not repeatable."""
        path = path_of(kind, namespace, name, subresource)
        content = await self._send(
            "PATCH", path, body=operations, content_type="application/json-patch+json", attempts=1
        )
        return self._decode(kind, content, f"PATCH {path}")

    async def delete(
        self,
        kind: type[T],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> None:
        """Deletes the very object meant, if `uid` says which, else raises Conflict. A missing object is success."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if wanted := {key: value for key, value in preconditions.items() if value is not None}:
            options["preconditions"] = wanted
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        await self._exchange("DELETE", path_of(kind, namespace, name), body=options, allow_missing=True)

    async def bind(
        self,
        name: str,
        node: str,
        *,
        namespace: str,
        uid: str,
        resource_version: str | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """POST pods/NAME/binding: sets the node and the annotations in one atomic call.

        The pod must still be the one of this `uid`, unbound, and (if given) at this `resource_version`.

        Raises:
            Conflict: it is bound already, another pod has the name, or it changed.
            OutcomeUnknown: no answer; read the pod.
        """
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
        if resource_version is not None:
            metadata["resourceVersion"] = resource_version
        if annotations:
            metadata["annotations"] = dict(annotations)
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._send("POST", path_of(Pod, namespace, name, "binding"), body=body, attempts=1)

    async def evict(self, name: str, *, namespace: str, uid: str, dry_run: bool = False) -> None:
        """POST pods/NAME/eviction: deletes the pod of this `uid` with its grace period; `dry_run` only asks. Raises
        BudgetSpent where a PodDisruptionBudget forbids it now, NotFound, Conflict for another pod of the name."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
        await self._send("POST", path_of(Pod, namespace, name, "eviction"), body=body, attempts=1)

    # ------------------------------------------------------------------ plumbing

    async def raw(self, method: str, path: str, *, body: Any = None, params: Mapping[str, str] | None = None) -> Any:
        """Any other request, as plain JSON values, sent once."""
        content = await self._send(method, path, body=body, params=params, attempts=1)
        return msgspec.json.decode(content) if content else None

    async def text(self, path: str, *, params: Mapping[str, str] | None = None) -> str:
        """A GET that answers in plain text (a pod's log)."""
        return (await self._send("GET", path, params=params)).decode(errors="replace")

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        attempts: int = ATTEMPTS,
    ) -> bytes:
        content = await self._exchange(
            method, path, body=body, params=params, content_type=content_type, attempts=attempts
        )
        assert content is not None
        return content

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        attempts: int = ATTEMPTS,
        allow_missing: bool = False,
    ) -> bytes | None:
        """The body of the answer to one exchange with its retries. None only where `allow_missing` and the server says
        404."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": "application/json"} | ({"Content-Type": content_type} if content is not None else {})
        what = f"{method} {path}"
        for attempt in range(1, attempts + 1):
            try:
                answer = await self._exchanges.ask(method, path, content=content, params=params, headers=headers)
            except httpx2.HTTPError as error:
                failure = from_transport(error, what, method=method)
                cause: Exception | None = error
            else:
                if 200 <= answer.status < 300:
                    return answer.content
                if answer.status == 404 and allow_missing:
                    return None
                failure, cause = from_answer(answer, what, method=method), None
            if attempt == attempts or not isinstance(failure, Unavailable):
                raise failure from cause
            await asyncio.sleep(BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    def _decode(self, kind: type[T], content: bytes, what: str) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CorruptData(f"{what}: {error}") from error

    def _decode_or_skip(self, kind: type[T], raw: msgspec.Raw) -> T | None:
        """One object nobody can read must not hide all the others."""
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("object left out: it does not decode", kind=kind.__name__, reason=str(error))
            return None


def _reader(kind: type[T]) -> msgspec.json.Decoder[ReadLine[T]]:
    return msgspec.json.Decoder(ReadLine[kind])


def _selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    pairs = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in pairs.items() if value is not None}


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_WATCH_LINE_BYTES:
            raise Unavailable(f"a watch event is larger than {MAX_WATCH_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                yield line
