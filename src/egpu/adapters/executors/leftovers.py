"""Processes of an executor that its record does not name: its sessions, and one that was started and not yet written
down. Each function looks at every process of the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from egpu.adapters.processes import Process, start_time

SESSION: Final = b"egpu-session"


def processes_of(directory: Path) -> list[int]:
    """Living processes that were started with this slice directory."""
    wanted = str(directory).encode()
    return _found(lambda _, words: b"--slice" in words and wanted in words)


def sessions_of(group: int) -> list[int]:
    """Living sessions of the executor whose process group this was: they end a moment after it."""
    return _found(lambda member_of, words: member_of == group and words[0] == SESSION)


def processes_as(uid: int) -> list[int]:
    """Processes of which this is the user, whatever they call themselves."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # Not the owner of the entry: who may not be looked at belongs to root there.
                status = Path(entry.path, "status").read_text()
                ids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
                if str(uid) in ids and Process.of(int(entry.name)).is_alive():
                    found.append(int(entry.name))
    return found


def left_of(executor: Process, uid: int) -> list[int]:
    """Living processes of an executor with a user of its own, whatever they call themselves.

    The user is no proof: it is somebody else's as soon as nobody is it, while we still look. The session that the
    executor led is: its sandbox lets no process leave it, and its number is nobody else's while one is in it.
    """
    if start_time(executor.pid) not in (0, executor.start_time):
        return []  # the number is another's, so nothing of ours is left
    return [pid for pid in processes_as(uid) if _session_of(pid) == executor.pid]


def group_exists(group: int) -> bool:
    """Whether a process group has members: living ones, or dead ones that nobody has waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _session_of(pid: int) -> int:
    """0 when it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _found(matches: Callable[[int, list[bytes]], bool]) -> list[int]:
    """Pids of living processes, chosen by process group and command line."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                if matches(os.getpgid(int(entry.name)), words) and Process.of(int(entry.name)).is_alive():
                    found.append(int(entry.name))
    return found
