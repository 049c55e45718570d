"""An API server that answers at once, in a process of its own:
`python -m benchmarks.extender.api_server NODES FOLDER`; with a third argument, the extender gives its cards to
ResourceClaims, too.

It has the objects of a made-up cluster, lists them page by page, reports pods and ResourceClaims to watches, keeps one
Lease, and accepts every binding. Changes of claims must name their version, as a real API server's must. Its own cost
does not count; the extender just must not wait for it. It reads HTTP by hand, because its callers are two known clients
that send whole requests.
"""

import asyncio
import json
import re
import ssl
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.extender.world import ALLOCATED, CLAIMS, HELD, RELEASE, Json, World, classes, kept_mix
from egpu.apps.extender import ExtenderConfig
from egpu.apps.extender.job_mix import ANNOTATION

_WATCH: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


TENANT: Final = "tenant"
"""The user's token and name, with rights for one namespace, nodes and cards; others may do everything."""
OF_TENANT: Final = "vision"


def reviewed(spec: Json) -> Json:
    """Return the status of a TokenReview or a SubjectAccessReview: each user has the name of the token."""
    if "token" in spec:
        return {"authenticated": True, "user": {"username": spec["token"]}}
    asked = spec.get("resourceAttributes") or {}
    seen = asked.get("resource") in ("nodes", "elasticgpus") or asked.get("namespace") == OF_TENANT
    return {"allowed": spec["user"] != TENANT or seen}


class Objects:
    """The cluster's objects, as JSON, by plural; and the watches."""

    def __init__(self, world: World) -> None:
        self.lists: dict[str, list[bytes]] = {
            "nodes": [msgspec.json.encode(one) for one in world.nodes],
            "elasticgpus": [msgspec.json.encode(one) for one in world.cards],
            "pods": [msgspec.json.encode(one) for one in world.pods],
        }
        if world.allocator:
            self.lists |= {plural: [msgspec.json.encode(one) for one in found] for plural, found in classes().items()}
        self.waiting: dict[str, Json] = {}
        self.held: list[Json] = []
        self.claims: dict[str, Json] = {}
        self.released = 0.0
        self.allocated: list[float] = []
        lease = {"name": ExtenderConfig.lease, "resourceVersion": "1", "annotations": {ANNOTATION: kept_mix()}}
        self.leases: dict[str, Json] = {ExtenderConfig.lease: {"kind": "Lease", "metadata": lease, "spec": {}}}
        self.watches: dict[str, list[asyncio.Transport]] = {"pods": [], CLAIMS: []}
        self.version = 1

    def page(self, plural: str, query: dict[str, str]) -> bytes:
        """Return one page of a list."""
        found, start, size = self.lists.get(plural, []), int(query.get("continue", 0)), int(query.get("limit", 500))
        more = {"continue": str(start + size)} if start + size < len(found) else {}
        meta = json.dumps({"resourceVersion": str(self.version), **more}).encode()
        return b'{"metadata":%b,"items":[%b]}' % (meta, b",".join(found[start : start + size]))

    def tell(self, kind: str, obj: Json, plural: str = "pods") -> None:
        """Report an object to the watches of its kind."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        line = msgspec.json.encode({"type": kind, "object": obj}) + b"\n"
        for watch in self.watches[plural]:
            watch.write(b"%x\r\n%b\r\n" % (len(line), line))

    def changed(self, method: str, path: list[str], body: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a write."""
        sent: Json = json.loads(body)
        if path[-1] in ("tokenreviews", "subjectaccessreviews"):
            return 201, msgspec.json.encode(sent | {"status": reviewed(sent["spec"])})
        if path[-1] == "binding":
            pod = self.waiting.pop(path[-2])
            pod["spec"]["nodeName"] = sent["target"]["name"]
            pod["metadata"]["annotations"] |= sent["metadata"]["annotations"]
            self.tell("MODIFIED", pod)
            return 201, b'{"kind":"Status","status":"Success"}'
        if CLAIMS in path:
            return self._claim(method, path, sent)
        if method == "POST" and path[-1] == HELD:
            self.held.append(sent)
        elif method == "POST" and path[-1] == RELEASE.strip("/"):
            self.released = time.monotonic()
            for pod in self.held:
                self.tell("ADDED", pod)
        elif method == "POST" and path[-1] == "pods":
            self.waiting[sent["metadata"]["name"]] = sent
            self.tell("ADDED", sent)
        elif "leases" in path:
            self.version += 1
            name = sent["metadata"].get("name") or path[-1]
            held = self.leases.setdefault(name, {"kind": "Lease", "metadata": {"name": name}, "spec": {}})
            held["spec"] |= sent.get("spec", {})
            held["metadata"] |= {**sent["metadata"], "resourceVersion": str(self.version)}
            return 200, msgspec.json.encode(held)
        return 200, msgspec.json.encode(sent)

    def _claim(self, method: str, path: list[str], sent: Json) -> tuple[int, bytes]:
        """Create a claim, or change one by a merge patch."""
        if method == "POST":
            claim = self.claims[sent["metadata"]["name"]] = sent
            self.tell("ADDED", claim, CLAIMS)
            return 201, msgspec.json.encode(claim)
        claim = self.claims[path[path.index(CLAIMS) + 1]]
        version = sent["metadata"].pop("resourceVersion", None)
        if version is not None and version != claim["metadata"]["resourceVersion"]:
            return 409, b'{"kind":"Status","status":"Failure","reason":"Conflict","code":409}'
        if path[-1] == "status":
            claim["status"] = sent["status"]
            self.allocated.append(time.monotonic() - self.released)
        else:
            claim["metadata"] |= sent["metadata"]
        self.tell("MODIFIED", claim, CLAIMS)
        return 200, msgspec.json.encode(claim)


class _Connection(asyncio.Protocol):
    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.read = b""

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        for watches in self.objects.watches.values():
            if self.transport in watches:
                watches.remove(self.transport)

    def data_received(self, data: bytes) -> None:
        self.read += data
        head, end, rest = self.read.partition(b"\r\n\r\n")
        told = _LENGTH.search(head)
        length = int(told[1]) if told else 0
        if end and len(rest) >= length:
            self.read = b""
            self.answer(head.split(b"\r\n", 1)[0].decode(), rest)

    def answer(self, line: str, body: bytes) -> None:
        method, target, _ = line.split(" ")
        where, _, asked = target.partition("?")
        query = dict(pair.split("=", 1) for pair in asked.split("&") if pair)
        path = where.strip("/").split("/")
        if query.get("watch"):
            self.transport.write(_WATCH)
            if path[-1] in self.objects.watches:
                self.objects.watches[path[-1]].append(self.transport)
            return
        if method != "GET":
            status, text = self.objects.changed(method, path, body)
        elif where == ALLOCATED:
            status, text = 200, msgspec.json.encode(self.objects.allocated)
        elif "leases" in path:
            lease = self.objects.leases.get(path[-1])
            status, text = (404, b"{}") if lease is None else (200, msgspec.json.encode(lease))
        else:
            status, text = 200, self.objects.page(path[-1], query)
        head = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(text))
        self.transport.write(head + text)


async def serve(world: World, folder: Path) -> None:
    """Serve for ever; write the port when it answers."""
    objects = Objects(world)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(objects), "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(World(int(sys.argv[1]), allocator="".join(sys.argv[3:])), Path(sys.argv[2])))
