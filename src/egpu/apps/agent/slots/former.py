"""Earlier users of cards that are given out again: their processes are ended, and waited for.

A card is free in the ledger when a pod's object is gone or the pod has finished. The card itself is free when the last
process has ended, and the driver has taken its memory back. After a forced deletion kubelet lets a container run for
the grace period that the pod's author chose, and a process in the driver may take seconds to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import structlog

from egpu.adapters.cards.nvml import CardProcess
from egpu.apps.agent.serving.slot_executors import SlotExecutors
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.leftovers import Leftovers, end_leftovers
from egpu.apps.agent.slots.owners import Owner, PodReader
from egpu_base.errors import ElasticGPUError, Unavailable
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.system.processes import Process

log = structlog.get_logger(__name__)

WAIT_SECONDS: Final = 15.0
"""kubelet gives up a container's start after 30 seconds, and tries it again later."""
EVENT_SECONDS: Final = 1.0
"""A wait of this length is told to the pod."""
POLL_SECONDS: Final = 0.1


class FormerUsers:
    """The earlier users of one node's cards. `processes` returns the driver's list for each card; it blocks. `served`
    ends executors on cards whose pods, of other nodes, have ended."""

    def __init__(
        self,
        slots: Slots,
        pods: PodReader,
        processes: Callable[[], Mapping[str, Sequence[CardProcess]]],
        *,
        executors: SlotExecutors | None = None,
        events: EventRecorder | None = None,
    ) -> None:
        self._slots = slots
        self._pods = pods
        self._processes = processes
        self._executors = executors
        self._events = events
        self._ending: set[Process] = set()
        """Killed processes, until they are dead."""
        self.served: Callable[[Collection[str]], Awaitable[None]] | None = None
        self.claimed: Callable[[SlotRecord], Awaitable[bool]] | None = None
        """Returns whether the ResourceClaim of a slot still has its cards; set on a node that serves such claims."""
        self.claim_left: Callable[[SlotRecord], Awaitable[Collection[str]]] | None = None
        """Returns the UIDs of the pods that may still use the slot of such a claim that is gone; set there, too."""

    def end(self, leftovers: Iterable[Leftovers], pids: Iterable[int] | None = None) -> dict[Leftovers, list[int]]:
        """End leftovers, and remember their processes until they are dead. Arguments as `end_leftovers`."""
        killed = end_leftovers(leftovers, pids)
        ending = {Process.of(pid) for found in killed.values() for pid in found}
        self._ending = {one for one in self._ending | ending if one.is_alive()}
        return killed

    async def leave(self, slot_id: str, owner: Owner) -> None:
        """Return when no earlier user has memory on the cards of the container that gets this slot. Raises
        Unavailable."""
        cards = {share.uuid for share in owner.allocation.cards}
        if self.served is not None:
            await self.served(cards)
        await self._leave(cards, slot_id, owner)

    async def leave_cards(self, cards: Collection[str]) -> None:
        """Return when no earlier container of this node has memory on these cards. Raises Unavailable."""
        await self._leave(cards, "", None)

    async def _leave(self, cards: Collection[str], slot_id: str, owner: Owner | None) -> None:
        clock = asyncio.get_running_loop().time
        began, told = clock(), ""
        while users := await self._users(cards, slot_id, owner):
            what = "; ".join(f"{who} (pids {', '.join(map(str, pids))})" for who, pids in sorted(users.items()))
            what = f"waits until card {', '.join(sorted(cards))} is left by {what}"
            if not told:
                log.warning("a card is not free yet", reason=what)
            if clock() - began >= WAIT_SECONDS:
                raise Unavailable(f"{what}: they were killed and have not ended within {WAIT_SECONDS:g} s")
            if owner is not None and self._events is not None and not told and clock() - began >= EVENT_SECONDS:
                await self._events.note(owner.pod, "WaitingForCard", f"container {owner.container} {what}")
            told = what
            await asyncio.sleep(POLL_SECONDS)

    async def _users(self, cards: Collection[str], slot_id: str, owner: Owner | None) -> dict[str, list[int]]:
        """End earlier users of these cards. Return the processes that still have memory there, by their pod."""
        before = [one for one in self._slots.records() if self._shares(one, cards, slot_id)]
        if not before and not self._ending:
            return {}
        pids = await self._pids(cards)
        if not pids:
            return {}
        there = {pod.uid for pod in await self._pods.on_node() if not pod.finished}
        former = [one for one in before if one.slot_id == slot_id or not await self._holds(one, there)]
        if self._executors is not None:
            await self._executors.end_of(former)
        uid = "" if owner is None else owner.pod.uid
        leftovers = {left: one for one in former for left in await self._leftovers(one, uid)}
        ending = {one.pid for one in self._ending if one.is_alive()}
        found = await asyncio.to_thread(self.end, tuple(leftovers), pids)
        users = {f"pod {leftovers[one].namespace}/{leftovers[one].pod}": killed for one, killed in found.items()}
        known = {pid for killed in found.values() for pid in killed}
        if others := sorted(pids & ending - known):
            users["a deleted pod"] = others
        return users

    async def _holds(self, record: SlotRecord, there: Collection[str]) -> bool:
        """Return whether the user of a slot still has its cards. `there`: the UIDs of the node's unfinished pods."""
        if record.resource_claim is not None and self.claimed is not None:
            return await self.claimed(record)
        return record.pod_uid in there

    def _shares(self, record: SlotRecord, cards: Collection[str], slot_id: str) -> bool:
        return not record.server and (
            record.slot_id == slot_id or any(share.uuid in cards for share in record.allocation.cards)
        )

    async def _leftovers(self, record: SlotRecord, uid: str) -> list[Leftovers]:
        """Return the leftovers of a slot. Of the pod that is starting, only its slot tells an earlier run apart."""
        slot = self._slots.path(record.slot_id)
        policy = None if self._slots.others(record) else self._slots.policy_file(record.slot_id)
        pods: Collection[str] = (record.pod_uid,)
        if record.resource_claim is not None and self.claim_left is not None:
            pods = await self.claim_left(record)
        return [Leftovers("" if pod == uid else pod, slot=slot, policy=policy) for pod in sorted(pods)]

    async def _pids(self, cards: Collection[str]) -> set[int]:
        try:
            found = await asyncio.to_thread(self._processes)
        except ElasticGPUError as error:
            log.warning("cannot see whether cards are free", reason=str(error))
            return set()
        return {process.pid for uuid in cards for process in found.get(uuid, ())}
