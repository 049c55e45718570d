"""Compares what containers count with what the driver says that they hold, and charges the larger.

Contexts, code and heaps take memory that no call allocates, and a program may get at memory behind the interposer's
back. Whatever the driver sees beyond the count becomes `overhead_bytes` of the container's policy page, which the
interposer takes off what may still be allocated. The usage file is the container's own claim: claiming too little costs
it memory, claiming too much hides its overhead and uses up its own limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from egpu.adapters.nvml import CardProcess
from egpu.adapters.slices import membership
from egpu.adapters.slices.pages import Usage, UsageReader, amend_policy, read_policy
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.errors import ElasticGPUError, TerminalError

log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 0.5
#: The driver and the usage file cannot be read at one moment: what is seen once may be an allocation under way.
LOOKS: Final = 3
#: The page is not written anew for less than this.
STEP_BYTES: Final = 1024 * 1024


class ProcessSource(Protocol):
    """Says which processes hold how much of each card, by the card's UUID; blocks. Raises ElasticGPUError."""

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]: ...


@dataclass(frozen=True)
class ProcessFinding:
    """One process of a container on one card, `pid` as the host has it."""

    pid: int
    driver_bytes: int
    counted_bytes: int


@dataclass(frozen=True)
class Finding:
    """One container on one card. `overhead_bytes` is what its policy page says now."""

    driver_bytes: int
    counted_bytes: int
    overhead_bytes: int
    processes: tuple[ProcessFinding, ...]


@dataclass
class _Slice:
    record: SlotRecord
    uuids: tuple[str, ...]
    reader: UsageReader
    before: Usage
    pids: dict[str, list[CardProcess]] = field(default_factory=dict[str, list[CardProcess]])


Key = tuple[str, int, str]
"""Slot id, generation and the card's UUID."""


class MemoryReconciler:
    """Keeps `overhead_bytes` of one node's policy pages true. `findings` is the last comparison, of every container."""

    def __init__(self, slots: Slots, source: ProcessSource, *, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._slots = slots
        self._source = source
        self._interval_seconds = interval_seconds
        self._seen: dict[Key, deque[int]] = {}
        self._told = ""
        self.findings: dict[Key, Finding] = {}

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self.step)
            await asyncio.sleep(self._interval_seconds)

    def step(self) -> None:
        """Compare once."""
        slices = self._slices()
        if not slices:
            self._seen, self.findings = {}, {}
            return
        try:
            processes = self._source.processes()
        except ElasticGPUError as error:
            if str(error) != self._told:
                log.warning("what processes hold cannot be compared with what they count", reason=str(error))
            self._told = str(error)
            return
        self._told = ""
        for uuid, found in processes.items():
            for process in found:
                self._attribute(uuid, process, slices)
        findings: dict[Key, Finding] = {}
        for each in slices.values():
            findings |= self._compare(each)
        self._seen = {key: seen for key, seen in self._seen.items() if key in findings}
        self.findings = findings

    def _slices(self) -> dict[membership.PageIdentity, _Slice]:
        found: dict[membership.PageIdentity, _Slice] = {}
        for record in self._slots.records():
            page = self._slots.policy_file(record.slot_id)
            identity = membership.identity(page)
            try:
                uuids = tuple(line.uuid for line in read_policy(page).devices)
            except (OSError, TerminalError):
                continue  # nothing is limited there, or it is just going away
            reader = UsageReader(self._slots.usage_file(record.slot_id))
            if identity is not None:
                found[identity] = _Slice(record, uuids, reader, reader.read_totals())
        return found

    def _attribute(self, uuid: str, process: CardProcess, slices: Mapping[membership.PageIdentity, _Slice]) -> None:
        for identity in membership.pages_of(process.pid, f"{layout.CONTAINER_DIRECTORY}/{layout.POLICY_FILE}"):
            if identity in slices:
                slices[identity].pids.setdefault(uuid, []).append(process)
                return

    def _compare(self, one: _Slice) -> Iterable[tuple[Key, Finding]]:
        after = one.reader.read() if one.pids else Usage()
        for position, uuid in enumerate(one.uuids):
            key = (one.record.slot_id, one.record.generation, uuid)
            held = one.pids.get(uuid, [])
            driver_bytes = sum(process.used_bytes for process in held)
            # It reserves before it holds and holds until it releases: the larger reading is the one that covers ours.
            counted = max(_counted(usage, position) for usage in (one.before, after))
            seen = self._seen.setdefault(key, deque(maxlen=LOOKS))
            seen.append(max(0, driver_bytes - counted))
            overhead = min(seen) if len(seen) == LOOKS else 0
            overhead = -(-overhead // STEP_BYTES) * STEP_BYTES
            try:
                amend_policy(self._slots.policy_file(one.record.slot_id), uuid, overhead_bytes=overhead)
            except (OSError, ElasticGPUError) as error:
                log.warning("a container's overhead cannot be written", slot_id=one.record.slot_id, reason=str(error))
                continue
            processes = tuple(
                ProcessFinding(process.pid, process.used_bytes, _counted_by(process.pid, after, position))
                for process in held
            )
            yield key, Finding(driver_bytes, counted, overhead, processes)


def _counted(usage: Usage, position: int) -> int:
    if position >= len(usage.devices):
        return 0
    return usage.devices[position].memory_bytes + usage.devices[position].spill_bytes


def _counted_by(pid: int, usage: Usage, position: int) -> int:
    """What a process says that it holds, in the slot of its own that has its name."""
    name = membership.name_of(pid)
    return sum(
        process.memory_bytes + process.spill_bytes
        for process in usage.processes
        if name is not None
        and process.device == position
        and (process.pid_namespace, process.pid) == (name.pid_namespace, name.pid)
    )
