"""The loops of one cluster's controllers, and what wakes them: their own objects, what these own, and nodes."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from egpu.adapters.kubernetes import Change, Client, Reflector
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.api.disruption import PodDisruptionBudget
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import Object
from egpu.embedded.controllers.daemon_sets import DaemonSets
from egpu.embedded.controllers.deployments import Deployments
from egpu.embedded.controllers.disruption import Disruptions
from egpu.embedded.controllers.jobs import Jobs
from egpu.embedded.controllers.kinds import ReplicaSet, Workload
from egpu.embedded.controllers.pods import controller_of
from egpu.embedded.controllers.replica_sets import ReplicaSets
from egpu.embedded.controllers.stateful_sets import StatefulSets
from egpu.runtime.reconcile import Loop, Result


class _Controller(Protocol):
    kind: type[Workload]

    async def reconcile(self, key: str) -> Result: ...


class Controllers:
    """All controllers of a cluster. Not meant to run twice on one."""

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

    async def run(self) -> None:
        """Runs until cancelled."""
        for kind, reflector in self._owners.items():
            reflector.on_change(self._waker(kind))
        self._owners[ReplicaSet].on_change(self._owned_changed)
        self._pods.on_change(self._owned_changed)
        self._pods.on_change(self._selected_changed)
        self._budgets.on_change(lambda change: self._disruptions.queue.add(change.subject.key))
        self._nodes.on_change(self._node_changed)
        reflectors: list[Reflector[Any]] = [*self._owners.values(), self._pods, self._nodes, self._budgets]
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.synced.wait()
            for loop in (*self._loops.values(), self._disruptions):
                group.create_task(loop.run())

    def _waker(self, kind: type[Workload]) -> Callable[[Change[Workload]], None]:
        return lambda change: self._loops[kind].queue.add(change.subject.key)

    def _owned_changed(self, change: Change[Any]) -> None:
        """Wake the owner of what changed, the former one too; of a stray, whoever might adopt it."""
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
        """Wake the budgets of the pod's namespace: they may select it."""
        for budget in self._budgets:
            if budget.namespace == change.subject.namespace:
                self._disruptions.queue.add(budget.key)

    def _node_changed(self, change: Change[Node]) -> None:
        """A node that comes, goes, or is labelled or tainted otherwise may take other daemons."""
        old, new = change.old, change.new
        if old is not None and new is not None and (old.spec, old.metadata.labels) == (new.spec, new.metadata.labels):
            return
        for kind in (one.kind for one in self._controllers if isinstance(one, DaemonSets)):
            for owner in self._owners[kind]:
                self._loops[kind].queue.add(owner.key)
