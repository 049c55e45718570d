"""Where a command that uses the pool finds its libraries and sockets."""

import tempfile
from pathlib import Path

import pytest

from egpu.adapters.pool import scratch
from support.strangers import only_root, owned_by_stranger


def test_a_short_runtime_directory_of_ours_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as ours:
        for named, used in ((ours, ours), (f"{ours}/none", "/tmp"), (ours + "/x" * 60, "/tmp"), ("", "/tmp")):
            monkeypatch.setenv("XDG_RUNTIME_DIR", named)
            assert scratch.short_directory() == Path(used)
        assert not Path(ours, "none").exists()


@only_root
def test_a_runtime_directory_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """`su` leaves the variable as it was, and that user could put libraries in the place of root's."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as theirs:
        owned_by_stranger(Path(theirs))
        monkeypatch.setenv("XDG_RUNTIME_DIR", theirs)
        assert scratch.short_directory() == Path("/tmp")
