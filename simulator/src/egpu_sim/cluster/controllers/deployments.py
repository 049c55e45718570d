"""Deployments: one ReplicaSet per template, and a rollout from the old ones to the new by steps.

Bounds hold between steps: at most `replicas + maxSurge` pods, and at least `replicas - maxUnavailable` available ones.
A step changes a ReplicaSet's size; its controller does the rest.
"""

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any, Final

from egpu_base.api.kubernetes import Pod
from egpu_base.api.wire import rfc3339
from egpu_base.errors import AlreadyExists
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.paths import path_of
from egpu_base.runtime.reconcile import DONE, Result
from egpu_sim.cluster.controllers import pods
from egpu_sim.cluster.controllers.kinds import Deployment, ReplicaSet
from egpu_sim.cluster.controllers.revisions import revision_of
from egpu_sim.cluster.trees import as_object

HASH: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"


class Deployments:
    kind = Deployment

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._events = events

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        owner = await self._client.find(Deployment, name, namespace=namespace)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return DONE
        sets = await pods.claimed(self._client, owner, ReplicaSet)
        new = next((one for one in sets if _template(one) == owner.template), None)
        old = [one for one in sets if one is not new]
        if not owner.spec.get("paused"):
            new = await self._newest(owner, new, old)
            if as_object(owner.spec.get("strategy")).get("type") == "Recreate":
                await self._recreate(owner, new, old)
            else:
                await self._roll(owner, new, old)
            await self._forget(owner, old)
        elif new is not None:
            await self._scale(owner, new, owner.replicas)
        return await self._tell(owner, new, old)

    async def _newest(self, owner: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> ReplicaSet:
        """Return the ReplicaSet of the present template, with the highest revision. Create it if needed."""
        latest = max((_revision(one) for one in old), default=0)
        if new is None:
            new = await self._make(owner, latest + 1)
        elif _revision(new) <= latest:
            note = {"metadata": {"annotations": {REVISION: str(latest + 1)}}}  # an old template, wanted again
            new = await self._client.patch(ReplicaSet, new.name, note, namespace=new.namespace)
        if owner.annotations.get(REVISION) != new.annotations.get(REVISION):
            note = {"metadata": {"annotations": {REVISION: new.annotations.get(REVISION)}}}
            await self._client.patch(Deployment, owner.name, note, namespace=owner.namespace)
        return new

    async def _make(self, owner: Deployment, revision: int) -> ReplicaSet:
        mark = {HASH: revision_of(owner.template)}
        meta = as_object(owner.template.get("metadata"))
        template = {**owner.template, "metadata": {**meta, "labels": {**as_object(meta.get("labels")), **mark}}}
        selector = as_object(owner.spec.get("selector"))
        selector = {**selector, "matchLabels": {**as_object(selector.get("matchLabels")), **mark}}
        name = f"{owner.name}-{mark[HASH]}"
        carried = {key: text for key, text in owner.annotations.items() if not key.startswith("kubectl.kubernetes.io/")}
        body: dict[str, Any] = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "labels": template["metadata"]["labels"],
                "annotations": {**carried, REVISION: str(revision)},
                "ownerReferences": [owner.owner_reference()],
            },
            "spec": {
                "replicas": 0,
                "minReadySeconds": owner.spec.get("minReadySeconds") or 0,
                "selector": selector,
                "template": template,
            },
        }
        with contextlib.suppress(AlreadyExists):  # An earlier reconciliation made it and did not finish.
            await self._client.raw("POST", path_of(ReplicaSet, owner.namespace), body=body)
        return await self._client.get(ReplicaSet, name, namespace=owner.namespace)

    async def _scale(self, owner: Deployment, one: ReplicaSet, replicas: int) -> int:
        """Set a ReplicaSet's size. Return the new state."""
        if replicas != one.replicas:
            body = {"metadata": {"uid": one.uid}, "spec": {"replicas": replicas}}
            await self._client.patch(ReplicaSet, one.name, body, namespace=one.namespace)
            word = "up" if replicas > one.replicas else "down"
            message = f"Scaled {word} replica set {one.name} from {one.replicas} to {replicas}"
            await self._events.note(owner, "ScalingReplicaSet", message)
        return replicas

    async def _recreate(self, owner: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> None:
        """End all old pods before making a new one."""
        for one in old:
            await self._scale(owner, one, 0)
        if not any(one.replicas for one in old) and not await self._run(owner, old):
            await self._scale(owner, new, owner.replicas)

    async def _run(self, owner: Deployment, sets: Sequence[ReplicaSet]) -> bool:
        """Return whether pods of these run, also those that are being deleted. The status of a set may be older."""
        uids = {one.uid for one in sets}
        selector = pods.selector_text(as_object(owner.spec.get("selector")))
        found = await self._client.list(Pod, namespace=owner.namespace, labels=selector)
        return any(pods.controller_of(pod) in uids and not pod.finished for pod in found)

    async def _roll(self, owner: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> None:
        surge, unavailable = bounds(owner)
        total = new.replicas + sum(one.replicas for one in old)
        if new.replicas > owner.replicas:
            await self._scale(owner, new, owner.replicas)
            return
        room = owner.replicas + surge - total
        size = new.replicas
        if room > 0 and new.replicas < owner.replicas:
            size = await self._scale(owner, new, min(owner.replicas, new.replicas + room))
        missing = size - new.number("availableReplicas")
        spare = total + (size - new.replicas) - (owner.replicas - unavailable) - max(missing, 0)
        for one in sorted(old, key=_revision):
            # Pods that were never available can go at no cost.
            broken = min(max(one.replicas - one.number("availableReplicas"), 0), max(spare, 0))
            going = min(one.replicas, max(spare, 0))
            if one.replicas and max(broken, going):
                await self._scale(owner, one, one.replicas - max(broken, going))
                spare -= max(broken, going)

    async def _forget(self, owner: Deployment, old: Sequence[ReplicaSet]) -> None:
        """Keep as much history as the Deployment asks for."""
        empty = [one for one in sorted(old, key=_revision) if not one.replicas and not one.number("replicas")]
        kept = int(owner.spec.get("revisionHistoryLimit", 10))
        for one in empty[: max(len(empty) - kept, 0)]:
            await self._client.delete(ReplicaSet, one.name, namespace=one.namespace, uid=one.uid)

    async def _tell(self, owner: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> Result:
        sets = [*old, *([new] if new is not None else [])]
        total, available = (sum(one.number(key) for one in sets) for key in ("replicas", "availableReplicas"))
        counts = {
            "replicas": total,
            "updatedReplicas": new.number("replicas") if new is not None else 0,
            "readyReplicas": sum(one.number("readyReplicas") for one in sets),
            "availableReplicas": available,
            "unavailableReplicas": max(total - available, owner.replicas - available, 0),
        }
        done = counts["updatedReplicas"] == total == available == owner.replicas
        moved = any(owner.number(key) != value for key, value in counts.items())
        progress, again = _progress(owner, new, done=done, moved=moved)
        enough = available >= owner.replicas - bounds(owner)[1]
        known = owner.condition("Available")
        here = _condition(known, "Available", enough, "MinimumReplicasAvailable" if enough else
                          "MinimumReplicasUnavailable", "Deployment has minimum availability." if enough else
                          "Deployment does not have minimum availability.")  # fmt: skip
        failures = [one.condition("ReplicaFailure") for one in sets if one.condition("ReplicaFailure")]
        await pods.write_status(self._client, owner, {**counts, "conditions": [here, progress, *failures[:1]]})
        return again


def bounds(owner: Deployment) -> tuple[int, int]:
    """Return (pods more than wanted, pods fewer than wanted) that a rollout may have."""
    strategy = as_object(owner.spec.get("strategy"))
    if strategy.get("type") == "Recreate":
        return 0, owner.replicas
    rolling = as_object(strategy.get("rollingUpdate"))
    surge = share(rolling.get("maxSurge", "25%"), owner.replicas, up=True)
    unavailable = share(rolling.get("maxUnavailable", "25%"), owner.replicas, up=False)
    return surge, unavailable or (0 if surge else 1)


def share(value: int | str, of: int, *, up: bool) -> int:
    """Return a number, or a percentage of `of`, rounded up or down."""
    if isinstance(value, int):
        return value
    exact = of * int(value.removesuffix("%")) / 100
    return math.ceil(exact) if up else math.floor(exact)


def _progress(owner: Deployment, new: ReplicaSet | None, *, done: bool, moved: bool) -> tuple[dict[str, Any], Result]:
    """Return whether the rollout progresses, and when to look again."""
    known, name = owner.condition("Progressing"), new.name if new is not None else ""
    deadline = float(owner.spec.get("progressDeadlineSeconds") or 600)
    if done:
        message = f'ReplicaSet "{name}" has successfully progressed.'
        return _condition(known, "Progressing", True, "NewReplicaSetAvailable", message), DONE
    waited = pods.age_seconds(known.get("lastUpdateTime"))
    if known and not moved and waited > deadline and known.get("reason") != "NewReplicaSetAvailable":
        message = f'ReplicaSet "{name}" has timed out progressing.'
        return _condition(known, "Progressing", False, "ProgressDeadlineExceeded", message), DONE
    message = f'ReplicaSet "{name}" is progressing.'
    told = _condition({} if moved else known, "Progressing", True, "ReplicaSetUpdated", message)
    return told, Result(again_after_seconds=max(deadline - waited, 1.0))


def _condition(known: dict[str, Any], kind: str, holds: bool, reason: str, message: str) -> dict[str, Any]:
    """Return a condition; the known one if it is equal."""
    told = {"type": kind, "status": str(holds), "reason": reason, "message": message}
    if told.items() <= known.items():
        return known
    now = rfc3339(time.time())
    since = known.get("lastTransitionTime", now) if known.get("status") == str(holds) else now
    return {**told, "lastUpdateTime": now, "lastTransitionTime": since}


def _template(one: ReplicaSet) -> dict[str, Any]:
    meta = dict(as_object(one.template.get("metadata")))
    meta["labels"] = {key: value for key, value in as_object(meta.get("labels")).items() if key != HASH}
    return {**one.template, "metadata": meta}


def _revision(one: ReplicaSet) -> int:
    return int(one.annotations.get(REVISION) or 0)
