"""The interpreter's own tests, built with sanitizers: each instruction, whole programs, refusals, damaged input."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "ptx-tests"


@pytest.fixture(scope="module")
def built() -> Path:
    for command in (
        ["cmake", "-S", str(ROOT / "simulator/native/tests/ptx"), "-B", str(BUILD), "-G", "Ninja"],
        [
            "cmake",
            "--build",
            str(BUILD),
            "--target",
            *(f"egpu-ptx-test-{t}" for t in ("instructions", "programs", "mutations")),
        ],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return BUILD


@pytest.mark.parametrize("name", ["instructions", "programs", "mutations"])
def test_native(built: Path, name: str) -> None:
    done = subprocess.run(
        [str(built / f"egpu-ptx-test-{name}")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}:" in done.stdout
    assert "0 failures" in done.stdout
