"""Executors on this machine: start, find after a restart, resize while they run, measure, end.

    DIRECTORY/<name>/
      executor.json              the record (`egpu.adapters.executors.record`): owner, cards, process
      libegpu-interposer.so, policy, usage     the slice: it enforces the limits, as in a local container;
                                 only the executor's user can write `usage`
      lease.sock                 the executor listens here; move.sock: to its daemon, if its sessions can move
      events, log                its standard output (JSON lines) and error
      pid                        pid and start time once more, as text

Only we and our executors can pass through a directory; in it an executor can change only `usage`.

An executor is a process group of its own that outlives us. Its directory appears whole, by renaming, before it starts;
`find` ends and removes whatever a kill leaves between two steps.

Calls block for milliseconds: run them in threads where that matters.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic

import msgspec
import structlog

from egpu.adapters import native
from egpu.adapters.cards.nvml import driver_directory
from egpu.adapters.executors import record as records
from egpu.adapters.executors.confinement import DRIVER, EXECUTOR, Confinement, group_name
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.leftovers import group_exists, left_of, processes_of, sessions_of
from egpu.adapters.executors.moving import listening
from egpu.adapters.executors.networks import await_entered, network_of
from egpu.adapters.executors.record import MIB, ExecutorRecord, Owner
from egpu.adapters.executors.users import User
from egpu.adapters.programs.preloading import check_file_system
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.pages import UsageReader, create_usage, write_policy
from egpu.api.allocation import CardShare
from egpu.core.overruns import allowed
from egpu_base.errors import CorruptData, ElasticGPUError, InvalidInput, Unavailable
from egpu_base.system.foreign import open_foreign, read_end
from egpu_base.system.processes import Process, boot_id

log = structlog.get_logger(__name__)

INTERPOSER: Final = "libegpu-interposer.so"
SOCKET: Final = "lease.sock"
VERBOSE: Final = "EGPU_REMOTE_VERBOSE"
"""1: an executor's log names each function of a library that fails, with its status."""
END_SECONDS: Final = 5.0
MAX_SESSIONS: Final = 64
MAX_NAME: Final = 128
_LOG_BYTES: Final = 4096
"""How much of the end of an executor's log is read: its sessions write there, too."""
_MAX_SOCKET_PATH: Final = 107
_POLL_SECONDS: Final = 0.005


class _Event(msgspec.Struct, frozen=True):
    event: str
    sessions: int = 0


@dataclass(frozen=True)
class ExecutorUsage:
    """An executor's present use: MiB of each of its cards, in the record's order, and its GPU time so far."""

    memory_mib: tuple[int, ...]
    gpu_seconds: float


