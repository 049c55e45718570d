"""The loops of one cluster's controllers. Changes of their objects, of owned objects, and of nodes wake them."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from egpu_base.api.disruption import PodDisruptionBudget
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import Object
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import Loop, Result
from egpu_sim.cluster.controllers.daemon_sets import DaemonSets
from egpu_sim.cluster.controllers.deployments import Deployments
from egpu_sim.cluster.controllers.disruption import Disruptions
from egpu_sim.cluster.controllers.jobs import Jobs
from egpu_sim.cluster.controllers.kinds import ReplicaSet, Workload
from egpu_sim.cluster.controllers.pods import controller_of
from egpu_sim.cluster.controllers.replica_sets import ReplicaSets
from egpu_sim.cluster.controllers.resource_claims import PodClaims, ResourceClaims
from egpu_sim.cluster.controllers.stateful_sets import StatefulSets
from egpu_sim.cluster.dynamic import references
from egpu_sim.cluster.dynamic.kinds import ResourceClaim
from egpu_sim.cluster.dynamic.references import pod_claims
from egpu_sim.cluster.dynamic.users import ClaimUsers


class _Controller(Protocol):
    kind: type[Workload]

    async def reconcile(self, key: str) -> Result: ...


class Controllers:
    """All controllers of a cluster. Run only one per cluster."""

    def __init__(self, client: Client) -> None:
        events = EventRecorder(client, component="kube-controller-manager")
        makers: list[Callable[[Client, EventRecorder], Any]] = [
            Deployments, ReplicaSets, DaemonSets, StatefulSets, Jobs
        ]  # fmt: skip
        self._controllers: list[_Controller] = [make(client, events) for make in makers]
        self._loops = {one.kind: Loop[str](one.kind.__name__, one.reconcile) for one in self._controllers}
        self._owners = {kind: Reflector(client, kind) for kind in self._loops}
        self._pods, self._nodes = Reflector(client, Pod), Reflector(client, Node)
        self._budgets = Reflector(client, PodDisruptionBudget)
        self._disruptions = Loop[str]("PodDisruptionBudget", Disruptions(client, events).reconcile)
        self._claims = Reflector(client, ResourceClaim)
        self._users = ClaimUsers()
        self._freed = Loop[str]("ResourceClaim", ResourceClaims(client).reconcile)
        self._made = Loop[str]("claims of Pod", PodClaims(client, events).reconcile)

    async def run(self) -> None:
        for kind, reflector in self._owners.items():
            reflector.on_change(self._waker(kind))
        self._owners[ReplicaSet].on_change(self._owned_changed)
        self._pods.on_change(self._owned_changed)
        self._pods.on_change(self._selected_changed)
        self._budgets.on_change(lambda change: self._disruptions.queue.add(change.subject.key))
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._users.changed)
        self._pods.on_change(self._claimant_changed)
        self._claims.on_change(self._claim_changed)
        reflectors: list[Reflector[Any]] = [
            *self._owners.values(), self._pods, self._nodes, self._budgets, self._claims
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.synced.wait()
            for loop in (*self._loops.values(), self._disruptions, self._freed, self._made):
                group.create_task(loop.run())

    def _waker(self, kind: type[Workload]) -> Callable[[Change[Workload]], None]:
        return lambda change: self._loops[kind].queue.add(change.subject.key)

    def _owned_changed(self, change: Change[Any]) -> None:
        """Wake the present and the former owner of a changed object; for a stray, every possible adopter."""
        for obj in filter(None, (change.old, change.new)):
            self._wake_owner(obj)

    def _wake_owner(self, obj: Object) -> None:
        uid = controller_of(obj)
        for kind, reflector in self._owners.items():
            if uid and (owner := reflector.by_uid(uid)) is not None:
                self._loops[kind].queue.add(owner.key)
            elif not uid:
                for one in reflector:
                    if one.namespace == obj.namespace:
                        self._loops[kind].queue.add(one.key)

    def _selected_changed(self, change: Change[Pod]) -> None:
        """Wake the budgets of the pod's namespace, which may select it."""
        for budget in self._budgets:
            if budget.namespace == change.subject.namespace:
                self._disruptions.queue.add(budget.key)

    def _claimant_changed(self, change: Change[Pod]) -> None:
        """Wake a pod that has claims, and these."""
        pod = change.subject
        if change.new is not None and pod.spec.resource_claims:
            self._made.queue.add(pod.key)
        for one in pod_claims(pod):
            if one.claim:
                self._freed.queue.add(f"{pod.namespace}/{one.claim}")

    def _claim_changed(self, change: Change[ResourceClaim]) -> None:
        """Wake a claim, and the bound pods for which it is not reserved."""
        claim = change.subject
        self._freed.queue.add(claim.key)
        if change.new is None or claim.allocation is None:
            return
        for pod in filter(None, map(self._pods.by_uid, self._users.of(claim.key))):
            if pod.spec.node_name and not references.is_reserved_for(claim, pod):
                self._made.queue.add(pod.key)

    def _node_changed(self, change: Change[Node]) -> None:
        """Wake the DaemonSets: a new, gone, relabelled or retainted node may take other daemons."""
        old, new = change.old, change.new
        if old is not None and new is not None and (old.spec, old.metadata.labels) == (new.spec, new.metadata.labels):
            return
        for kind in (one.kind for one in self._controllers if isinstance(one, DaemonSets)):
            for owner in self._owners[kind]:
                self._loops[kind].queue.add(owner.key)
