"""nvidia-cuda-mps-control of a simulated machine, as tests start it and speak to it."""

import contextlib
import socket
import struct
import subprocess
from collections.abc import Generator
from pathlib import Path

from egpu_sim import native

PROGRAM = "tools/nvidia-cuda-mps-control"
COMMAND, JOIN = 1, 3
_MESSAGE = struct.Struct("=IiIf16Q1024s")
"""`struct mps_message` of simulator/native/mps/protocol.h."""


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


def sends(clients: Path, kind: int, text: str = "") -> bool:
    """Whether the daemon answers a program that writes this message to the socket that all programs have."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
        stream.settimeout(30)
        stream.connect(str(clients / "control"))
        stream.send(_MESSAGE.pack(kind, 0, 0, 0, *[0] * 16, text.encode()))
        return len(stream.recv(_MESSAGE.size)) == _MESSAGE.size


def joins(clients: Path) -> bool:
    """Whether a program becomes a client there."""
    return sends(clients, JOIN)


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
