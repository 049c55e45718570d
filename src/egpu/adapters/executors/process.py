"""Executors on this machine: started, found again after a restart, given other limits while they run, ended, measured.

    DIRECTORY/<name>/
      executor.json              the record (`egpu.adapters.executors.record`): whose, which cards, which process
      libegpu-interposer.so, policy, usage     the slice: what enforces the limits, exactly as in a local container;
                                 only the executor's user can write `usage`
      lease.sock                 the executor listens here
      events, log                its standard output (JSON lines) and error
      pid                        pid and start time once more, as text

Nobody but us and our executors passes through a directory; in it they can change `usage` alone.

An executor is a process group of its own that outlives us. A directory appears whole, by renaming, before its executor
starts; whatever a kill leaves between two steps is ended and removed by `find`.

Calls block for milliseconds: run them in threads where that matters.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic

import msgspec
import structlog

from egpu.adapters import native
from egpu.adapters.executors import record as records
from egpu.adapters.executors.confinement import DRIVER, EXECUTOR, Confinement, group_name
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.leftovers import group_exists, left_of, processes_of, sessions_of
from egpu.adapters.executors.networks import await_entered, network_of
from egpu.adapters.executors.record import MIB, ExecutorRecord, Owner
from egpu.adapters.executors.users import User
from egpu.adapters.nvml import driver_directory
from egpu.adapters.preloading import check_file_system
from egpu.adapters.processes import Process, boot_id
from egpu.adapters.slices.attribution import WatchedSlice
from egpu.adapters.slices.pages import UsageReader, create_usage, write_policy
from egpu.api.allocation import CardShare
from egpu.core.overruns import allowed
from egpu.errors import CorruptData, ElasticGPUError, InvalidInput, Unavailable

log = structlog.get_logger(__name__)

INTERPOSER: Final = "libegpu-interposer.so"
SOCKET: Final = "lease.sock"
END_SECONDS: Final = 5.0
MAX_SESSIONS: Final = 64
MAX_NAME: Final = 128
_MAX_SOCKET_PATH: Final = 107
_POLL_SECONDS: Final = 0.005


class _Event(msgspec.Struct, frozen=True):
    event: str
    sessions: int = 0


@dataclass(frozen=True)
class ExecutorUsage:
    """What an executor uses now: MiB of each of its cards, in the record's order, and GPU time ever."""

    memory_mib: tuple[int, ...]
    gpu_seconds: float


