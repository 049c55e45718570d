"""Which slice a process of this machine is in: what the kernel says of the process, nothing that it says itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Device and inode of a policy page: the same file inside a container and outside.
PageIdentity = tuple[int, int]

_PROC = Path("/proc")
_MOST_ANCESTORS = 256


@dataclass(frozen=True)
class Name:
    """How a process is called in its own pid namespace (its inode)."""

    pid_namespace: int
    pid: int


def identity(path: Path) -> PageIdentity | None:
    """None where there is no such file, or where we may not look."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def seen_at(pid: int, path: str) -> PageIdentity | None:
    """What stands at `path` (absolute) in a process's own file system."""
    return identity(_PROC / str(pid) / "root" / path.lstrip("/"))


def pages_of(pid: int, page: str) -> set[PageIdentity]:
    """The policy pages that a process has to do with: the one that stands at `page` (absolute) in its own file system,
    and those that it has mapped. Empty when it is gone."""
    found = {seen_at(pid, page)}
    name = "/" + page.rpartition("/")[2]
    maps = _text(_PROC / str(pid) / "maps")
    if name in maps:  # of most processes there are hundreds of lines, and it is in none
        found |= {_mapped(line) for line in maps.splitlines() if line.removesuffix(" (deleted)").endswith(name)}
    return {each for each in found if each is not None}


def control_groups(pid: int) -> frozenset[str]:
    """The paths of a process's control groups, as the kernel says them; empty when it is gone."""
    return frozenset(line.split(":", 2)[-1] for line in _lines(_PROC / str(pid) / "cgroup"))


def is_of_pod(group: str, uid: str) -> bool:
    """Whether a control group is the one that kubelet made for the pod, with either of its drivers, or below it."""
    return not pod_names(uid).isdisjoint(names_in(group))


def pod_names(uid: str) -> frozenset[str]:
    """How kubelet's drivers call the control group of a pod; it is in one that has one of these among `names_in`."""
    return frozenset((f"pod{uid}", f"pod{uid.replace('-', '_')}.slice"))


def names_in(group: str) -> set[str]:
    """What may be the name of a pod's control group in the path of one."""
    return {name for part in group.split("/") for name in (part, part.rpartition("-")[2])}


def ancestors(pid: int) -> Iterator[int]:
    """The parent of a process, its parent, and so on, without the first process of the machine."""
    for _ in range(_MOST_ANCESTORS):
        pid = next(
            (int(line.split()[1]) for line in _lines(_PROC / str(pid) / "status") if line.startswith("PPid:")), 0
        )
        if pid <= 1:
            return
        yield pid


def name_of(pid: int) -> Name | None:
    """None when it is gone, or hidden from us."""
    try:
        namespace = (_PROC / str(pid) / "ns" / "pid").readlink().name
    except OSError:
        return None
    for line in _lines(_PROC / str(pid) / "status"):
        if line.startswith("NSpid:"):
            return Name(int(namespace.strip("pid:[]")), int(line.split()[-1]))
    return None


def _mapped(line: str) -> PageIdentity | None:
    """A line of /proc/PID/maps: range, permissions, offset, major:minor, inode, path."""
    words = line.split(maxsplit=5)
    major, _, minor = words[3].partition(":")
    return os.makedev(int(major, 16), int(minor, 16)), int(words[4])


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    """Empty where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
