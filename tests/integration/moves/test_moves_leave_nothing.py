"""A written-down session is in no file, whatever becomes of its move."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.moving import Control, movable
from support.simulated_gpu import Program

CARDS = ("T4", 1)
PROGRAM: Final = """
    context()
    mark = np.frombuffer(bytes.fromhex({mark!r}), np.uint8)
    at = upload(np.tile(mark, 1000))
    say(0)
    wait()
    say(bool((download(at, np.zeros(64000, np.uint8)) == np.tile(mark, 1000)).all()))
"""


@pytest.mark.parametrize("outcome", ["finish", "cancel", "target dies", "source dies"])
def test_a_session_is_never_in_a_file(sim: Machine, tmp_path: Path, outcome: str) -> None:
    mark = os.urandom(64)
    with movable(sim, tmp_path / "lease") as moved, Program(moved.client, PROGRAM.format(mark=mark.hex())) as program:
        assert program.hear() == 0
        control, target = Control(moved.executor), moved.target(sim)
        with contextlib.closing(control):
            assert control.send(target.source)["state"] == "restored"
            assert _files_with(mark, tmp_path) == []
            if outcome == "target dies":
                target.process.kill()
                target.process.wait()
                assert control.ask("finish")["state"] == "refused"
            elif outcome == "source dies":
                moved.executor.process.kill()
                moved.executor.process.wait()
            elif outcome == "finish":
                moved.bridge.target = target.socket
                assert control.ask("finish") == {"state": "left"}
            else:
                control.order("cancel")
            assert _files_with(mark, tmp_path) == []
        if outcome != "source dies":
            program.go()
            assert program.hear() is True
    assert _files_with(mark, tmp_path) == []
    (tmp_path / "seen").write_bytes(b"before" + mark)
    assert _files_with(mark, tmp_path) == [tmp_path / "seen"]


def _files_with(mark: bytes, folder: Path) -> list[Path]:
    return [path for path in _files(folder) if mark in path.read_bytes()]


def _files(root: Path) -> Generator[Path]:
    for path in root.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                yield path
