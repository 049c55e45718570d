"""What of this machine somebody could have changed: files that start things, what others find in shared places,
processes, ports, mounts, control groups. For tests after which it must be as it was.

The machine is not ours alone, so of the places that everybody writes (/dev/shm, /run, /tmp) only what belongs to a
suspect counts.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

PLACES = (
    "/etc",
    "/var/spool/cron",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib/systemd",
    str(Path.home() / ".ssh"),
    str(Path.home() / ".bashrc"),
    str(Path.home() / ".profile"),
)
SHARED = ("/dev/shm", "/run", "/tmp", "/var/tmp")
MAX_DIGEST_BYTES = 1 << 20


def _below(place: Path) -> Iterator[Path]:
    yield place
    for where, directories, names in os.walk(place):
        yield from (Path(where, name) for name in (*directories, *names))


def _says(path: Path) -> str:
    """Kind, mode and owner; of what is no directory also size and time, and the digest where it is small."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        said = f"{stat.filemode(found.st_mode)} {found.st_uid}:{found.st_gid}"
        if stat.S_ISDIR(found.st_mode):
            return said
        said += f" {found.st_size} {found.st_mtime_ns}"
        if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_DIGEST_BYTES and str(path).startswith("/etc"):
            said += " " + hashlib.sha256(path.read_bytes()).hexdigest()
        return said
    return "gone"


def _mounts(ours: Path) -> Iterator[tuple[str, str]]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if not fields[4].startswith(SHARED) or fields[4].startswith(str(ours)):
            yield f"mount {fields[4]}", line


def host(ours: Path) -> dict[str, str]:
    """Everything that has to be the same afterwards, by name. Nothing is to be mounted in `ours`."""
    found = {str(path): _says(path) for place in PLACES if Path(place).exists() for path in _below(Path(place))}
    found |= dict(_mounts(ours))
    for group in Path("/sys/fs/cgroup").glob("*"):
        found[str(group)] = _says(group)
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [
        f"{name}: {before.get(name, 'not there')} became {after.get(name, 'gone')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def left_by(users: Iterable[int]) -> list[str]:
    """Files in shared places, processes and listening ports of these users."""
    suspects = set(users)
    found = [f"file {path}" for place in SHARED for path in _suspect_files(Path(place), suspects)]
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid in suspects:
                found.append(f"process {entry.name} {(entry / 'cmdline').read_bytes()[:100]!r}")
    return found + [f"port {port} of user {user}" for port, user in listening() if user in suspects]


def _suspect_files(place: Path, suspects: set[int]) -> Iterator[Path]:
    """At the top of a shared place, where anybody may make something."""
    for path in place.glob("*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid in suspects:
                yield path


def listening() -> Iterator[tuple[int, int]]:
    """TCP ports on which somebody listens, and whose they are."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    yield int(fields[1].rpartition(":")[2], 16), int(fields[7])
