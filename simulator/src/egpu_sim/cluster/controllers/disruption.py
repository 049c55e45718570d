"""PodDisruptionBudgets: counts healthy pods, and how many more may be evicted."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from egpu_base.api.disruption import PodDisruptionBudget
from egpu_base.api.kubernetes import LabelSelector, Pod
from egpu_base.api.objects import Object, OwnerReference
from egpu_base.api.wire import rfc3339
from egpu_base.errors import NotFound
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Result
from egpu_sim.cluster.apiserver.storage.selectors import object_selector
from egpu_sim.cluster.controllers.kinds import Deployment, ReplicaSet, StatefulSet, Workload

UNSEEN_SECONDS = 120.0
"""Time during which an evicted pod counts as gone before its end is seen."""


class Disruptions:
    kind = PodDisruptionBudget

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._events = events

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        budget = await self._client.find(PodDisruptionBudget, name, namespace=namespace)
        if budget is None:
            return DONE
        there = await self._client.list(Pod, namespace=namespace)
        pods = _selected(budget.spec.selector, there)
        try:
            expected, desired = await self._wanted(budget, pods)
        except NotFound as error:
            await self._events.warn(budget, "CalculateExpectedPodCountFailed", str(error))
            await self._write(budget, {"disruptionsAllowed": 0}, "SyncFailed", str(error))
            return DONE
        evicted = self._evicted(budget, pods)
        healthy = sum(_is_healthy(pod) and pod.name not in evicted for pod in pods)
        allowed = max(0, healthy - desired) if expected > 0 else 0
        counts = {
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptedPods": dict.fromkeys(budget.status.disrupted_pods or {}) | evicted or None,
            "observedGeneration": budget.metadata.generation,
        }
        await self._write(budget, counts, "SufficientPods" if allowed else "InsufficientPods", "")
        return Result(again_after_seconds=UNSEEN_SECONDS) if evicted else DONE

    async def _wanted(self, budget: PodDisruptionBudget, pods: list[Pod]) -> tuple[int, int]:
        """Return how many pods there should be, and how many of them healthy. Raises NotFound where an owner is
        gone."""
        spec = budget.spec
        if spec.max_unavailable is not None:
            expected = await self._scale(pods)
            return expected, max(0, expected - _share(spec.max_unavailable, expected))
        if isinstance(spec.min_available, str):
            expected = await self._scale(pods)
            return expected, _share(spec.min_available, expected)
        return (len(pods), spec.min_available) if spec.min_available is not None else (0, 0)

    async def _scale(self, pods: list[Pod]) -> int:
        """Return how many pods the owners of these want in all."""
        wanted: dict[str, int] = {}
        for pod in pods:
            if _controller(pod) is not None:
                owner = await self._owner(pod)
                wanted[owner.uid] = owner.replicas
        return sum(wanted.values())

    async def _owner(self, pod: Pod) -> Workload:
        kinds: dict[str, type[Workload]] = {"ReplicaSet": ReplicaSet, "StatefulSet": StatefulSet}
        reference = _controller(pod)
        kind = kinds.get(reference.kind) if reference is not None else None
        if reference is None or kind is None:
            raise NotFound(f'found no controllers for pod "{pod.name}"')
        owner = await self._client.get(kind, reference.name, namespace=pod.namespace)
        above = _controller(owner)
        if above is not None and above.kind == "Deployment":
            return await self._client.get(Deployment, above.name, namespace=pod.namespace)
        return owner

    def _evicted(self, budget: PodDisruptionBudget, pods: list[Pod]) -> dict[str, str]:
        """Return pods whose eviction was allowed lately and whose end has not been seen."""
        known = budget.status.disrupted_pods or {}
        staying = {pod.name for pod in pods if pod.metadata.deletion_timestamp is None}
        return {name: at for name, at in known.items() if name in staying and _age(at) < UNSEEN_SECONDS}

    async def _write(self, budget: PodDisruptionBudget, status: dict[str, Any], reason: str, message: str) -> None:
        """Write the status if it differs; not where the budget changed meanwhile."""
        said = next((one for one in budget.status.conditions or [] if one.type == "DisruptionAllowed"), None)
        holds = "True" if reason == "SufficientPods" else "False"
        condition = {"type": "DisruptionAllowed", "status": holds, "reason": reason, "message": message}
        now = budget.status
        shown = {
            "disruptionsAllowed": now.disruptions_allowed,
            "currentHealthy": now.current_healthy,
            "desiredHealthy": now.desired_healthy,
            "expectedPods": now.expected_pods,
            "disruptedPods": now.disrupted_pods or None,
            "observedGeneration": now.observed_generation,
        }
        told = said is not None and (said.status, said.reason, said.message) == (holds, reason, message)
        if told and all(shown[field] == value for field, value in status.items()):
            return
        since = said.last_transition_time if said is not None and said.status == holds else None
        condition["lastTransitionTime"] = since or rfc3339(time.time())
        status = {**status, "conditions": [condition | {"observedGeneration": budget.metadata.generation}]}
        patch = {"metadata": {"uid": budget.uid, "resourceVersion": budget.metadata.resource_version}, "status": status}
        kind, namespace = PodDisruptionBudget, budget.namespace
        await self._client.patch(kind, budget.name, patch, namespace=namespace, subresource="status")


def _selected(selector: LabelSelector | None, pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods of a budget. An empty selector selects all of its namespace, and a missing one no pod."""
    if selector is None:
        return []
    matches = object_selector(msgspec.to_builtins(selector))
    return [pod for pod in pods if matches is None or matches(pod.metadata.labels or {})]


def _is_healthy(pod: Pod) -> bool:
    ready = any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or [])
    return ready and pod.metadata.deletion_timestamp is None


def _share(amount: int | str, of: int) -> int:
    """Return a number, or so many percent of another, rounded up."""
    return amount if isinstance(amount, int) else -(-int(amount.removesuffix("%")) * of // 100)


def _controller(obj: Object) -> OwnerReference | None:
    return next((one for one in obj.metadata.owner_references or [] if one.controller), None)


def _age(timestamp: str) -> float:
    return time.time() - datetime.fromisoformat(timestamp).timestamp()
