"""One slice as its files describe it: limits, use, record, executor. Reading changes nothing and needs no daemon.

`Inspection.problems` has a sentence for each file that cannot be read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from egpu.adapters.executors.process import INTERPOSER
from egpu.adapters.executors.record import RECORD as EXECUTOR_RECORD
from egpu.adapters.local import run as local
from egpu.adapters.slices import membership
from egpu.adapters.slices.pages import Policy, ProcessUsage, Usage, UsageReader, read_policy
from egpu.apps.agent.config import AgentConfig
from egpu.apps.agent.slots import directories as slots
from egpu_base.errors import CorruptData, NotFound
from egpu_base.system import proc
from egpu_base.system.foreign import read_end, read_foreign
from egpu_base.system.processes import Process, boot_id

LOCAL_SLICE: Final = ".slice"
LOCAL_RECORD: Final = ".holder"
EVENTS: Final = "events"
LOG: Final = "log"
MOST_BYTES: Final = 1 << 20
"""The most that is read of a record, of events and of a log."""

LAYOUTS: Final = (
    *("slots/*", "executors/*", "served/*"),  # an agent's
    *("leases/*", "*/leases/*"),  # of `egpu serve`
    *("*.slice", "*/*.slice"),  # of `egpu run`
)
"""The places of slices below a state directory."""


class Kind(StrEnum):
    SLOT = "slot"
    EXECUTOR = "executor"
    LOCAL = "local slice"


@dataclass(frozen=True, kw_only=True)
class ExecutorState:
    """State of an executor. `running`: the recorded process exists. `ready`, `sessions`: its last report."""

    directory: Path
    pid: int
    running: bool
    ready: bool
    sessions: int
    last_words: str


@dataclass(frozen=True)
class SliceProcess:
    """A process in the usage file. `here`: its pid in our pid namespace; None: it has ended, or we cannot see it."""

    usage: ProcessUsage
    here: int | None


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """All facts about a slice. `record` is the JSON file of the slice, unchanged. `policy_file` and `usage_file` limit
    the slice, or its executor if it has one. A slot of a technology without limits has neither."""

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
    """Return the kind of a slice's directory; None for other directories."""
    if directory.suffix == LOCAL_SLICE and (directory / slots.POLICY_FILE).exists():
        return Kind.LOCAL
    if (directory / slots.OWNER_FILE).exists():
        return Kind.SLOT
    return Kind.EXECUTOR if (directory / EXECUTOR_RECORD).exists() else None


def default_roots() -> list[Path]:
    """Return the default state directories of an agent and of this user's `egpu serve` and `egpu run`."""
    return [AgentConfig.state_dir, local.default_root()]


def slices_below(roots: Iterable[Path]) -> list[Path]:
    """Return the directories of all slices below state directories, without those being created or removed."""
    found = {path for root in roots for layout in LAYOUTS for path in root.glob(layout)}
    return sorted(path for path in found if not path.name.startswith(".") and kind_of(path) is not None)


def inspect_all(roots: Iterable[Path]) -> list[Inspection]:
    """Inspect all slices below `roots`, without those that end meanwhile."""
    found: list[Inspection] = []
    for directory in slices_below(roots):
        with contextlib.suppress(NotFound):
            found.append(inspect_slice(directory))
    return found


def find(what: str, roots: Sequence[Path]) -> Path:
    """Return a slice's directory by its path, or by its name below `roots`. Raises NotFound, also for several."""
    if "/" in what or Path(what).is_dir():
        return Path(what).absolute()
    named = [path for path in slices_below(roots) if what in (path.name, path.stem)]
    if len(named) == 1:
        return named[0]
    if named:
        raise NotFound(f"{what!r} is the name of several slices. Give one directory: {', '.join(map(str, named))}")
    raise NotFound(
        f"no slice is called {what!r} below {', '.join(map(str, roots))}. `egpu inspect` lists the slices that you may "
        "read (an agent's need root). Use --state-dir for another directory"
    )


