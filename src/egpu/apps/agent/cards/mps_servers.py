"""Runs the MPS servers of this node: one control daemon for each card that has MPS slices.

A daemon outlives the agent, and a setting counts only for servers that it starts afterwards. So each card has a
directory, created before everything else and removed after everything else, that records the progress:

    size        the part of each program: percent of the processors, MiB
    shm         a tmpfs of limited size, the /dev/shm of daemon and programs, if they share one
    pipe/ …     the daemon's own and its programs' (`egpu.adapters.cards.mps`)
    pid         the daemon, once it has all settings (`PID START_TIME`, which the simulated cluster's janitor reads too)

An agent that finds a directory configures the daemon by `size` if a container wants it, and else ends it; at once if
the scheduler gives out the card in another way. A daemon that is not in `pid` may lack settings: it is ended, and a
new one started. The directories of its programs stay the same meanwhile, because containers have them mounted."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree
from typing import Final, Protocol

import structlog

from egpu.adapters.cards.mps import CLIENTS, MEMORY, PROGRAM, Shown
from egpu.adapters.cards.nvml import CardReading
from egpu.api import names
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.core.provisioners.mps import READY
from egpu.core.provisioners.preparation import ServedSlice
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.api.quantities import MIB_BYTES
from egpu_base.errors import ElasticGPUError, Unavailable
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.beats import rest
from egpu_base.system import mounts
from egpu_base.system.files import write_atomically
from egpu_base.system.processes import Process

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 2.0
OLDEST: Final = (7, 0)
"""Volta's compute capability. Older cards do not limit the clients of a server."""
SIZE_FILE: Final = "size"
PID_FILE: Final = "pid"
MEMORY_FILES: Final = 4096
"""The most files in the memory that a card's programs share: a file takes memory of the node beside its bytes."""


class MpsDriver(Protocol):
    """Controls daemons in directories, and the modes of cards; blocks. Each method raises NotSupported, Unavailable."""

    def present(self) -> bool: ...

    def start(self, directory: Path, uuid: str) -> None: ...

    def find(self, directory: Path) -> Process | None: ...

    def hold(self, directory: Path, core_percent: int, memory_mib: int) -> None: ...

    def admit(self, directory: Path) -> None: ...

    def end(self, directory: Path) -> None: ...

    def set_exclusive(self, uuid: str, exclusive: bool) -> None: ...


