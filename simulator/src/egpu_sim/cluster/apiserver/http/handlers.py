"""The verbs: HTTP methods on a resource's path, given a parsed call."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from egpu_sim.cluster.apiserver.access.reviews import Reviews
from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.http.negotiation import Form, read_any, read_body
from egpu_sim.cluster.apiserver.nodes import metrics
from egpu_sim.cluster.apiserver.nodes.logs import LogFinder, LogReader
from egpu_sim.cluster.apiserver.nodes.streaming import running_container
from egpu_sim.cluster.apiserver.patching import applying
from egpu_sim.cluster.apiserver.patching.dispatch import JSON_PATCH, Patcher
from egpu_sim.cluster.apiserver.patching.json_patch import json_patch, merge_patch
from egpu_sim.cluster.apiserver.reading import absent, reads
from egpu_sim.cluster.apiserver.reading.watch import Hub, Watch
from egpu_sim.cluster.apiserver.status import (
    forbidden_field,
    invalid_object,
    method_not_allowed,
    no_such_path,
    required,
    success,
)
from egpu_sim.cluster.apiserver.storage.store import Store, Stored
from egpu_sim.cluster.apiserver.writing import scale, strict
from egpu_sim.cluster.apiserver.writing.deletion import DeleteOptions, Deleter
from egpu_sim.cluster.apiserver.writing.disruption import Evictions
from egpu_sim.cluster.apiserver.writing.writes import Writer
from egpu_sim.cluster.trees import Json, as_object, encode, metadata

Body: TypeAlias = bytes | AsyncIterator[bytes]


@dataclass
class Answer:
    """A response: a whole body, or a stream of chunks."""

    body: Body
    code: int = 200
    content_type: str = "application/json"
    headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class Handlers:
    def __init__(
        self,
        store: Store,
        *,
        hub: Hub,
        writer: Writer,
        deleter: Deleter,
        patcher: Patcher,
        logs: LogFinder,
        reviews: Reviews,
    ) -> None:
        self._store = store
        self._hub = hub
        self._writer = writer
        self._deleter = deleter
        self._evictions = Evictions(store, deleter)
        self._patcher = patcher
        self._logs = logs
        self._reviews = reviews
        self._metrics = metrics.Metrics(store)

    async def handle(self, call: Call, raw: bytes, content_type: str, form: Form) -> Answer:
        if call.subresource:
            return await self._subresource(call, raw, content_type, form)
        if call.verb not in call.resource.verbs:
            raise method_not_allowed()
        absent.check_kind(call)
        if call.resource.group == metrics.GROUP:
            return Answer(encode(await self._metrics.answer(call)))
        match call.verb:
            case "get":
                return Answer(reads.shown(call, self._writer.existing(call), form))
            case "list":
                return Answer(reads.list_objects(call, self._store, form))
            case "watch":
                return Answer(Watch(self._hub, call, form).chunks())
            case "create":
                return await self._create(call, _body(call, raw, content_type), form)
            case "update":
                return self._answer(call, await self._writer.replace(call, _body(call, raw, content_type)), form)
            case "patch":
                item, created = await self._patch(call, raw, content_type)
                return self._answer(call, item, form, code=201 if created else 200)
            case "delete":
                options = DeleteOptions.read(_options(raw, content_type), dict(call.query))
                item, gone = await self._deleter.delete(call, options)
                return Answer(reads.deleted(call, item, gone=gone))
            case _:
                return await self._delete_collection(call, raw, content_type)

    def _answer(self, call: Call, item: Stored, form: Form, *, code: int = 200) -> Answer:
        return Answer(reads.shown(call, item, form), code)

    async def _patch(self, call: Call, raw: bytes, content_type: str) -> tuple[Stored, bool]:
        """Return (the object, whether it was created)."""
        media = content_type.partition(";")[0].strip()
        if media in applying.MEDIA_TYPES:
            config = applying.read(call, raw)
            strict.report_duplicates(call, raw, "yaml")
            return await self._writer.apply(call, config)
        if "force" in call.query:
            cause = forbidden_field("force", "may not be specified for non-apply patch")
            raise invalid_object("meta.k8s.io", "PatchOptions", "", [cause])
        return await self._writer.change(call, self._patcher.change(call, content_type, raw)), False

    async def _create(self, call: Call, body: Json, form: Form) -> Answer:
        if not call.resource.shelf:
            return Answer(encode(self._reviews.answer(call, body)), 201)
        if call.resource.shelf == "bindings":
            return await self._bind_by_name(call, body)
        return self._answer(call, await self._writer.create(call, body), form, code=201)

    async def _bind_by_name(self, call: Call, body: Json) -> Answer:
        """Handle POST bindings, the older path, where the Binding's own name is the pod's."""
        pods = self._pods(call)
        pods.name = str(metadata(body).get("name") or "")
        if not pods.name:
            raise invalid_object("", "Binding", "", [required("metadata.name")])
        await self._writer.bind(pods, body)
        return Answer(encode(success()), 201)

    def _pods(self, call: Call) -> Call:
        resource = self._patcher.registry.get("", "v1", "pods")
        assert resource is not None
        return Call("create", resource, call.user, call.namespace, call.name, "binding", call.query, call.warnings)

    async def _delete_collection(self, call: Call, raw: bytes, content_type: str) -> Answer:
        options = DeleteOptions.read(_options(raw, content_type), dict(call.query))
        selection = reads.Selection.of(call)
        items = [
            item for _, item in sorted(self._store.shelf(call.resource.shelf).items.items()) if selection.has(item)
        ]
        for item in items:
            one = Call(
                "delete", call.resource, call.user, item.key[0], item.key[1], query=call.query, warnings=call.warnings
            )
            if self._store.get(call.resource.shelf, item.key) is not None:
                await self._deleter.delete(one, options)
        return Answer(reads.collected(call, items, self._store.revision))

    async def _subresource(self, call: Call, raw: bytes, content_type: str, form: Form) -> Answer:
        sub = call.resource.subresource(call.subresource)
        if sub is None:
            raise no_such_path()
        if call.verb not in sub.verbs:
            raise method_not_allowed()
        match call.subresource:
            case "status" | "resize":
                return self._answer(call, await self._part(call, raw, content_type), form)
            case "scale":
                return Answer(encode(await self._scale(call, raw, content_type)))
            case "binding":
                await self._writer.bind(call, read_body(raw, content_type))
                return Answer(encode(success()), 201)
            case "eviction":
                await self._evictions.evict(call, read_body(raw, content_type))
                return Answer(encode(success()), 201)
            case "log":
                reader = LogReader(self._store, self._logs, call, self._writer.existing(call), call.query)
                return Answer(reader.chunks(), content_type="text/plain")
            case "exec" | "attach":
                # A WebSocket does not come here. kubectl tries SPDY after a refused WebSocket, and gets the reason
                # again.
                running_container(call, call.query, self._writer.existing(call).obj)
                raise absent.of_subresource(call)
            case _:
                raise absent.of_subresource(call)

    async def _scale(self, call: Call, raw: bytes, content_type: str) -> Json:
        """Read or set replicas alone; a patch applies to the Scale."""
        if call.verb == "get":
            return scale.shown(call, self._writer.existing(call))
        body = read_any(raw, content_type if call.verb == "update" else "application/json")
        media = content_type.partition(";")[0].strip()

        def change(served: Json) -> Json:
            wanted = body
            if call.verb == "patch":
                now = scale.shown(call, self._writer.existing(call))
                wanted = json_patch(now, body) if media == JSON_PATCH else merge_patch(now, body)
            return scale.scaled(call, served, as_object(wanted))

        return scale.shown(call, await self._writer.change(call, change))

    async def _part(self, call: Call, raw: bytes, content_type: str) -> Stored:
        match call.verb:
            case "update":
                return await self._writer.replace(call, _body(call, raw, content_type))
            case "patch":
                return (await self._patch(call, raw, content_type))[0]
            case _:
                return self._writer.existing(call)


def _body(call: Call, raw: bytes, content_type: str) -> Json:
    """Return the object in a request's body. Raises RequestRefused."""
    body = read_body(raw, content_type, kind=call.resource.kind)
    if "protobuf" not in content_type:
        strict.report_duplicates(call, raw, content_type)
    return body


def _options(raw: bytes, content_type: str) -> Json:
    value: Any = read_any(raw, content_type) if raw else {}
    return as_object(value)
