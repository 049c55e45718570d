"""The state directory of a simulated cluster, for one cluster at a time.

A lock file marks it. The cluster and its janitor hold the lock. A cluster that is restarted right after a kill waits
until the processes and files of the old one are gone.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu_base.errors import InvalidInput, NotPrivate, Unavailable
from egpu_base.system.private import lock_within, private_directory
from egpu_sim.machines.shared_memory import DEFAULT_SHARED_MEMORY

LOCK: Final = "egpu-cluster.lock"
WAIT_SECONDS: Final = 6.0
"""Time limit for the janitor of a killed cluster."""

FORGOTTEN: Final = ("kubernetes", "nodes", "pids", "pki")
"""Folders of no use to a new cluster. Logs of earlier clusters stay."""

LONGEST_SOCKET_PATH: Final = 107
"""Bytes of a Unix socket's path (unix(7))."""

LONGEST_SOCKET: Final = "nodes/node-00/kubelet/device-plugins/elasticgpu-slot.sock"


@dataclass(frozen=True)
class StateDir:
    """`lock` is the open lock file, for the janitor to inherit."""

    path: Path
    temporary: bool
    lock: int


@contextlib.contextmanager
def state_directory(wanted: Path | None) -> Generator[StateDir, None, None]:
    """Yield `wanted`, or for None a temporary directory that is removed at the end.

    Raises InvalidInput where it cannot be used, and changes nothing then.
    """
    path = _temporary() if wanted is None else _given(wanted.absolute())
    try:
        with _locked(path) as lock:
            for name in FORGOTTEN:
                shutil.rmtree(path / name, ignore_errors=True)
            yield StateDir(path, wanted is None, lock)
    finally:
        if wanted is None:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def kept_in_memory(state_dir: Path, nodes: Sequence[str]) -> Generator[Path, None, None]:
    """Yield a directory for data that nodes keep in memory: runs of containers, as in /run, and control groups. Each
    start of a container makes dozens of small files, and a disk would dominate its time."""
    path = tempfile.mkdtemp(prefix="egpu-nodes-", dir=DEFAULT_SHARED_MEMORY)
    try:
        for node in nodes:
            kubelet_dir = state_dir / "nodes" / node / "kubelet"
            kubelet_dir.mkdir(parents=True)
            for name in ("run", "cgroup"):
                place = Path(path, node, name)
                place.mkdir(parents=True)
                (kubelet_dir / name).symlink_to(place)
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _temporary() -> Path:
    # Where $TMPDIR is too deep for sockets, /tmp still serves.
    long = len(os.fsencode(tempfile.gettempdir())) + len("/egpu-12345678") > _room()
    try:
        return Path(tempfile.mkdtemp(prefix="egpu-", dir="/tmp" if long else None))  # noqa: S108
    except OSError as error:
        raise InvalidInput("state-dir", f"no temporary directory can be made: {error}") from error


def _given(path: Path) -> Path:
    if (length := len(os.fsencode(path))) > _room():
        reason = f"{path} has {length} bytes; the sockets below it leave room for {_room()}: use a shorter path"
        raise InvalidInput("state-dir", reason)
    try:
        path = private_directory(path)
        held = sorted(one.name for one in path.iterdir())
    except (NotPrivate, Unavailable) as error:
        raise InvalidInput("state-dir", str(error)) from error
    except OSError as error:
        raise InvalidInput("state-dir", f"{path} cannot be used: {error.strerror}") from error
    if held and LOCK not in held:
        reason = f"{path} has other files ({held[0]}): use a new directory, or one that an earlier cluster used"
        raise InvalidInput("state-dir", reason)
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Generator[int, None, None]:
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput("state-dir", f"{path} is not writable: {error.strerror}") from error
    try:
        if not lock_within(lock, WAIT_SECONDS):
            raise InvalidInput("state-dir", f"another cluster runs in {path}: end it, or use another directory")
        yield lock
    finally:
        os.close(lock)


def _room() -> int:
    return LONGEST_SOCKET_PATH - len(f"/{LONGEST_SOCKET}")
