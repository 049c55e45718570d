"""A lease as it is stored beside its executor, and reported from there."""

from __future__ import annotations

import msgspec

from egpu.adapters.executors import record as records
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import MIB
from egpu.adapters.slices.pages import USAGE_SIZE, UsageReader
from egpu.adapters.slices.parked import parked_bytes
from egpu.core.leasing.records import LeaseIdentity, LeaseRecord, RunningLease


class LeaseOwner(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data stored beside a lease's executor; its cards and limits are the executor's own."""

    lease: LeaseIdentity
    fit_by: float | None = None
    place: int = 0
    gpu_seconds: float = 0.0
    arriving: bool = False
    """True while this place is the target of a move, and not final."""
    leaving: int = 0
    """The number of the place that it was told to leave for, 0 for none."""

    @classmethod
    def of(cls, record: LeaseRecord, *, arriving: bool = False, leaving: int = 0) -> LeaseOwner:
        return cls(
            lease=msgspec.convert(record, LeaseIdentity, from_attributes=True), fit_by=record.fit_by,
            place=record.place, gpu_seconds=record.gpu_seconds, arriving=arriving, leaving=leaving,
        )  # fmt: skip


LeaseExecutor = Executor[LeaseOwner]


def lease_record(executor: LeaseExecutor) -> LeaseRecord:
    """Return the lease as its server reports it."""
    owner = executor.record.owner
    return LeaseRecord(
        **msgspec.structs.asdict(owner.lease), cards=executor.record.cards, fit_by=owner.fit_by, place=owner.place,
        gpu_seconds=owner.gpu_seconds,
    )  # fmt: skip


def set_owner(executor: LeaseExecutor, owner: LeaseOwner) -> None:
    """Store other data beside an executor. Do nothing if they are the same."""
    if executor.record.owner != owner:
        executor.record = msgspec.structs.replace(executor.record, owner=owner)
        records.write(executor.directory, executor.record)


def has_moved(executor: LeaseExecutor) -> bool:
    """Return whether the sessions of a dead executor live elsewhere: its last words came before its end."""
    executor.follow()
    return executor.moved


def parked_mib(executor: LeaseExecutor) -> int:
    """Return how much of its memory its sessions say that they have parked."""
    if not executor.record.parkable:
        return 0
    return sum(parked_bytes(UsageReader(executor.directory / "usage").content(USAGE_SIZE)).values()) // MIB


def running_lease(executor: LeaseExecutor) -> RunningLease:
    """Return the report of a running executor."""
    used = executor.usage()
    return RunningLease(
        record=lease_record(executor),
        occupied_mib=tuple(0 for _ in used.memory_mib) if executor.moved else executor.allowed_mib(used),
        used_mib=() if executor.moved else used.memory_mib,
        parked_mib=0 if executor.moved else parked_mib(executor),
        arriving=executor.record.owner.arriving,
        gpu_seconds=used.gpu_seconds,
        ready=executor.ready,
        sessions=executor.sessions,
    )
