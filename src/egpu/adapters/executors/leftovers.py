"""Processes of an executor that its record does not name: its sessions, and a process that was started and not yet
recorded. Each function reads every process of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from egpu_base.system import proc
from egpu_base.system.processes import Process, start_time

SESSION: Final = b"egpu-session"


def processes_of(directory: Path) -> list[int]:
    """Return the living processes that were started with this slice directory."""
    wanted = str(directory).encode()
    pids = [pid for pid in proc.pids() if wanted in (words := proc.command(pid)) and b"--slice" in words]
    return [pid for pid in pids if start_time(pid)]


def sessions_of(group: int) -> list[int]:
    """Return the living sessions of the executor that led this process group. They end a moment after it."""
    members = [pid for pid in proc.pids() if _group_of(pid) == group]  # of these few the command line is read
    return [pid for pid in members if proc.command(pid)[0] == SESSION and start_time(pid)]


def processes_as(uid: int) -> list[int]:
    """Return the processes of a user, whatever their names are."""
    # The owner of a process's directory is no help: root owns the directory of a process that hides itself.
    return [pid for pid in proc.pids() if uid in proc.users(pid) and start_time(pid)]


def left_of(executor: Process, uid: int) -> list[int]:
    """Return the living processes of an executor with a user of its own, whatever their names are.

    The user is no proof: another executor may get it as soon as no process has it. The session that the executor led is
    a proof: its sandbox lets no process leave the session, and the kernel does not reuse the number while a process is
    in it.
    """
    if start_time(executor.pid) not in (0, executor.start_time):
        return []  # the number is another's, so nothing of ours is left
    members = [pid for pid in proc.pids() if _session_of(pid) == executor.pid]  # one question each, for many executors
    return [pid for pid in members if uid in proc.users(pid) and start_time(pid)]


def group_exists(group: int) -> bool:
    """Return whether a process group has members: living processes, or zombies."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _session_of(pid: int) -> int:
    """Return the session of a process; 0 if it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _group_of(pid: int) -> int:
    """Return the process group of a process; 0 if it has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0
