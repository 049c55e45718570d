"""Slot directories: complete or absent, and nothing of a previous owner."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import OWNER_FILE, SlotRecord, Slots
from egpu.errors import CorruptData


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
