"""Users of executors: each nobody else's, and nobody's before the last of him is gone."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from egpu.adapters.executors import users
from egpu.adapters.executors.users import Users
from egpu_base.errors import InvalidInput, NotSupported, Unavailable

FIRST = 2_000_100_000

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give executors users of their own")


@pytest.mark.parametrize("text", ["0-5", "5", "5-5", "9-5", "root-5", "1-2-3", "5-4294967295", "-5"])
def test_a_range_that_is_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="executor-users"):
        users.parse(text)


def test_the_range_that_is_documented_has_no_account() -> None:
    first, last = users.parse(users.DEFAULT_RANGE)
    assert not [entry for entry in pwd.getpwall() if first <= entry.pw_uid <= last]


@root_only
def test_a_user_is_given_once_until_its_lock_is_dropped(tmp_path: Path) -> None:
    mine, others = (Users(FIRST, FIRST + 2, tmp_path / "locks") for _ in range(2))  # two daemons of a machine
    one, other = mine.take(), others.take()
    assert {one.uid, other.uid} == {FIRST + 1, FIRST + 2}
    with pytest.raises(Unavailable, match=f"{FIRST + 1}-{FIRST + 2}"):
        mine.take()
    other.close()
    again = mine.take()
    assert again.uid == other.uid
    for user in (one, again):
        user.close()


@root_only
def test_who_outlives_his_executor_keeps_his_user(tmp_path: Path) -> None:
    mine = Users(FIRST, FIRST + 1, tmp_path / "locks")
    first = mine.take()
    left = subprocess.Popen(["sleep", "1000"], user=first.uid)
    first.close()
    try:
        with pytest.raises(Unavailable):
            mine.take()
    finally:
        left.kill()
        left.wait()
    assert mine.take().uid == first.uid


@root_only
def test_an_account_of_the_machine_is_never_given(tmp_path: Path) -> None:
    taken = pwd.getpwnam("nobody").pw_uid
    assert users.parse(f"{taken - 1}-{taken}") == (taken - 1, taken)
    with pytest.raises(Unavailable):
        Users(taken - 1, taken, tmp_path / "locks").take()


@root_only
def test_locks_that_others_can_reach_are_not_believed(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(NotSupported, match="root's alone"):
            Users(FIRST, FIRST + 1, tmp_path / name)


@root_only
def test_only_a_file_of_ours_is_opened_to_executors(tmp_path: Path) -> None:
    mine = Users(FIRST, FIRST + 1, tmp_path / "locks")
    state, link, directory = tmp_path / "state", tmp_path / "link", tmp_path / "directory"
    state.write_bytes(b"")
    state.chmod(0o600)
    mine.admit(state)
    assert (state.stat().st_gid, state.stat().st_mode & 0o777) == (FIRST, 0o660)
    link.symlink_to(state)
    directory.mkdir()
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"")
    os.chown(foreign, FIRST, 0)
    for other in (link, directory, foreign):
        with pytest.raises(Unavailable):
            mine.admit(other)
    assert foreign.stat().st_gid == 0
