"""A node's slots and the executors of other nodes' pods share its cards' time together, each up to its own limit."""

import os
from pathlib import Path
from typing import Any

from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.slices.pages import USAGE_HEADER, DevicePolicy, Mode, create_usage, read_policy, write_policy
from egpu.adapters.slices.sharing import IDLE_SECONDS, RESCAN_SECONDS
from egpu.api.allocation import CardShare
from egpu.apps.agent.limits.compute import ComputeSharing
from egpu.apps.agent.slots.directories import POLICY_FILE, USAGE_FILE, Slots
from support.slices import slot_record

LAUNCHES_OFFSET = 96


def share(core: int) -> CardShare:
    return CardShare(uuid="GPU-1", index=0, minor=0, core=core, memory_mib=1024)


def a_slot(slots: Slots, core: int) -> Path:
    slots.replace(slot_record(slots, "slot", share(core)), lambda directory: None)
    place = slots.path("slot")
    line = DevicePolicy(uuid="GPU-1", minor=0, mode=Mode.CAP, core_ppm=core * 10_000, memory_limit_bytes=1 << 30)
    write_policy(place / POLICY_FILE, [line])
    create_usage(place / USAGE_FILE)
    return place


def an_executor(directory: Path, core: int, core_limit: int) -> Executor[Any]:
    directory.mkdir(parents=True)
    record = ExecutorRecord(name="served", owner=None, cards=(share(core),), minors={"GPU-1": 0}, core_limit=core_limit)
    write_policy(directory / "policy", record.policy())
    create_usage(directory / "usage")
    return Executor(directory, record, Confinement())


def launches(usage: Path, count: int) -> None:
    handle = os.open(usage, os.O_WRONLY)
    os.pwrite(handle, bytes([count]), USAGE_HEADER.size + LAUNCHES_OFFSET)
    os.close(handle)


def test_executors_of_other_nodes_pods_share_with_slots_up_to_their_limit(tmp_path: Path) -> None:
    now = RESCAN_SECONDS
    sharing = ComputeSharing(Slots(tmp_path / "slots"), clock=lambda: now)
    slot = a_slot(Slots(tmp_path / "slots"), 30)
    sharing.step()
    executor = tmp_path / "served"
    sharing.served = {"served": an_executor(executor, 20, 60)}
    now += 2 * RESCAN_SECONDS
    sharing.step()  # a first look, to compare with
    (before,) = read_policy(executor / "policy").devices
    assert (before.mode, before.window) == (Mode.SHARE, None)
    launches(slot / USAGE_FILE, 1)
    launches(executor / "usage", 1)
    now += IDLE_SECONDS / 3
    sharing.step()
    (of_slot,), (of_executor,) = read_policy(slot / POLICY_FILE).devices, read_policy(executor / "policy").devices
    assert of_slot.window is not None
    assert of_executor.window is not None, "both are active"
    assert (of_slot.grant_ppm or of_slot.core_ppm, of_executor.grant_ppm) == (300_000, 600_000)


def test_the_limit_of_an_executor_can_change_while_it_runs(tmp_path: Path) -> None:
    executor = an_executor(tmp_path / "one", 20, 60)
    for limit, mode in ((0, Mode.CAP), (30, Mode.SHARE)):
        executor.resize((share(20),), None, core_limit=limit)
        assert [line.mode for line in read_policy(executor.directory / "policy").devices] == [mode]
