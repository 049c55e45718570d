"""The scheduling loop, one pod at a time, as kube-scheduler does it: filter, preempt if nothing fits, score, bind.

It watches pods, nodes, and the kinds of dynamic resource allocation. It does not see a freed card or a bound claim of
an extender, which has to change something that it does see.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.wire import rfc3339
from egpu_base.errors import Conflict, ElasticGPUError, NotFound, Unavailable
from egpu_base.kubernetes.client import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.reflector import Change, Reflector
from egpu_sim.cluster.scheduler import preemption
from egpu_sim.cluster.scheduler.devices import CannotSchedule, DeviceClaims, Plan
from egpu_sim.cluster.scheduler.events import DYNAMIC_RESOURCES, EXTENDER, Event, node_events, scaled_down
from egpu_sim.cluster.scheduler.extender import WEIGHT, Extender
from egpu_sim.cluster.scheduler.filters import Filters, NodeState, unsupported
from egpu_sim.cluster.scheduler.messages import event_text, unschedulable
from egpu_sim.cluster.scheduler.queue import QueuedPod, SchedulingQueue
from egpu_sim.cluster.scheduler.requests import requests_of
from egpu_sim.cluster.scheduler.scoring import extender_score, score
from egpu_sim.cluster.scheduler.usage import Usage

SCHEDULER_NAME = "default-scheduler"
NO_NODES = "no nodes available to schedule pods"
NOTHING_TO_DEALLOCATE = "no new claims to deallocate"
DEALLOCATED = "deallocation of ResourceClaim completed"
"""Messages of the plugin for dynamic resources, which runs before preemption."""

TIE_BREAK = random.Random()

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Failure:
    """The reason why a pod was not placed. `plugins` rejected a node; an error has none."""

    message: str
    plugins: frozenset[str] = frozenset()
    reason: str = "Unschedulable"

    @classmethod
    def of(cls, error: ElasticGPUError) -> "Failure":
        """Make the failure of an error, which is no plugin's rejection."""
        return cls(str(error) or type(error).__name__, reason="SchedulerError")


@dataclass(frozen=True)
class Placed:
    """The node for a pod, and the plan for its claims, if it has any."""

    node: str
    plan: Plan | None


@dataclass
class Diagnosis:
    """The reasons why nodes were rejected, by name of node."""

    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    plugins: set[str] = field(default_factory=set[str])
    resolvable: set[str] = field(default_factory=set[str])
    """Nodes that fewer pods might make fit."""

    def reject(self, node: str, plugin: str, reasons: tuple[str, ...], *, resolvable: bool) -> None:
        self.reasons[node] = reasons
        self.plugins.add(plugin)
        if resolvable:
            self.resolvable.add(node)


