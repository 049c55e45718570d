"""Labels, on a kernel that is only said to enforce them: what is asked of it, in which words."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from egpu.api.allocation import ContainerAllocation
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.system import selinux


@pytest.fixture
def labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths that were labelled, below tmp_path."""
    enforce = tmp_path.with_name(f"{tmp_path.name}-enforce")
    enforce.write_text("1")
    monkeypatch.setattr(selinux, "ENFORCE", enforce)
    found: list[str] = []

    def setxattr(path: str, name: str, value: bytes, *, follow_symlinks: bool) -> None:
        assert (name, value, follow_symlinks) == (
            "security.selinux",
            b"system_u:object_r:container_file_t:s0\0",
            False,
        )
        if path.endswith("usage"):
            raise OSError(errno.ENOTSUP, "mounted with a context")
        found.append(os.path.normpath(os.path.relpath(path, tmp_path)))

    monkeypatch.setattr(os, "setxattr", setxattr)
    return found


def slot(root: Path) -> Path:
    (root / "slot/dev").mkdir(parents=True)
    (root / "slot/dev/nvidia0").symlink_to("/nowhere")
    for file in ("policy", "usage"):
        (root / "slot" / file).touch()
    return root / "slot"


def test_everything_that_a_container_sees_is_labelled(tmp_path: Path, labelled: list[str]) -> None:
    selinux.label(slot(tmp_path))
    assert set(labelled) == {"slot", "slot/dev", "slot/dev/nvidia0", "slot/policy"}


def test_a_slot_is_labelled_before_anybody_finds_it(tmp_path: Path, labelled: list[str]) -> None:
    record = SlotRecord(
        slot_id="3",
        namespace="default",
        pod="p",
        pod_uid="u",
        container="c",
        generation=1,
        boot_id="b",
        allocation=ContainerAllocation(provisioner="", mode="shared", cards=()),
        minors={},
    )
    Slots(tmp_path / "slots").replace(record, lambda fresh: (fresh / "policy").touch())
    assert {Path(path).name for path in labelled} >= {"policy", "owner.json"}
    assert not any(path.startswith("slots/3") for path in labelled), "it was still under another name"


def test_a_refused_label_is_said(tmp_path: Path, labelled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "not allowed")

    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(PermissionError):
        selinux.label(slot(tmp_path))
    assert labelled == []


def test_a_file_system_is_labelled_when_it_is_mounted(labelled: list[str]) -> None:
    assert selinux.mount_option() == ',context="system_u:object_r:container_file_t:s0"'
    assert labelled == []


@pytest.mark.parametrize("state", ["0", None])
def test_nothing_is_labelled_where_nobody_enforces(
    tmp_path: Path, labelled: list[str], monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    monkeypatch.setattr(selinux, "ENFORCE", tmp_path / "enforce")
    if state is not None:
        (tmp_path / "enforce").write_text(state)
    selinux.label(slot(tmp_path))
    assert (labelled, selinux.mount_option()) == ([], "")
