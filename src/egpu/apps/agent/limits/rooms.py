"""Decides which slices of this node's cards have their memory on the card, where several share room.

It reads slots and policy pages only, so a new agent goes on where the last one stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import Final, Protocol

from egpu.adapters.slices.rooms import Rooms, SharedCard, SharedSlice, Totals
from egpu.api import names
from egpu.api.allocation import CardShare
from egpu.apps.agent.limits.overstays import OverstayEvents
from egpu.apps.agent.limits.park_events import ParkEvents
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.reflector import Reflector
from egpu_base.runtime.endless import EndlessTasks
from egpu_base.runtime.looking import looking
from egpu_base.system.processes import Process

TELL_SECONDS: Final = 1.0
"""Between two looks for events that are due."""


class DriverFigures(Protocol):
    """The driver's figures for a slice on a card."""

    def driver_bytes(self, key: Hashable, uuid: str, /) -> int | None:
        """Return the bytes; None without a figure."""
        ...

    def holders(self, key: Hashable, uuid: str, /) -> tuple[Process, ...]:
        """Return the processes that have this memory."""
        ...


class CardRooms:
    """Runs until cancelled. `pods` follows the node's pods: for priorities, and pods whose memory stays."""

    def __init__(self, slots: Slots, pods: Reflector[Pod], events: EventRecorder, driver: DriverFigures) -> None:
        self._slots = slots
        self._pods = pods
        self._events = ParkEvents(slots, pods, events)
        self._overstays = OverstayEvents(slots, pods, events, driver.holders)
        self._rooms = Rooms(
            self.cards,
            driver_bytes=driver.driver_bytes,
            told=self._events.told,
            overstays=self._overstays.see,
        )

    @property
    def totals(self) -> Totals:
        return self._rooms.totals

    async def run(self) -> None:
        await self._pods.synced.wait()
        async with EndlessTasks() as group:
            group.start(looking(self._rooms.step))
            group.start(self._tell())

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            await self._events.step()
            await self._overstays.step()

    def cards(self) -> Mapping[str, SharedCard]:
        """Return the cards with slices that share room, by UUID. All other slices keep what they were promised."""
        promised: dict[str, int] = {}
        shared: dict[str, list[SharedSlice]] = {}
        memory: dict[str, int] = {}
        for record, *others in self._slots.slices():
            if record.server:
                continue
            for share in record.allocation.cards:
                if share.resident_mib:
                    shared.setdefault(share.uuid, []).append(self._shared(share, (record, *others)))
                    memory[share.uuid] = share.card_memory_mib
                else:
                    promised[share.uuid] = promised.get(share.uuid, 0) + share.memory_mib
        return {
            uuid: SharedCard((memory[uuid] - promised.get(uuid, 0)) * MIB_BYTES, tuple(slices))
            for uuid, slices in shared.items()
        }

    def _shared(self, share: CardShare, records: tuple[SlotRecord, ...]) -> SharedSlice:
        """Return one slice, of one pod or of several that share it: the most important one counts."""
        first = records[0]
        pods = [pod for record in records if (pod := self._pods.by_uid(record.pod_uid)) is not None]
        return SharedSlice(
            key=first.slice,
            policy=self._slots.policy_file(first.slot_id),
            usage=self._slots.usage_file(first.slot_id),
            limit_bytes=share.memory_mib * MIB_BYTES,
            floor_bytes=share.resident_mib * MIB_BYTES,
            idle_seconds=first.allocation.park_idle_seconds,
            priority=max((pod.spec.priority or 0 for pod in pods), default=0),
            stays=first.allocation.park_stays
            and any(pod.annotations.get(names.STAY_RESIDENT) == "true" for pod in pods),
            patience_seconds=first.allocation.park_patience_seconds,
        )
