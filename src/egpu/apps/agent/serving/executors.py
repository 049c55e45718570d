"""Executors of containers that have no GPU device: one per slot, ended when the slot is another's or gone.

Their directories are beside the slots, not in them: what an executor counts with, no container may write.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import structlog

from egpu.adapters.executors.supervisor import Executor, Executors
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.core.leasing.leases import LeaseRecord
from egpu.errors import CorruptData, ElasticGPUError, TerminalError, Unavailable

log = structlog.get_logger(__name__)

READY_SECONDS = 10.0
POLL_SECONDS = 0.01
SWEEP_SECONDS = 1.0

SOCKET_FILE = "lease.sock"


class SlotExecutors:
    """The executors of one node's slots."""

    def __init__(self, executors: Executors, slots: Slots) -> None:
        self._executors = executors
        self._slots = slots
        self._running: dict[str, Executor] | None = None
        self._preparing: set[str] = set()
        self._lock = asyncio.Lock()

    async def start(self, record: SlotRecord, minors: Mapping[str, int]) -> Executor:
        """Start the executor of a slot that is being made, in place of what the slot had; returns when it is ready.

        Raises TerminalError when it ends instead, Unavailable when it is not ready in time.
        """
        async with self._lock:
            running = await self._known()
            self._preparing.add(_name(record))
            await self._end([one for lease, one in running.items() if _slot_id(lease) == record.slot_id])
            lease = LeaseRecord(
                lease=_name(record),
                holder=f"pod:{record.pod_uid}",
                peer="",
                request=str(record.generation),
                key="",
                part=0,
                parts=1,
                cards=record.allocation.cards,
            )
            executor = await asyncio.to_thread(self._executors.start, lease, minors)
            running[lease.lease] = executor
        await until_ready(executor)
        return executor

    def settled(self, record: SlotRecord) -> None:
        """The slot is in its place, or was given up: from now on its executor lives as long as it does."""
        self._preparing.discard(_name(record))

    async def run(self) -> None:
        """End what has no slot any more, for ever. The first look finds the executors of an earlier run."""
        while True:
            try:
                await self.sweep()
            except (ElasticGPUError, OSError) as error:
                log.warning("executors not swept", reason=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """End every executor whose slot was given to somebody else, or removed."""
        async with self._lock:
            running = await self._known()
            await self._end([one for lease, one in running.items() if not self._needed(lease)])

    async def _known(self) -> dict[str, Executor]:
        if self._running is None:
            adopted = await asyncio.to_thread(self._executors.adopt)
            self._running = {one.record.lease: one for one in adopted}
        return self._running

    def _needed(self, lease: str) -> bool:
        if lease in self._preparing:
            return True
        try:
            record = self._slots.record(_slot_id(lease))
        except CorruptData:
            return False
        return record is not None and _name(record) == lease

    async def _end(self, executors: list[Executor]) -> None:
        assert self._running is not None
        for executor in executors:
            await asyncio.to_thread(executor.end)
            del self._running[executor.record.lease]
            log.info("executor ended", lease=executor.record.lease)


async def until_ready(executor: Executor) -> None:
    """Wait until it takes sessions. Raises TerminalError when it ends instead, Unavailable when it takes too long."""
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while not executor.ready:
        executor.follow()
        if not executor.is_alive():
            raise TerminalError(f"the executor did not start: {executor.why_dead()}")
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(f"the executor was not ready within {READY_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)


def link_into(slot: Path, executor: Executor) -> None:
    """Show a container its executor: the socket, and what it may use and uses, for reading.

    The container may run as any user, so the socket is everybody's who can get at it: that container, whose mount the
    slot is, and nobody else, because only we pass through the directories that hold it on the node.
    """
    executor.socket.chmod(0o666)
    os.link(executor.socket, slot / SOCKET_FILE)
    os.link(executor.directory / "policy", slot / layout.EXECUTOR_POLICY_FILE)
    os.link(executor.directory / "usage", slot / layout.EXECUTOR_USAGE_FILE)


def _name(record: SlotRecord) -> str:
    return f"slot-{record.slot_id}-{record.generation}"


def _slot_id(lease: str) -> str:
    return lease.split("-")[1] if lease.count("-") == 2 else ""
