"""Control groups of executors: host memory, processor time and processes of each, on cgroup v2.

    DELEGATED/
      egpu-daemon/              this daemon: a group with controllers for its children has no processes of its own
      PREFIX-<name>/            one executor and its sessions
        memory.max, memory.swap.max, memory.oom.group, cpu.weight, cpu.max, pids.max

DELEGATED is the daemon's own group (systemd: `Delegate=yes`), or the configured one. An executor enters its group
itself, before it accepts any input (`egpu-executor --cgroup`). The daemon ends an executor by killing its group: no
process can leave the group, or outrun the kill by forking. Source of the protocol:
Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu_base.errors import NotSupported, Unavailable
from egpu_base.system import proc

CONTROLLERS: Final = ("memory", "cpu", "pids")
DAEMON: Final = "egpu-daemon"
PERIOD_US: Final = 100_000
END_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.005


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one group. `cpus` 0: no limit; under load, groups share by `cpu_weight` (1 to 10,000)."""

    memory_bytes: int
    cpu_weight: int
    cpus: float
    processes: int

    def files(self) -> dict[str, str]:
        """Return the content of each file. There is no swap: copies of a GPU must not wait for a disk."""
        quota = f"{round(self.cpus * PERIOD_US)} {PERIOD_US}" if self.cpus else f"max {PERIOD_US}"
        return {
            "memory.max": str(self.memory_bytes),
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "cpu.weight": str(self.cpu_weight),
            "cpu.max": quota,
            "pids.max": str(self.processes),
        }


class Group:
    """One executor's group. `path` is the value of `egpu-executor --cgroup`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def processes(self) -> list[int]:
        """Return the pids in the group; none if it does not exist."""
        try:
            return [int(word) for word in (self.path / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def kill(self) -> None:
        """Kill all processes in the group at once; before Linux 5.14, one by one. Do nothing if it does not exist."""
        try:
            handle = os.open(self.path / "cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        try:
            os.write(handle, b"1")
        finally:
            os.close(handle)

    def end(self) -> None:
        """Kill all processes in the group and remove it. Raises Unavailable if a process does not end."""
        deadline = time.monotonic() + END_SECONDS
        while self.path.is_dir():
            self.kill()
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:  # EBUSY while processes end
                if time.monotonic() > deadline:
                    raise Unavailable(f"{self.path} does not empty: {self.processes()}: {error}") from error
                time.sleep(_POLL_SECONDS)


class Hierarchy:
    """A delegated directory. Groups in it need these `controllers`."""

    def __init__(self, root: Path, controllers: Collection[str] = CONTROLLERS) -> None:
        self.root = root
        self._controllers = controllers

    def take(self) -> None:
        """Take the directory: move this process into a leaf, and turn the controllers on for the children.

        Raises NotSupported: it lacks a controller, cannot be written, or has processes of others.
        """
        there = _read(self.root / "cgroup.controllers").decode().split()
        if missing := [name for name in self._controllers if name not in there]:
            raise NotSupported(
                f"{self.root} has no controller {', '.join(missing)} (cgroup v1 may have taken it); it has "
                f"{', '.join(there) or 'none'}"
            )
        inside = Group(self.root).processes()
        if others := [pid for pid in inside if pid != os.getpid()]:
            raise NotSupported(
                f"{self.root} holds other processes than this daemon ({', '.join(map(str, others[:5]))}); delegate one "
                "to it (systemd: Delegate=yes)"
            )
        try:
            if inside:
                (self.root / DAEMON).mkdir(exist_ok=True)
                (self.root / DAEMON / "cgroup.procs").write_text(str(os.getpid()))
            wanted = " ".join(f"+{name}" for name in self._controllers)
            (self.root / "cgroup.subtree_control").write_text(wanted)
        except OSError as error:
            raise NotSupported(f"{self.root} is not delegated to this daemon: {error.strerror}") from error
        # kubelet has a container that reaches its limit killed whole (1 here): all executors and their parent for one.
        # Each group is killed whole, and the rest goes on. Not every kernel has it, nor lets every daemon write it.
        whole = self.root / "memory.oom.group"
        with contextlib.suppress(OSError):
            if whole.exists():
                whole.write_text("0")

    def create(self, name: str, limits: Limits) -> Group:
        """Create an empty group. End the processes of an earlier group with this name. Raises Unavailable."""
        group = self.group(name)
        group.end()
        try:
            group.path.mkdir()
            for file, text in limits.files().items():
                # Swap and the out-of-memory group are options of the kernel's; the limits themselves are not.
                if file not in ("memory.swap.max", "memory.oom.group") or (group.path / file).exists():
                    (group.path / file).write_text(text)
        except OSError as error:
            with contextlib.suppress(OSError):
                group.path.rmdir()
            raise Unavailable(f"the group {group.path} cannot be made: {error}") from error
        return group

    def group(self, name: str) -> Group:
        """Return the group with this name, which may not exist."""
        return Group(self.root / name)

    def groups(self, prefix: str) -> list[Group]:
        """Return the groups whose names begin with the prefix."""
        return [Group(path) for path in sorted(self.root.glob(f"{prefix}*")) if path.is_dir()]


def delegated(ours: Path = Path("/proc/self")) -> Path:
    """Return the directory of this process's own group in cgroup v2. Raises NotSupported: there is none."""
    lines = _read(ours / "cgroup").split(b"\n")
    own = next((os.fsdecode(line[3:]) for line in lines if line.startswith(b"0::")), None)
    if own is None:
        raise NotSupported("this machine has no cgroup v2")
    for mount in proc.mounts(_read(ours / "mountinfo")):
        inside = os.path.relpath(own, mount.root)
        if mount.kind == "cgroup2" and not inside.startswith(".."):
            found = Path(mount.place, inside)
            return found.parent if found.name == DAEMON else found
    raise NotSupported("no cgroup v2 hierarchy is mounted here")


def find(asked: Path | None) -> Hierarchy:
    """Take the hierarchy for our groups: the one asked for, or our own. Raises NotSupported, with the reason."""
    hierarchy = Hierarchy(asked or delegated())
    if not os.access(hierarchy.root / "cgroup.subtree_control", os.W_OK):
        raise NotSupported(f"{hierarchy.root} cannot be written: it is not delegated to this daemon")
    hierarchy.take()
    return hierarchy


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotSupported(f"{path} cannot be read: {error.strerror}") from error
