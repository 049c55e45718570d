"""kube-scheduler's plugin for dynamic resources: allocates the claims of a pod, and reserves them for it.

Known differences: devices with binding conditions are not allocated, and the first fitting alternative of a request
does not count in the scores of nodes.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.wire import rfc3339
from egpu_base.errors import Conflict, NotFound, Unavailable
from egpu_base.kubernetes.client import Client
from egpu_base.kubernetes.paths import path_of
from egpu_base.kubernetes.reflector import Change, Reflector
from egpu_sim.cluster.dynamic import references
from egpu_sim.cluster.dynamic.kinds import FINALIZER, RESERVED_LIMIT, DeviceClass, ResourceClaim, ResourceSlice
from egpu_sim.cluster.dynamic.pools import pools_of
from egpu_sim.cluster.dynamic.requests import Request, requests_of
from egpu_sim.cluster.dynamic.search import Search, Taken
from egpu_sim.cluster.scheduler.events import DYNAMIC_RESOURCES, Event
from egpu_sim.cluster.scheduler.filters import Rejection, node_selector_predicate
from egpu_sim.cluster.trees import Json, as_list, as_object, at, metadata, objects_at

WRITE_ATTEMPTS: Final = 5
"""Times a claim is written again because it changed meanwhile."""


class CannotSchedule(Unavailable):
    """The pod fits on no node, whatever the nodes have: kube-scheduler's PreFilter rejects it."""


@dataclass
class Plan:
    """The claims of one pod, and what each node could give them. `waiting` are those without an allocation."""

    pod: Pod
    allocated: Sequence[ResourceClaim]
    waiting: Sequence[tuple[ResourceClaim, list[tuple[Request, ...]]]]
    slices: Sequence[ResourceSlice]
    taken: Taken
    found: dict[str, list[Json] | None] = field(default_factory=dict[str, list[Json] | None])
    """Allocations by node, for the claims that wait; None where there are none."""
    unavailable: dict[str, ResourceClaim] = field(default_factory=dict[str, ResourceClaim])
    """Allocated claims that some node cannot use, by UID."""

    def rejection(self, node: Node) -> Rejection | None:
        """Return why the node cannot take the pod. Raises InvalidInput where an expression fails."""
        elsewhere = {one.uid: one for one in self.allocated if not _is_usable(one, node)}
        self.unavailable |= elsewhere
        if elsewhere:
            return Rejection(DYNAMIC_RESOURCES, ("resourceclaim not available on the node",))
        if self.allocations(node) is None:
            return Rejection(DYNAMIC_RESOURCES, ("cannot allocate all claims",))
        return None

    def allocations(self, node: Node) -> list[Json] | None:
        """Return an allocation for each claim that waits."""
        if node.name not in self.found:
            usable = [one for one in self.slices if one.spec.get("nodeName") in (None, node.name)]
            search = Search(self.waiting, pools_of(node, usable), self.taken)
            self.found[node.name] = search.run(node.name) if self.waiting else []
        return self.found[node.name]


