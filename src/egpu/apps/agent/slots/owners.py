"""Finds the owner of a slot: kubelet calls PreStartContainer with device ids and nothing else.

pod-resources names the pod and container of a slot, without the pod's UID and without plain init containers:

- Two entries of one pod name are an old pod that is still ending and a new one. The API server's pod could be either
  of them, so kubelet is asked to come back.
- A plain init container's slot is reused by an app container, and only that one is listed. So if the pod's allocation
  has such init containers, the pod's status decides which container is starting. The status may be a moment behind
  kubelet. It is waited for only if something of this pod was prepared before: the first to start is certain.
- A slot that only init containers use is not listed at all. Then the one pod of the node in that stage has it. One
  whose container has another slot already is not asked: a container keeps its slot when it is restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation
from egpu.api.foreign import NO_STATIC_PODS
from egpu.apps.agent.slots.directories import HeldClaim
from egpu_base.api.kubernetes import ContainerStatus, Pod
from egpu_base.errors import CorruptData, NotFound, TerminalError, Unavailable
from egpu_base.kubelet.podresources import ContainerHoldings, PodHoldings

# : How far a pod's status may be behind kubelet when one of its init containers has just ended.
STATUS_LAG_SECONDS = 5.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Owner:
    """A container that is starting, and its allocation."""

    pod: Pod
    container: str
    allocation: ContainerAllocation
    resource_claim: HeldClaim | None = None
    """Set if a ResourceClaim has the slot."""


class PodReader(Protocol):
    """The two questions to the API server."""

    async def read(self, namespace: str, name: str) -> Pod:
        """Return the pod as it is now. Raises NotFound, Unavailable."""
        ...

    async def on_node(self) -> Sequence[Pod]:
        """Return every pod that is bound to this node. Raises Unavailable."""
        ...


class Owners:
    """The owners of one node's slots. `prepared` returns (pod UID, container) of prepared slots, newest first; `slots`
    returns the slots that each of them has."""

    def __init__(
        self,
        node: str,
        *,
        holdings: Callable[[], Awaitable[Sequence[PodHoldings]]],
        pods: PodReader,
        prepared: Callable[[], Iterable[tuple[str, str]]],
        slots: Callable[[], Mapping[tuple[str, str], set[str]]] = dict,
        status_lag_seconds: float = STATUS_LAG_SECONDS,
    ) -> None:
        self._node = node
        self._holdings = holdings
        self._pods = pods
        self._prepared = prepared
        self._slots = slots
        self._status_lag_seconds = status_lag_seconds

    async def of(self, slot_id: str) -> Owner:
        """Return the container that is about to start with `slot_id`.

        Raises:
            TerminalError: it has no allocation on this node; the message names pod, container and reason.
            Unavailable: the owner is not known yet.
        """
        holder = self._holder(slot_id, await self._holdings())
        if holder is None:
            return await self._unlisted(slot_id)
        try:
            pod = await self._pods.read(holder.namespace, holder.pod)
        except NotFound as error:
            raise TerminalError(
                f"pod {holder.namespace}/{holder.pod}, container {holder.container}: the API server has no such pod; "
                f"either it was deleted, or it is a static pod: {NO_STATIC_PODS}"
            ) from error
        allocation = self._allocation(pod, holder.container)
        container = await self._starting(pod, allocation, holder.container)
        granted = allocation.containers.get(container)
        if granted is None:
            raise TerminalError(
                f"pod {pod.key}, container {container}: it has slot {slot_id}, but the allocation is for "
                f"{', '.join(sorted(allocation.containers)) or 'no container'}"
            )
        return Owner(pod, container, granted)

    def _holder(self, slot_id: str, pods: Sequence[PodHoldings]) -> ContainerHoldings | None:
        containers = (container for pod in pods for container in pod.containers)
        found = [each for each in containers if slot_id in each.devices.get(names.SLOT, ())]
        if not found:
            return None
        holder = found[0]
        if len(found) > 1:
            listed = ", ".join(f"{each.namespace}/{each.pod}:{each.container}" for each in found)
            raise Unavailable(f"slot {slot_id} is listed for several containers ({listed}); kubelet will ask again")
        if sum((pod.namespace, pod.name) == (holder.namespace, holder.pod) and _has_slot(pod) for pod in pods) > 1:
            raise Unavailable(
                f"pod {holder.namespace}/{holder.pod}: an earlier pod of this name is still ending on this node"
            )
        return holder

    def _allocation(self, pod: Pod, container: str) -> PodAllocation:
        where = f"pod {pod.key}, container {container}"
        if pod.spec.node_name != self._node:
            raise TerminalError(f"{where}: the pod is bound to {pod.spec.node_name or 'no node'}, not to {self._node}")
        text = pod.annotations.get(names.ALLOCATION)
        if text is None and pod.is_mirror:
            raise TerminalError(f"{where}: it is a static pod: {NO_STATIC_PODS}")
        if text is None:
            raise TerminalError(
                f"{where}: no allocation ({names.ALLOCATION} is missing); the Elastic GPU extender must place "
                f"pods with {names.SLOT}"
            )
        try:
            allocation = decode_allocation(text)
        except CorruptData as error:
            raise TerminalError(f"{where}: {error}") from error
        if allocation.node != self._node:
            raise TerminalError(f"{where}: the allocation is for node {allocation.node}, not for {self._node}")
        return allocation

    async def _starting(self, pod: Pod, allocation: PodAllocation, listed: str) -> str:
        """Return `listed`, or the plain init container that uses its slot before it."""
        earlier = _plain_inits_before(pod, allocation, listed)
        current = _unfinished(pod, earlier)
        if current is None:
            return listed
        last = next((container for uid, container in self._prepared() if uid == pod.uid), None)
        if last is None:
            return current
        return await self._after_lag(pod, earlier, listed, last)

    async def _after_lag(self, pod: Pod, earlier: Sequence[str], listed: str, last: str) -> str:
        """Return the container that starts after `last` was prepared: its next run, or the one after it."""
        deadline = asyncio.get_running_loop().time() + self._status_lag_seconds
        while True:
            current = _unfinished(pod, earlier)
            if current is None or current != last:
                return current or listed
            if _ended_badly(pod, current) or asyncio.get_running_loop().time() > deadline:
                return current
            await asyncio.sleep(POLL_SECONDS)
            fresh = await self._pods.read(pod.namespace, pod.name)
            if fresh.uid != pod.uid:
                raise Unavailable(f"pod {pod.key}: it was replaced by another pod of this name")
            pod = fresh

    async def _unlisted(self, slot_id: str) -> Owner:
        candidates: list[Owner] = []
        slots = self._slots()
        for pod in await self._pods.on_node():
            text = pod.annotations.get(names.ALLOCATION)
            if text is None or pod.finished:
                continue
            try:
                allocation = decode_allocation(text)
            except CorruptData:
                continue
            inits = [name for name in allocation.init if name in allocation.containers]
            current = _unfinished(pod, inits)
            if current is None or allocation.node != self._node or len(inits) < len(allocation.containers):
                continue
            if slot_id in slots.get((pod.uid, current), {slot_id}):
                candidates.append(Owner(pod, current, allocation.containers[current]))
        if len(candidates) == 1:
            return candidates[0]
        listed = ", ".join(sorted(each.pod.key for each in candidates)) or "none"
        raise Unavailable(
            f"slot {slot_id}: kubelet lists no container with it (it never lists init containers); pods of this "
            f"node with GPU init containers only: {listed}"
        )


def _has_slot(pod: PodHoldings) -> bool:
    return any(container.devices.get(names.SLOT) for container in pod.containers)


def _plain_inits_before(pod: Pod, allocation: PodAllocation, listed: str) -> list[str]:
    """Return the plain init containers with an allocation that run before `listed`, in the pod's order."""
    order = [container.name for container in pod.all_containers]
    before = order[: order.index(listed)] if listed in order else order
    return [name for name in before if name in allocation.init and name in allocation.containers]


def _status(pod: Pod, init_container: str) -> ContainerStatus | None:
    statuses = pod.status.init_container_statuses or []
    return next((status for status in statuses if status.name == init_container), None)


def _unfinished(pod: Pod, init_containers: Sequence[str]) -> str | None:
    """Return the first of `init_containers` that has not ended well, by the pod's status."""
    for name in init_containers:
        status = _status(pod, name)
        state = status.state if status is not None else None
        if state is None or state.terminated is None or state.terminated.exit_code != 0:
            return name
    return None


def _ended_badly(pod: Pod, init_container: str) -> bool:
    """Return whether its last run failed, so that kubelet runs it again."""
    status = _status(pod, init_container)
    if status is None:
        return False
    states = [state for state in (status.state, status.last_state) if state is not None]
    return any(state.terminated is not None and state.terminated.exit_code != 0 for state in states)
