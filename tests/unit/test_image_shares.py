"""Whose images a server keeps: so many callers, and who has no executor goes first."""

import fcntl
import os
from pathlib import Path

import pytest

from egpu.adapters.executors import images as module
from egpu.adapters.executors.images import SHARE_MIB, Images
from egpu_base.errors import InvalidInput
from support.repository import ROOT


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the directory of these tests is on."""
    monkeypatch.setattr(module, "_file_system", lambda _: "ext4")


def has(images: Images, caller: str) -> bool:
    """Whether the caller has a place with something in it; it has one now, and no executor."""
    descriptor = images.open(caller)
    if descriptor is None:
        return False
    found = bool(os.listdir(descriptor))
    os.close(os.open("one", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=descriptor))
    os.close(descriptor)
    return found


def test_each_caller_has_a_place_of_its_own_and_finds_it_again(tmp_path: Path) -> None:
    images = Images(tmp_path / "images", 2 * SHARE_MIB)
    assert not has(images, "ann")
    assert not has(images, "../bob")
    assert has(images, "ann")
    assert has(Images(tmp_path / "images", 2 * SHARE_MIB), "../bob")
    assert len(list((tmp_path / "images").iterdir())) == 2
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "images").iterdir()} == {0o700}


def test_who_came_least_recently_gives_way_unless_it_has_an_executor(tmp_path: Path) -> None:
    images = Images(tmp_path / "images", 2 * SHARE_MIB)
    held = images.open("ann")  # as its executor holds it
    assert held is not None
    assert not has(images, "bob")
    assert not has(images, "eve")  # in bob's place, though ann came before
    assert not has(images, "bob")
    other = images.open("bob")
    assert images.open("eve") is None  # nobody loses what it uses
    os.close(held)
    assert not has(images, "eve")
    assert other is not None
    os.close(other)


def test_an_executor_holds_its_place_for_as_long_as_it_has_the_descriptor(tmp_path: Path) -> None:
    held = Images(tmp_path / "images").open("ann")
    assert held is not None
    (path,) = (tmp_path / "images").iterdir()
    again = os.open(path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)


def test_a_smaller_bound_removes_what_is_too_much_and_none_removes_all(tmp_path: Path) -> None:
    images = Images(tmp_path / "images")
    assert [has(images, caller) for caller in "abc"] == [False, False, False]
    (tmp_path / "images" / ".gone-half").mkdir()
    fewer = Images(tmp_path / "images", SHARE_MIB)
    assert len(list((tmp_path / "images").iterdir())) == 1
    assert has(fewer, "c")
    none = Images(tmp_path / "images", 0)
    assert list((tmp_path / "images").iterdir()) == []
    assert none.open("c") is None
    assert "--image-cache is 0" in none.told


def test_less_than_a_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=str(SHARE_MIB)):
        Images(tmp_path / "images", SHARE_MIB - 1)
    assert f"{SHARE_MIB}u << 20" in (ROOT / "native/wire/wire.h").read_text()  # STORE_SHARE is the largest image


def test_memory_is_no_place_for_them_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_file_system", lambda _: "tmpfs")
    images = Images(tmp_path / "images")
    assert images.open("ann") is None
    assert f"{tmp_path} is in memory" in images.told
    assert not (tmp_path / "images").exists()


def test_the_kernel_says_what_a_directory_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if not Path("/dev/shm").is_mount():
        pytest.skip("/dev/shm is no file system of its own here")
    assert module._file_system(Path("/dev/shm/not/there")) == "tmpfs"
    assert module._file_system(Path("/proc/self")) == "proc"
