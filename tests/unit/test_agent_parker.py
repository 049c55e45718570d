"""The agent asks programs to park as their pod's annotation says, and asks nothing twice."""

from pathlib import Path
from typing import Any, cast

import pytest

from egpu.adapters.slices.asking import ask_to_park
from egpu.adapters.slices.pages import DevicePolicy, Mode, Parking, create_usage, read_policy, write_policy
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.slots.directories import POLICY_FILE, USAGE_FILE, SlotRecord, Slots
from egpu.apps.agent.slots.parker import LOCAL_BITS, SlotParker, requested
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI
from support.waiting import until

SHARE = CardShare(uuid="GPU-1", index=0, minor=0, core=50, memory_mib=512)


def pod(text: str) -> Pod:
    return Pod(metadata=ObjectMeta(name="p", namespace="n", uid="uid-p", annotations={names.PARK_REQUEST: text}))


class Pods:
    """The node's only pod."""

    def __init__(self, text: str) -> None:
        self.pod = pod(text)

    def by_uid(self, uid: str) -> Pod | None:
        return self.pod if uid == "uid-p" else None


def slots_with_one(root: Path, *, parkable: bool) -> Slots:
    slots = Slots(root / "slots")
    given = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(SHARE,), parkable=parkable)
    record = SlotRecord(
        slot_id="a", namespace="n", pod="p", pod_uid="uid-p", container="app", generation=1,
        boot_id="", allocation=given, minors={},
    )  # fmt: skip

    def fill(directory: Path) -> None:
        line = DevicePolicy(uuid="GPU-1", minor=0, mode=Mode.CAP, core_ppm=1, memory_limit_bytes=1 << 20)
        write_policy(directory / POLICY_FILE, [line], parking=Parking() if parkable else None)
        create_usage(directory / USAGE_FILE)

    slots.replace(record, fill)
    return slots


def parker(slots: Slots, pods: Pods, api: FakeAPI | None = None) -> SlotParker:
    events = EventRecorder((api or FakeAPI()).client(), component="elastic-gpu-agent")
    return SlotParker(slots, cast(Any, pods), events)


async def test_a_number_asks_once_whichever_agent_reads_it(tmp_path: Path) -> None:
    slots, pods = slots_with_one(tmp_path, parkable=True), Pods("1")
    page = slots.policy_file("a")

    async def asked(by: SlotParker) -> int:
        await by.step()
        parking = read_policy(page).parking
        assert parking is not None
        return parking.request

    first = parker(slots, pods)
    number = await asked(first)
    assert (number >> LOCAL_BITS, number % 2) == (1, 1)
    assert await asked(first) == number
    assert await asked(parker(slots, pods)) == number, "nor after a restart"
    local = ask_to_park(page, park=True)
    assert await asked(first) == local, "somebody on the node asked meanwhile"
    pods.pod = pod("2")
    number = await asked(first)
    assert (number >> LOCAL_BITS, number % 2) == (2, 0)
    pods.pod = pod("1")
    assert await asked(first) == number, "numbers grow"


@pytest.mark.parametrize("number", ["1", "2"])
async def test_a_pod_is_told_that_no_program_answered(tmp_path: Path, number: str) -> None:
    api = FakeAPI()
    await parker(slots_with_one(tmp_path, parkable=True), Pods(number), api).step()
    await until(lambda: api.all("events"))
    (event,) = api.all("events")
    assert (event["type"], event["reason"]) == ("Warning", "GPUMemoryNotMoved")
    assert "no answer in time" in event["message"]


async def test_other_slices_are_left_alone(tmp_path: Path) -> None:
    slots = slots_with_one(tmp_path, parkable=False)
    await parker(slots, Pods("1")).step()
    assert read_policy(slots.policy_file("a")).generation == 1


@pytest.mark.parametrize("text", ["", "yes", "-1", "1.5", "\u0661", "9" * 13])
def test_what_is_no_number_asks_nothing(text: str) -> None:
    assert requested(pod(text)) == 0
