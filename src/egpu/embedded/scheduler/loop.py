"""One pod after the other, as kube-scheduler does it: filter, look for victims if nothing fits, score, bind.

It watches pods and nodes and nothing else. A card that gets free, or a claim that gets bound, is no news to it:
somebody has to tell it, by a change that it does see (`egpu.apps.extender.waking`).
"""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from egpu.adapters.kubernetes.client import Client
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.adapters.kubernetes.reflector import Change, Reflector
from egpu.api.kubernetes import Node, Pod
from egpu.api.resources import Amounts, effective_requests
from egpu.api.wire import rfc3339
from egpu.core.placement.node_filters import rejection, unsupported
from egpu.embedded.scheduler import preemption
from egpu.embedded.scheduler.events import EXTENDER, Event, node_events, scaled_down
from egpu.embedded.scheduler.extender import WEIGHT, Extender
from egpu.embedded.scheduler.messages import event_text, unschedulable
from egpu.embedded.scheduler.queue import QueuedPod, SchedulingQueue
from egpu.embedded.scheduler.scoring import extender_score, score
from egpu.embedded.scheduler.usage import Usage
from egpu.errors import Conflict, ElasticGPUError, NotFound, Unavailable

SCHEDULER_NAME = "default-scheduler"
NO_NODES = "no nodes available to schedule pods"
NOTHING_TO_DEALLOCATE = "no new claims to deallocate"
"""Of the plugin for dynamic resources, which looks for room before preemption does and finds it never here."""

TIE_BREAK = random.Random()

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why a pod was not placed. `plugins`: those that rejected a node; none after an error."""

    message: str
    plugins: frozenset[str] = frozenset()
    reason: str = "Unschedulable"

    @classmethod
    def of(cls, error: ElasticGPUError) -> "Failure":
        """Something else than a plugin's verdict came between."""
        return cls(str(error) or type(error).__name__, reason="SchedulerError")


