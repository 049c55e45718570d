"""Executors of slots: each lives as long as a slot has it, whatever happens while another one ends."""

from pathlib import Path
from typing import Any, cast

import pytest

from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.serving.slot_executors import SlotExecutors, SlotOwner
from egpu.apps.agent.slots.directories import SlotRecord, Slots

SHARE = CardShare(uuid="GPU-1", index=0, minor=0, core=10, memory_mib=512)


def record(slot_id: str) -> SlotRecord:
    allocation = ContainerAllocation(provisioner=names.QGPU, mode="shared", cards=(SHARE,))
    return SlotRecord(
        slot_id=slot_id, namespace="default", pod=slot_id, pod_uid=f"uid-{slot_id}", container="main", generation=1,
        boot_id="boot", allocation=allocation, minors={SHARE.uuid: 0},
    )  # fmt: skip


class Supervisor:
    """Executors without processes. The end of one takes until `meanwhile` has returned."""

    def __init__(self) -> None:
        self.running: dict[str, Executor[SlotOwner]] = {}
        self.meanwhile = lambda: None

    def usable(self, name: str) -> Executor[SlotOwner] | None:
        return self.running.get(name)

    async def start(self, record: ExecutorRecord[SlotOwner]) -> Executor[SlotOwner]:
        return self.running.setdefault(record.name, Executor(Path("/nowhere"), record, None))

    async def end(self, executor: Executor[SlotOwner]) -> None:
        self.meanwhile()
        del self.running[executor.name]


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return Slots(tmp_path)


async def test_a_slot_that_is_settled_while_another_executor_ends_keeps_its_own(slots: Slots) -> None:
    supervisor = Supervisor()
    executors = SlotExecutors(cast(ExecutorSupervisor[Any], supervisor), slots)
    removed, made = record("removed"), record("made")
    await executors.start(removed)
    executors.settled(removed)  # its slot is gone since
    await executors.start(made)

    def settle() -> None:
        slots.replace(made, lambda _: None)
        executors.settled(made)

    supervisor.meanwhile = settle
    await executors.sweep()
    assert [one.record.owner.slot for one in supervisor.running.values()] == ["made"]


async def test_ending_the_executors_of_slots_spares_one_that_is_being_made_anew(slots: Slots) -> None:
    supervisor = Supervisor()
    executors = SlotExecutors(cast(ExecutorSupervisor[Any], supervisor), slots)
    first, second = record("first"), record("second")
    for each in (first, second):
        slots.replace(each, lambda _: None)
        await executors.start(each)
        executors.settled(each)
    supervisor.meanwhile = lambda: executors._preparing.add(SlotOwner.of(second))
    await executors.end_of([first, second])
    assert [one.record.owner.slot for one in supervisor.running.values()] == ["second"]
