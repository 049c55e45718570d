"""nvidia-cuda-mps-control of a simulated machine, as tests start it and speak to it."""

import contextlib
import subprocess
from collections.abc import Generator
from pathlib import Path

from egpu.adapters import native

PROGRAM = "tools/nvidia-cuda-mps-control"


def control(pipes: Path, *lines: str, option: str = "") -> subprocess.CompletedProcess[str]:
    """Give it these commands, or start its daemon with `option`."""
    directory = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes.parent / "log")}
    return subprocess.run(
        [native.path(PROGRAM), *([option] if option else [])],
        input="".join(f"{line}\n" for line in lines),
        env=directory,
        stdout=subprocess.PIPE,
        stderr=None if option else subprocess.STDOUT,  # a daemon's parent ends, and nobody waits for its log
        text=True,
        timeout=30,
        check=False,
    )


def asked(pipes: Path, *lines: str) -> list[str]:
    """What it says to commands that it takes."""
    done = control(pipes, *lines)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def pid(pipes: Path) -> int:
    return int((pipes / "nvidia-cuda-mps-control.pid").read_text())


@contextlib.contextmanager
def daemon(directory: Path, *lines: str) -> Generator[Path]:
    """Its pipe directory, after these commands."""
    pipes = directory / "pipe"
    assert control(pipes, option="-d").returncode == 0
    try:
        if lines:
            asked(pipes, *lines)
        yield pipes
    finally:
        control(pipes, "quit -t 0")
