"""A small typed Kubernetes client: one method per verb, our own errors, no client-side rate limit.

Reads and repeatable writes are retried with backoff while the API server is unavailable. Creating, binding and evicting
are sent once. Without an answer they raise OutcomeUnknown, and the caller reads again to learn the truth.

Our types hold only the fields that we use, so `replace` is for kinds that are wholly ours; the rest is patched.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import httpx2
import msgspec
import structlog

from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, Gone, Unavailable
from egpu_base.kubernetes import lists
from egpu_base.kubernetes.connection import connect
from egpu_base.kubernetes.exchanges import Exchanges, LongAnswer
from egpu_base.kubernetes.failures import Outages, Status, from_answer, from_status, from_transport
from egpu_base.kubernetes.lists import Asked, Large, Listed, T, WatchEvent
from egpu_base.kubernetes.paths import path_of
from egpu_base.kubernetes.transport import Answer, Transport

PAGE_SIZE = 500
PAGE_BYTES = 16 * 1024 * 1024
"""A page of lists that is larger is asked for again with fewer objects: 500 of an API server's largest are 700 MiB."""
LONGEST_PAGE_BYTES = 64 * 1024 * 1024
"""Of one object. etcd takes 1.5 MiB, and JSON may take several times as much."""
ATTEMPTS = 4
BACKOFF_SECONDS = 0.1
WATCH_SECONDS = 240
JSON = "application/json"
Params = Mapping[str, str] | None

log = structlog.get_logger(__name__)


