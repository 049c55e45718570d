"""The slice of a process of this machine, from the kernel's facts alone. The process's own words do not count."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from egpu_base.system import proc
from egpu_base.system.proc import FileIdentity as PageIdentity

_MOST_ANCESTORS = 256
_POD = re.compile(r"pod[0-9a-f][0-9a-f_-]*(\.slice)?", re.ASCII)


@dataclass(frozen=True)
class Name:
    """A process's pid in its own pid namespace. The inode identifies the namespace."""

    pid_namespace: int
    pid: int


def identity(path: Path) -> PageIdentity | None:
    """Return device and inode of a policy page, the same inside a container and outside; None without such a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def seen_at(pid: int, path: str) -> PageIdentity | None:
    """Return the file at `path` (absolute) in a process's own file system. Follow no link."""
    return proc.file_at(pid, path)


def pages_of(pid: int, page: str, wanted: Collection[PageIdentity]) -> set[PageIdentity]:
    """Return which of the wanted policy pages belong to a process: the page at `page` (absolute, or the name alone) in
    its own file system, otherwise the pages that it has mapped. An ended process has none."""
    return page_at(pid, page, wanted) or pages_mapped(pid, wanted)


def page_at(pid: int, page: str, wanted: Collection[PageIdentity]) -> set[PageIdentity]:
    """Return the wanted policy page at `page` (absolute) in a process's own file system."""
    found = seen_at(pid, page) if page.rpartition("/")[0] else None
    return {found} if found is not None and found in wanted else set()


def pages_mapped(pid: int, wanted: Collection[PageIdentity]) -> set[PageIdentity]:
    """Return which of the wanted policy pages a process has mapped, by whatever name. It takes much longer than
    `page_at`: the kernel writes a line for each mapping."""
    return proc.mapped(pid, frozenset(wanted))


def control_groups(pid: int) -> frozenset[str]:
    """Return the paths of a process's control groups from the kernel; none if it has ended."""
    return proc.control_groups(pid)


def pod_of(groups: Collection[str], ours: Collection[str]) -> str:
    """Return the name of the pod's control group that contains these groups; "" if there is none.

    It is the outermost one below our own groups, because a pod may make and name groups further inside. Groups of
    several pods give "".
    """
    named = {name for group in groups if (name := _pod_in(group, ours))}
    return named.pop() if len(named) == 1 else ""


def pod_names(uid: str) -> frozenset[str]:
    """Return the names of a pod's control group by kubelet's two drivers, without the second driver's prefix."""
    return frozenset((f"pod{uid}", f"pod{uid.replace('-', '_')}.slice"))


def is_of_pod(name: str, uid: str) -> bool:
    """Return whether a control group has the pod's name, by either of kubelet's drivers."""
    return not pod_names(uid).isdisjoint((name, name.rpartition("-")[2]))


def ancestors(pid: int, known: MutableMapping[int, int] | None = None) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on, without the first process of the machine. `known` keeps the
    parents of processes between calls."""
    known = {} if known is None else known
    for _ in range(_MOST_ANCESTORS):
        if pid not in known:
            known[pid] = proc.parent(pid)
        pid = known[pid]
        if pid <= 1:
            return
        yield pid


def name_of(pid: int) -> Name | None:
    """Return the name of a process; None if it has ended, or is hidden from this process."""
    try:
        namespace = proc.pid_namespace(pid)
    except OSError:
        return None
    inside = proc.pid_inside(pid)
    return Name(namespace, inside) if inside else None


def _pod_in(group: str, ours: Collection[str]) -> str:
    parts = group.split("/")
    for part in parts[max((_shared(parts, own.split("/")) for own in ours), default=0) :]:
        for name in (part, part.rpartition("-")[2]):
            if _POD.fullmatch(name):
                return name
    return ""


def _shared(one: list[str], other: list[str]) -> int:
    """Return the number of first parts that two paths have in common."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
