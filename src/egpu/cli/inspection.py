"""One slice as its files say it is: limits, use, record, executor. Reading changes nothing, and needs no daemon.

What cannot be read is a sentence in `Inspection.problems`, by file: whoever looks here is looking for what is wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from egpu.adapters.executors.process import INTERPOSER
from egpu.adapters.executors.record import RECORD as EXECUTOR_RECORD
from egpu.adapters.local import run as local
from egpu.adapters.processes import Process, boot_id
from egpu.adapters.slices import membership
from egpu.adapters.slices.pages import Policy, ProcessUsage, Usage, UsageReader, read_policy
from egpu.apps.agent.config import AgentConfig
from egpu.apps.agent.slots import directories as slots
from egpu.errors import CorruptData, NotFound

LOCAL_SLICE: Final = ".slice"
LOCAL_RECORD: Final = ".holder"
EVENTS: Final = "events"
LOG: Final = "log"
MOST_BYTES: Final = 1 << 20
"""Of a record, of events and of a log, no more than this is read."""

LAYOUTS: Final = (
    *("slots/*", "executors/*", "served/*"),  # an agent's
    *("leases/*", "*/leases/*"),  # of `egpu serve`
    *("*.slice", "*/*.slice"),  # of `egpu run`
)
"""Where slices are below a state directory."""


class Kind(StrEnum):
    SLOT = "slot"
    EXECUTOR = "executor"
    LOCAL = "local slice"


@dataclass(frozen=True, kw_only=True)
class ExecutorState:
    """`running` is what the kernel says of the recorded process; `ready` and `sessions` are what it said last."""

    directory: Path
    pid: int
    running: bool
    ready: bool
    sessions: int
    last_words: str


@dataclass(frozen=True)
class SliceProcess:
    """A process that the usage file names. `here` is it in our pid namespace; None: it is gone, or hidden from us."""

    usage: ProcessUsage
    here: int | None


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """`record` is the JSON beside the slice as it stands there. `policy_file` and `usage_file` are the pair that limits
    the slice: its executor's where it has one; a slot of a technology that limits nothing has neither."""

    directory: Path
    kind: Kind
    owner: str
    record: Mapping[str, Any]
    policy_file: Path
    policy: Policy | None
    usage_file: Path
    usage: Usage
    processes: tuple[SliceProcess, ...]
    executor: ExecutorState | None
    files: Mapping[str, str]
    problems: Mapping[str, str]


def kind_of(directory: Path) -> Kind | None:
    """None: it is not the directory of a slice."""
    if directory.suffix == LOCAL_SLICE and (directory / slots.POLICY_FILE).exists():
        return Kind.LOCAL
    if (directory / slots.OWNER_FILE).exists():
        return Kind.SLOT
    return Kind.EXECUTOR if (directory / EXECUTOR_RECORD).exists() else None


def default_roots() -> list[Path]:
    """Where an agent, and this user's `egpu serve` and `egpu run`, keep slices unless they are told otherwise."""
    return [AgentConfig.state_dir, local.default_root()]


def slices_below(roots: Iterable[Path]) -> list[Path]:
    """The directories of all slices below state directories; those that are being made or removed are left out."""
    found = {path for root in roots for layout in LAYOUTS for path in root.glob(layout)}
    return sorted(path for path in found if not path.name.startswith(".") and kind_of(path) is not None)


def inspect_all(roots: Iterable[Path]) -> list[Inspection]:
    """All of these, without those that go away meanwhile."""
    found: list[Inspection] = []
    for directory in slices_below(roots):
        with contextlib.suppress(NotFound):
            found.append(inspect_slice(directory))
    return found


def find(what: str, roots: Sequence[Path]) -> Path:
    """A slice's directory by its path, or by its name below `roots`. Raises NotFound, also for a name of several."""
    if "/" in what or Path(what).is_dir():
        return Path(what).absolute()
    named = [path for path in slices_below(roots) if what in (path.name, path.stem)]
    if len(named) == 1:
        return named[0]
    if named:
        raise NotFound(f"{what!r} is the name of several; give the directory: {', '.join(map(str, named))}")
    raise NotFound(
        f"no slice is called {what!r} below {', '.join(map(str, roots))}; `egpu inspect` lists those that can be read "
        "(an agent's only by root), --state-dir looks elsewhere"
    )


def inspect_slice(directory: Path) -> Inspection:
    """What stands in a slice's directory. Raises NotFound when it is none."""
    if not directory.is_dir():
        raise NotFound(f"there is no directory {directory}")
    kind = kind_of(directory)
    if kind is None:
        names = f"{slots.OWNER_FILE}, {EXECUTOR_RECORD} or a {LOCAL_RECORD} file beside it"
        raise NotFound(f"{directory} is not the directory of a slice: it has no record ({names})")
    problems: dict[str, str] = {}
    record = _record(_record_file(directory, kind), problems)
    policy_file, usage_file = directory / slots.POLICY_FILE, directory / slots.USAGE_FILE
    if (directory / slots.EXECUTOR_POLICY_FILE).exists():
        policy_file, usage_file = directory / slots.EXECUTOR_POLICY_FILE, directory / slots.EXECUTOR_USAGE_FILE
    policy, usage = None, Usage()
    if any(file.exists() for file in (policy_file, usage_file, directory / INTERPOSER)):
        policy, usage = _policy(policy_file, problems), UsageReader(usage_file).read()
        problems |= {usage_file.name: usage.problem} if usage.problem else {}
    return Inspection(
        directory=directory,
        kind=kind,
        owner=_owner(kind, record),
        record=record,
        policy_file=policy_file,
        policy=policy,
        usage_file=usage_file,
        usage=usage,
        processes=_processes(usage),
        executor=_executor(directory, kind, record, problems),
        files=_files(directory),
        problems=problems,
    )