class Client:
    """A client of one API server. Use it as an async context manager, or call `close()`."""

    def __init__(
        self, http: httpx2.AsyncClient, *, namespace: str = "default", transport: Transport | None = None
    ) -> None:
        """Use `http`; `transport` is its transport, where that is ours."""
        self._http = http
        self._exchanges = Exchanges(http, transport)
        self._outages = Outages()
        self.namespace = namespace

    @classmethod
    def from_kubeconfig(cls, kubeconfig: Path | str | None = None, *, context: str | None = None) -> Self:
        """See `connection.connect`; None means in-cluster, $KUBECONFIG or ~/.kube/config. Raises InvalidInput."""
        found = connect(kubeconfig, context=context)
        return cls(found.http, namespace=found.namespace, transport=found.transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # ------------------------------------------------------------------ reads

    async def get(self, kind: type[T], name: str, *, namespace: str | None = None) -> T:
        """Get an object. Raises NotFound, Unavailable, Refused, CorruptData."""
        path = path_of(kind, namespace, name)
        return self._decode(kind, await self._send("GET", path), f"GET {path}")

    async def find(self, kind: type[T], name: str, *, namespace: str | None = None) -> T | None:
        """Return the object, or None."""
        path = path_of(kind, namespace, name)
        content = await self._exchange("GET", path, allow_missing=True)
        return None if content is None else self._decode(kind, content, f"GET {path}")

    async def list(self, kind: type[T], **asked: Unpack[Asked[T]]) -> Sequence[T]:
        """Return all objects, page by page. One that does not decode is logged and left out."""
        objects, _ = await self.list_at(kind, **asked)
        return objects

    async def list_at(self, kind: type[T], **asked: Unpack[Asked[T]]) -> tuple[Sequence[T], str]:
        """Return all objects and the resourceVersion to watch from. Start over once if a page token has expired."""
        for last in (False, True):
            try:
                pages = [one async for one in self.pages(kind, **asked)]
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
        transform: Callable[[T], T] = lists.same,
        large: Large[T] = None,
    ) -> AsyncGenerator[Listed[T]]:
        """Yield all objects in pages of at most PAGE_SIZE and PAGE_BYTES, at least one. Raises Gone if a token expires.
        `transform` reduces each object before the next is decoded; `large` reads those of more than LARGE_BYTES."""
        async for page in self.raw_pages(path_of(kind, namespace), lists.selectors(labels, fields)):
            each = (self._decode_or_skip(kind, raw, large) for raw in page.items or [])
            found, version = [transform(one) for one in each if one is not None], page.metadata.resource_version
            del page  # while the caller works on the objects
            yield Listed(found, version)

    async def raw_pages(self, path: str, params: dict[str, str], size: int = PAGE_SIZE) -> AsyncGenerator[lists.Page]:
        """Yield a list as sent, in pages with the limits of `pages`. `params` gets the token of the next page."""
        while True:
            most = PAGE_BYTES if size > 1 else LONGEST_PAGE_BYTES
            try:
                content = await self._exchange("GET", path, params=params | {"limit": str(size)}, most=most)
            except LongAnswer as error:
                if size == 1:
                    raise CorruptData(f"GET {path}: an object is larger than {most} bytes") from error
                size = max(1, size // 8)
                continue
            assert content is not None
            found = [msgspec.json.decode(content, type=lists.Page)]
            params["continue"] = found[0].metadata.continue_
            size = PAGE_SIZE if 2 * len(content) < PAGE_BYTES * size // PAGE_SIZE else size
            del content
            yield found.pop()  # not kept while the caller works on it
            if not params["continue"]:
                return

    async def watch(
        self,
        kind: type[T],
        *,
        resource_version: str,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        timeout_seconds: int = WATCH_SECONDS,
        large: Large[T] = None,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield changes after `resource_version` until the server ends the stream (after `timeout_seconds`).

        Raises:
            Gone: the version has expired; list again.
            Unavailable: the stream broke or fell silent.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        } | lists.selectors(labels, fields)
        what = f"watch {kind.resource.plural}"
        silent = httpx2.Timeout(10.0, read=timeout_seconds + 15.0)
        try:
            async with self._http.stream("GET", path_of(kind, namespace), params=params, timeout=silent) as response:
                if response.status_code != 200:
                    answer = Answer(response.status_code, await response.aread())
                    raise self._outages.judge(from_answer(answer, what))
                reader = lists.reader_of(kind)
                async for line in lists.lines_of(response):
                    if large is not None and len(line) > lists.LARGE_BYTES:
                        yield self._any_event(kind, line, what, large)
                    else:
                        yield self._event(kind, reader, line, what)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._outages.judge(Unavailable(f"{what}: {type(error).__name__} {error}")) from error

    def _event(
        self, kind: type[T], reader: msgspec.json.Decoder[lists.ReadLine[T]], line: bytes, what: str
    ) -> WatchEvent[T]:
        """Read one line; most lines say that an object changed, and decode in one step."""
        try:
            read = reader.decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return self._any_event(kind, line, what)
        match read.type:
            case "ADDED" | "MODIFIED" | "DELETED" as change:
                return WatchEvent(change, read.object.metadata, read.object)
            case _:
                return self._any_event(kind, line, what)

    def _any_event(self, kind: type[T], line: bytes, what: str, large: Large[T] = None) -> WatchEvent[T]:
        try:
            event = msgspec.json.decode(line, type=lists.WatchLine)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Unavailable(f"{what}: not a watch event: {line[:200]!r}") from error
        if event.type == "ERROR":
            raise from_status(msgspec.json.decode(event.object, type=Status), what)
        identity = msgspec.json.decode(event.object, type=lists.Identified).metadata
        match event.type:
            case "BOOKMARK":
                return WatchEvent("BOOKMARK", identity, None)
            case "ADDED" | "MODIFIED" | "DELETED" as change:
                return WatchEvent(change, identity, self._decode_or_skip(kind, event.object, large))
            case other:
                raise Unavailable(f"{what}: unknown event type {other!r}")

    # ------------------------------------------------------------------ writes

    async def create(self, kind: type[T], obj: T, *, namespace: str | None = None) -> T:
        """Create an object. Raises AlreadyExists, Refused, OutcomeUnknown."""
        path = path_of(kind, namespace or obj.namespace or None)
        return self._decode(kind, await self._send("POST", path, body=obj, attempts=1), f"POST {path}")

    async def replace(self, kind: type[T], obj: T, *, subresource: str | None = None) -> T:
        """PUT an object with its resourceVersion. Raises Conflict when it changed meanwhile."""
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
        """Send a JSON merge patch. With metadata.resourceVersion (and uid) inside, raises Conflict after a change."""
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
        """Send an RFC 6902 patch once, because an operation such as "add" to a list is not repeatable."""
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
        """Delete the object; with another UID than `uid`, if given, raise Conflict. A missing object is success."""
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
        """POST pods/NAME/binding: set the node and the annotations in one atomic call.

        The pod must still be the one of this `uid`, unbound, and (if given) at this `resource_version`.

        Raises:
            Conflict: it is already bound, another pod has its name, or it changed.
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
        """POST pods/NAME/eviction: delete the pod of this `uid` with its grace period; `dry_run` only asks. Raises
        BudgetSpent if a PodDisruptionBudget forbids it now, NotFound, Conflict for another pod of that name."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
        await self._send("POST", path_of(Pod, namespace, name, "eviction"), body=body, attempts=1)

    # ------------------------------------------------------------------ plumbing

    async def raw(
        self, method: str, path: str, *, body: Any = None, params: Params = None, of: str = JSON, most: int = 0
    ) -> Any:
        """Send any other request once, as plain JSON values; `of` is the body's type, `most` as in `_exchange`."""
        content = await self._exchange(method, path, body=body, params=params, content_type=of, attempts=1, most=most)
        return msgspec.json.decode(content) if content else None

    async def text(self, path: str, *, params: Mapping[str, str] | None = None) -> str:
        """GET a plain text (a pod's log)."""
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
        most: int = 0,
    ) -> bytes | None:
        """Return the body of the answer to one exchange with its retries; None only if `allow_missing` and the server
        answers 404. `most`: raise LongAnswer if it has more bytes than that."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": "application/json"} | ({"Content-Type": content_type} if content is not None else {})
        what = f"{method} {path}"
        for attempt in range(1, attempts + 1):
            try:
                if most:
                    answer = await self._exchanges.ask_bounded(path, params=params or {}, headers=headers, most=most)
                else:
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
            failure = self._outages.judge(failure)
            if attempt == attempts or not isinstance(failure, Unavailable):
                raise failure from cause
            await asyncio.sleep(BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    def _decode(self, kind: type[T], content: bytes, what: str) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise CorruptData(f"{what}: {error}") from error

    def _decode_or_skip(self, kind: type[T], raw: msgspec.Raw, large: Large[T]) -> T | None:
        """Decode one object or skip it: one unreadable object must not hide all the others."""
        try:
            if large is not None and len(memoryview(raw)) > lists.LARGE_BYTES:
                return large(raw)
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("object left out: it does not decode", kind=kind.__name__, reason=str(error))
            return None
