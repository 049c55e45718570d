"""Control groups of executors: host memory, processor time and processes of each, on cgroup v2.

    DELEGATED/
      egpu-daemon/              this daemon: a group with controllers for its children has no processes of its own
      PREFIX-<name>/            one executor and its sessions
        memory.max, memory.swap.max, memory.oom.group, cpu.weight, cpu.max, pids.max

DELEGATED is the daemon's own group (systemd: `Delegate=yes`), or one that it is told. An executor enters its group
itself, before it takes anything from anybody (`egpu-executor --cgroup`). It is ended by killing its group, which no
process can leave or outrun by forking. Source of the protocol: Documentation/admin-guide/cgroup-v2.rst of Linux.
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

from egpu.errors import NotSupported, Unavailable

CONTROLLERS: Final = ("memory", "cpu", "pids")
DAEMON: Final = "egpu-daemon"
PERIOD_US: Final = 100_000
END_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.005


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one group may use. `cpus` 0: as much as there is, shared by `cpu_weight` (1 to 10,000) when it is short."""

    memory_bytes: int
    cpu_weight: int
    cpus: float
    processes: int

    def files(self) -> dict[str, str]:
        """What is written where. No swap: what a GPU copies from must not wait for a disk."""
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
    """One executor's group; `path` is what `egpu-executor --cgroup` is given."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def processes(self) -> list[int]:
        """Pids in it; none when it is gone."""
        try:
            return [int(word) for word in (self.path / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def kill(self) -> None:
        """Kill everything in it, at once; before Linux 5.14 one by one. Nothing to do when it is gone."""
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
        """Kill everything in it and remove it. Raises Unavailable when something does not end."""
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
    """A delegated directory. `controllers` are those that groups in it must have."""

    def __init__(self, root: Path, controllers: Collection[str] = CONTROLLERS) -> None:
        self.root = root
        self._controllers = controllers

    def take(self) -> None:
        """Make it ours: move this process into a leaf, and turn the controllers on for the children.

        Raises NotSupported: it has not the controllers, cannot be written, or holds other processes than us.
        """
        there = _read(self.root / "cgroup.controllers").split()
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
        """A new, empty group; what an earlier one of this name left is ended. Raises Unavailable."""
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
        """The group of that name, which may not be there."""
        return Group(self.root / name)

    def groups(self, prefix: str) -> list[Group]:
        """Those whose names begin so."""
        return [Group(path) for path in sorted(self.root.glob(f"{prefix}*")) if path.is_dir()]


def delegated(proc: Path = Path("/proc/self")) -> Path:
    """The directory of this process's own group in cgroup v2. Raises NotSupported: there is none."""
    own = next((line[3:] for line in _read(proc / "cgroup").splitlines() if line.startswith("0::")), None)
    if own is None:
        raise NotSupported("this machine has no cgroup v2")
    for line in _read(proc / "mountinfo").splitlines():
        fields = line.split(" ")
        # id parent device root mount-point options... - type source options
        if fields[fields.index("-") + 1] != "cgroup2":
            continue
        inside = os.path.relpath(own, fields[3])
        if not inside.startswith(".."):
            found = Path(fields[4].replace("\\040", " "), inside)
            return found.parent if found.name == DAEMON else found
    raise NotSupported("no cgroup v2 hierarchy is mounted here")


def find(asked: Path | None) -> Hierarchy:
    """The hierarchy for our groups, taken: the one asked for, or our own. Raises NotSupported, with the reason."""
    hierarchy = Hierarchy(asked or delegated())
    if not os.access(hierarchy.root / "cgroup.subtree_control", os.W_OK):
        raise NotSupported(f"{hierarchy.root} cannot be written: it is not delegated to this daemon")
    hierarchy.take()
    return hierarchy


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NotSupported(f"{path} cannot be read: {error.strerror}") from error