class DeviceClaims:
    """Follows claims, classes and slices. `happened` is called with each change and the pods that it concerns."""

    def __init__(self, client: Client, happened: Callable[[Event, Callable[[Pod], bool]], None]) -> None:
        self._client = client
        self._happened = happened
        self.claims = Reflector(client, ResourceClaim)
        self._classes = Reflector(client, DeviceClass)
        self._slices = Reflector(client, ResourceSlice)
        self._assumed: dict[str, Json] = {}
        """Allocations, by UID of the claim, that the API server does not show yet."""

    @property
    def reflectors(self) -> tuple[Reflector[Any], ...]:
        return self.claims, self._classes, self._slices

    def follow(self) -> None:
        self.claims.on_change(self._claim_changed)
        self._classes.on_change(lambda _: self._happened(Event.DEVICE_CLASS, _every))
        self._slices.on_change(lambda _: self._happened(Event.SLICE, _every))

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        old, new = change.old, change.new
        if new is None or new.allocation is not None:
            self._assumed.pop(change.subject.uid, None)
        if old is not None and old.allocation is not None and (new is None or new.allocation is None):
            self._happened(Event.CLAIM, _every)  # its devices are free
        else:
            name, namespace = change.subject.name, change.subject.namespace
            self._happened(Event.CLAIM, lambda pod: _uses(pod, name, namespace))

    # ------------------------------------------------------------------ one pod

    def missing(self, pod: Pod) -> NotFound | None:
        """Return the error for a claim that the pod waits for: until then the pod is not scheduled."""
        for one in references.pod_claims(pod):
            if not one.claim or self.claims.get(one.claim, pod.namespace) is None:
                return references.missing(pod, one)
        return None

    def plan(self, pod: Pod) -> Plan | None:
        """Return the plan for a pod with claims. Raises CannotSchedule, and Unavailable for claims of others."""
        claims = {claim.uid: claim for claim in self._claims_of(pod)}
        if not claims:
            return None
        allocated = [one for one in claims.values() if one.allocation is not None]
        for claim in allocated:
            if not references.is_reserved_for(claim, pod) and len(claim.reserved_for) >= RESERVED_LIMIT:
                raise CannotSchedule("resourceclaim in use")
        waiting = [one for one in claims.values() if one.allocation is None]
        for claim in waiting:
            if claim.uid in self._assumed:
                raise CannotSchedule(f"resource claim {claim.key} is in the process of being allocated")
        try:
            joined = [(claim, requests_of(claim, self._classes.get)) for claim in waiting]
        except NotFound as error:
            raise CannotSchedule(str(error)) from error
        known = (one.allocation for one in self.claims if one.uid not in self._assumed)
        taken = Taken.by([*filter(None, known), *self._assumed.values()])
        return Plan(pod, allocated, joined, list(self._slices), taken)

    def _claims_of(self, pod: Pod) -> Iterable[ResourceClaim]:
        for one in references.pod_claims(pod):
            claim = self.claims.get(one.claim, pod.namespace) if one.claim else None
            if claim is None:
                raise CannotSchedule(str(references.missing(pod, one)))
            if one.template:
                references.check_owner(pod, claim)
            if claim.metadata.deletion_timestamp is not None:
                raise CannotSchedule(f'resourceclaim "{claim.name}" is being deleted')
            yield claim

    def reserve(self, plan: Plan, node: Node) -> None:
        """Count the allocations of a plan from now on."""
        for (claim, _), allocation in zip(plan.waiting, plan.allocations(node) or (), strict=True):
            self._assumed[claim.uid] = allocation

    # ------------------------------------------------------------------ writes

    async def bind(self, plan: Plan) -> None:
        """Write allocations and reservations. Raises ElasticGPUError; `release` then takes them back."""
        for claim, allocation in [*((one, None) for one in plan.allocated), *self._reserved(plan)]:
            await self._write(claim, plan.pod, allocation)

    def _reserved(self, plan: Plan) -> Iterable[tuple[ResourceClaim, Json]]:
        return [(claim, self._assumed[claim.uid]) for claim, _ in plan.waiting if claim.uid in self._assumed]

    async def _write(self, claim: ResourceClaim, pod: Pod, allocation: Json | None) -> None:
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            body = await self._client.raw("GET", _path(claim))
            try:
                await self._write_once(claim, body, pod, allocation)
            except Conflict:
                if attempt == WRITE_ATTEMPTS:
                    raise
            else:
                return

    async def _write_once(self, claim: ResourceClaim, body: Json, pod: Pod, allocation: Json | None) -> None:
        meta, status = metadata(body), as_object(body.get("status"))
        if meta["uid"] != claim.uid or meta.get("deletionTimestamp"):
            raise Unavailable(f"claim {claim.key} got deleted in the meantime")
        if allocation is not None:
            if status.get("allocation") is not None:
                raise Unavailable(f"claim {claim.key} got allocated elsewhere in the meantime")
            if FINALIZER not in as_list(meta.get("finalizers")):
                meta["finalizers"] = [*as_list(meta.get("finalizers")), FINALIZER]
                body = await self._client.raw("PUT", _path(claim), body=body)
                status = as_object(body.get("status"))
            status["allocation"] = allocation
        elif status.get("allocation") is None:
            raise Unavailable(f"claim {claim.key} got deallocated elsewhere in the meantime")
        status["allocation"] = {"allocationTimestamp": rfc3339(time.time()), **status["allocation"]}
        consumers = objects_at(status, "reservedFor")
        if not any(one.get("uid") == pod.uid for one in consumers):
            status["reservedFor"] = [*consumers, references.consumer(pod)]
        await self._client.raw("PUT", _path(claim, "status"), body={**body, "status": status})

    async def deallocate(self, plan: Plan) -> bool:
        """Take back the allocation of one claim that only the pod has, and that keeps it from other nodes. Return
        whether there was one. Raises the API server's errors."""
        for claim in plan.unavailable.values():
            if all(one.get("uid") == plan.pod.uid for one in claim.reserved_for):
                body = {"metadata": {"uid": claim.uid, "resourceVersion": claim.metadata.resource_version}}
                nothing = {"status": {"allocation": None, "reservedFor": None}}
                await self._client.patch(
                    ResourceClaim, claim.name, {**body, **nothing}, namespace=claim.namespace, subresource="status"
                )
                return True
        return False

    async def release(self, plan: Plan) -> None:
        """Take back what `reserve` and `bind` did. An allocation that was written goes with its last reservation."""
        for claim in (*plan.allocated, *(one for one, _ in plan.waiting)):
            self._assumed.pop(claim.uid, None)
            body = await self._client.raw("GET", _path(claim))
            status = as_object(body.get("status"))
            left = [one for one in objects_at(status, "reservedFor") if one.get("uid") != plan.pod.uid]
            if left != objects_at(status, "reservedFor"):
                await self._client.raw(
                    "PUT", _path(claim, "status"), body={**body, "status": {**status, "reservedFor": left}}
                )


def _is_usable(claim: ResourceClaim, node: Node) -> bool:
    selector = at(claim.status, "allocation", "nodeSelector")
    return selector is None or node_selector_predicate(as_object(selector))(node)


def _every(_: Pod) -> bool:
    return True


def _uses(pod: Pod, claim: str, namespace: str) -> bool:
    return pod.namespace == namespace and any(one.claim == claim for one in references.pod_claims(pod))


def _path(claim: ResourceClaim, subresource: str | None = None) -> str:
    return path_of(ResourceClaim, claim.namespace, claim.name, subresource)
