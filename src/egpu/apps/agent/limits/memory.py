"""Holds the slices of this node to their memory by what the driver says: those of its containers, and of its executors.

Whatever a container counts, and whatever it writes into its usage file, the driver's word on its processes decides
(`egpu.adapters.slices.overruns`): at once on what may still be allocated, and after some seconds on its life.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import structlog

from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.adapters.processes import Process
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.overruns import Finding, MemoryWatch, Overrun, ProcessSource, kill_holders
from egpu.api.kubernetes import Pod
from egpu.api.objects import ObjectMeta
from egpu.apps.agent.serving.pods import ServedContainer
from egpu.apps.agent.serving.slots import SlotOwner
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.directories import Slots
from egpu.errors import ElasticGPUError
from egpu.runtime.looking import looking

log = structlog.get_logger(__name__)

Key = tuple[str, int, str]
"""A slice (`SlotRecord.slice`) and the card's UUID."""


class MemoryReconciler:
    """Keeps `overhead_bytes` of one node's policy pages true, and ends who stays over its limit: an executor, or those
    processes of a container that hold the memory."""

    def __init__(
        self,
        slots: Slots,
        source: ProcessSource,
        executors: Sequence[ExecutorSupervisor[Any]] = (),
        *,
        events: EventRecorder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`events`: where pods are told why something of theirs was ended."""
        self._slots = slots
        self._events = events
        self._executors = executors
        self.watch = MemoryWatch(source, clock=clock)

    @property
    def findings(self) -> Mapping[Key, Finding]:
        """The last comparison, of every container."""
        found: dict[Key, Finding] = {}
        for (key, uuid), finding in self.watch.findings.items():
            match key:
                case (str(slot_id), int(generation)):
                    found[slot_id, generation, uuid] = finding
                case _:  # an executor for another node's container
                    pass
        return found

    def held_bytes(self, key: Hashable, uuid: str) -> int:
        """What the driver said last that a slice holds of a card; 0 where it said nothing."""
        finding = self.watch.findings.get((key, uuid))
        return 0 if finding is None else finding.driver_bytes

    def holders(self, key: Hashable, uuid: str) -> tuple[Process, ...]:
        """Those that hold it."""
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
        """Compare once; returns who is to be ended."""
        executors = tuple(executor.process for each in self._executors for executor in list(each.running.values()))
        return self.watch.step(self.slices(), stamp=(self._slots.last_change, executors))

    def slices(self) -> Iterator[WatchedSlice]:
        """All that is watched, as it is now."""
        slices = self._slots.slices()
        # Nobody can tell whose memory on a card is, if one container of a pod is limited there and another is not.
        unlimited = {
            (record.pod_uid, share.uuid)
            for records in slices
            for record in records
            if not self._slots.policy_file(record.slot_id).exists()
            for share in record.allocation.cards
        }
        for record, *others in slices:
            policy, usage = self._slots.policy_file(record.slot_id), self._slots.usage_file(record.slot_id)
            if policy.exists():  # none where nothing in the container is limited, or an executor is in its place
                page = f"{layout.CONTAINER_DIRECTORY}/{layout.POLICY_FILE}"
                cards = [share.uuid for share in record.allocation.cards]
                pods = {one.pod_uid for one in (record, *others)}
                pods = {pod for pod in pods if not any((pod, uuid) in unlimited for uuid in cards)}
                newest = max((record, *others), key=lambda one: one.allocation.revision).allocation
                kept = {share.uuid: newest.memory_limit_bytes(share) for share in newest.held}
                yield WatchedSlice(
                    key=record.slice, policy=policy, usage=usage, page=page, pods=tuple(sorted(pods)), kept_bytes=kept
                )
        for supervisor in self._executors:
            for executor in list(supervisor.running.values()):
                owner = executor.record.owner
                key = (owner.slot, owner.generation) if isinstance(owner, SlotOwner) else executor.name
                yield executor.watched(key)

    async def end(self, overrun: Overrun) -> None:
        """End the executor of that slice, or the processes in it that hold the card's memory."""
        for supervisor in self._executors:
            for executor in list(supervisor.running.values()):
                if executor.process.pid == overrun.slice.session:
                    if supervisor.is_ending(executor.name):
                        return  # it was said before
                    log.warning("an executor is ended", name=executor.name, reason=str(overrun))
                    try:
                        await supervisor.end(executor)
                    except ElasticGPUError as error:
                        log.warning("an executor does not end", name=executor.name, reason=str(error))
                    await self._tell(executor.record.owner, overrun)
                    return
        killed = await asyncio.to_thread(kill_holders, overrun)
        if not killed:
            return  # they have ended meanwhile
        log.warning("processes of a container are ended", slot=overrun.slice.key, pids=killed, reason=str(overrun))
        match overrun.slice.key:
            case (str(slot_id), int(generation)):
                await self._tell(SlotOwner(slot=slot_id, generation=generation), overrun)
            case _:
                pass

    async def _tell(self, owner: object, overrun: Overrun) -> None:
        """An event on each pod that has the slice, where `kubectl describe` shows it."""
        match owner:
            case ServedContainer():
                containers = [(owner.namespace, owner.pod, owner.uid, owner.container)]
            case SlotOwner():
                records = await asyncio.to_thread(lambda: list(self._slots.records()))
                found = [one for one in records if SlotOwner.of(one) == owner]  # none: given back meanwhile
                containers = [(one.namespace, one.pod, one.pod_uid, one.container) for one in found]
            case _:
                return
        if self._events is None:
            return
        for namespace, name, uid, container in containers:
            subject = Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid))
            message = f"container {container}: what held its GPU memory was ended: {overrun}"
            await self._events.warn(subject, "GPUMemoryLimitExceeded", message)
