"""Directories that go with their process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egpu.adapters.pool import scratch
from egpu_base.errors import Unavailable
from support.strangers import only_root, owned_by_stranger

HOLDING = """
import sys
from pathlib import Path
from egpu.adapters.pool import scratch
with scratch.directory("egpu-run-", Path(sys.argv[1])) as path:
    (path / "lease0.sock").touch()
    print(path, flush=True)
    sys.stdin.read()
"""


def start(below: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(below)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    killed, left = start(tmp_path)
    alive, used = start(tmp_path)
    try:
        killed.kill()
        killed.wait()
        assert left.exists()
        (tmp_path / "egpu-run-file").touch()
        (tmp_path / "egpu-run-link").symlink_to(used)
        with scratch.directory("egpu-run-", tmp_path) as path:
            assert path.is_dir()
            assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
                [used.name, path.name, "egpu-run-file", "egpu-run-link"]
            )
            assert (used / "lease0.sock").exists()
        assert not path.exists()
    finally:
        alive.communicate("")
        for pipe in (killed.stdin, killed.stdout):
            pipe.close()  # type: ignore[union-attr]
    assert not used.exists()


@only_root
def test_what_another_user_left_is_not_touched(tmp_path: Path) -> None:
    """Root could remove it, and would break on one that is nested deeper than Python calls itself."""
    theirs = tmp_path / "egpu-run-theirs"
    (theirs / "below").mkdir(parents=True)
    owned_by_stranger(theirs)
    with scratch.directory("egpu-run-", tmp_path):
        assert (theirs / "below").is_dir()


def test_a_directory_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = scratch._locked, []

    def late(path: Path) -> int:
        if not swept:
            swept.append(path)
            os.close(real(path))
            path.rmdir()
        return real(path)

    monkeypatch.setattr(scratch, "_locked", late)
    with scratch.directory("egpu-run-", tmp_path) as path:
        assert path.is_dir()
        assert path != swept[0]


def test_where_nothing_can_be_made_that_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match="cannot make a directory"),
        scratch.directory("egpu-run-", tmp_path / "nowhere"),
    ):
        pass
