"""What set-up says before it begins, on machines that lack something."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check_tools.sh"


def checked(path: Path, *python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), *python],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def put(folder: Path, name: str, says: str = "") -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("compiler", ["cc", "gcc", "clang"])
def test_any_compiler_and_a_new_python_are_enough(tmp_path: Path, compiler: str) -> None:
    put(tmp_path, compiler)
    done = checked(tmp_path, sys.executable)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_compiler_one_line_says_so(tmp_path: Path) -> None:
    done = checked(tmp_path, sys.executable)
    assert done.returncode == 1
    assert done.stderr.startswith("missing: gcc. Install it first")
    assert len(done.stderr.splitlines()) == 1
    put(tmp_path, "mine")
    assert checked(tmp_path, sys.executable, CC="mine").returncode == 0


def test_an_old_python_or_none_is_named_too(tmp_path: Path) -> None:
    put(tmp_path, "cc")
    old = put(tmp_path, "python3", "exit 1")
    for python in ([str(old)], []):
        done = checked(tmp_path, *python)
        assert done.returncode == 1
        assert done.stderr.startswith("missing: python3.11. Install it first")
