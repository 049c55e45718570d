"""Executors of containers without a GPU device: one per slice, ended when no slot has the slice any more.

Pods that share a claim share one executor, which counts the memory of all their programs. Each has its own slot with
the same socket in it, and each program has its own session of the executor.

Executor directories are beside the slots, not in them: no container may write the executor's counts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from egpu.adapters.executors.process import SOCKET, Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.api.allocation import ContainerAllocation
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.errors import ElasticGPUError

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 1.0


def caller_of(namespace: str) -> str:
    """Return the owner of a pod's images: its namespace, because users who may create pods there may read each
    other's anyway."""
    return f"namespace/{namespace}"


class SlotOwner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The slice of an executor or a bridge: a slot as given to one container (the next container has another
    generation), or a claim that several slots share."""

    slot: str
    generation: int

    @classmethod
    def of(cls, record: SlotRecord) -> SlotOwner:
        slot, generation = record.slice
        return cls(slot=slot, generation=generation)

    @property
    def name(self) -> str:
        # Generations are unique on a node; a claim's UID would make the socket's path too long.
        return f"slot-{self.slot[:12]}-{self.generation}"


class SlotExecutors:
    """The executors of one node's slots."""

    def __init__(self, executors: ExecutorSupervisor[SlotOwner], slots: Slots) -> None:
        self._executors = executors
        self._slots = slots
        self._preparing: set[SlotOwner] = set()

    async def open(self) -> None:
        """Find the executors of an earlier run. Raises Unavailable."""
        await self._executors.adopt()

    async def start(self, record: SlotRecord) -> Executor[SlotOwner]:
        """Start the executor of a slot that is being made, replacing the slot's old one; return when it is ready. An
        executor that others of its slice use is shared.

        Raises TerminalError if it ends instead, Unavailable if it is not ready in time."""
        owner = SlotOwner.of(record)
        self._preparing.add(owner)
        if (shared := self._usable(owner)) is not None:
            return shared
        for executor in list(self._executors.running.values()):
            if executor.record.owner.slot in (owner.slot, record.slot_id):
                await self._executors.end(executor)
        return await self._executors.start(
            ExecutorRecord(
                name=owner.name,
                owner=owner,
                cards=record.allocation.cards,
                minors=record.minors,
                caller=caller_of(record.namespace),
                core_limit=record.allocation.core_limit,
                latency=record.allocation.latency,
                parkable=record.allocation.parkable,
            )
        )

    async def end_of(self, records: Iterable[SlotRecord]) -> None:
        """End the executors of these slots, unless other slots share them. Raises Unavailable."""
        ended = {record.slot_id: SlotOwner.of(record) for record in records}
        await self._end_unneeded(set(ended.values()), apart_from=ended.keys())

    def serves(self, record: SlotRecord) -> bool:
        """Return whether the executor of a slot takes sessions."""
        return self._usable(SlotOwner.of(record)) is not None

    def _usable(self, owner: SlotOwner) -> Executor[SlotOwner] | None:
        executor = self._executors.usable(owner.name)
        return executor if executor is not None and executor.is_alive() else None

    def resize(self, record: SlotRecord, wanted: ContainerAllocation) -> None:
        """Give the executor of a slot new limits, at once; one that has ended needs none. Raises InvalidInput."""
        executor = self._executors.running.get(SlotOwner.of(record).name)
        if executor is not None:
            executor.resize(wanted.cards, executor.record.owner, core_limit=wanted.core_limit)

    def settled(self, record: SlotRecord) -> None:
        """Note that the slot is in place or given up: from now on its executor lives as long as the slot."""
        self._preparing.discard(SlotOwner.of(record))

    async def run(self) -> None:
        """End executors without a slot, forever."""
        while True:
            await self._executors.any_runs.wait()
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except (ElasticGPUError, OSError) as error:
                log.warning("executors not swept", reason=str(error))

    async def sweep(self) -> None:
        """End every executor whose slots were reused or removed. Raises Unavailable."""
        running = {executor.record.owner for executor in self._executors.running.values()}
        if running:
            await self._end_unneeded(running - self._needed())

    async def _end_unneeded(self, owners: Collection[SlotOwner], apart_from: Collection[str] = ()) -> None:
        """End the executors of these owners, but for one that a slot has or will have."""
        for executor in list(self._executors.running.values()):
            owner = executor.record.owner
            # Each end takes a while, in which a slot may be made and settled: look again before each.
            if owner in owners and owner not in self._needed(apart_from):
                await self._executors.end(executor)

    def _needed(self, apart_from: Collection[str] = ()) -> set[SlotOwner]:
        """Return the owners in slots and in slots that are being made, without the slots with the ids `apart_from`."""
        records = (record for record in self._slots.records() if record.slot_id not in apart_from)
        return {SlotOwner.of(record) for record in records} | self._preparing


def link_into(slot: Path, executor: Executor[Any]) -> None:
    """Show a container its executor: the socket, and its limits, read-only. Only the agent sees its use.

    The container may run as any user, so the socket is open to all who reach it. Only the container does, whose
    mount the slot is: the directories above it on the node let no other user pass."""
    executor.socket.chmod(0o666)
    os.link(executor.socket, slot / SOCKET)
    os.link(executor.directory / "policy", slot / layout.EXECUTOR_POLICY_FILE)
    os.link(executor.directory / "usage", slot / layout.EXECUTOR_USAGE_FILE)
