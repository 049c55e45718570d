"""DaemonSets: one pod on every node that takes it. A node affinity, which the scheduler obeys, keeps it there."""

from collections import defaultdict
from typing import Any, Final

import msgspec

from egpu_base.api.kubernetes import Node, Pod, PodSpec
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Result
from egpu_sim.cluster.controllers import pods
from egpu_sim.cluster.controllers.deployments import share
from egpu_sim.cluster.controllers.kinds import DaemonSet
from egpu_sim.cluster.controllers.making import Maker, Wanted
from egpu_sim.cluster.controllers.revisions import revision_of
from egpu_sim.cluster.scheduler.filters import node_predicate, tolerates_taints
from egpu_sim.cluster.trees import as_list, as_object

HASH: Final = "controller-revision-hash"
_STAYS_THROUGH: Final = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)
"""Taints that every daemon's pod tolerates."""


class DaemonSets:
    kind = DaemonSet

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._maker = Maker(client, events)

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        owner = await self._client.find(DaemonSet, name, namespace=namespace)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return DONE
        wanted = {node.name for node in await self._client.list(Node) if takes(owner, node)}
        by_node: dict[str, list[Pod]] = defaultdict(list)
        for pod in await pods.claimed(self._client, owner, Pod):
            by_node[node_of(pod)].append(pod)
        revision = revision_of(owner.template)
        missing = sorted(wanted - by_node.keys())
        new = [Wanted(labels={HASH: revision}, spec=_bound_to(owner, node)) for node in missing]
        refusal = await self._maker.make(owner, new)
        for node, found in by_node.items():
            # A failed pod makes room for another. Of two pods, the older stays.
            live = pods.first_to_go([pod for pod in found if pods.is_active(pod)])
            ended = [pod for pod in found if pod.finished and pod.metadata.deletion_timestamp is None]
            await pods.end(self._client, [*ended, *(live[:-1] if node in wanted else live)])
        held = {node: [pod for pod in found if pods.is_active(pod)] for node, found in by_node.items()}
        await self._update(owner, {node: held[node][-1] for node in wanted if held.get(node)}, revision, len(wanted))
        await self._tell(owner, wanted, held, revision)
        return DONE if refusal is None else Result(again_after_seconds=refusal.wait_seconds)

    async def _update(self, owner: DaemonSet, held: dict[str, Pod], revision: str, wanted: int) -> None:
        """End old pods, as many at once as may be unavailable. The next reconciliation makes new ones."""
        strategy = as_object(owner.spec.get("updateStrategy"))
        if strategy.get("type") == "OnDelete":
            return
        allowed = share(as_object(strategy.get("rollingUpdate")).get("maxUnavailable", 1), wanted, up=True)
        wait = int(owner.spec.get("minReadySeconds") or 0)
        old = [pod for pod in held.values() if (pod.metadata.labels or {}).get(HASH) != revision]
        broken = [pod for pod in old if not pods.is_available(pod, wait)]
        absent = wanted - sum(pods.is_available(pod, wait) for pod in held.values())
        working = [pod for pod in old if pods.is_available(pod, wait)]
        await pods.end(self._client, [*broken, *working[: max(allowed - absent, 0)]])

    async def _tell(self, owner: DaemonSet, wanted: set[str], held: dict[str, list[Pod]], revision: str) -> None:
        wait = int(owner.spec.get("minReadySeconds") or 0)
        mine = [found[-1] for node, found in held.items() if node in wanted and found]
        available = sum(pods.is_available(pod, wait) for pod in mine)
        status: dict[str, Any] = {
            "updatedNumberScheduled": sum((pod.metadata.labels or {}).get(HASH) == revision for pod in mine),
            "numberAvailable": available,
            "numberUnavailable": len(wanted) - available,
        }
        await pods.write_status(self._client, owner, status)
        always = {
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": len(mine),
            "numberMisscheduled": sum(bool(found) for node, found in held.items() if node not in wanted),
            "numberReady": sum(pods.ready_since(pod) is not None for pod in mine),
        }
        if any(owner.status.get(key) != value for key, value in always.items()):
            body = {"metadata": {"uid": owner.uid}, "status": always}
            await self._client.patch(DaemonSet, owner.name, body, namespace=owner.namespace, subresource="status")


def takes(owner: DaemonSet, node: Node) -> bool:
    spec = as_object(owner.template.get("spec"))
    pod = Pod(spec=_typed_spec({**spec, "tolerations": _tolerations(spec)}))
    return node_predicate(pod)(node) and tolerates_taints(pod, node.spec.taints or [])


def _typed_spec(spec: dict[str, Any]) -> PodSpec:
    return msgspec.convert(spec, type=PodSpec)


def _tolerations(spec: dict[str, Any]) -> list[dict[str, Any]]:
    stays = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect} for name, effect in _STAYS_THROUGH
    ]
    return [*as_list(spec.get("tolerations")), *stays]


def _bound_to(owner: DaemonSet, node: str) -> dict[str, Any]:
    """Return the fields that keep a pod on its node."""
    spec = as_object(owner.template.get("spec"))
    only = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": only}}
    return {
        "affinity": {**as_object(spec.get("affinity")), "nodeAffinity": required},
        "tolerations": _tolerations(spec),
    }


def node_of(pod: Pod) -> str:
    """Return the node that a pod is on, or is for."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = as_object((pod.spec.affinity or {}).get("nodeAffinity"))
    terms = as_list(as_object(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")).get("nodeSelectorTerms"))
    for term in terms:
        for field in map(as_object, as_list(term.get("matchFields"))):
            return str(field["values"][0])
    return ""
