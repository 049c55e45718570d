"""Executors of leases on this machine: started, found again after a restart, resized while they run, ended, measured.

    DIRECTORY/<lease>/
      lease.json                 the record, and the process: pid, start time, boot
      libegpu-interposer.so, policy, usage     the slice: what enforces the limits, exactly as in a local container
      lease.sock                 the executor listens here
      events, log                its standard output (JSON lines) and error
      pid                        pid and start time once more, as text

An executor is a process group of its own that outlives us. A directory appears whole, by renaming, before its executor
starts; whatever a kill leaves between two steps is ended and removed by `adopt`.

Calls block for milliseconds: run them in threads where that matters.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from egpu.adapters import native
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.files import write_atomically
from egpu.adapters.processes import Process, boot_id
from egpu.adapters.slices.pages import PPM, DevicePolicy, Mode, UsageReader, create_usage, write_policy
from egpu.api.allocation import CardShare
from egpu.core.leasing.leases import LeaseRecord, RunningLease
from egpu.errors import CorruptData, ElasticGPUError, InvalidInput, Unavailable

log = structlog.get_logger(__name__)

EXECUTOR: Final = "egpu-executor"
SESSION: Final = b"egpu-session"
INTERPOSER: Final = "libegpu-interposer.so"
SOCKET: Final = "lease.sock"
RECORD: Final = "lease.json"
GRACE_SECONDS: Final = 30
END_SECONDS: Final = 5.0
MAX_SESSIONS: Final = 64
MIB: Final = 1024 * 1024
_MAX_SOCKET_PATH: Final = 107
_POLL_SECONDS: Final = 0.005


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """lease.json. `pid` 0: not started yet."""

    record: LeaseRecord
    minors: dict[str, int]
    pid: int = 0
    start_time: int = 0
    boot_id: str = ""


class _Event(msgspec.Struct, frozen=True):
    event: str
    sessions: int = 0


@dataclass(frozen=True)
class Driver:
    """What executors use: the path or name of libcuda, and what their environment needs for it."""

    library: str
    environment: Mapping[str, str]

    @classmethod
    def of(cls, directory: Path | None) -> Driver:
        """The simulated machine's driver in `directory`, or this machine's own."""
        if directory is None:
            return cls("libcuda.so.1", {})
        return cls(str(directory / "libcuda.so.1"), {"LD_LIBRARY_PATH": str(directory)})


class Executor:
    """One lease's executor. Made by `Executors.start` or `Executors.adopt`."""

    def __init__(
        self,
        directory: Path,
        record: LeaseRecord,
        minors: Mapping[str, int],
        process: Process,
        confinement: Confinement,
    ) -> None:
        self.directory = directory
        self._confinement = confinement
        self.record = record
        self.process = process
        self.ready = False
        self.sessions = 0
        self._minors = minors
        self._child: subprocess.Popen[bytes] | None = None
        self._usage = UsageReader(directory / "usage")
        self._events_read = 0

    @property
    def socket(self) -> Path:
        return self.directory / SOCKET

    @property
    def _group(self) -> str:
        return group_name(self.directory)

    def is_alive(self) -> bool:
        """Whether the process is there; reaps it when it was our child."""
        # In this order: what is seen dead has then been reaped, however soon after our look it died.
        alive = self.process.is_alive()
        if self._child is not None and self._child.poll() is not None:
            return False
        return alive

    def follow(self) -> None:
        """Read what it said since the last time."""
        events = self.directory / "events"
        with contextlib.suppress(OSError):
            if events.stat().st_size <= self._events_read:  # mostly there is nothing new: look at no more than that
                return
        with contextlib.suppress(OSError), events.open("rb") as file:
            file.seek(self._events_read)
            whole, newline, _ = file.read(MIB).rpartition(b"\n")
            self._events_read += len(whole) + len(newline)
            for line in whole.splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    event = msgspec.json.decode(line, type=_Event)
                    self.ready = self.ready or event.event == "ready"
                    self.sessions = event.sessions if event.event == "session" else self.sessions

    def resize(self, cards: tuple[CardShare, ...], fit_by: float | None = None) -> None:
        """New limits, at once and for the running program; `fit_by` is kept beside them. Raises InvalidInput for other
        cards than it has."""
        if [card.uuid for card in cards] != [card.uuid for card in self.record.cards]:
            raise InvalidInput("cards", f"lease {self.record.lease} cannot move to other cards while it runs")
        # The record first: killed in between, we come back believing in the larger of what is written and used.
        self.record = msgspec.structs.replace(self.record, cards=cards, fit_by=fit_by)
        self.save()
        write_policy(self.directory / "policy", policy_of(cards, self._minors))

    def save(self) -> None:
        saved = _Saved(
            record=self.record,
            minors=dict(self._minors),
            pid=self.process.pid,
            start_time=self.process.start_time,
            boot_id=boot_id(),
        )
        write_atomically(self.directory / RECORD, msgspec.json.encode(saved), mode=0o600)

    def running(self) -> RunningLease:
        """What the broker is told."""
        usage = self._usage.read_totals()
        used = [0] * len(self.record.cards)
        gpu_ns = 0
        for place, device in enumerate(usage.devices[: len(used)]):
            used[place] = -(-device.memory_bytes // MIB)
            gpu_ns += device.gpu_ns
        return RunningLease(
            record=self.record,
            occupied_mib=tuple(max(share.memory_mib, mib) for share, mib in zip(self.record.cards, used, strict=True)),
            used_mib=tuple(used),
            gpu_seconds=gpu_ns / 1e9,
            ready=self.ready,
            sessions=self.sessions,
        )

    def end(self) -> None:
        """Kill its whole process group, wait until nothing of it runs, remove its directory. Raises Unavailable."""
        deadline = time.monotonic() + END_SECONDS
        # Only while the leader is the process that we mean: a group's number may belong to somebody else later.
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self._confinement.end(self._group)
        while self.is_alive() or (_group_exists(self.process.pid) and self._kill_members()):
            if time.monotonic() > deadline:
                raise Unavailable(f"the executor of {self.record.lease} does not end (pid {self.process.pid})")
            time.sleep(_POLL_SECONDS)
        gone = self.directory.with_name(f".gone-{self.directory.name}")
        with contextlib.suppress(FileNotFoundError):
            self.directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _kill_members(self) -> bool:
        """Whether anything of it still runs besides its parent. Looks at every process of the machine."""
        members = {*processes_of(self.directory), *_sessions_of(self.process.pid)}
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(members)

    def launch(self, driver: Driver) -> None:
        """Start the process in its finished directory."""
        uuids = ",".join(share.uuid for share in self.record.cards)
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LD_PRELOAD": str(self.directory / INTERPOSER),
            "CUDA_VISIBLE_DEVICES": uuids,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            **driver.environment,
        }
        arguments = [
            str(native.path(EXECUTOR)),
            *("--slice", str(self.directory)),
            *("--driver", driver.library),
            *("--listen", str(self.socket)),
            *("--grace", str(GRACE_SECONDS)),
            *("--sessions", str(MAX_SESSIONS)),
            *("--lease", self.record.lease),
            *self._confinement.enter(self._group, self.record.cards),
        ]
        with (self.directory / "events").open("wb") as events, (self.directory / "log").open("wb") as errors:
            self._child = subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=errors,
                cwd="/",
                start_new_session=True,
            )
        self.process = Process.of(self._child.pid)
        # For whoever cleans up after a machine that was simulated: the embedded cluster's janitor.
        (self.directory / "pid").write_text(f"{self.process.pid} {self.process.start_time}\n")
        self.save()

    def why_dead(self) -> str:
        """The end of what it said, for people."""
        with contextlib.suppress(OSError):
            lines = (self.directory / "log").read_text(errors="replace").strip().splitlines()
            if lines:
                return lines[-1][:300]
        code = self._child.returncode if self._child is not None else None
        return f"it ended with status {code}" if code is not None else "it ended"


