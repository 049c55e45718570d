"""Slots that nobody holds any more, and what is left of pods that were deleted by force."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from egpu.adapters.slices import membership
from egpu.api import names
from egpu.api.allocation import CardShare
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import POLICY_FILE, SlotRecord, Slots
from egpu.apps.agent.slots.sweeper import Sweeper
from egpu_base.api.kubernetes import Pod, PodStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubelet.podresources import ContainerHoldings, PodHoldings
from egpu_base.system import proc
from support.slices import slot_record

HOLD = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    page = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


class Pods:
    """The API server's, of this node."""

    def __init__(self) -> None:
        self.there: list[Pod] = []

    async def read(self, namespace: str, name: str) -> Pod:
        raise NotImplementedError

    async def on_node(self) -> Sequence[Pod]:
        return self.there


def pod(uid: str, phase: str = "Running") -> Pod:
    return Pod(metadata=ObjectMeta(name=uid, namespace="default", uid=uid), status=PodStatus(phase=phase))


def sweeper(slots: Slots, pods: Pods, *held: str) -> Sweeper:
    async def holdings() -> Sequence[PodHoldings]:
        containers = [
            ContainerHoldings(namespace="default", pod=slot, container="main", devices={names.SLOT: (slot,)})
            for slot in held
        ]
        return [PodHoldings(namespace="default", name=one.pod, containers=(one,)) for one in containers]

    lock = asyncio.Lock()
    root = slots.path(".").parent
    specs = SlotSpecs([root / "cdi"], DeviceFiles(root / "dev", root))
    return Sweeper(
        slots=slots, specs=specs, holdings=holdings, pods=pods, slot_lock=lambda _: lock, interval_seconds=1.0
    )


def page_into(slot: Path) -> None:
    (slot / POLICY_FILE).write_text("x")


def holding(page: Path) -> subprocess.Popen[str]:
    """A process that has the page mapped, as one with the interposer has."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, page], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "mapped\n"
    return process


async def test_what_is_left_of_a_pod_that_was_deleted_by_force_is_ended(tmp_path: Path) -> None:
    """kubelet may let its containers go on for as long as their author chose; their cards are others' by now."""
    slots, pods = Slots(tmp_path / "slots"), Pods()
    share = CardShare(uuid="GPU-1", index=0, minor=0, core=10, memory_mib=1)
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in ("stays", "forced"):
            slots.replace(slot_record(slots, name, share), page_into)
            running[name] = holding(slots.policy_file(name))
        pods.there = [pod("stays"), pod("forced")]
        assert await sweeper(slots, pods, "forced").sweep() == ()
        pods.there = [pod("stays")]
        assert await sweeper(slots, pods, "forced").sweep() == ("forced",), "though kubelet still has it"
        assert running["forced"].wait(timeout=30) == -signal.SIGKILL
        assert running["stays"].poll() is None
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


async def test_of_a_slice_that_several_pods_have_only_that_pod_s_programs_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, pods = Slots(tmp_path / "slots"), Pods()
    share = CardShare(uuid="GPU-1", index=0, minor=0, core=10, memory_mib=1)
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in ("stays", "forced"):
            made = slot_record(slots, name, share)
            given = replace(made.allocation, shared_claim="uid-c")
            members = list(slots.records())

            def fill(slot: Path, members: list[SlotRecord] = members) -> None:
                if members:
                    os.link(slots.path(members[0].slot_id) / POLICY_FILE, slot / POLICY_FILE)
                else:
                    page_into(slot)

            slots.replace(replace(made, allocation=given, slice_generation=1), fill)
            running[name] = holding(slots.policy_file(name))
        assert membership.identity(slots.policy_file("stays")) == membership.identity(slots.policy_file("forced"))
        sees = {process.pid: membership.identity(slots.path(name)) for name, process in running.items()}
        monkeypatch.setattr(membership, "seen_at", lambda pid, path: sees.get(pid) if path == "/opt/egpu" else None)
        pods.there = [pod("stays")]
        assert await sweeper(slots, pods).sweep() == ("forced",)
        assert running["forced"].wait(timeout=30) == -signal.SIGKILL
        assert running["stays"].poll() is None
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


async def test_a_slot_stays_as_long_as_kubelet_has_it_or_its_pod_runs(tmp_path: Path) -> None:
    slots, pods = Slots(tmp_path / "slots"), Pods()
    share = CardShare(uuid="GPU-1", index=0, minor=0, core=10, memory_mib=1)
    for name in ("running", "held", "finished"):
        slots.replace(slot_record(slots, name, share), lambda slot: None)
    pods.there = [pod("running"), pod("held", "Succeeded"), pod("finished", "Succeeded")]
    assert await sweeper(slots, pods, "held").sweep() == ("finished",)


@pytest.mark.parametrize(
    ("group", "inside"),
    [
        ("0::/kubepods/burstable/pod1-2/c", True),
        ("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-c.scope", True),
        ("0::/kubepods/burstable/pod1-23/c", False),
        ("0::/system.slice/a-pod1-2.service", False),
    ],
)
def test_whose_a_process_is_its_control_group_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, *, inside: bool
) -> None:
    monkeypatch.setattr(proc, "PROC", str(tmp_path))
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(group + "\n")
    found = membership.pod_of(membership.control_groups(7), ())
    assert (found in membership.pod_names("1-2")) is inside
