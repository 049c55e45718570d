"""Whose slot is it? kubelet calls PreStartContainer with device ids and nothing else; this finds the container.

pod-resources names the pod and container that hold a slot, without the pod's UID and without plain init containers:

- Two entries of one pod name are an old pod that still ends and a new one: which of them the API server's pod is cannot
  be told, so kubelet is asked to come back.
- A plain init container's slot is given to an app container again, and only that one is listed. So when the pod's
  allocation has such init containers, the pod's status decides who is starting. That status may be a moment behind
  kubelet; it is waited for, but only when something of this pod was prepared before: the first to start is certain.
- A slot that only init containers hold is not listed at all. Then the one pod of the node in that stage has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from egpu.adapters.kubelet.podresources import ContainerHoldings, PodHoldings
from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation
from egpu.api.kubernetes import ContainerStatus, Pod
from egpu.errors import CorruptData, TerminalError, Unavailable

#: How far a pod's status may be behind kubelet when one of its init containers has just ended.
STATUS_LAG_SECONDS = 5.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Owner:
    """A container that is starting, and what it was given."""

    pod: Pod
    container: str
    allocation: ContainerAllocation


class PodReader(Protocol):
    """The two questions to the API server."""

    async def read(self, namespace: str, name: str) -> Pod:
        """The pod as it is now. Raises NotFound, Unavailable."""
        ...

    async def on_node(self) -> Sequence[Pod]:
        """Every pod that is bound to this node. Raises Unavailable."""
        ...


class Owners:
    """Who has which slot of one node. `prepared` says which (pod UID, container) were prepared last, newest first."""

    def __init__(
        self,
        node: str,
        *,
        holdings: Callable[[], Awaitable[Sequence[PodHoldings]]],
        pods: PodReader,
        prepared: Callable[[], Iterable[tuple[str, str]]],
        status_lag_seconds: float = STATUS_LAG_SECONDS,
    ) -> None:
        self._node = node
        self._holdings = holdings
        self._pods = pods
        self._prepared = prepared
        self._status_lag_seconds = status_lag_seconds

    async def of(self, slot_id: str) -> Owner:
        """The container that is about to start with `slot_id`.

        Raises:
            TerminalError: it has no allocation on this node; the message names pod, container and reason.
            Unavailable: it cannot be told yet.
        """
        holder = self._holder(slot_id, await self._holdings())
        if holder is None:
            return await self._unlisted(slot_id)
        pod = await self._pods.read(holder.namespace, holder.pod)
        allocation = self._allocation(pod, holder.container)
        container = await self._starting(pod, allocation, holder.container)
        granted = allocation.containers.get(container)
        if granted is None:
            raise TerminalError(
                f"pod {pod.key}, container {container}: it holds slot {slot_id}, but the allocation is for "
                f"{', '.join(sorted(allocation.containers)) or 'no container'}"
            )
        return Owner(pod, container, granted)

    def _holder(self, slot_id: str, pods: Sequence[PodHoldings]) -> ContainerHoldings | None:
        found = [
            container
            for pod in pods
            for container in pod.containers
            if slot_id in container.devices.get(names.SLOT, ())
        ]
        if not found:
            return None
        holder = found[0]
        if len(found) > 1:
            listed = ", ".join(f"{each.namespace}/{each.pod}:{each.container}" for each in found)
            raise Unavailable(f"slot {slot_id} is listed for several containers ({listed}); it will be asked again")
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
        if text is None:
            raise TerminalError(
                f"{where}: no allocation ({names.ALLOCATION} is missing); pods with {names.SLOT} have to be placed by "
                "the Elastic GPU scheduler extender"
            )
        try:
            allocation = decode_allocation(text)
        except CorruptData as error:
            raise TerminalError(f"{where}: {error}") from error
        if allocation.node != self._node:
            raise TerminalError(f"{where}: the allocation is for node {allocation.node}, this is {self._node}")
        return allocation

    async def _starting(self, pod: Pod, allocation: PodAllocation, listed: str) -> str:
        """`listed`, or the plain init container that uses its slot before it."""
        earlier = _plain_inits_before(pod, allocation, listed)
        current = _unfinished(pod, earlier)
        if current is None:
            return listed
        last = next((container for uid, container in self._prepared() if uid == pod.uid), None)
        if last is None:
            return current
        return await self._after_lag(pod, earlier, listed, last)

    async def _after_lag(self, pod: Pod, earlier: Sequence[str], listed: str, last: str) -> str:
        """Who is starting, `last` having been prepared before: its next run, or whoever comes after it."""
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
            if current is not None and allocation.node == self._node and len(inits) == len(allocation.containers):
                candidates.append(Owner(pod, current, allocation.containers[current]))
        if len(candidates) == 1:
            return candidates[0]
        listed = ", ".join(sorted(each.pod.key for each in candidates)) or "none"
        raise Unavailable(
            f"slot {slot_id}: kubelet lists no container that holds it (it never lists init containers); pods of this "
            f"node with GPU init containers only: {listed}"
        )


def _has_slot(pod: PodHoldings) -> bool:
    return any(container.devices.get(names.SLOT) for container in pod.containers)


def _plain_inits_before(pod: Pod, allocation: PodAllocation, listed: str) -> list[str]:
    """Plain init containers with an allocation that run before `listed`, in the order of the pod."""
    order = [container.name for container in pod.all_containers]
    before = order[: order.index(listed)] if listed in order else order
    return [name for name in before if name in allocation.init and name in allocation.containers]


def _status(pod: Pod, init_container: str) -> ContainerStatus | None:
    statuses = pod.status.init_container_statuses or []
    return next((status for status in statuses if status.name == init_container), None)


def _unfinished(pod: Pod, init_containers: Sequence[str]) -> str | None:
    """The first of `init_containers` that has not ended well, as far as the pod's status says."""
    for name in init_containers:
        status = _status(pod, name)
        state = status.state if status is not None else None
        if state is None or state.terminated is None or state.terminated.exit_code != 0:
            return name
    return None


def _ended_badly(pod: Pod, init_container: str) -> bool:
    """Whether its last run failed, so that kubelet will run it again."""
    status = _status(pod, init_container)
    if status is None:
        return False
    states = [state for state in (status.state, status.last_state) if state is not None]
    return any(state.terminated is not None and state.terminated.exit_code != 0 for state in states)