class Executors:
    """All executors below one directory."""

    def __init__(
        self, directory: Path, driver: Driver, confinement: Confinement | None = None, *, private: bool = False
    ) -> None:
        """`private`: nobody else of this machine may pass through the directory, whatever the sockets in it allow."""
        self._directory = directory
        self._driver = driver
        self._confinement = confinement or Confinement()
        directory.mkdir(parents=True, exist_ok=True, mode=0o711)
        if private:
            self._confinement.keep_private(directory)

    def directory_of(self, lease: str) -> Path:
        return self._directory / lease

    def start(self, record: LeaseRecord, minors: Mapping[str, int]) -> Executor:
        """Start the executor of a lease; `minors` by card UUID. It is ready once it says so (`follow`).

        Raises:
            InvalidInput: the name of the lease is none of ours, or the path is too long for a socket.
            NativeMissing: the executor or the interposer was not built.
            Unavailable: the directory cannot be made, or the process not started.
        """
        if not record.lease.replace("-", "").isalnum() or len(record.lease) > 128:
            raise InvalidInput("lease", f"{record.lease[:64]!r} is not the name of a lease")
        final = self.directory_of(record.lease)
        if len(str(final / SOCKET)) > _MAX_SOCKET_PATH:
            raise InvalidInput("state-dir", f"{final / SOCKET} is too long for a unix socket; use a shorter directory")
        draft = self._directory / f".new-{record.lease}"
        shutil.rmtree(draft, ignore_errors=True)
        executor = Executor(draft, record, minors, Process(0, 0), self._confinement)
        try:
            draft.mkdir(mode=0o711)
            (draft / INTERPOSER).symlink_to(native.path(INTERPOSER))
            write_policy(draft / "policy", policy_of(record.cards, minors))
            create_usage(draft / "usage")
            executor.save()
            draft.rename(final)
            executor = Executor(final, record, minors, Process(0, 0), self._confinement)
            executor.launch(self._driver)
        except (OSError, ElasticGPUError) as error:
            with contextlib.suppress(ElasticGPUError):
                self._confinement.end(group_name(final))
            shutil.rmtree(draft, ignore_errors=True)
            shutil.rmtree(final, ignore_errors=True)
            if isinstance(error, ElasticGPUError):
                raise
            raise Unavailable(f"the executor of {record.lease} cannot be started: {error}") from error
        return executor

    def adopt(self) -> list[Executor]:
        """The executors that run; what is left of others is ended and removed."""
        found: list[Executor] = []
        for directory in sorted(self._directory.iterdir()):
            executor = None if directory.name.startswith(".") else self._read(directory)
            if executor is not None and executor.is_alive():
                executor.follow()
                found.append(executor)
                continue
            for pid in processes_of(directory):  # killed between its start and our note of it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(directory, ignore_errors=True)
        self._confinement.sweep(f"{self._directory.name}-", {group_name(one.directory) for one in found})
        return found

    def _read(self, directory: Path) -> Executor | None:
        try:
            saved = msgspec.json.decode((directory / RECORD).read_bytes(), type=_Saved)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("a lease directory that cannot be read", directory=str(directory), reason=str(error))
            return None
        if saved.boot_id != boot_id():
            return None
        return Executor(directory, saved.record, saved.minors, Process(saved.pid, saved.start_time), self._confinement)