class MpsServers:
    """Has one directory for each card below `directory`. `memory_mib`: the size of the /dev/shm that a card's daemon
    and programs share; 0: they share none."""

    def __init__(
        self,
        slots: Slots,
        directory: Path,
        driver: MpsDriver,
        *,
        events: EventRecorder | None,
        memory_mib: int = 0,
    ) -> None:
        self._slots = slots
        self._memory_mib = memory_mib
        self._directory = directory
        self._driver = driver
        self._events = events
        self._lock = asyncio.Lock()
        self._preparing = Counter[str]()
        """Cards whose slots are being made: they need a server, although no slot says so yet."""

    def why_not(self, card: CardReading) -> str:
        """Return READY, or why the card can have no server, for the cluster."""
        if tuple(int(part) for part in card.compute_capability.split(".")) < OLDEST:
            return "it is older than Volta; MPS does not isolate programs there"
        return (
            READY
            if self._driver.present()
            else f"{PROGRAM} is not installed on the node; it comes with NVIDIA's driver"
        )

    @asynccontextmanager
    async def while_made(self, served: ServedSlice) -> AsyncGenerator[Shown]:
        """Start the card's server, and yield what its programs share with it; the slot is made inside.

        Raises NotSupported (no server can run here), Unavailable (not now)."""
        self._preparing[served.uuid] += 1
        try:
            async with self._lock:
                await asyncio.to_thread(self._have, served)
            directory = self._directory / served.uuid
            memory = directory / MEMORY
            yield Shown(directory / CLIENTS, memory if memory.is_mount() else None)
        finally:
            self._preparing[served.uuid] -= 1

    async def leave(self, uuids: Iterable[str]) -> None:
        """End the servers of cards that another technology uses from now on. No container with a slice of them runs
        any more, although its slot may still exist. Raises NotSupported, Unavailable."""
        for uuid in uuids:
            if not (self._directory / uuid).exists():
                continue
            async with self._lock:
                if (self._directory / uuid).exists():  # and it was not ended meanwhile
                    await asyncio.to_thread(self._end, uuid)

    def _have(self, served: ServedSlice) -> None:
        directory, size = self._directory / served.uuid, f"{served.core_percent} {served.memory_mib}"
        if _read(directory / SIZE_FILE) not in ("", size):
            self._end(served.uuid)
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / SIZE_FILE, size.encode())
        self._have_memory(directory)
        self._serve(served.uuid)

    def _have_memory(self, directory: Path) -> None:
        """Mount the memory that programs share. A daemon that runs keeps what it has.

        Raises NotSupported: this process may not mount.
        """
        at = directory / MEMORY
        if self._memory_mib and not at.is_mount() and self._driver.find(directory) is None:
            at.mkdir(exist_ok=True)
            size_bytes = self._memory_mib * MIB_BYTES
            mounts.mount_tmpfs(at, size_bytes=size_bytes, files=MEMORY_FILES, mode=0o1777)

    def _serve(self, uuid: str) -> None:
        """Make sure that the daemon runs with the settings in `size`. Raises NotSupported, Unavailable."""
        directory = self._directory / uuid
        running = self._driver.find(directory)
        if running is not None and _read(directory / PID_FILE) == _text(running):
            self._driver.admit(directory)
            return
        self._driver.end(directory)
        self._driver.set_exclusive(uuid, exclusive=True)
        self._driver.start(directory, uuid)
        core_percent, memory_mib = (int(word) for word in _read(directory / SIZE_FILE).split())
        self._driver.hold(directory, core_percent, memory_mib)
        running = self._driver.find(directory)
        if running is None:
            raise Unavailable(f"the MPS control daemon of card {uuid} ended at once; see {directory / 'log'}")
        write_atomically(directory / PID_FILE, _text(running).encode())
        log.info("MPS server started", uuid=uuid, core_percent=core_percent, memory_mib=memory_mib)

    def _end(self, uuid: str) -> None:
        self._driver.end(self._directory / uuid)
        self._driver.set_exclusive(uuid, exclusive=False)
        with contextlib.suppress(OSError):  # nothing is mounted
            mounts.unmount(self._directory / uuid / MEMORY)
        rmtree(self._directory / uuid)
        log.info("MPS server ended", uuid=uuid)

    async def run(self) -> None:
        while True:
            try:
                await self.step()
            except OSError as error:
                log.warning("MPS servers not checked", reason=str(error))
            await rest(INTERVAL_SECONDS)

    async def step(self) -> Sequence[str]:
        """Restart daemons that died, and end those that no container needs. Returns the cards whose daemon had died."""
        died: list[str] = []
        for directory in sorted(self._directory.glob("[!.]*")):
            async with self._lock:
                users = self._users(directory.name)
                wanted = bool(users or self._preparing[directory.name])
                try:
                    if wanted and await asyncio.to_thread(self._has_died, directory):
                        died.append(directory.name)
                        await asyncio.to_thread(self._serve, directory.name)
                    elif not wanted:
                        await asyncio.to_thread(self._end, directory.name)
                except ElasticGPUError as error:
                    log.warning("MPS server not restarted or ended", uuid=directory.name, reason=str(error))
            if directory.name in died:
                await self._tell(directory.name, users)
        return died

    def _has_died(self, directory: Path) -> bool:
        """Return whether a configured daemon is gone; one that is not configured is being made."""
        recorded = _read(directory / PID_FILE)
        running = self._driver.find(directory)
        return bool(recorded) and (running is None or _text(running) != recorded)

    def _users(self, uuid: str) -> list[SlotRecord]:
        return [
            record
            for record in self._slots.records()
            if record.allocation.provisioner == names.MPS and any(one.uuid == uuid for one in record.allocation.cards)
        ]

    async def _tell(self, uuid: str, users: Sequence[SlotRecord]) -> None:
        """Record an event on each pod that has a slice of the card, for `kubectl describe`."""
        log.warning("the MPS control daemon of a card died", uuid=uuid, slots=[one.slot_id for one in users])
        if self._events is None:
            return
        for one in users:
            subject = Pod(metadata=ObjectMeta(name=one.pod, namespace=one.namespace, uid=one.pod_uid))
            message = f"container {one.container}: the MPS server of card {uuid} died and is started again; programs"
            message += " that used it have ended with an error, and must be started again"
            await self._events.warn(subject, "MPSServerDied", message)


def _read(path: Path) -> str:
    """Return the content of the file; empty if it does not exist."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _text(process: Process) -> str:
    return f"{process.pid} {process.start_time}"
