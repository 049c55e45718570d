"""A pod is told for which other its memory left the card, and not in a flood."""

from pathlib import Path
from typing import Any, cast

from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.limits.park_events import EVENT_SECONDS, MOST_WAITING, REASON, ParkEvents
from egpu.apps.agent.slots.directories import POLICY_FILE, USAGE_FILE, SlotRecord, Slots
from egpu.core.arbiter import Park, Why
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI


class Node:
    """A node with pods that share room. `now` is its clock."""

    def __init__(self, root: Path) -> None:
        self.slots = Slots(root / "slots")
        self.pods: dict[str, Pod] = {}
        self.api = FakeAPI()
        self.now = 1000.0
        recorder = EventRecorder(self.api.client(), component="elastic-gpu-agent")
        self.events = ParkEvents(self.slots, cast(Any, self), recorder, clock=lambda: self.now)

    def by_uid(self, uid: str) -> Pod | None:
        return self.pods.get(uid)

    def add(self, name: str, namespace: str = "n") -> None:
        share = CardShare(uuid="GPU-1", index=0, minor=0, core=10, memory_mib=60, resident_mib=6)
        given = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,), parkable=True)
        record = SlotRecord(
            slot_id=name, namespace=namespace, pod=name, pod_uid=f"uid-{name}", container="app", generation=1,
            boot_id="", allocation=given, minors={},
        )  # fmt: skip

        def fill(directory: Path) -> None:
            line = DevicePolicy(uuid="GPU-1", minor=0, mode=Mode.CAP, core_ppm=1, memory_limit_bytes=1 << 20)
            write_policy(directory / POLICY_FILE, [line])
            create_usage(directory / USAGE_FILE)

        self.slots.replace(record, fill)
        self.pods[f"uid-{name}"] = Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}"))

    def parks(self, name: str, other: str, why: Why = Why.IDLE) -> None:
        self.events.told((name, 1), Park((other, 1), why))

    async def messages(self) -> list[str]:
        await self.events.step()
        return [one["message"] for one in self.api.all("events") if one["reason"] == REASON]


async def test_a_pod_is_told_who_has_its_room_and_why(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for name, namespace in (("sleeper", "n"), ("worker", "n"), ("stranger", "elsewhere")):
        node.add(name, namespace)
    node.parks("sleeper", "worker")
    assert await node.messages() == ["container app: asked to leave the card for pod worker: it was idle"]
    node.parks("worker", "stranger", Why.TURN)
    told = await node.messages()
    assert told[1] == "container app: asked to leave the card for pod uid-stranger: its turn was over"
    node.now += EVENT_SECONDS
    node.parks("worker", "gone")
    assert "for a slice that has ended" in (await node.messages())[2]


async def test_a_pod_gets_one_event_a_minute(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add("sleeper")
    node.add("worker")
    told: list[str] = []
    for _ in range(100):
        node.parks("sleeper", "worker")
        node.now += 1
        told = await node.messages()
    assert len(told) == 2
    assert told[1].endswith("it was idle (60 times since the last event)")
    node.now += EVENT_SECONDS
    assert (await node.messages())[2].endswith("(39 times since the last event)")
    node.now += EVENT_SECONDS
    assert len(await node.messages()) == 3, "nothing new"


async def test_pods_that_are_gone_are_told_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for _ in range(2 * MOST_WAITING):
        node.parks("gone", "worker")
    assert await node.messages() == []
    node.add("sleeper")
    node.add("worker")
    node.pods.clear()
    node.parks("sleeper", "worker")
    assert await node.messages() == []