def group_name(directory: Path) -> str:
    """The control group of the executor in this directory: told apart from those of this daemon's other executors."""
    return f"{directory.parent.name}-{directory.name}"


def policy_of(cards: Sequence[CardShare], minors: Mapping[str, int]) -> list[DevicePolicy]:
    """The policy page of a lease. Raises CorruptData when a card's minor is not known."""
    if missing := [share.uuid for share in cards if share.uuid not in minors]:
        raise CorruptData(f"card {missing[0]} is not on this machine")
    return [
        DevicePolicy(
            uuid=share.uuid,
            minor=minors[share.uuid],
            mode=Mode.CAP if share.core else Mode.UNLIMITED,
            core_ppm=share.core * PPM // 100,
            memory_limit_bytes=share.memory_mib * MIB,
            weight=max(share.core, 1),
        )
        for share in cards
    ]


def processes_of(directory: Path) -> list[int]:
    """Living processes that were started with this slice directory."""
    wanted = str(directory).encode()
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                if b"--slice" in words and wanted in words and Process.of(int(entry.name)).is_alive():
                    found.append(int(entry.name))
    return found


def _group_exists(group: int) -> bool:
    """Whether a process group has members: living ones, or dead ones that nobody has waited for."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sessions_of(group: int) -> list[int]:
    """Living sessions of the executor whose process group this was: they end a moment after it."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] not in ("Z", "X"):
                    words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                    if words[0] == SESSION:
                        found.append(int(entry.name))
    return found


def failed(record: LeaseRecord, reason: str) -> RunningLease:
    """What the broker is told of an executor that does not run."""
    return RunningLease(record=record, occupied_mib=tuple(0 for _ in record.cards), failure=reason)


__all__ = ["Driver", "Executor", "Executors", "failed", "policy_of", "processes_of"]