class Scheduler:
    """Places every pod that names this scheduler and has no node. Run only one of each name per cluster."""

    def __init__(self, client: Client, extender: Extender, *, name: str = SCHEDULER_NAME) -> None:
        self._client = client
        self._extender = extender
        self.name = name
        self._events = EventRecorder(client, component=name)
        self.pods = Reflector(client, Pod)
        self.nodes = Reflector(client, Node)
        self.queue = SchedulingQueue(time.monotonic)
        self._usage = Usage()
        self._devices = DeviceClaims(client, self._devices_changed)
        self._gated: dict[str, Pod] = {}
        """Pods whose claims do not exist yet: they are not in the queue."""

    async def run(self) -> None:
        self.pods.on_change(self._pod_changed)
        self.nodes.on_change(self._node_changed)
        self._devices.follow()
        reflectors: list[Reflector[Any]] = [*self._devices.reflectors, self.pods, self.nodes]
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.synced.wait()
            while True:
                queued = await self.queue.pop()
                try:
                    found = await self._place(queued.pod)
                except ElasticGPUError as error:
                    found = Failure.of(error)
                if isinstance(found, Failure):
                    await self._failed(queued, found)
                else:
                    self._usage.hold(queued.pod, found.node)
                    self.queue.done(queued)
                    group.create_task(self._bind(queued, found))

    # ------------------------------------------------------------------ what changed

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.subject
        self._gated.pop(pod.uid, None)
        if change.new is None or pod.finished:
            self.queue.drop(pod.uid)
            if self._usage.release(pod.uid):
                self.queue.happened([Event.POD_GONE])
        elif pod.spec.node_name:
            self._usage.hold(pod, pod.spec.node_name)
            self.queue.drop(pod.uid)
            old = change.old if change.old is not None and change.old.spec.node_name else None
            if old is None or old.metadata.labels != pod.metadata.labels:
                self.queue.happened([Event.NEIGHBOUR])
            if old is not None and scaled_down(old, pod):
                self.queue.happened([Event.POD_SCALED_DOWN])
        elif self._is_ours(pod) and not self._usage.holds(pod.uid):
            self._offer(change.old, pod)
        elif not self._is_ours(pod):
            self.queue.drop(pod.uid)

    def _offer(self, old: Pod | None, pod: Pod) -> None:
        if self._devices.missing(pod) is None:
            self.queue.offer(old, pod)
        else:
            self.queue.drop(pod.uid)
            self._gated[pod.uid] = pod

    def _devices_changed(self, event: Event, concerns: Callable[[Pod], bool]) -> None:
        self.queue.happened([event], concerns=concerns)
        for pod in [one for one in self._gated.values() if self._devices.missing(one) is None]:
            del self._gated[pod.uid]
            self.queue.offer(None, pod)

    def _is_ours(self, pod: Pod) -> bool:
        return (
            not pod.spec.node_name
            and pod.metadata.deletion_timestamp is None
            and (pod.spec.scheduler_name or SCHEDULER_NAME) == self.name
            and not pod.spec.scheduling_gates
            and not pod.finished
        )

    def _node_changed(self, change: Change[Node]) -> None:
        self.queue.happened(node_events(change.old, change.new))

    # ------------------------------------------------------------------ one pod

    async def _place(self, pod: Pod) -> Placed | Failure:
        """Return the node for the pod, whose devices are reserved, or the failure. Raises Unavailable when an extender
        does not answer, and InvalidInput when a selector of devices fails."""
        if (feature := unsupported(pod)) is not None:
            return Failure(feature)
        nodes = {node.name: node for node in sorted(self.nodes, key=lambda node: node.name)}
        if not nodes:
            return Failure(NO_NODES)
        try:
            plan = self._devices.plan(pod)
        except CannotSchedule as error:
            message = f"0/{len(nodes)} nodes are available: {error}. {NOTHING_TO_DEALLOCATE}"
            return Failure(message, frozenset({DYNAMIC_RESOURCES}))
        found = await self._node_for(pod, nodes, plan)
        if isinstance(found, Failure):
            return found
        if plan is not None:
            self._devices.reserve(plan, nodes[found])
        return Placed(found, plan)

    async def _node_for(self, pod: Pod, nodes: Mapping[str, Node], plan: Plan | None) -> str | Failure:
        diagnosis, states = Diagnosis(), {name: self._usage.seen_by(pod, node) for name, node in nodes.items()}
        candidates = _filtered(Filters(pod, states, repelled=self._usage.repels), states, diagnosis, plan)
        if candidates and self._extender.is_interested(pod):
            answer = await self._extender.filter(pod, candidates)
            for name, reason in (answer.failed_nodes | answer.failed_and_unresolvable_nodes).items():
                resolvable = name not in answer.failed_and_unresolvable_nodes
                diagnosis.reject(name, EXTENDER, (reason,), resolvable=resolvable)
            if len(answer.node_names or []) < len(candidates):
                diagnosis.plugins.add(EXTENDER)
            candidates = answer.node_names or []
        if not candidates:
            if plan is not None:  # a node without the devices needs no eviction
                diagnosis.resolvable = {name for name in diagnosis.resolvable if plan.rejection(nodes[name]) is None}
            freed = plan is not None and await self._devices.deallocate(plan)
            in_vain = await self._preempt(pod, nodes, diagnosis)
            after = f"{DEALLOCATED if freed else NOTHING_TO_DEALLOCATE}, preemption: {in_vain}" if in_vain else ""
            message = unschedulable(len(nodes), diagnosis.reasons, after=after)
            return Failure(message, frozenset(diagnosis.plugins))
        if len(candidates) == 1:
            return candidates[0]
        return await self._best(pod, [nodes[name] for name in candidates])

    async def _best(self, pod: Pod, nodes: list[Node]) -> str:
        requests = requests_of(pod)
        scores = {node.name: score(node, requests=requests, used=self._usage.on(node).used) for node in nodes}
        if self._extender.is_interested(pod):
            try:
                answer = await self._extender.prioritize(pod, list(scores))
            except Unavailable as error:
                log.warning("the extender's scores are left out", pod=pod.key, reason=str(error))
            else:
                for name, one in answer.items():
                    scores[name] += extender_score(one, weight=WEIGHT)
        return max(scores, key=lambda name: (scores[name], TIE_BREAK.random()))

    async def _bind(self, queued: QueuedPod, placed: Placed) -> None:
        pod, node = queued.pod, placed.node
        try:
            if placed.plan is not None:
                await self._devices.bind(placed.plan)
            if self._extender.is_interested(pod):
                await self._extender.bind(pod, node)
            else:
                await self._client.bind(pod.name, node, namespace=pod.namespace, uid=pod.uid)
        except ElasticGPUError as error:
            known = self.pods.get(pod.name, pod.namespace)
            if known is not None and known.uid == pod.uid and known.spec.node_name:
                return  # bound all the same: the answer was lost
            if placed.plan is not None:
                # Before the pod may be tried again: this would take away the reservations of the next try.
                with contextlib.suppress(ElasticGPUError):  # the controller takes away what is left of it
                    await self._devices.release(placed.plan)
            self._usage.release(pod.uid)
            self.queue.happened([Event.POD_GONE])
            await self._failed(queued, Failure.of(error))
        else:
            await self._events.note(pod, "Scheduled", f"Successfully assigned {pod.key} to {node}")

    # ------------------------------------------------------------------ room by preemption

    async def _preempt(self, pod: Pod, nodes: Mapping[str, Node], diagnosis: Diagnosis) -> str:
        """Evict pods for this one if that helps. Otherwise return kube-scheduler's reason."""
        if pod.spec.preemption_policy == preemption.NEVER:
            return "not eligible due to preemptionPolicy=Never."
        states = {name: self._usage.on(node) for name, node in nodes.items()}
        nominated = self._usage.promised(pod.uid) or pod.status.nominated_node_name
        if nominated in states and preemption.terminating(states[nominated].pods):
            return "not eligible due to a terminating pod on the nominated node."
        found = preemption.find(Filters(pod, states, repelled=self._usage.repels), states, diagnosis.resolvable)
        candidates = list(found.candidates)
        if candidates and self._extender.is_interested(pod):
            kept = await self._extender.preempt(pod, {one.node: one.pods for one in candidates})
            candidates = [one for one in candidates if one.node in kept]
        if not candidates:
            self._usage.release(pod.uid)
            return found.message or "no candidate node for preemption"
        chosen = preemption.best(candidates)
        self._usage.promise(pod, chosen.node)
        for victim in chosen.pods:
            await self._evict(victim, pod, chosen.node)
        await self._write_status(pod, {"nominatedNodeName": chosen.node})
        return ""

    async def _evict(self, victim: Pod, preemptor: Pod, node: str) -> None:
        message = f"{self.name}: preempting to accommodate a higher priority pod"
        await self._write_condition(victim, preemption.DISRUPTION_TARGET, "True", preemption.BY_SCHEDULER, message)
        try:
            await self._client.delete(Pod, victim.name, namespace=victim.namespace, uid=victim.uid)
        except (Conflict, NotFound):
            return  # gone by itself
        await self._events.note(victim, "Preempted", f"Preempted by pod {preemptor.uid} on node {node}")

    # ------------------------------------------------------------------ what people see

    async def _failed(self, queued: QueuedPod, failure: Failure) -> None:
        """Put the pod back into the queue, then write an event and a condition."""
        pod = self.pods.get(queued.pod.name, queued.pod.namespace)
        if pod is None or pod.uid != queued.pod.uid or not self._is_ours(pod):
            self.queue.drop(queued.pod.uid)
            return
        queued.pod = pod
        self.queue.put_back(queued, failure.plugins)
        if failure.reason != "Unschedulable":
            log.warning("not scheduled", pod=pod.key, reason=failure.message)
        await self._events.warn(pod, "FailedScheduling", event_text(failure.message))
        known = next((one for one in pod.status.conditions or [] if one.type == "PodScheduled"), None)
        if known is None or (known.reason, known.message) != (failure.reason, failure.message):
            await self._write_condition(pod, "PodScheduled", "False", failure.reason, failure.message)

    async def _write_condition(self, pod: Pod, kind: str, status: str, reason: str, message: str) -> None:
        now = rfc3339(time.time())
        condition = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
        others = [one for one in pod.status.conditions or [] if one.type != kind]
        await self._write_status(pod, {"conditions": [*others, condition]})

    async def _write_status(self, pod: Pod, status: dict[str, object]) -> None:
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        try:
            await self._client.patch(Pod, pod.name, patch, namespace=pod.namespace, subresource="status")
        except (Conflict, NotFound):
            return  # another pod by now, or none
        except ElasticGPUError as error:
            log.warning("status not written", pod=pod.key, reason=str(error))


def _filtered(filters: Filters, states: Mapping[str, NodeState], diagnosis: Diagnosis, plan: Plan | None) -> list[str]:
    fitting: list[str] = []
    for name, state in states.items():
        against = filters.rejection(state)
        if against is None and plan is not None:
            against = plan.rejection(state.node)
        if against is None:
            fitting.append(name)
        else:
            diagnosis.reject(name, against.plugin, against.reasons, resolvable=against.resolvable)
    return fitting
