"""Machines' files in shared memory: new paths, existing files, and the removal of abandoned ones."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from egpu_base.errors import NotSupported, Unavailable
from egpu_base.system.processes import start_time
from egpu_sim.machines.state import StateHeader, has_users, pid_namespace, read_header

DEFAULT_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - processes share this memory

DRIVER_LINK: Final = "driver/machine"
"""The link to the state, in a machine's directory."""
_PREFIX: Final = "egpu-sim-"
_MIN_FREE_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class StateFile:
    """A machine's file in shared memory, made by any process of this user."""

    path: Path
    node_name: str
    cards: int
    created_unix_ns: int
    used_bytes: int
    state: Literal["in use", "kept", "left"]
    """The machine is in use, kept by its directory, or abandoned."""

    @property
    def name(self) -> str:
        """A name that is unique among machines."""
        return self.path.name.removeprefix(_PREFIX)


def new_path(shared_memory: Path, node_name: str) -> Path:
    """Return a path for the state of a new machine, after removing abandoned states.

    Raises:
        NotSupported: shared memory is missing or not writable.
        Unavailable: it is (nearly) full.
    """
    _check_writable(shared_memory)
    sweep(shared_memory)
    _check_room(shared_memory)
    return shared_memory / f"{_PREFIX}{node_name}-{secrets.token_hex(6)}"


def list_machines(shared_memory: Path = DEFAULT_SHARED_MEMORY) -> tuple[StateFile, ...]:
    found: list[StateFile] = []
    for path in sorted(shared_memory.glob(f"{_PREFIX}*")):
        header = read_header(path)
        if header is None:
            continue
        state = "in use" if has_users(path) or _has_maker(header) else "left" if _is_left(path, header) else "kept"
        used = path.stat().st_blocks * 512
        found.append(StateFile(path, header.node_name, header.cards, header.created_unix_ns, used, state))
    return tuple(found)


def remove_unused(machine: StateFile) -> bool:
    """Remove a machine's state unless a process uses it. Return whether it was removed."""
    header = read_header(machine.path)
    if header is None or has_users(machine.path) or _has_maker(header):
        return False
    machine.path.unlink(missing_ok=True)
    return True


def sweep(shared_memory: Path = DEFAULT_SHARED_MEMORY) -> tuple[Path, ...]:
    """Remove abandoned states: their owner has ended and no process uses them. Return the removed ones.

    Persistent machines stay as long as their directory. States of other versions or pid namespaces stay too.
    """
    removed: list[Path] = []
    for path in sorted(shared_memory.glob(f"{_PREFIX}*")):
        header = read_header(path)
        if header is None or not _is_left(path, header) or has_users(path):
            continue
        path.unlink(missing_ok=True)
        removed.append(path)
    return tuple(removed)


def _has_maker(header: StateHeader) -> bool:
    """Return whether the owner lives, or may live in another pid namespace."""
    if header.creator is None:
        return False
    pid, ticks, namespace = header.creator
    return namespace != pid_namespace() or start_time(pid) == ticks


def _is_left(path: Path, header: StateHeader) -> bool:
    """Return whether a machine is abandoned: its owner has ended, or its directory is gone or has another machine."""
    if header.creator is not None:
        return not _has_maker(header)
    if header.directory is None or header.pid_namespace != pid_namespace():
        return False
    try:
        return (header.directory / DRIVER_LINK).readlink().name != path.name
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # not known to be gone


def _check_writable(path: Path) -> None:
    if not path.is_dir():
        raise NotSupported(f"the simulated GPU needs shared memory at {path}, which is not a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise NotSupported(
            f"the simulated GPU needs shared memory at {path}, which this user cannot write: mount a tmpfs there that "
            "everybody can (in a container: --tmpfs, not --read-only alone)"
        )


def _check_room(path: Path) -> None:
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if free < _MIN_FREE_BYTES:
        raise Unavailable(
            f"{path} has {free >> 20} MiB left, a simulated machine needs at least {_MIN_FREE_BYTES >> 20}: remove "
            "what fills it, or remount it with a larger size (in a container: --shm-size)"
        )
