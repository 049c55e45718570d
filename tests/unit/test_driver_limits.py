"""The driver's memory limits: set on the control group of a pod, before a container of it starts."""

from pathlib import Path

import pytest

from egpu.adapters.cards.memory_limits import MemoryLimit, pod_group
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.limits.driver import DriverLimits
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.owners import Owner
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import Unavailable

UID = "6f1d7a3e-5a1c-4f0e-9f0b-2c7d0c5b8e11"
MIB = 1 << 20


def of(*memory_mib: int) -> ContainerAllocation:
    """So much of cards 0, 1, …"""
    cards = tuple(
        CardShare(uuid=f"GPU-{index}", index=index, minor=index, core=10, memory_mib=mib)
        for index, mib in enumerate(memory_mib)
    )
    return ContainerAllocation(provisioner=names.VCUDA, mode="shared", memory_isolation="driver", cards=cards)


def owner(container: str, allocation: ContainerAllocation) -> Owner:
    return Owner(Pod(metadata=ObjectMeta(name="p", namespace="default", uid=UID)), container, allocation)


@pytest.mark.parametrize(
    "group",
    [
        f"kubepods/pod{UID}",
        f"kubepods/burstable/pod{UID}",
        f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice",
        f"kubelet/kubepods/burstable/pod{UID}",
    ],
)
def test_the_group_of_a_pod_is_found_wherever_kubelet_makes_it(tmp_path: Path, group: str) -> None:
    assert pod_group(tmp_path, UID) is None
    (tmp_path / group).mkdir(parents=True)
    assert pod_group(tmp_path, UID) == tmp_path / group
    assert pod_group(tmp_path, UID.replace("6f", "7f")) is None


async def test_a_pod_has_what_its_containers_have_together(tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "kubepods" / f"pod{UID}"
    group.mkdir(parents=True)
    asked: list[tuple[str, Path, int]] = []

    def set_limit(uuid: str, where: Path, limit_bytes: int) -> MemoryLimit:
        asked.append((uuid, where, limit_bytes // MIB))
        return MemoryLimit(limit_bytes, 0)

    slots = Slots(tmp_path / "slots")
    limits = DriverLimits(slots, tmp_path / "cgroup", set_limit)
    await limits.apply(owner("one", of(100, 200)))
    assert asked == [("GPU-0", group, 100), ("GPU-1", group, 200)]
    record = SlotRecord(
        slot_id="1",
        namespace="default",
        pod="p",
        pod_uid=UID,
        container="one",
        generation=1,
        boot_id="boot",
        allocation=of(100, 200),
        minors={},
    )
    slots.replace(record, lambda _: None)
    asked.clear()
    await limits.apply(owner("two", of(50)))
    await limits.apply(owner("one", of(100, 200)))  # it starts again
    assert asked == [("GPU-0", group, 150), ("GPU-0", group, 100), ("GPU-1", group, 200)]


async def test_without_a_group_no_container_starts(tmp_path: Path) -> None:
    limits = DriverLimits(Slots(tmp_path / "slots"), tmp_path, lambda *_: MemoryLimit(0, 0))
    with pytest.raises(Unavailable, match="has no control group below"):
        await limits.apply(owner("one", of(100)))
