"""Slot directories: complete or absent, and nothing of a previous owner."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from egpu.adapters.slices.pages import USAGE_SIZE, UsageReader
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import OWNER_FILE, USAGE_FILE, SlotRecord, Slots
from egpu_base.errors import CorruptData
from egpu_base.system import mounts
from egpu_sim.cluster import janitor


def record(slots: Slots, slot_id: str, *, pod_uid: str = "u1") -> SlotRecord:
    share = CardShare(uuid="GPU-1", index=0, minor=0, core=10, memory_mib=1)
    return SlotRecord(
        slot_id=slot_id,
        namespace="ns",
        pod="p",
        pod_uid=pod_uid,
        container="main",
        generation=slots.next_generation(),
        boot_id="b",
        allocation=ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,)),
        minors={"GPU-1": 0},
    )


def write(name: str, text: str) -> Callable[[Path], None]:
    def into(slot: Path) -> None:
        (slot / name).write_text(text)

    return into


def test_a_new_owner_finds_nothing_of_the_last(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    first = record(slots, "3")
    old = slots.replace(first, write("secret", "of u1"))
    inode = old.stat().st_ino
    open_before = (old / "secret").open()
    second = record(slots, "3", pod_uid="u2")
    slots.replace(second, write("policy", "of u2"))
    assert not (slots.path("3") / "secret").exists()
    assert slots.path("3").stat().st_ino != inode
    assert slots.record("3") == second
    assert open_before.read() == "of u1", "who still has the old files keeps the old files"
    open_before.close()


@pytest.fixture
def mounting(tmp_path: Path) -> Iterator[Slots]:
    """Slots whose usage files are mounted."""
    if not mounts.allowed(tmp_path):
        pytest.skip("nothing can be mounted here")
    yield Slots(tmp_path / "slots", mount_usage=True)
    janitor.unmount(tmp_path)


def mounted(below: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(below) in line]


def test_what_a_container_writes_takes_no_more_room_than_a_usage_file_has(mounting: Slots) -> None:
    usage = mounting.replace(record(mounting, "3"), mounting.create_usage) / USAGE_FILE
    assert (stat.S_IMODE(usage.stat().st_mode), usage.stat().st_size) == (0o666, USAGE_SIZE)
    assert usage.stat().st_blocks * 512 < USAGE_SIZE, "what nobody has written is paid by nobody"
    with usage.open("r+b", buffering=0) as file:
        file.truncate(7 << 40)
        file.seek(5 << 40)
        assert file.write(bytes(1 << 20)) < USAGE_SIZE
        with pytest.raises(OSError, match="No space left"):
            file.write(b"x")
        assert usage.stat().st_blocks * 512 == USAGE_SIZE
        assert UsageReader(usage).read().problem == ""
        file.truncate(0)
        assert UsageReader(usage).read().problem == f"has 0 bytes instead of {USAGE_SIZE}"


def test_a_mounted_usage_file_goes_with_its_slot_whenever_we_are_killed(mounting: Slots, tmp_path: Path) -> None:
    for _ in range(2):
        mounting.replace(record(mounting, "3"), mounting.create_usage)
        assert len(mounted(tmp_path)) == 1
    mounting.path("3").rename(mounting.path(".3.old.1"))  # as whoever was killed in the middle of a removal leaves it
    assert Slots(tmp_path / "slots").ids() == ()
    assert mounted(tmp_path) == []
    mounting.replace(record(mounting, "4"), mounting.create_usage)
    mounting.remove("4")
    assert (mounted(tmp_path), list((tmp_path / "slots").iterdir())) == ([], [])


def test_what_a_killed_agent_had_mounted_to_make_a_file_is_unmounted(mounting: Slots, tmp_path: Path) -> None:
    room = tmp_path / "usage-room/room"
    for _ in range(2):  # of two that were killed
        mounts.mount_tmpfs(room, size_bytes=4096, files=1)
    again = Slots(tmp_path / "slots", mount_usage=True)
    assert mounted(tmp_path) == []
    usage = again.replace(record(again, "3"), again.create_usage) / USAGE_FILE
    assert usage.stat().st_size == USAGE_SIZE


def test_slots_have_usage_files_of_their_own_and_nothing_where_none_is_mounted(mounting: Slots, tmp_path: Path) -> None:
    usages = [mounting.replace(record(mounting, slot), mounting.create_usage) / USAGE_FILE for slot in ("3", "4")]
    with usages[0].open("r+b", buffering=0) as file:
        file.write(b"mine")
    assert UsageReader(usages[0]).read().problem
    assert not UsageReader(usages[1]).read().problem
    for usage in usages:
        mounts.unmount(usage)
        assert stat.S_ISFIFO(usage.stat().st_mode), "it holds nothing"
        assert UsageReader(usage).read().problem
    assert mounted(tmp_path) == []


def test_a_failed_preparation_leaves_the_slot_as_it_was(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    first = record(slots, "3")
    slots.replace(first, write("policy", "good"))

    def fail(slot: Path) -> None:
        (slot / "policy").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        slots.replace(record(slots, "3"), fail)
    assert slots.record("3") == first
    assert (slots.path("3") / "policy").read_text() == "good"
    assert slots.ids() == ("3",)


def test_what_a_killed_agent_was_making_is_thrown_away(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slots.replace(record(slots, "3"), write("policy", "x"))
    for name in (".4.new.77", ".3.old.77"):
        (tmp_path / "slots" / name).mkdir()
        (tmp_path / "slots" / name / "policy").write_text("half")
    again = Slots(tmp_path / "slots")
    assert sorted(path.name for path in (tmp_path / "slots").iterdir()) == ["3"]
    assert again.next_generation() == 2


def test_a_record_nobody_of_ours_wrote(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slots.path("5").mkdir()
    (slots.path("5") / OWNER_FILE).write_text("{")
    with pytest.raises(CorruptData):
        slots.record("5")
    assert list(slots.records()) == []
    slots.remove("5")
    assert slots.ids() == ()


def test_a_record_is_what_stands_in_its_file_whoever_wrote_that_last(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    first = record(slots, "3")
    slots.replace(first, write("policy", "x"))
    assert slots.record("3") == first
    other, amended = Slots(tmp_path / "slots"), msgspec.structs.replace(first, server="node-2")
    other.amend(amended)
    assert slots.record("3") == amended
    other.remove("3")
    assert slots.record("3") is None
    (slots.path("3")).mkdir()
    (slots.path("3") / OWNER_FILE).write_text("{")
    with pytest.raises(CorruptData):
        slots.record("3")


def test_records_stay_readable_by_the_agents_before_and_after(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slots.replace(record(slots, "3"), write("policy", "x"))
    written = json.loads((slots.path("3") / OWNER_FILE).read_text())
    assert (written["token"], written["podUid"], written["bootId"]) == ("3", "u1", "b")


def test_nowhere_is_a_plain_file_where_cards_are_plain_files(tmp_path: Path) -> None:
    root = tmp_path / "dev"
    root.mkdir()
    (root / "nvidia0").write_text("EGPUSIM1 GPU-1")
    devices = DeviceFiles(root, tmp_path / "state")
    assert devices.nowhere().is_file()
    assert not devices.nowhere().read_bytes().startswith(b"EGPUSIM1")


def test_nowhere_is_a_device_that_nothing_serves_where_cards_are_devices(tmp_path: Path) -> None:
    root = tmp_path / "dev"
    root.mkdir()
    try:
        os.mknod(root / "nvidia0", 0o666 | stat.S_IFCHR, os.makedev(195, 0))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    taken = tmp_path / "devices"
    taken.write_text("Character devices:\n 60 somebody\n195 nvidia\n")
    nowhere = DeviceFiles(root, tmp_path / "state", proc_devices=taken).nowhere()
    assert os.major(nowhere.stat().st_rdev) == 61, "a major that a driver has is left alone"
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked
        os.open(nowhere, os.O_RDWR)
    # EACCES where the file system itself allows no devices.
    assert caught.value.errno in (errno.ENXIO, errno.EACCES)