def _record_file(directory: Path, kind: Kind) -> Path:
    match kind:
        case Kind.SLOT:
            return directory / slots.OWNER_FILE
        case Kind.EXECUTOR:
            return directory / EXECUTOR_RECORD
        case Kind.LOCAL:
            return directory.with_suffix(LOCAL_RECORD)


def _record(path: Path, problems: dict[str, str]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        problems[path.name] = f"cannot be read: {error}"
        return {}


def _owner(kind: Kind, record: dict[str, Any]) -> str:
    """Whose it is, in words, as far as the record says."""
    match kind:
        case Kind.SLOT:
            return _container(record)
        case Kind.EXECUTOR:
            return _executor_owner(record.get("owner", {}))
        case Kind.LOCAL:
            return str(record.get("command", "?"))


def _executor_owner(owner: Any) -> str:
    """That of a lease, a slot, or a container of another node: what stands there says which."""
    match owner:
        case {"lease": {"holder": holder}}:
            return str(holder)
        case {"slot": slot}:
            return f"slot {slot}"
        case {"namespace": _}:
            return _container(owner)
        case _:
            return "?"


def _container(of: Mapping[str, Any]) -> str:
    return "pod {}/{}, container {}".format(*(of.get(key, "?") for key in ("namespace", "pod", "container")))


def _recorded_process(record: dict[str, Any]) -> Process | None:
    """The executor that a record names, unless it was started before the machine was."""
    pid, start_time = record.get("pid"), record.get("startTime")
    if not isinstance(pid, int) or not isinstance(start_time, int) or record.get("bootId") != boot_id():
        return None
    return Process(pid, start_time)


def _policy(path: Path, problems: dict[str, str]) -> Policy | None:
    try:
        return read_policy(path)
    except FileNotFoundError:
        problems[path.name] = "there is none: what looks for it refuses everything"
    except (CorruptData, OSError) as error:
        problems[path.name] = str(error).removeprefix(f"{path}: ")
    return None


def _processes(usage: Usage) -> tuple[SliceProcess, ...]:
    """With their pids in our namespace; one that died and left its slot is known by its start time."""
    if not usage.processes:
        return ()
    here: dict[membership.Name, int] = {}
    for entry in os.scandir("/proc"):
        name = membership.name_of(int(entry.name)) if entry.name.isdigit() else None
        if name is not None:
            here[name] = int(entry.name)

    def seen(process: ProcessUsage) -> SliceProcess:
        pid = here.get(membership.Name(process.pid_namespace, process.pid))
        return SliceProcess(process, pid if pid is not None and Process(pid, process.start_time).is_alive() else None)

    return tuple(seen(process) for process in usage.processes)


def _executor(directory: Path, kind: Kind, record: dict[str, Any], problems: dict[str, str]) -> ExecutorState | None:
    """The executor in this directory, or that of this slot: the one whose policy page is the same file."""
    if kind is Kind.SLOT:
        page = membership.identity(directory / slots.EXECUTOR_POLICY_FILE)
        candidates = sorted(directory.parent.parent.glob("executors/*")) if page is not None else []
        own = [each for each in candidates if membership.identity(each / slots.POLICY_FILE) == page]
        if not own:
            return None
        directory = own[0]
        record = _record(directory / EXECUTOR_RECORD, problems)
    elif kind is Kind.LOCAL:
        return None
    process = _recorded_process(record)
    ready, sessions = _events(directory / EVENTS)
    return ExecutorState(
        directory=directory,
        pid=process.pid if process is not None else 0,
        running=process is not None and process.is_alive(),
        ready=ready,
        sessions=sessions,
        last_words=_last_line(directory / LOG),
    )


def _events(path: Path) -> tuple[bool, int]:
    """Whether it said that it is ready, and how many sessions it had when it last said so."""
    ready, sessions = False, 0
    for line in _tail(path):
        try:
            event = json.loads(line)
            ready = ready or event["event"] in ("ready", "session")
            sessions = int(event["sessions"]) if event["event"] == "session" else sessions
        except (ValueError, TypeError, KeyError):
            continue  # cut off where our reading began, or being written
    return ready, sessions


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in _tail(path) if line.strip()]
    return lines[-1][:300] if lines else ""


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
            return file.read(MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _files(directory: Path) -> dict[str, str]:
    """What is in the directory, two levels deep: where links lead, how many names a file has, or what else it is."""
    return {
        str(path.relative_to(directory)): _described(path)
        for path in sorted([*directory.glob("*"), *directory.glob("*/*")])
    }


def _described(path: Path) -> str:
    if path.is_symlink():
        broken = "" if path.exists() else " (leads nowhere)"
        return f"→ {path.readlink()}{broken}"
    if path.is_dir():
        return "directory"
    if path.is_socket():
        return "socket"
    found = path.stat()
    return f"{found.st_size} bytes" + (f", {found.st_nlink} names" if found.st_nlink > 1 else "")