@dataclass
class Diagnosis:
    """Why nodes were rejected, by their names."""

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
    """Places every pod that names this scheduler and has no node. Not meant to run twice on one cluster."""

    def __init__(self, client: Client, extender: Extender) -> None:
        self._client = client
        self._extender = extender
        self._events = EventRecorder(client, component=SCHEDULER_NAME)
        self.pods = Reflector(client, Pod)
        self.nodes = Reflector(client, Node)
        self.queue = SchedulingQueue(time.monotonic)
        self._usage = Usage()

    async def run(self) -> None:
        """Runs until cancelled."""
        self.pods.on_change(self._pod_changed)
        self.nodes.on_change(self._node_changed)
        async with asyncio.TaskGroup() as group:
            for reflector in (self.pods, self.nodes):
                group.create_task(reflector.run())
            for reflector in (self.pods, self.nodes):
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
                    self._usage.hold(queued.pod, found)
                    self.queue.done(queued)
                    group.create_task(self._bind(queued, found))

    # ------------------------------------------------------------------ what changed

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.subject
        if change.new is None or pod.finished:
            self.queue.drop(pod.uid)
            if self._usage.release(pod.uid):
                self.queue.happened([Event.POD_GONE])
        elif pod.spec.node_name:
            self._usage.hold(pod, pod.spec.node_name)
            self.queue.drop(pod.uid)
            if change.old is not None and change.old.spec.node_name and scaled_down(change.old, pod):
                self.queue.happened([Event.POD_SCALED_DOWN])
        elif _is_ours(pod) and not self._usage.holds(pod.uid):
            self.queue.offer(change.old, pod)
        elif not _is_ours(pod):
            self.queue.drop(pod.uid)

    def _node_changed(self, change: Change[Node]) -> None:
        self.queue.happened(node_events(change.old, change.new))

    # ------------------------------------------------------------------ one pod

    async def _place(self, pod: Pod) -> str | Failure:
        """The node for the pod, or why there is none. Raises Unavailable when an extender does not answer."""
        if (feature := unsupported(pod)) is not None:
            return Failure(feature)
        nodes = {node.name: node for node in sorted(self.nodes, key=lambda node: node.name)}
        if not nodes:
            return Failure(NO_NODES)
        requests, diagnosis = effective_requests(pod), Diagnosis()
        candidates = self._filtered(pod, nodes, requests, diagnosis)
        if candidates and self._extender.is_interested(pod):
            answer = await self._extender.filter(pod, candidates)
            for name, reason in (answer.failed_nodes | answer.failed_and_unresolvable_nodes).items():
                resolvable = name not in answer.failed_and_unresolvable_nodes
                diagnosis.reject(name, EXTENDER, (reason,), resolvable=resolvable)
            if len(answer.node_names or []) < len(candidates):
                diagnosis.plugins.add(EXTENDER)
            candidates = answer.node_names or []
        if not candidates:
            in_vain = await self._preempt(pod, nodes, diagnosis)
            after = f"{NOTHING_TO_DEALLOCATE}, preemption: {in_vain}" if in_vain else ""
            message = unschedulable(len(nodes), diagnosis.reasons, after=after)
            return Failure(message, frozenset(diagnosis.plugins))
        if len(candidates) == 1:
            return candidates[0]
        return await self._best(pod, [nodes[name] for name in candidates], requests)

    def _filtered(self, pod: Pod, nodes: Mapping[str, Node], requests: Amounts, diagnosis: Diagnosis) -> list[str]:
        fitting: list[str] = []
        for name, node in nodes.items():
            against = rejection(pod, node, requests=requests, used=self._usage.seen_by(pod, name))
            if against is None:
                fitting.append(name)
            else:
                diagnosis.reject(name, against.plugin, against.reasons, resolvable=against.resolvable)
        return fitting

    async def _best(self, pod: Pod, nodes: list[Node], requests: Amounts) -> str:
        scores = {node.name: score(node, requests=requests, used=self._usage.on(node.name)) for node in nodes}
        if self._extender.is_interested(pod):
            try:
                answer = await self._extender.prioritize(pod, list(scores))
            except Unavailable as error:
                log.warning("the extender's scores are left out", pod=pod.key, reason=str(error))
            else:
                for name, one in answer.items():
                    scores[name] += extender_score(one, weight=WEIGHT)
        return max(scores, key=lambda name: (scores[name], TIE_BREAK.random()))

    async def _bind(self, queued: QueuedPod, node: str) -> None:
        pod = queued.pod
        try:
            if self._extender.is_interested(pod):
                await self._extender.bind(pod, node)
            else:
                await self._client.bind(pod.name, node, namespace=pod.namespace, uid=pod.uid)
        except ElasticGPUError as error:
            known = self.pods.get(pod.name, pod.namespace)
            if known is not None and known.uid == pod.uid and known.spec.node_name:
                return  # bound all the same: the answer was lost
            self._usage.release(pod.uid)
            self.queue.happened([Event.POD_GONE])
            await self._failed(queued, Failure.of(error))
        else:
            await self._events.note(pod, "Scheduled", f"Successfully assigned {pod.key} to {node}")

    # ------------------------------------------------------------------ room by preemption

    async def _preempt(self, pod: Pod, nodes: Mapping[str, Node], diagnosis: Diagnosis) -> str:
        """Evicts for the pod, if that helps; otherwise says why not, as kube-scheduler does."""
        if pod.spec.preemption_policy == preemption.NEVER:
            return "not eligible due to preemptionPolicy=Never."
        placed: defaultdict[str, list[Pod]] = defaultdict(list)
        for one in self.pods:
            if one.spec.node_name and not one.finished:
                placed[one.spec.node_name].append(one)
        nominated = self._usage.promised(pod.uid) or pod.status.nominated_node_name
        if nominated and preemption.terminating(placed[nominated]):
            return "not eligible due to a terminating pod on the nominated node."
        potential = [nodes[name] for name in nodes if name in diagnosis.resolvable]
        used = {name: self._usage.on(name) for name in nodes}
        found = preemption.find(pod, list(nodes.values()), potential, placed, used)
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
        message = f"{SCHEDULER_NAME}: preempting to accommodate a higher priority pod"
        await self._write_condition(victim, preemption.DISRUPTION_TARGET, "True", preemption.BY_SCHEDULER, message)
        try:
            await self._client.delete(Pod, victim.name, namespace=victim.namespace, uid=victim.uid)
        except (Conflict, NotFound):
            return  # gone by itself
        await self._events.note(victim, "Preempted", f"Preempted by pod {preemptor.uid} on node {node}")

    # ------------------------------------------------------------------ what people see

    async def _failed(self, queued: QueuedPod, failure: Failure) -> None:
        """Back into the queue, then an event and a condition."""
        pod = self.pods.get(queued.pod.name, queued.pod.namespace)
        if pod is None or pod.uid != queued.pod.uid or not _is_ours(pod):
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


def _is_ours(pod: Pod) -> bool:
    return (
        not pod.spec.node_name
        and pod.metadata.deletion_timestamp is None
        and (pod.spec.scheduler_name or SCHEDULER_NAME) == SCHEDULER_NAME
        and not pod.spec.scheduling_gates
        and not pod.finished
    )