class Executor(Generic[Owner]):
    """One executor, made by `start` or `find`. `sessions` is how many programs use it."""

    def __init__(self, directory: Path, record: ExecutorRecord[Owner], confinement: Confinement | None) -> None:
        """`confinement` None: it is the child of another process, which alone ends it (`parents`)."""
        self.directory = directory
        self.record = record
        self.process = record.process
        self.ready = False
        self.sessions = 0
        self._confinement = confinement
        self._child: subprocess.Popen[bytes] | None = None
        self.events = directory / "events"
        """Where it says that it is ready and how many programs use it; closed when it ends."""
        self.said_bytes = 0
        """So much of that was read."""
        self._usage = UsageReader(directory / "usage", devices=len(record.cards))
        self._watched: tuple[ExecutorRecord[Owner], WatchedSlice] | None = None

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def socket(self) -> Path:
        return self.directory / SOCKET

    def is_alive(self) -> bool:
        """Whether the process is there; reaps it when it was our child."""
        # In this order: what is seen dead has then been reaped, however soon after our look it died.
        alive = self.process.is_alive()
        if self._child is not None and self._child.poll() is not None:
            return False
        return alive

    def follow(self) -> None:
        """Read what it said since the last time."""
        with contextlib.suppress(OSError):
            if self.events.stat().st_size <= self.said_bytes:  # mostly there is nothing new: look at no more than that
                return
        with contextlib.suppress(OSError), self.events.open("rb") as file:
            file.seek(self.said_bytes)
            whole, newline, _ = file.read(MIB).rpartition(b"\n")
            self.said_bytes += len(whole) + len(newline)
            for line in whole.splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    event = msgspec.json.decode(line, type=_Event)
                    self.ready = self.ready or event.event == "ready"
                    self.sessions = event.sessions if event.event == "session" else self.sessions

    def why_dead(self) -> str:
        """The end of what it said, for people."""
        with contextlib.suppress(OSError):
            lines = (self.directory / "log").read_text(errors="replace").strip().splitlines()
            if lines:
                return lines[-1][:300]
        code = self._child.returncode if self._child is not None else None
        return f"it ended with status {code}" if code is not None else "it ended"

    def usage(self) -> ExecutorUsage:
        """Read from its usage file, which no program can write; what runs in a session by a driver's fault can."""
        devices = self._usage.read_totals().devices
        used = [-(-device.memory_bytes // MIB) for device in devices]
        used += [0] * (len(self.record.cards) - len(used))
        return ExecutorUsage(tuple(used), sum(device.gpu_ns for device in devices) / 1e9)

    def watched(self, key: Hashable) -> WatchedSlice:
        """Its slice, as it is compared with what the driver says: it leads a session, which no process of it leaves."""
        if self._watched is not None and self._watched[0] is self.record and self._watched[1].key == key:
            return self._watched[1]  # asked for again and again
        policy, usage = self.directory / "policy", self.directory / "usage"
        granted = {share.uuid: mib * MIB for share, mib in zip(self.record.cards, self.record.granted, strict=True)}
        found = WatchedSlice(key=key, policy=policy, usage=usage, session=self.process.pid, granted_bytes=granted)
        self._watched = self.record, found
        return found

    def allowed_mib(self, used: ExecutorUsage) -> tuple[int, ...]:
        """What it may hold of each card: its limit, or of what it had before that was lowered what it still uses."""
        return tuple(
            allowed(limit=share.memory_mib, before=before, counted=mib)
            for share, before, mib in zip(self.record.cards, self.record.granted, used.memory_mib, strict=True)
        )

    def resize(self, cards: tuple[CardShare, ...], owner: Owner) -> None:
        """New limits, at once and for the running program, and what its owner keeps with them. Raises InvalidInput for
        other cards than it has."""
        if [card.uuid for card in cards] != [card.uuid for card in self.record.cards]:
            raise InvalidInput("cards", f"{self.name} cannot move to other cards while it runs")
        # The record first: killed in between, we come back believing in the larger of what is written and used.
        granted = self.allowed_mib(self.usage())
        self.record = msgspec.structs.replace(self.record, cards=cards, owner=owner, granted_mib=granted)
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
    ) -> None:
        """Start the process in its finished directory, with the driver in `driver_dir`, or the one that our NVML is of,
        or the one that the system finds. `network`: a descriptor of the one that it enters, None for one of its own.
        `images`: one of the directory where its caller's are kept.

        Raises OSError, Unavailable.
        """
        driver_dir = driver_dir or driver_directory()
        driver_dir = None if driver_dir is None else driver_dir.resolve()  # as its view names it
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LD_PRELOAD": str(self.directory / INTERPOSER),
            "CUDA_VISIBLE_DEVICES": ",".join(share.uuid for share in self.record.cards),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
        if driver_dir is not None:
            environment["LD_LIBRARY_PATH"] = str(driver_dir)
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
        with self.events.open("wb") as events, (self.directory / "log").open("wb") as errors:
            self._child = subprocess.Popen(
                arguments, env=environment, stdin=subprocess.DEVNULL, stdout=events, stderr=errors, cwd="/",
                start_new_session=True, pass_fds=inherited,
            )  # fmt: skip
        try:
            self._note(confinement, user)
        except (OSError, ElasticGPUError):  # what nobody has a note of, nobody would end
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            raise

    def _note(self, confinement: Confinement, user: User | None) -> None:
        """Which process it is, once it is where it belongs."""
        assert self._child is not None
        self.process = Process.of(self._child.pid)
        if confinement.has_networks:
            await_entered(self._child.pid)
        pid, start_time = self.process.pid, self.process.start_time
        # For whoever cleans up after a machine that was simulated: the embedded cluster's janitor.
        (self.directory / "pid").write_text(f"{pid} {start_time}\n")
        uid = user.uid if user else 0
        self.record = msgspec.structs.replace(self.record, pid=pid, start_time=start_time, boot_id=boot_id(), uid=uid)
        records.write(self.directory, self.record)

    def end(self) -> None:
        """Kill its whole process group, wait until nothing of it runs, remove its directory. Raises Unavailable."""
        deadline = time.monotonic() + END_SECONDS
        # Only while the leader is the process that we mean: a group's number may belong to somebody else later.
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self._confinement is not None:
            self._confinement.end(group_name(self.directory))
        while self.is_alive() or (group_exists(self.process.pid) and self._kill_members()):
            if time.monotonic() > deadline:
                raise Unavailable(f"the executor {self.name} does not end (pid {self.process.pid})")
            time.sleep(_POLL_SECONDS)
        gone = self.directory.with_name(f".gone-{self.name}")
        with contextlib.suppress(FileNotFoundError):
            self.directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _kill_members(self) -> bool:
        """Whether anything of it still runs besides its parent."""
        members = {*processes_of(self.directory), *sessions_of(self.process.pid)}
        if self.record.uid:  # what runs in a session may call itself what it likes
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
) -> Executor[Owner]:
    """Start the executor of a record without a process, in a directory of its name. It is ready once it says so
    (`Executor.follow`).

    Raises:
        InvalidInput: that is no name for an executor, or the path is too long for a socket.
        NativeMissing: the executor or the interposer was not built.
        NotSupported: the loader would start the executor without the interposer.
        Unavailable: the directory cannot be made, or the process not started, or there is no user for it.
    """
    name = record.name
    if not name.replace("-", "").isalnum() or len(name) > MAX_NAME:
        raise InvalidInput("name", f"{name[:64]!r} is not the name of an executor")
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
        write_policy(draft / "policy", record.policy())
        create_usage(draft / "usage")
        if user is not None:
            os.chown(draft / "usage", user.uid, user.uid)
        records.write(draft, record)
        draft.rename(final)
        executor = Executor(final, record, confinement)
        kept = None if images is None else images.open(record.caller)
        with network_of(below, record) if confinement.has_networks else contextlib.nullcontext() as network:
            executor.launch(driver_dir, confinement, user=user, network=network, images=kept)
    except (OSError, ElasticGPUError) as error:
        with contextlib.suppress(ElasticGPUError):
            confinement.end(group_name(final))
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(final, ignore_errors=True)
        if isinstance(error, ElasticGPUError):
            raise
        raise Unavailable(f"the executor {name} cannot be started: {error}") from error
    finally:
        if user is not None:
            user.close()  # the executor has it
        if kept is not None:
            os.close(kept)
    return executor


def find(below: Path, owner: type[Owner], confinement: Confinement) -> list[Executor[Owner]]:
    """The executors that run in directories below this one; what is left of others is ended and removed.

    Raises Unavailable when something does not end.
    """
    found: list[Executor[Owner]] = []
    for directory in sorted(below.iterdir()):
        executor = None if directory.name.startswith(".") else _found_again(directory, owner, confinement)
        if executor is not None:
            executor.follow()
            found.append(executor)
            continue
        for pid in processes_of(directory):  # one that was killed between its start and our note of it, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
    confinement.sweep(f"{below.name}-", {group_name(one.directory) for one in found})
    return found


def _found_again(directory: Path, owner: type[Owner], confinement: Confinement) -> Executor[Owner] | None:
    """None where nothing runs that we know."""
    try:
        record = records.read(directory, owner)
    except CorruptData as error:
        log.warning("an executor is ended", directory=str(directory), reason=str(error))
        return None
    executor = Executor(directory, record, confinement)
    if record.boot_id != boot_id():
        return None
    if executor.is_alive():
        return executor
    for pid in left_of(record.process, record.uid) if record.uid else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None
