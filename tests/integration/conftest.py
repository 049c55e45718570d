"""Fixtures of several files: a simulated machine, a driver made for tests, executors that run nothing,
an administrator of an API server."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from egpu.adapters import native
from egpu.adapters.executors.leftovers import processes_of
from egpu.apps.agent.slots.directories import Slots
from support.simulated_fixtures import api, sim
from support.slices import Slice, build_driver

__all__ = ["api", "sim"]

FAKE_EXECUTOR = Path(__file__).parent / "programs" / "fake_executor.py"
MOVABLE_EXECUTOR = Path(__file__).parent / "programs" / "movable_executor.py"


@pytest.fixture(autouse=True, scope="module")
def nvml_of_this_file() -> Generator[None]:
    """A process reads one NVML. This file may have another simulated machine than the one before, and the next one."""
    _forget_nvml()
    yield
    _forget_nvml()


def _forget_nvml() -> None:
    if "pynvml" in sys.modules:
        cast(Any, sys.modules["pynvml"]).nvmlLib = None


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver made for tests, and its programs."""
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    """An agent's slots, none yet."""
    return Slots(tmp_path / "slots")


@pytest.fixture
def box(driver: Path, tmp_path: Path) -> Generator[Slice]:
    """A slice on that driver."""
    made = Slice(driver, tmp_path)
    yield made
    made.close()


@pytest.fixture
def state_dir() -> Generator[Path]:
    """A directory with a short path, because sockets are made below it. Executors that are left there are ended."""
    path = Path(tempfile.mkdtemp(prefix="egpu-test-", dir="/tmp"))
    yield path
    for directory in (*path.glob("*/*"), *path.glob("*/*/*")):
        for pid in processes_of(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def executor_that_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE_EXECUTOR in place of `egpu-executor`, as the script `tmp_path / "egpu-executor"`."""
    script = tmp_path / "egpu-executor"
    script.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {sys.executable} {FAKE_EXECUTOR} "$@"\n')
    script.chmod(0o755)
    real = native.path
    monkeypatch.setattr(native, "path", lambda name: script if name == "egpu-executor" else real(name))


@pytest.fixture
def executor_that_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MOVABLE_EXECUTOR in place of `egpu-executor`."""
    script = tmp_path / "egpu-executor"
    script.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {sys.executable} {MOVABLE_EXECUTOR} "$@"\n')
    script.chmod(0o755)
    real = native.path
    monkeypatch.setattr(native, "path", lambda name: script if name == "egpu-executor" else real(name))
