"""Directories that nobody but us can have put anything into: what is taken for one, and what is not."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu_base.errors import NotPrivate, Unavailable
from egpu_base.system import private
from egpu_base.system.private import MAX_LINKS, PASSABLE, private_directory
from support.strangers import STRANGER, as_stranger, only_root


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory in which everybody can make names, and nobody can take away another's: as /tmp and /dev/shm are."""
    path = Path(tempfile.mkdtemp(prefix="egpu-test-", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_made_is_ours_whatever_the_umask_is(shared: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert private_directory(shared / "a" / "b") == shared / "a" / "b"
    finally:
        os.umask(before)
    assert (mode(shared / "a"), mode(shared / "a" / "b")) == (PASSABLE, PASSABLE)


def test_what_is_there_keeps_its_mode(shared: Path) -> None:
    (shared / "a").mkdir()
    for permissions in (0o755, 0o700):
        (shared / "a").chmod(permissions)
        private_directory(shared / "a")
        assert mode(shared / "a") == permissions


@pytest.mark.parametrize("permissions", [0o777, 0o770, 0o1777])
def test_what_others_could_write_is_not_believed(shared: Path, permissions: int) -> None:
    (shared / "a").mkdir()
    (shared / "a").chmod(permissions)
    with pytest.raises(NotPrivate, match=rf"a can be written by other users \(mode {permissions:o}\)"):
        private_directory(shared / "a")
    if not permissions & stat.S_ISVTX:
        with pytest.raises(NotPrivate, match=rf"a can be changed by other users \(mode {permissions:o}\)"):
            private_directory(shared / "a" / "b")
    assert mode(shared / "a") == permissions


@only_root
def test_what_somebody_else_made_first_is_refused_by_name(shared: Path) -> None:
    as_stranger("mkdir", shared / "a")
    for path in (shared / "a", shared / "a" / "b"):
        with pytest.raises(NotPrivate, match=rf"{shared}/a belongs to user {STRANGER}\b.*--state-dir"):
            private_directory(path)
    assert list((shared / "a").iterdir()) == []


@only_root
def test_a_link_that_somebody_else_made_is_not_followed(shared: Path) -> None:
    ours = shared / "ours"
    ours.mkdir(mode=0o700)
    as_stranger("ln", "-s", ours, shared / "link")
    for path in (shared / "link", shared / "link" / "below"):
        with pytest.raises(NotPrivate, match=rf"link is a link that user {STRANGER} made"):
            private_directory(path)
    assert list(ours.iterdir()) == []


def test_a_link_of_ours_is_followed_to_where_it_leads(shared: Path) -> None:
    (shared / "real").mkdir()
    (shared / "absolute").symlink_to(shared / "real")
    (shared / "relative").symlink_to("absolute/../real")
    for link in ("absolute", "relative"):
        assert private_directory(shared / link) == shared / "real"
        assert private_directory(shared / link / "below") == shared / "real" / "below"
    (shared / "round").symlink_to("round")
    with pytest.raises(Unavailable, match=f"more than {MAX_LINKS} links"):
        private_directory(shared / "round")


def test_what_is_no_directory_is_one_sentence(shared: Path) -> None:
    (shared / "file").touch()
    for path in (shared / "file", shared / "file" / "below"):
        with pytest.raises(Unavailable, match="Not a directory"):
            private_directory(path)


#: In a user namespace that knows one user, as within a slice: root's directories are the overflow user's there.
ELSEWHERE = """
import ctypes, os, sys
from pathlib import Path
from egpu_base.system.private import private_directory
user, place = int(sys.argv[1]), Path(sys.argv[2])
os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: /proc/self is ours again
if ctypes.CDLL(None).unshare(0x10000000) != 0:  # CLONE_NEWUSER
    sys.exit("no user namespaces here")
Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
assert Path("/").stat().st_uid not in (0, user)
print(private_directory(place))
"""


@only_root
def test_root_is_trusted_where_a_user_namespace_does_not_know_it(shared: Path) -> None:
    command = [sys.executable, "-c", ELSEWHERE, str(STRANGER), str(shared / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "no user namespaces here" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout == f"{shared}/a\n", done.stderr


def test_a_directory_is_one_process_s_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "OCCUPIED_SECONDS", 0.0)
    held = private.occupy(tmp_path)
    with pytest.raises(Unavailable, match=f"another process uses {tmp_path}: stop it"):
        private.occupy(tmp_path)
    os.close(held)
    os.close(private.occupy(tmp_path))


def test_one_that_was_killed_a_moment_ago_is_waited_for(tmp_path: Path) -> None:
    held = private.occupy(tmp_path)
    ending = threading.Timer(0.3, os.close, (held,))
    ending.start()
    os.close(private.occupy(tmp_path))
    ending.join()
