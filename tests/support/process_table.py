"""The processes of this machine: which there are, whose they are, and what they hold of memory and descriptors; and
the files below a directory."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it. `start` tells it from a later one of the same pid."""

    pid: int
    parent: int
    start: int
    command: str
    state: str


@dataclass(frozen=True)
class Level:
    """What a process holds. `own_kib`: memory that no file is behind."""

    own_kib: int
    resident_kib: int
    descriptors: int


def processes() -> Iterator[Process]:
    """Every process of the machine."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                words = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield Process(int(entry.name), int(fields[1]), int(fields[19]), words.strip(), fields[0])


def with_command(command: str) -> list[int]:
    """The processes of this machine whose command line is `command`, which no other module of tests may start."""
    return [one.pid for one in processes() if one.command == command]


def is_called(pid: int, name: str) -> bool:
    """Whether this is the name that the process has given itself."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == name
    return False


def of_place(directory: Path, mark: str) -> list[Process]:
    """The processes that were started with `mark` (NAME=VALUE) in their environment, or with a path below `directory`;
    and, of those, the children that died and were not waited for. Not this one."""
    listed = list(processes())
    found: dict[int, Process] = {}
    for one in listed:
        with contextlib.suppress(OSError):
            marked = mark.encode() in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")
            if (marked or str(directory) in one.command) and one.pid != os.getpid():
                found[one.pid] = one
    for one in listed:
        if one.state == "Z" and one.parent in found:
            found[one.pid] = one
    return list(found.values())


def level(pid: int) -> Level:
    """Raises OSError when it is gone."""
    status: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "VmRSS"):
            status[name] = int(value.split()[0])
    return Level(status.get("RssAnon", 0), status.get("VmRSS", 0), len(os.listdir(f"/proc/{pid}/fd")))


def files(*roots: Path) -> set[str]:
    """Every path below the roots. What goes away meanwhile may be in it or not."""
    found: set[str] = set()
    for root in roots:
        for where, directories, names in os.walk(root):
            found.update(str(Path(where, name)) for name in (*directories, *names))
    return found


def children(pid: int) -> list[int]:
    """Its children; none where it is gone."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
