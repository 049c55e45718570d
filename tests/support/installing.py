"""A cluster of objects alone for installations: no process runs, and a player reports workloads as ready."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egpu.adapters.installation import Document, installation, source
from egpu.adapters.values import AS_DEPLOYED, Values
from egpu.apps.install import Deadline, Done, Objects, Removal, install, record, uninstall
from egpu.apps.install.objects import KINDS
from egpu_base.kubernetes import Client
from egpu_sim.cluster import apiserver

NAMESPACE = "elastic-gpu-system"
STATUS = "application/merge-patch+json"
EMPTY = frozenset({"events"})
"""Shelves that expire by themselves."""


@dataclass
class Bare:
    """An API server, and what was written to it."""

    client: Client
    server: apiserver.ServerHandle
    writes: list[str] = field(default_factory=list[str])

    @property
    def objects(self) -> Objects:
        return Objects(self.client)

    def everything(self) -> dict[str, Any]:
        """Every object, by shelf and key, without what changes with each write."""
        found: dict[str, Any] = {}
        for shelf, kept in self.server.store.shelves():
            for key, item in kept.items.items() if shelf not in EMPTY else ():
                obj = copy.deepcopy(item.obj)
                for counted in ("resourceVersion", "managedFields", "generation"):
                    obj["metadata"].pop(counted, None)
                obj["metadata"] = {name: value for name, value in obj["metadata"].items() if value != {}}
                found[f"{shelf} {'/'.join(key)}"] = obj
        return found

    async def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self.client.raw("POST", path, body=body)

    async def node(self, name: str, **more: Any) -> None:
        status = {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": "8", "pods": "110"}}
        body = {"metadata": {"name": name, **more}, "status": status}
        await self.put("/api/v1/nodes", body)
        await self.client.raw("PATCH", f"/api/v1/nodes/{name}/status", body={"status": status}, of=STATUS)

    async def install(self, values: Values = AS_DEPLOYED, *, image: str = "", prune: bool = True) -> Done:
        """As `egpu install`, with a player in place of Kubernetes' controllers and of ours."""
        async with playing(self.client):
            return await install(
                self.objects, documents(values, image=image), deadline=Deadline(30), progress=lambda _: None,
                prune=prune,
            )  # fmt: skip

    async def uninstall(self, *, keep_claims: bool = False, force: bool = False, image: str = "") -> Removal:
        wanted = Removal(
            NAMESPACE, documents(image=image), keep_claims=keep_claims, force=force, idle_seconds=0.2
        )  # fmt: skip
        await uninstall(self.client, wanted, deadline=Deadline(30), progress=lambda _: None)
        return wanted


def documents(values: Values = AS_DEPLOYED, *, image: str = "") -> list[Document]:
    """Everything that `egpu install` writes."""
    key = str(values), image
    if key not in _rendered:
        rendered = installation(source(), values, namespace=NAMESPACE, image=image)
        _rendered[key] = [*rendered, record(values, namespace=NAMESPACE, image=image)]
    return copy.deepcopy(_rendered[key])


_rendered: dict[tuple[str, str], list[Document]] = {}


@contextlib.asynccontextmanager
async def bare(directory: Path) -> AsyncGenerator[Bare]:
    async with (
        apiserver.serve(apiserver.Config(directory=directory)) as server,
        Client.from_kubeconfig(server.kubeconfig) as client,
    ):
        one = Bare(client, server)
        server.store.listen(lambda shelf, change: one.writes.append(f"{change.kind} {shelf} {change.item.key[1]}"))
        yield one


@contextlib.asynccontextmanager
async def playing(client: Client, *, trusting: bool = True) -> AsyncGenerator[None]:
    """Report workloads as ready, and write the webhook's authority if `trusting`, as controllers do."""

    async def play() -> None:
        while True:
            with contextlib.suppress(Exception):  # a kind is not there yet, or an object has just gone
                await _ready(client)
                if trusting:
                    await _trusted(client)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(play())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _ready(client: Client) -> None:
    for name in ("Deployment", "DaemonSet"):
        for found in await Objects(client).all(KINDS[name], namespace=NAMESPACE):
            wanted = found["spec"].get("replicas", 1)
            counts = (
                {"replicas": wanted, "readyReplicas": wanted, "updatedReplicas": wanted}
                if name == "Deployment"
                else {"desiredNumberScheduled": 1, "numberReady": 1, "updatedNumberScheduled": 1}
            )
            status = {**counts, "observedGeneration": found["metadata"]["generation"]}
            path = KINDS[name].path(NAMESPACE, found["metadata"]["name"])
            if found.get("status", {}) != status:
                await client.raw("PATCH", f"{path}/status", body={"status": status}, of=STATUS)


async def _trusted(client: Client) -> None:
    for name in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for found in await Objects(client).all(KINDS[name]):
            if any("caBundle" not in hook["clientConfig"] for hook in found["webhooks"]):
                for hook in found["webhooks"]:
                    hook["clientConfig"]["caBundle"] = "Y2E="
                path = KINDS[name].path("", found["metadata"]["name"])
                await client.raw("PATCH", path, body={"webhooks": found["webhooks"]}, of=STATUS)
