"""Files that are there whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from egpu_base.system.files import link_like, write_atomically


def test_what_was_there_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a longer text than the new one")
    with path.open("rb") as reader:
        write_atomically(path, b"new")
        assert reader.read() == b"a longer text than the new one"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_permissions_are_exactly_those_asked_for(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    path.chmod(0o400)
    before = os.umask(0o077)
    try:
        write_atomically(path, b"x", mode=mode, durable=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_where_the_disk_is_full_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_the_place_of_the_draft_gets_nothing(tmp_path: Path) -> None:
    """In a directory such as /tmp another user may have made it, and keeps it open."""
    path = tmp_path / "file"
    draft = tmp_path / f".file.{os.getpid()}"
    with draft.open("wb+") as waiting:
        write_atomically(path, b"secret", mode=0o600)
        assert waiting.read() == b""
    os.mkfifo(draft)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.is_file()


@pytest.mark.parametrize("leads_to", ["target", "elsewhere", None])
def test_a_link_is_another_name_of_one_that_leads_there(tmp_path: Path, leads_to: str | None) -> None:
    like, link = tmp_path / "like", tmp_path / "link"
    if leads_to is not None:
        like.symlink_to(tmp_path / leads_to)
    link_like(link, tmp_path / "target", like=like)
    assert link.readlink() == tmp_path / "target"
    assert (leads_to == "target") == (like.is_symlink() and os.path.samestat(link.lstat(), like.lstat()))
    with pytest.raises(FileExistsError):
        link_like(link, tmp_path / "target", like=like)
