"""Cleans up after a simulated cluster that was killed.

The cluster starts it with a pipe as standard input. The kernel closes the pipe when the cluster ends for any reason.
Then the janitor ends every process in a pid file (`PID START_TIME`) below the state directory and the paths of its
command line, if the start time still matches, and removes those paths. Before that it unmounts everything that the
nodes' agents have mounted below the state directory.

    python janitor.py STATE_DIR [PATH …]

It imports only the standard library, to stay small.
"""

import ctypes
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

PID_FOLDER = "pids"
"""Files in folders of this name, and files named `pid` (of container runs), are pid files."""

GRACE_SECONDS = 2.0
_DETACH = 2  # of umount2(2)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    state_dir, *paths = (Path(argument) for argument in sys.argv[1:])
    while os.read(0, 1024):
        pass
    clean(state_dir, paths)


def clean(state_dir: Path, paths: list[Path]) -> None:
    """End every process with a pid file below `state_dir` and `paths`, unmount everything below the first, then remove
    `paths`."""
    folders = {state_dir, *paths}
    files = [file for one in folders for name in (f"{PID_FOLDER}/*", "pid") for file in one.glob(f"**/{name}")]
    processes = [entry for file in files for entry in _read(file)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        alive = [entry for entry in processes if _signal(*entry, number)]
        while alive and time.monotonic() < deadline:
            time.sleep(0.02)
            alive = [entry for entry in alive if _is_same(*entry)]
    unmount(state_dir)
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def unmount(below: Path) -> None:
    """Unmount everything below a directory, the last mount first."""
    inside = os.fsencode(os.path.realpath(below)) + b"/"
    lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]
    # Octal escapes stand for spaces and the like.
    places = [re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), line.split(b" ")[4]) for line in lines]
    for place in reversed(places):
        if place.startswith(inside):
            ctypes.CDLL(None).umount2(place, _DETACH)


def _read(path: Path) -> list[tuple[int, int]]:
    try:
        numbers = [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []
    return list(zip(numbers[::2], numbers[1::2], strict=False))


def _is_same(pid: int, started: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    fields = stat.rpartition(b")")[2].split()
    return int(fields[19]) == started and fields[0] != b"Z"


def _signal(pid: int, started: int, number: signal.Signals) -> bool:
    if not _is_same(pid, started):
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
