"""metrics.k8s.io: the data of `kubectl top`, which the kubelets measure on demand. Nothing is stored."""

import asyncio
from collections.abc import Iterable
from typing import Any

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.kinds.resources import Resource
from egpu_sim.cluster.apiserver.nodes import kubelets
from egpu_sim.cluster.apiserver.reading.reads import Selection
from egpu_sim.cluster.apiserver.status import not_found
from egpu_sim.cluster.apiserver.storage.store import Store, Stored
from egpu_sim.cluster.streams import Question
from egpu_sim.cluster.trees import (
    Json,
    as_object,
    at,
    labels_of,
    name_of,
    namespace_of,
    now,
    uid_of,
)

GROUP = "metrics.k8s.io"
_VERSION = "v1beta1"
_DESCRIPTION = "Present usage of a {}: processor time over a moment, and memory not shared with files."


def resources() -> list[Resource]:
    return [
        Resource(GROUP, _VERSION, plural, kind, namespaced, "", verbs=("get", "list"),
                 source_schema={"type": "object", "description": _DESCRIPTION.format(plural[:-1])})
        for plural, kind, namespaced in (("nodes", "NodeMetrics", False), ("pods", "PodMetrics", True))
    ]  # fmt: skip


class Metrics:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def answer(self, call: Call) -> Json:
        selection = Selection.of(call)
        shelf = self._store.shelf(call.resource.plural).items
        chosen = [item for _, item in sorted(shelf.items()) if selection.has(item)]
        if call.resource.plural == "nodes":
            found = await self._nodes(chosen)
        else:
            found = await self._pods([item for item in chosen if at(item.obj, "status", "phase") == "Running"])
        kind, version = call.resource.kind, call.resource.api_version
        described = [{"kind": kind, "apiVersion": version, **each} for each in found]
        if call.verb == "list":
            return {"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": described}
        if not described:
            raise not_found(GROUP, call.resource.plural, call.name)
        return described[0]

    async def _nodes(self, nodes: list[Stored]) -> list[Json]:
        used = await self._ask(name_of(node.obj) for node in nodes)
        return [
            _described(node.obj, answer, usage=_summed(c for pod in _pods(answer).values() for c in pod.values()))
            for node in nodes
            if (answer := used.get(name_of(node.obj))) is not None
        ]

    async def _pods(self, pods: list[Stored]) -> list[Json]:
        used = await self._ask(str(at(pod.obj, "spec", "nodeName")) for pod in pods)
        found: list[Json] = []
        for pod in pods:
            answer = used.get(str(at(pod.obj, "spec", "nodeName")), {})
            containers = as_object(_pods(answer).get(uid_of(pod.obj)))
            if containers:
                listed = [{"name": name, "usage": _summed([each])} for name, each in containers.items()]
                found.append(_described(pod.obj, answer, containers=listed))
        return found

    async def _ask(self, nodes: Iterable[str]) -> dict[str, Json]:
        """Return each node's answer, without nodes that do not answer."""

        async def one(node: str) -> tuple[str, Json] | None:
            try:
                async with kubelets.ask(self._store, node, Question(wants="usage")) as (_, answer):
                    return node, as_object(answer.found)
            except RequestRefused:
                return None

        answers = await asyncio.gather(*(one(node) for node in sorted(set(nodes))))
        return dict(answer for answer in answers if answer is not None)


def _pods(answer: Json) -> Json:
    return as_object(answer.get("pods"))


def _described(obj: Json, answer: Json, **more: Any) -> Json:
    meta: Json = {"name": name_of(obj), "creationTimestamp": now(), "labels": dict(labels_of(obj))}
    if namespace := namespace_of(obj):
        meta["namespace"] = namespace
    return {"metadata": meta, "timestamp": now(), "window": f"{answer.get('window_seconds', 0)}s", **more}


def _summed(usages: Iterable[Json]) -> Json:
    listed = list(usages)
    return {
        "cpu": f"{sum(each['cpu_nanocores'] for each in listed)}n",
        "memory": f"{sum(each['memory_bytes'] for each in listed) // 1024}Ki",
    }