class Executor(Generic[Owner]):
    """One executor, made by `start` or `find`. `sessions` is the number of programs that use it."""

    def __init__(self, directory: Path, record: ExecutorRecord[Owner], confinement: Confinement | None) -> None:
        """Without `confinement` it is the child of another process, which alone ends it (`parents`)."""
        self.directory = directory
        self.record = record
        self.process = record.process
        self.waiting = False
        """True once it waits for the sessions that it is to restore."""
        self.ready = False
        self.moved = False
        """True if its sessions have left it: it ends, or has ended, and is not used any more."""
        self.sessions = 0
        self._confinement = confinement
        self._child: subprocess.Popen[bytes] | None = None
        self.events = directory / "events"
        """The file in which it reports that it is ready, and its number of programs; closed when it ends."""
        self.said_bytes = 0
        """The bytes of it that were read."""
        self._usage = UsageReader(directory / "usage", devices=len(record.cards))
        self._watched: tuple[ExecutorRecord[Owner], WatchedSlice] | None = None

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def socket(self) -> Path:
        return self.directory / SOCKET

    def is_alive(self) -> bool:
        """Return whether the process is alive; reap it if it was our child."""
        # In this order: a process that is seen dead was reaped, however soon after our look it died.
        alive = self.process.is_alive()
        if self._child is not None and self._child.poll() is not None:
            return False
        return alive

    def follow(self) -> None:
        """Read its reports since the last call."""
        with contextlib.suppress(OSError):
            if self.events.stat().st_size <= self.said_bytes:  # mostly there is nothing new
                return
        with contextlib.suppress(OSError), os.fdopen(open_foreign(self.events), "rb") as file:
            file.seek(self.said_bytes)
            whole, newline, _ = file.read(MIB).rpartition(b"\n")
            self.said_bytes += len(whole) + len(newline)
            for line in whole.splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    event = msgspec.json.decode(line, type=_Event)
                    self.ready = self.ready or event.event == "ready"
                    self.moved = self.moved or event.event == "moved"
                    self.waiting = self.waiting or event.event == "waiting"
                    self.sessions = event.sessions if event.event == "session" else self.sessions

    def why_dead(self) -> str:
        """Return the end of its error output, for people."""
        with contextlib.suppress(OSError):
            said = read_end(self.directory / "log", most=_LOG_BYTES).decode(errors="replace").strip()
            if said:
                return said.rpartition("\n")[2][:300]
        code = self._child.returncode if self._child is not None else None
        return f"it ended with status {code}" if code is not None else "it ended"

    def usage(self) -> ExecutorUsage:
        """Read its usage file, which no program can write; code that takes over a session by a driver's fault can."""
        devices = self._usage.read_totals().devices
        used = [-(-device.memory_bytes // MIB) for device in devices]
        used += [0] * (len(self.record.cards) - len(used))
        return ExecutorUsage(tuple(used), sum(device.gpu_ns for device in devices) / 1e9)

    def watched(self, key: Hashable) -> WatchedSlice:
        """Return its slice, for the comparison with the driver. None of its processes leaves its session."""
        if self._watched is not None and self._watched[0] is self.record and self._watched[1].key == key:
            return self._watched[1]  # called very often
        policy, usage = self.directory / "policy", self.directory / "usage"
        granted = {share.uuid: mib * MIB for share, mib in zip(self.record.cards, self.record.granted, strict=True)}
        found = WatchedSlice(key=key, policy=policy, usage=usage, session=self.process.pid, granted_bytes=granted)
        self._watched = self.record, found
        return found

    def allowed_mib(self, used: ExecutorUsage) -> tuple[int, ...]:
        """Return the memory that it may hold of each card: its limit, or the use that remains from a higher one."""
        return tuple(
            allowed(limit=share.memory_mib, before=before, counted=mib)
            for share, before, mib in zip(self.record.cards, self.record.granted, used.memory_mib, strict=True)
        )

    def resize(self, cards: tuple[CardShare, ...], owner: Owner, *, core_limit: int = 0) -> None:
        """Set new limits, at once and for the running program, and the owner's data. Raises InvalidInput for other
        cards than its own."""
        if [card.uuid for card in cards] != [card.uuid for card in self.record.cards]:
            raise InvalidInput("cards", f"{self.name} cannot move to other cards while it runs")
        # The record first: after a kill in between, the larger of record and use counts.
        granted = self.allowed_mib(self.usage())
        self.record = msgspec.structs.replace(
            self.record, cards=cards, owner=owner, granted_mib=granted, core_limit=core_limit
        )
        records.write(self.directory, self.record)
        write_policy(self.directory / "policy", self.record.policy())

    def launch(
        self,
        driver_dir: Path | None,
        confinement: Confinement,
        *,
        user: User | None = None,
        network: int | None = None,
        images: int | None = None,
        libraries: Sequence[Path] = (),
        restore: int | None = None,
    ) -> None:
        """Start the process in its finished directory, with the driver in `driver_dir`, or the one beside our NVML, or
        the system's, and NVIDIA's libraries from the folders `libraries`. `network`: a descriptor of the network to
        enter, None for one of its own. `images`: a descriptor of the directory with its caller's images. `restore`: one
        from which it restores sessions.

        Raises OSError, Unavailable.
        """
        driver_dir = driver_dir or driver_directory()
        driver_dir = None if driver_dir is None else driver_dir.resolve()  # the path inside its view
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LD_PRELOAD": str(self.directory / INTERPOSER),
            "CUDA_VISIBLE_DEVICES": ",".join(share.uuid for share in self.record.cards),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        if verbose := os.environ.get(VERBOSE):
            environment[VERBOSE] = verbose
        if folders := [str(folder) for folder in (driver_dir, *libraries) if folder is not None]:
            environment["LD_LIBRARY_PATH"] = ":".join(folders)
        arguments = [
            str(native.path(EXECUTOR)), "--slice", str(self.directory),
            "--driver", DRIVER if driver_dir is None else str(driver_dir / DRIVER),
            "--listen", str(self.socket), "--grace", str(self.record.grace_seconds), "--sessions", str(MAX_SESSIONS),
            "--lease", self.name, *confinement.enter(group_name(self.directory), self.record.cards),
            *confinement.show(driver_dir, [self.record.minors[share.uuid] for share in self.record.cards]),
            *(("--user", f"{user.uid}:{user.uid}") if user else ()),
            *((f"--network={'' if network is None else network}",) if confinement.has_networks else ()),
            *(() if images is None else ("--images", str(images))),
        ]  # fmt: skip
        descriptors = (user.lock if user else None, network, images)
        inherited = [descriptor for descriptor in descriptors if descriptor is not None]
        with (
            self.events.open("wb") as events,
            (self.directory / "log").open("wb") as errors,
            listening(self.directory, movable=self.record.movable, restore=restore) as (more, control),
        ):
            self._child = subprocess.Popen(
                [*arguments, *more], env=environment, stdin=subprocess.DEVNULL, stdout=events, stderr=errors, cwd="/",
                start_new_session=True, pass_fds=[*inherited, *control],
            )  # fmt: skip
        try:
            self._note(confinement, user)
        except (OSError, ElasticGPUError):  # without a record it would never be ended
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            raise

    def _note(self, confinement: Confinement, user: User | None) -> None:
        """Record the process, once it is in its place."""
        assert self._child is not None
        self.process = Process.of(self._child.pid)
        if confinement.has_networks:
            await_entered(self._child.pid)
        pid, start_time = self.process.pid, self.process.start_time
        # For the simulated cluster's janitor, which cleans up after a simulated machine.
        (self.directory / "pid").write_text(f"{pid} {start_time}\n")
        uid = user.uid if user else 0
        self.record = msgspec.structs.replace(self.record, pid=pid, start_time=start_time, boot_id=boot_id(), uid=uid)
        records.write(self.directory, self.record)

    def kill(self) -> None:
        """Kill its whole process group and its control group, without waiting. It still counts as running."""
        # Only while the leader is the recorded process: a group's number may be reused later.
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self._confinement is not None:
            self._confinement.kill(group_name(self.directory))

    def end(self) -> None:
        """Kill all of it, wait until none of it runs, remove its directory. Raises Unavailable."""
        deadline = time.monotonic() + END_SECONDS
        self.kill()
        if self._confinement is not None:
            self._confinement.end(group_name(self.directory))
        while self.is_alive() or (group_exists(self.process.pid) and self._kill_members()):
            if time.monotonic() > deadline:
                raise Unavailable(f"executor {self.name} (pid {self.process.pid}) was killed and does not end")
            time.sleep(_POLL_SECONDS)
        gone = self.directory.with_name(f".gone-{self.name}")
        with contextlib.suppress(FileNotFoundError):
            self.directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _kill_members(self) -> bool:
        """Return whether any of its processes still runs besides its parent."""
        members = {*processes_of(self.directory), *sessions_of(self.process.pid)}
        if self.record.uid:  # code in a session can choose its process name
            members |= set(left_of(self.process, self.record.uid))
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(members)


def start(
    below: Path,
    record: ExecutorRecord[Owner],
    driver_dir: Path | None,
    confinement: Confinement,
    images: Images | None = None,
    *,
    libraries: Sequence[Path] = (),
    restore: int | None = None,
) -> Executor[Owner]:
    """Start the executor of a record without a process, in a directory of its name. It reports when it is ready
    (`Executor.follow`). `libraries`: the folders of NVIDIA's libraries; `restore` as in `Executor.launch`.

    Raises:
        InvalidInput: the name is not allowed, or the path is too long for a socket.
        NativeMissing: the executor or the interposer is not built.
        NotSupported: the loader would start the executor without the interposer.
        Unavailable: the directory, the process or its user is not available.
    """
    name = record.name
    if not name.replace("-", "").isalnum() or len(name) > MAX_NAME:
        raise InvalidInput("name", f"{name[:64]!r} is not a valid name of an executor")
    final, draft = below / name, below / f".new-{name}"
    if len(str(final / SOCKET)) > _MAX_SOCKET_PATH:
        raise InvalidInput("state-dir", f"{final / SOCKET} is too long for a unix socket; use a shorter directory")
    shutil.rmtree(draft, ignore_errors=True)
    user = confinement.take_user()
    kept = None
    try:
        draft.mkdir(mode=0o700)
        (draft / INTERPOSER).symlink_to(native.path(INTERPOSER))
        check_file_system(draft / INTERPOSER)
        write_policy(draft / "policy", record.policy(), parking=record.parking())
        create_usage(draft / "usage")
        if user is not None:
            os.chown(draft / "usage", user.uid, user.uid)
        records.write(draft, record)
        draft.rename(final)
        executor = Executor(final, record, confinement)
        kept = None if images is None else images.open(record.caller)
        with network_of(below, record) if confinement.has_networks else contextlib.nullcontext() as network:
            executor.launch(
                driver_dir, confinement, user=user, network=network, images=kept, libraries=libraries, restore=restore
            )
    except (OSError, ElasticGPUError) as error:
        with contextlib.suppress(ElasticGPUError):
            confinement.end(group_name(final))
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(final, ignore_errors=True)
        if isinstance(error, ElasticGPUError):
            raise
        raise Unavailable(f"cannot start executor {name}: {error}") from error
    finally:
        if user is not None:
            user.close()  # the executor has its own copy
        if kept is not None:
            os.close(kept)
    return executor


def find(below: Path, owner: type[Owner], confinement: Confinement) -> list[Executor[Owner]]:
    """Find the executors that run in directories below this one, or whose sessions have moved; end and remove the
    remains of others.

    Raises Unavailable when a process does not end.
    """
    found: list[Executor[Owner]] = []
    for directory in sorted(below.iterdir()):
        executor = None if directory.name.startswith(".") else _found_again(directory, owner, confinement)
        if executor is not None:
            found.append(executor)
            continue
        for pid in processes_of(directory):  # also one whose record was never written
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
    confinement.sweep(f"{below.name}-", {group_name(one.directory) for one in found})
    return found


def _found_again(directory: Path, owner: type[Owner], confinement: Confinement) -> Executor[Owner] | None:
    """Return None where nothing known runs."""
    try:
        record = records.read(directory, owner)
    except CorruptData as error:
        log.warning("ending an executor", directory=str(directory), reason=str(error))
        return None
    executor = Executor(directory, record, confinement)
    if record.boot_id != boot_id():
        return None
    executor.follow()
    if executor.is_alive() or executor.moved:
        return executor
    for pid in left_of(record.process, record.uid) if record.uid else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None
