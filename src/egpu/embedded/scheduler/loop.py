"""One pod after the other: default checks, filter, prioritize, bind. A pod that fits nowhere waits for a change."""

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime

import structlog

from egpu.adapters.kubernetes.client import Client
from egpu.adapters.kubernetes.reflector import Change, Reflector
from egpu.api.kubernetes import Event, Node, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ObjectMeta, ObjectReference
from egpu.api.resources import effective_requests
from egpu.embedded.scheduler.extender import Extender
from egpu.embedded.scheduler.predicates import reason_against, unsupported
from egpu.embedded.scheduler.usage import Usage
from egpu.errors import Conflict, DoesNotFit, ElasticGPUError, NotFound, OutcomeUnknown
from egpu.runtime.reconcile import DONE, Loop, Result

SCHEDULER_NAME = "default-scheduler"
LOOK_AGAIN_SECONDS = 30.0
"""A waiting pod is looked at again after this long even if nothing seems to have changed."""

TIE_BREAK = random.Random()

log = structlog.get_logger(__name__)


class Scheduler:
    """Places every pod that names this scheduler and has no node. Not meant to run twice on one cluster."""

    def __init__(self, client: Client, extender: Extender) -> None:
        self._client = client
        self._extender = extender
        self.pods = Reflector(client, Pod)
        self.nodes = Reflector(client, Node)
        self._cards = Reflector(client, ElasticGPU)
        self._claims = Reflector(client, ElasticGPUClaim)
        self._usage = Usage()
        # One worker: two pods never race for the same CPU and memory, and decisions come in the order of arrival.
        self._loop: Loop[str] = Loop("schedule", self._schedule, workers=1)
        self._waiting: set[str] = set()
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Runs until cancelled."""
        reflectors = (self.pods, self.nodes, self._cards, self._claims)
        self.pods.on_change(self._pod_changed)
        for reflector in (self.nodes, self._cards, self._claims):
            reflector.on_change(self._something_changed)
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.synced.wait()
            group.create_task(self._loop.run())

    # ------------------------------------------------------------------ what changed

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.subject
        if change.new is None or pod.finished:
            self._usage.release(pod.uid)
            self._forget(pod)
            self._wake()
        elif pod.spec.node_name:
            self._usage.hold(pod, pod.spec.node_name)
            self._forget(pod)
        elif _is_ours(pod):
            self._loop.queue.add(pod.key)

    def _something_changed(self, _: Change[Node] | Change[ElasticGPU] | Change[ElasticGPUClaim]) -> None:
        self._wake()

    def _wake(self) -> None:
        for key in self._waiting:
            self._loop.queue.add(key)
        self._waiting.clear()

    def _forget(self, pod: Pod) -> None:
        self._waiting.discard(pod.key)
        self._told.pop(pod.uid, None)

    # ------------------------------------------------------------------ one pod

    async def _schedule(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        pod = self.pods.get(name, namespace)
        if pod is None or not _is_ours(pod):
            return DONE
        # Before the verdict, so that a change that arrives while we look is not missed.
        self._waiting.add(key)
        try:
            node = await self._place(pod)
        except DoesNotFit as refusal:
            await self._tell_unschedulable(pod, str(refusal))
            return Result(again_after_seconds=LOOK_AGAIN_SECONDS)
        except (Conflict, NotFound):
            self._usage.release(pod.uid)
            return DONE  # bound, deleted or replaced meanwhile: the watch tells
        self._waiting.discard(key)
        await self._event(pod, "Normal", "Scheduled", f"Successfully assigned {key} to {node}")
        return DONE

    async def _place(self, pod: Pod) -> str:
        """Binds the pod and returns its node. Raises DoesNotFit, Unavailable, Conflict, NotFound."""
        if (feature := unsupported(pod)) is not None:
            raise DoesNotFit(feature)
        requests = effective_requests(pod)
        nodes = sorted(self.nodes, key=lambda node: node.name)
        against = {
            node.name: reason_against(pod, node, requests=requests, used=self._usage.on(node.name)) for node in nodes
        }
        candidates = [name for name, reason in against.items() if reason is None]
        reasons = {name: reason for name, reason in against.items() if reason is not None}
        interested = self._extender.is_interested(pod)
        scores: dict[str, int] = {}
        if candidates and interested:
            answer = await self._extender.filter(pod, candidates)
            reasons |= answer.failed_nodes | answer.failed_and_unresolvable_nodes
            candidates = [name for name in answer.node_names or [] if name in candidates]
            if len(candidates) > 1:
                scores = await self._extender.prioritize(pod, candidates)
        if not candidates:
            raise DoesNotFit(summary(len(nodes), reasons))
        node = max(candidates, key=lambda name: (scores.get(name, 0), TIE_BREAK.random()))
        self._usage.hold(pod, node)
        try:
            await self._bind(pod, node, by_extender=interested)
        except ElasticGPUError as error:
            # Held until the watch shows the truth when the outcome is not known; given back at once otherwise.
            if not isinstance(error, OutcomeUnknown):
                self._usage.release(pod.uid)
            raise
        return node

    async def _bind(self, pod: Pod, node: str, *, by_extender: bool) -> None:
        if by_extender:
            await self._extender.bind(pod, node)
        else:
            await self._client.bind(pod.name, node, namespace=pod.namespace, uid=pod.uid)

    # ------------------------------------------------------------------ what people see

    async def _tell_unschedulable(self, pod: Pod, message: str) -> None:
        if self._told.get(pod.uid) == message:
            return
        self._told[pod.uid] = message
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": _now(),
        }
        others = [one for one in pod.status.conditions or [] if one.type != "PodScheduled"]
        try:
            await self._client.patch(
                Pod,
                pod.name,
                {"metadata": {"uid": pod.uid}, "status": {"conditions": [*others, condition]}},
                namespace=pod.namespace,
                subresource="status",
            )
        except (Conflict, NotFound):
            return
        await self._event(pod, "Warning", "FailedScheduling", message)

    async def _event(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        event = Event(
            metadata=ObjectMeta(generate_name=f"{pod.name}.", namespace=pod.namespace),
            involved_object=ObjectReference(
                api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid
            ),
            reason=reason,
            message=message,
            type="Warning" if kind == "Warning" else "Normal",
            first_timestamp=_now(),
            last_timestamp=_now(),
            source={"component": SCHEDULER_NAME},
            reporting_component=SCHEDULER_NAME,
        )
        try:
            await self._client.create(Event, event, namespace=pod.namespace)
        except ElasticGPUError as error:
            log.warning("event not recorded", pod=pod.key, reason=str(error))


def summary(node_count: int, reasons: dict[str, str]) -> str:
    """kube-scheduler's sentence: "0/4 nodes are available: 3 Insufficient cpu, 1 node(s) were not ready."."""
    if not node_count:
        return "0/0 nodes are available: no nodes"
    counts = Counter(reasons.values())
    parts = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return f"0/{node_count} nodes are available: {parts}."


def _is_ours(pod: Pod) -> bool:
    return (
        not pod.spec.node_name
        and pod.metadata.deletion_timestamp is None
        and (pod.spec.scheduler_name or SCHEDULER_NAME) == SCHEDULER_NAME
        and not pod.spec.scheduling_gates
        and not pod.finished
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
