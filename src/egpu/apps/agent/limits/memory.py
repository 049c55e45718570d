"""Keeps this node's slices inside their memory by the driver's figures: containers and executors.

The driver's figures for a slice's processes decide, whatever a container counts or writes into its usage file
(`egpu.adapters.slices.overruns`): at once on what may still be allocated, and after some seconds on ending it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import structlog

from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import Finding, MemoryWatch, Overrun, ProcessSource, end_processes
from egpu.api import names
from egpu.apps.agent.serving.pod_service import ServedContainer
from egpu.apps.agent.serving.slot_executors import SlotOwner
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.looking import looking
from egpu_base.system.processes import Process

log = structlog.get_logger(__name__)

Key = tuple[str, int, str]
"""A slice (`SlotRecord.slice`) and the card's UUID."""


class MemoryReconciler:
    """Updates `overhead_bytes` of one node's policy pages, and ends slices that stay over their limit: an executor,
    or the processes of a container that have the memory."""

    def __init__(
        self,
        slots: Slots,
        source: ProcessSource,
        executors: Sequence[ExecutorSupervisor[Any]] = (),
        *,
        events: EventRecorder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`events`: tells pods why one of their processes was ended."""
        self._slots = slots
        self._events = events
        self._executors = executors
        self.watch = MemoryWatch(source, clock=clock)
        self.pods_of: Callable[[SlotRecord], Collection[str]] = lambda record: (record.pod_uid,)
        """Returns the UIDs of all pods that use a slot. Called in another thread."""

    @property
    def findings(self) -> Mapping[Key, Finding]:
        """Return the last comparison, of every container."""
        found: dict[Key, Finding] = {}
        for (key, uuid), finding in self.watch.findings.items():
            match key:
                case (str(slot_id), int(generation)):
                    found[slot_id, generation, uuid] = finding
                case _:  # an executor for another node's container
                    pass
        return found

    def driver_bytes(self, key: Hashable, uuid: str) -> int | None:
        """Return the driver's last figure for a slice on a card; None without one."""
        finding = self.watch.findings.get((key, uuid))
        return None if finding is None else finding.driver_bytes

    def held_bytes(self, key: Hashable, uuid: str) -> int:
        """Return the same, 0 without a figure."""
        return self.driver_bytes(key, uuid) or 0

    def holders(self, key: Hashable, uuid: str) -> tuple[Process, ...]:
        """Return the processes that have this memory."""
        finding = self.watch.findings.get((key, uuid))
        return () if finding is None else finding.holders

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:

            def begin(overrun: Overrun) -> None:
                group.create_task(self.end(overrun))

            def look() -> float:
                for overrun in self.step() if self.watch.is_due() else ():
                    loop.call_soon_threadsafe(begin, overrun)
                return self.watch.pause_seconds

            await looking(look)

    def step(self) -> tuple[Overrun, ...]:
        """Compare once, and return the slices to be ended."""
        executors = tuple(executor.process for each in self._executors for executor in list(each.running.values()))
        return self.watch.step(self.slices(), stamp=(self._slots.last_change, executors))

    def slices(self) -> Iterator[WatchedSlice]:
        """Return all watched slices as they are now."""
        slices = self._slots.slices()
        # If one container of a pod is limited on a card and another is not, their memory cannot be told apart.
        unlimited = {
            (pod, share.uuid)
            for records in slices
            for record in records
            if not self._slots.policy_file(record.slot_id).exists()
            for share in record.allocation.cards
            for pod in self.pods_of(record)
        }
        for record, *others in slices:
            policy, usage = self._slots.policy_file(record.slot_id), self._slots.usage_file(record.slot_id)
            if policy.exists():  # no page if nothing in the container is limited, or it has an executor
                page = f"{names.SLICE_DIRECTORY}/{layout.POLICY_FILE}"
                cards = [share.uuid for share in record.allocation.cards]
                members = {pod for one in (record, *others) for pod in self.pods_of(one)}
                mixed = {pod for pod in members if any((pod, uuid) in unlimited for uuid in cards)}
                pods = tuple(sorted(members - mixed))
                newest = max((record, *others), key=lambda one: one.allocation.revision).allocation
                kept = {share.uuid: newest.memory_limit_bytes(share) for share in newest.held}
                yield WatchedSlice(
                    key=record.slice,
                    policy=policy,
                    usage=usage,
                    page=page,
                    pods=pods,
                    mixed=tuple(sorted(mixed)),
                    kept_bytes=kept,
                )
        for supervisor in self._executors:
            for executor in list(supervisor.running.values()):
                owner = executor.record.owner
                key = (owner.slot, owner.generation) if isinstance(owner, SlotOwner) else executor.name
                yield executor.watched(key)

    async def end(self, overrun: Overrun) -> None:
        """End the slice's executor, or the processes in it that have the card's memory."""
        for supervisor in self._executors:
            for executor in list(supervisor.running.values()):
                if executor.process.pid == overrun.slice.session:
                    if supervisor.is_ending(executor.name):
                        return  # logged before
                    log.warning("executor ended: over its memory limit", name=executor.name, reason=str(overrun))
                    try:
                        await supervisor.end(executor)
                    except ElasticGPUError as error:
                        log.warning("executor does not end", name=executor.name, reason=str(error))
                    await self._tell(executor.record.owner, overrun)
                    return
        killed = await asyncio.to_thread(end_processes, overrun.processes)
        if not killed:
            return  # they have ended meanwhile
        log.warning(
            "container processes ended: over the memory limit", slot=overrun.slice.key, pids=killed, reason=str(overrun)
        )
        match overrun.slice.key:
            case (str(slot_id), int(generation)):
                await self._tell(SlotOwner(slot=slot_id, generation=generation), overrun)
            case _:
                pass

    async def _tell(self, owner: object, overrun: Overrun) -> None:
        """Record an event on each pod that has the slice, for `kubectl describe`."""
        match owner:
            case ServedContainer():
                containers = [(owner.namespace, owner.pod, owner.uid, owner.container)]
            case SlotOwner():
                records = await asyncio.to_thread(lambda: list(self._slots.records()))
                found = [one for one in records if SlotOwner.of(one) == owner]  # no holder: given back meanwhile
                containers = [(one.namespace, one.pod, one.pod_uid, one.container) for one in found]
            case _:
                return
        if self._events is None:
            return
        for namespace, name, uid, container in containers:
            subject = Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid))
            message = f"container {container}: the processes that held its GPU memory were ended: {overrun}"
            await self._events.warn(subject, "GPUMemoryLimitExceeded", message)