def inspect_slice(directory: Path) -> Inspection:
    """Read a slice's directory. Raises NotFound for other directories."""
    if not directory.is_dir():
        raise NotFound(f"there is no directory {directory}")
    kind = kind_of(directory)
    if kind is None:
        names = f"{slots.OWNER_FILE}, {EXECUTOR_RECORD} or a {LOCAL_RECORD} file beside it"
        raise NotFound(f"{directory} is not the directory of a slice: no record found ({names})")
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
        return msgspec.json.decode(read_foreign(path, most=MOST_BYTES), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        problems[path.name] = f"cannot be read: {error}"
        return {}


def _owner(kind: Kind, record: dict[str, Any]) -> str:
    """Return the owner in words, as far as the record says."""
    match kind:
        case Kind.SLOT:
            return _container(record)
        case Kind.EXECUTOR:
            return _executor_owner(record.get("owner", {}))
        case Kind.LOCAL:
            return str(record.get("command", "?"))


def _executor_owner(owner: Any) -> str:
    """Return the owner of an executor: a lease, a slot, or a container of another node."""
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
    """Return the executor that a record names, unless it is from before the last boot."""
    pid, start_time = record.get("pid"), record.get("startTime")
    if not isinstance(pid, int) or not isinstance(start_time, int) or record.get("bootId") != boot_id():
        return None
    return Process(pid, start_time)


def _policy(path: Path, problems: dict[str, str]) -> Policy | None:
    try:
        return read_policy(path)
    except FileNotFoundError:
        problems[path.name] = "missing: without it, programs in the slice get no GPU"
    except (CorruptData, OSError) as error:
        problems[path.name] = str(error).removeprefix(f"{path}: ")
    return None


def _processes(usage: Usage) -> tuple[SliceProcess, ...]:
    """Return the processes with their pids in our namespace. The start time tells reused pids apart."""
    if not usage.processes:
        return ()
    here: dict[membership.Name, int] = {}
    for pid in proc.pids():
        if name := proc.asked("name", membership.name_of, pid, None):
            here[name] = pid

    def seen(process: ProcessUsage) -> SliceProcess:
        pid = here.get(membership.Name(process.pid_namespace, process.pid))
        return SliceProcess(process, pid if pid is not None and Process(pid, process.start_time).is_alive() else None)

    return tuple(seen(process) for process in usage.processes)


def _executor(directory: Path, kind: Kind, record: dict[str, Any], problems: dict[str, str]) -> ExecutorState | None:
    """Return the executor of this directory, or of this slot: its policy page is the same file."""
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
    """Return whether the executor is ready, and its last reported number of sessions."""
    ready, sessions = False, 0
    for line in _tail(path):
        try:
            event = json.loads(line)
            ready = ready or event["event"] in ("ready", "session")
            sessions = int(event["sessions"]) if event["event"] == "session" else sessions
        except (ValueError, TypeError, KeyError):
            continue  # cut off where reading began, or not written completely
    return ready, sessions


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in _tail(path) if line.strip()]
    return lines[-1][:300] if lines else ""


def _tail(path: Path) -> list[str]:
    try:
        return read_end(path, most=MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _files(directory: Path) -> dict[str, str]:
    """Describe the files of the directory, two levels deep: link targets, sizes, numbers of names."""
    return {
        str(path.relative_to(directory)): _described(path)
        for path in sorted([*directory.glob("*"), *directory.glob("*/*")])
    }


def _described(path: Path) -> str:
    if path.is_symlink():
        broken = "" if path.exists() else " (target is missing)"
        return f"→ {path.readlink()}{broken}"
    if path.is_dir():
        return "directory"
    if path.is_socket():
        return "socket"
    found = path.stat()
    return f"{found.st_size} bytes" + (f", {found.st_nlink} names" if found.st_nlink > 1 else "")
