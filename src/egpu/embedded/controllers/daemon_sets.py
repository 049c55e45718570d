"""DaemonSets: one pod on every node that takes it, kept there by a node affinity that the scheduler obeys."""

from collections import defaultdict
from typing import Any, Final

import msgspec

from egpu.adapters.kubernetes import Client
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.api.kubernetes import Node, Pod, PodSpec
from egpu.core.demand.selection import selects
from egpu.embedded.apiserver.objects import as_list, as_object
from egpu.embedded.controllers import pods
from egpu.embedded.controllers.deployments import share
from egpu.embedded.controllers.kinds import DaemonSet
from egpu.embedded.controllers.revisions import revision_of
from egpu.runtime.reconcile import DONE, Result

HASH: Final = "controller-revision-hash"
_STAYS_THROUGH: Final = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)
"""Taints that a daemon's pod tolerates, whatever its template says."""


class DaemonSets:
    """Not meant to run twice on one cluster."""

    kind = DaemonSet

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._events = events

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
        for node in sorted(wanted - by_node.keys())[: pods.MOST_AT_ONCE]:
            await pods.make(self._client, owner, labels={HASH: revision}, spec=_bound_to(owner, node))
        for node, found in by_node.items():
            # a failed pod makes room for another; of two, the older stays
            live = pods.first_to_go([pod for pod in found if pods.is_active(pod)])
            ended = [pod for pod in found if pod.finished and pod.metadata.deletion_timestamp is None]
            await pods.end(self._client, [*ended, *(live[:-1] if node in wanted else live)])
        held = {node: [pod for pod in found if pods.is_active(pod)] for node, found in by_node.items()}
        await self._update(owner, {node: held[node][-1] for node in wanted if held.get(node)}, revision, len(wanted))
        await self._tell(owner, wanted, held, revision)
        return DONE

    async def _update(self, owner: DaemonSet, held: dict[str, Pod], revision: str, wanted: int) -> None:
        """End old pods, as many at once as may be unavailable: the next look makes new ones."""
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
    """Whether a node is one of those that the template selects, and repels its pods by no taint."""
    spec = as_object(owner.template.get("spec"))
    pod = Pod(spec=_typed_spec({**spec, "tolerations": _tolerations(spec)}))
    taints = [taint for taint in node.spec.taints or [] if taint.effect in ("NoSchedule", "NoExecute")]
    return selects(pod, node) and all(_tolerated(pod, taint.key, taint.value, taint.effect) for taint in taints)


def _typed_spec(spec: dict[str, Any]) -> PodSpec:
    return msgspec.convert(spec, type=PodSpec)


def _tolerated(pod: Pod, key: str, value: str, effect: str) -> bool:
    return any(
        (not one.effect or one.effect == effect)
        and (not one.key or one.key == key)
        and (one.operator == "Exists" or one.value == value)
        for one in pod.spec.tolerations or []
    )


def _tolerations(spec: dict[str, Any]) -> list[dict[str, Any]]:
    stays = [
        {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect} for name, effect in _STAYS_THROUGH
    ]
    return [*as_list(spec.get("tolerations")), *stays]


def _bound_to(owner: DaemonSet, node: str) -> dict[str, Any]:
    """What keeps a pod on its node."""
    spec = as_object(owner.template.get("spec"))
    only = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": only}}
    return {
        "affinity": {**as_object(spec.get("affinity")), "nodeAffinity": required},
        "tolerations": _tolerations(spec),
    }


def node_of(pod: Pod) -> str:
    """The node that a pod is on, or is for."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = as_object((pod.spec.affinity or {}).get("nodeAffinity"))
    terms = as_list(as_object(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")).get("nodeSelectorTerms"))
    for term in terms:
        for field in map(as_object, as_list(term.get("matchFields"))):
            return str(field["values"][0])
    return ""
