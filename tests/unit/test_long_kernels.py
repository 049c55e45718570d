"""Long kernels of batch work that delay latency work are named: which, by whom, and not in a flood."""

from pathlib import Path
from typing import Any, cast

from egpu.adapters.slices.long_kernels import LONG_NS, LongKernels, Seen, long_kernels
from egpu.adapters.slices.pages import USAGE_HEADER, DevicePolicy, Mode, create_usage, write_policy
from egpu.adapters.slices.sharing import RESCAN_SECONDS, TimeSharing, TimeSlice
from egpu.adapters.slices.turns import TurnArbiter
from egpu.adapters.slices.work import Kind
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.limits.delay_events import EVENT_SECONDS, DelayEvents
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI

GPU_NS_OFFSET, LAUNCHES_OFFSET = 80, 96
LATENCY = Seen("latency", latency=True, active=True, kernel_ns=200_000)


def test_only_long_kernels_beside_latency_work_that_is_there_are_named() -> None:
    long, short = Seen("long", False, True, LONG_NS), Seen("short", False, True, LONG_NS - 1)
    assert long_kernels("GPU-1", [LATENCY, long, short]) == [LongKernels("long", "GPU-1", LONG_NS, ("latency",))]
    assert not long_kernels("GPU-1", [long, short])
    assert not long_kernels("GPU-1", [Seen("latency", True, False, 0), long])
    assert not long_kernels("GPU-1", [LATENCY, Seen("long", False, False, LONG_NS)])
    assert not long_kernels("GPU-1", [LATENCY, Seen("latency too", True, True, LONG_NS)])


class NoArbiter(TurnArbiter):
    def follow(self, cards: object) -> bool:
        return True


def test_the_length_is_the_mean_of_what_the_slice_reports(tmp_path: Path) -> None:
    now = [RESCAN_SECONDS]
    for name, kind in (("latency", Kind.LATENCY), ("batch", Kind.BATCH)):
        (tmp_path / name).mkdir()
        line = DevicePolicy(
            uuid="GPU-1", minor=0, mode=Mode.SHARE, core_ppm=300_000, memory_limit_bytes=1 << 30, kind=kind
        )
        write_policy(tmp_path / name / "policy", [line])
        create_usage(tmp_path / name / "usage")
    slices = [TimeSlice(name, tmp_path / name / "policy", tmp_path / name / "usage") for name in ("latency", "batch")]
    sharing = TimeSharing(lambda: slices, lambda: 0, clock=lambda: now[0], arbiter=NoArbiter())

    def works(name: str, *, launches: int, each_ns: int) -> None:
        with (tmp_path / name / "usage").open("r+b") as file:
            for offset, value in ((GPU_NS_OFFSET, launches * each_ns), (LAUNCHES_OFFSET, launches)):
                file.seek(USAGE_HEADER.size + offset)
                file.write(value.to_bytes(8, "little"))

    sharing.step()
    for count in range(1, 4):
        works("latency", launches=count, each_ns=200_000)
        works("batch", launches=count, each_ns=40_000_000)
        now[0] += 0.1
        sharing.step()
    assert sharing.long_kernels() == [LongKernels("batch", "GPU-1", 40_000_000, ("latency",))]
    now[0] += 3600
    sharing.step()
    assert not sharing.long_kernels()


class Node:
    """A node with pods on one card. `now` is its clock."""

    def __init__(self, root: Path) -> None:
        self.slots = Slots(root / "slots")
        self.pods: dict[str, Pod] = {}
        self.api = FakeAPI()
        self.now = 1000.0
        self.found: list[LongKernels] = []
        recorder = EventRecorder(self.api.client(), component="elastic-gpu-agent")
        self.events = DelayEvents(self.slots, cast(Any, self), recorder, lambda: self.found, clock=lambda: self.now)

    def by_uid(self, uid: str) -> Pod | None:
        return self.pods.get(uid)

    def add(self, name: str, namespace: str = "n") -> None:
        share = CardShare(uuid="GPU-1", index=0, minor=0, core=30, memory_mib=60)
        given = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,))
        record = SlotRecord(
            slot_id=name, namespace=namespace, pod=name, pod_uid=f"uid-{name}", container="app", generation=1,
            boot_id="", allocation=given, minors={},
        )  # fmt: skip
        self.slots.replace(record, lambda _: None)
        self.pods[f"uid-{name}"] = Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}"))

    async def told(self) -> dict[str, str]:
        await self.events.step()
        return {f"{one['involvedObject']['name']} {one['reason']}": one["message"] for one in self.api.all("events")}


async def test_both_pods_are_told_by_name_and_what_it_rests_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add("train")
    node.add("serve")
    node.found = [LongKernels(("train", 1), "GPU-1", 40_000_000, (("serve", 1),))]
    told = await node.told()
    length = "container app: launches of 40 ms, by its own account,"
    assert told[f"train {names.EVENT_DELAYS}"] == f"{length} delay pod serve, which waits for the one that runs"
    assert told[f"serve {names.EVENT_DELAYED}"] == f"{length} of pod train delay it"


async def test_a_pod_of_another_namespace_is_told_by_its_uid(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add("train")
    node.add("serve", "elsewhere")
    node.found = [LongKernels(("train", 1), "GPU-1", 40_000_000, (("serve", 1),))]
    told = await node.told()
    assert "pod uid-serve" in told[f"train {names.EVENT_DELAYS}"]
    assert "pod uid-train" in told[f"serve {names.EVENT_DELAYED}"]


async def test_events_come_once_in_a_while(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add("train")
    node.add("serve")
    for length_ms in (40, 41, 42):
        node.found = [LongKernels(("train", 1), "GPU-1", length_ms * 1_000_000, (("serve", 1),))]
        await node.events.step()
    assert len(node.api.all("events")) == 2
    node.now += EVENT_SECONDS
    await node.events.step()
    assert len(node.api.all("events")) == 4
