"""How long programs keep a time-sliced card: set before a container starts, set back after the last, whoever dies."""

from pathlib import Path

import pytest

from egpu.adapters.cards import compute_policy
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.cards.time_slices import TimeSlices
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.errors import NotSupported


class Cards:
    """Cards that remember what was set; `refuses` are those that cannot."""

    def __init__(self) -> None:
        self.lengths: dict[str, str] = {}
        self.refuses: set[str] = set()

    def set(self, uuid: str, length: str) -> None:
        if uuid in self.refuses:
            raise NotSupported(f"{uuid} keeps its time slice")
        self.lengths[uuid] = length


def sliced(uuid: str, length: str) -> ContainerAllocation:
    share = CardShare(uuid=uuid, index=0, minor=0, core=25, memory_mib=4096)
    return ContainerAllocation(provisioner=names.TIMESLICE, mode="shared", alike=length, cards=(share,))


def make_slot(slots: Slots, slot_id: str, allocation: ContainerAllocation) -> None:
    record = SlotRecord(
        slot_id=slot_id,
        namespace="default",
        pod=slot_id,
        pod_uid=f"uid-{slot_id}",
        container="app",
        generation=slots.next_generation(),
        boot_id="boot",
        allocation=allocation,
        minors={},
    )
    slots.replace(record, lambda _: None)


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return Slots(tmp_path / "slots")


async def test_a_card_has_the_length_while_a_slot_wants_it(slots: Slots, tmp_path: Path) -> None:
    cards = Cards()
    slices = TimeSlices(slots, tmp_path / "set", cards.set)
    allocation = sliced("GPU-a", "long")
    async with slices.while_made(allocation):
        assert cards.lengths == {"GPU-a": "long"}
        assert await slices.step() == []
        make_slot(slots, "1", allocation)
    assert await slices.step() == []
    slots.remove("1")
    assert await slices.step() == ["GPU-a"]
    assert cards.lengths == {"GPU-a": "default"}
    assert await slices.step() == []


async def test_an_agent_that_was_killed_at_any_step_leaves_nothing(slots: Slots, tmp_path: Path) -> None:
    cards = Cards()
    with pytest.raises(KeyboardInterrupt):  # killed before its slot was made
        async with TimeSlices(slots, tmp_path / "set", cards.set).while_made(sliced("GPU-a", "short")):
            raise KeyboardInterrupt
    assert cards.lengths == {"GPU-a": "short"}
    assert await TimeSlices(slots, tmp_path / "set", cards.set).step() == ["GPU-a"]
    assert cards.lengths == {"GPU-a": "default"}


async def test_what_cannot_be_set_starts_no_container_and_is_tried_again(slots: Slots, tmp_path: Path) -> None:
    cards = Cards()
    slices = TimeSlices(slots, tmp_path / "set", cards.set)
    cards.refuses.add("GPU-a")
    with pytest.raises(NotSupported, match="keeps its time slice"):
        async with slices.while_made(sliced("GPU-a", "long")):
            make_slot(slots, "1", sliced("GPU-a", "long"))
    assert slots.ids() == ()
    assert await slices.step() == []
    cards.refuses.clear()
    assert await slices.step() == ["GPU-a"]


async def test_replicas_of_the_drivers_own_length_change_nothing(slots: Slots, tmp_path: Path) -> None:
    cards = Cards()
    async with TimeSlices(slots, tmp_path / "set", cards.set).while_made(sliced("GPU-a", "")):
        pass
    assert cards.lengths == {}


def test_a_node_without_nvidia_smi_is_told_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotSupported, match="nvidia-smi, which this node does not have"):
        compute_policy.set_time_slice("GPU-a", "long")
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$*" >&2\nexit 3\n')
    program.chmod(0o755)
    with pytest.raises(NotSupported, match="compute-policy -i GPU-a --set-timeslice=3"):
        compute_policy.set_time_slice("GPU-a", "long")
