"""A pretend API server behind httpx2's transport seam: objects, versions, watches, bindings, and faults on demand."""

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver.patching.json_patch import PatchFailed, json_patch

Json = dict[str, Any]
Fault = Callable[["FakeAPI", httpx2.Request], httpx2.Response | None]
_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?$"
)


def status(code: int, reason: str = "", message: str = "") -> httpx2.Response:
    return httpx2.Response(code, json={"kind": "Status", "code": code, "reason": reason, "message": message or reason})


def merge(into: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(into) if isinstance(into, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


class FakeAPI(httpx2.AsyncBaseTransport):
    """`fault(api, request)` may answer instead, raise, or change the objects before the request is served."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.log: list[tuple[str, str]] = []
        self.bindings: list[str] = []
        """The names of pods to bind, without the tries at a version of the pod that has changed meanwhile."""
        self.history: list[tuple[str, str, Json]] = []
        self.changed = asyncio.Condition()
        self.fault: Fault | None = None
        self.uids = 0
        self.hold_watches = False

    def client(self) -> Client:
        return Client(httpx2.AsyncClient(base_url="http://api.test", transport=self))

    # ---- the objects, for tests

    def put(self, plural: str, obj: Json) -> Json:
        meta = obj.setdefault("metadata", {})
        key = (plural, meta.get("namespace", ""), meta["name"])
        kind = "MODIFIED" if key in self.objects else "ADDED"
        if "uid" not in meta:
            self.uids += 1
            meta["uid"] = f"uid-{self.uids}"
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        self.objects[key] = copy.deepcopy(obj)
        self.history.append((plural, kind, self.objects[key]))
        self._wake()
        return self.objects[key]

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        obj = copy.deepcopy(self.objects.pop((plural, namespace, name)))
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((plural, "DELETED", obj))
        self._wake()

    def get(self, plural: str, name: str, namespace: str = "") -> Json:
        return self.objects[(plural, namespace, name)]

    def all(self, plural: str) -> list[Json]:
        return [obj for (kind, _, _), obj in self.objects.items() if kind == plural]

    def _wake(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        self._task = asyncio.ensure_future(notify())

    # ---- the server

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        self.log.append((request.method, request.url.path))
        if self.fault is not None and (answer := self.fault(self, request)) is not None:
            return answer
        await asyncio.sleep(0)
        return self.serve(request)

    def serve(self, request: httpx2.Request) -> httpx2.Response:
        match = _PATH.match(request.url.path)
        assert match, request.url.path
        plural, namespace, name, sub = match["plural"], match["namespace"] or "", match["name"], match["sub"]
        body = json.loads(request.content) if request.content else {}
        if name is None:
            if request.method == "POST":
                if (plural, namespace, body["metadata"]["name"]) in self.objects:
                    return status(409, "AlreadyExists")
                body["metadata"].setdefault("namespace", namespace)
                return httpx2.Response(201, json=self.put(plural, body))
            if "watch" in request.url.params:
                since = int(request.url.params["resourceVersion"])
                return httpx2.Response(200, content=self._stream(plural, namespace, since, request))
            items = [obj for obj in self.all(plural) if self._selected(obj, namespace, request)]
            return httpx2.Response(200, json={"metadata": {"resourceVersion": str(self.version)}, "items": items})
        obj = self.objects.get((plural, namespace, name))
        if obj is None:
            return status(404, "NotFound")
        meta = obj["metadata"]
        if sub == "binding":
            wanted = body["metadata"]
            if wanted.get("uid", meta["uid"]) != meta["uid"] or obj["spec"].get("nodeName"):
                self.bindings.append(name)
                return status(409, "Conflict", "bound or other uid")
            if wanted.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
                return status(409, "Conflict", "resourceVersion")
            annotations = {**(meta.get("annotations") or {}), **(wanted.get("annotations") or {})}
            patch = {"metadata": {"annotations": annotations}, "spec": {"nodeName": body["target"]["name"]}}
            self.put(plural, merge(obj, patch))
            self.bindings.append(name)
            return httpx2.Response(201, json={"kind": "Status", "status": "Success"})
        if sub == "eviction":
            options = body["deleteOptions"]
            if options["preconditions"]["uid"] != meta["uid"]:
                return status(409, "Conflict", "uid")
            if not options.get("dryRun"):  # who is evicted takes time to end
                self.put(plural, merge(obj, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))
            return httpx2.Response(201, json={"kind": "Status", "status": "Success"})
        if request.method == "PATCH" and isinstance(body, list):
            try:
                return httpx2.Response(200, json=self.put(plural, json_patch(copy.deepcopy(obj), body)))
            except PatchFailed as error:
                return status(422, "Invalid", str(error))
        if request.method == "PATCH":
            wanted = body.get("metadata", {})
            for field in ("uid", "resourceVersion"):
                if wanted.get(field, meta[field]) != meta[field]:
                    return status(409, "Conflict", field)
            return httpx2.Response(200, json=self.put(plural, merge(copy.deepcopy(obj), body)))
        if request.method == "DELETE":
            for field, value in body.get("preconditions", {}).items():
                if meta[field] != value:
                    return status(409, "Conflict", field)
            if meta.get("finalizers"):
                meta.setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
                self.put(plural, obj)
            else:
                self.remove(plural, name, namespace)
            return httpx2.Response(200, json={"kind": "Status", "status": "Success"})
        return httpx2.Response(200, json=obj)

    def _selected(self, obj: Json, namespace: str, request: httpx2.Request) -> bool:
        if namespace and obj["metadata"].get("namespace") != namespace:
            return False
        selector = request.url.params.get("fieldSelector")
        if not selector:
            return True
        path, _, value = selector.partition("=")
        found: Any = obj
        for part in path.split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        return (found or "") == value

    async def _stream(self, plural: str, namespace: str, since: int, request: httpx2.Request) -> AsyncIterator[bytes]:
        sent = 0
        while True:
            while not self.hold_watches and sent < len(self.history):
                kind, change, obj = self.history[sent]
                sent += 1
                if (
                    kind == plural
                    and int(obj["metadata"]["resourceVersion"]) > since
                    and self._selected(obj, namespace, request)
                ):
                    yield json.dumps({"type": change, "object": obj}).encode() + b"\n"
            async with self.changed:
                await self.changed.wait()
