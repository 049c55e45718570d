"""The MPS servers of this node's cards: one control daemon for each card that MPS slices are of, as long as they are.

A daemon outlives us, and what is told to it counts only for servers that it starts afterwards. So for each card there
is a directory, made before anything else and removed after everything else, in which stands how far we came:

    size        what each program has: percent of the processors, MiB
    pipe/ log/  the daemon's own
    pid         the daemon, once it was told all that (`PID START_TIME`, as the embedded cluster's janitor reads it)

Whoever finds the directory, this agent later or the next one, makes the daemon what `size` says where a container wants
it, and else ends it; of a card that the scheduler gives out otherwise, at once. One that is not in `pid` was never
told, or is another: it is ended, and one started in its place. The directory `pipe` stays the same meanwhile, for
containers have it mounted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree
from typing import Final, Protocol

import structlog

from egpu.adapters.files import write_atomically
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.adapters.mps import PIPES, PROGRAM
from egpu.adapters.nvml import CardReading
from egpu.adapters.processes import Process
from egpu.api import names
from egpu.api.kubernetes import Pod
from egpu.api.objects import ObjectMeta
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.core.provisioners.mps import READY
from egpu.core.provisioners.preparation import ServedSlice
from egpu.errors import ElasticGPUError, Unavailable
from egpu.runtime.beats import rest

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 2.0
OLDEST: Final = (7, 0)
"""Compute capability of Volta, from which on a server holds its clients to anything."""
SIZE_FILE: Final = "size"
PID_FILE: Final = "pid"


class MpsDriver(Protocol):
    """Control daemons in directories, and the cards' modes; blocks. Each raises NotSupported, Unavailable."""

    def present(self) -> bool: ...

    def start(self, directory: Path, uuid: str) -> None: ...

    def find(self, directory: Path) -> Process | None: ...

    def hold(self, directory: Path, core_percent: int, memory_mib: int) -> None: ...

    def end(self, directory: Path) -> None: ...

    def set_exclusive(self, uuid: str, exclusive: bool) -> None: ...


class MpsServers:
    """`directory` has one for each card."""

    def __init__(self, slots: Slots, directory: Path, driver: MpsDriver, *, events: EventRecorder | None) -> None:
        self._slots = slots
        self._directory = directory
        self._driver = driver
        self._events = events
        self._lock = asyncio.Lock()
        self._preparing = Counter[str]()
        """Cards whose slots are being made: they want a server, although no slot says so yet."""

    def why_not(self, card: CardReading) -> str:
        """READY, or why the card can have no server, for the cluster to know."""
        if tuple(int(part) for part in card.compute_capability.split(".")) < OLDEST:
            return "it is older than Volta, where nothing holds programs apart"
        return READY if self._driver.present() else f"{PROGRAM} is not on the node: it comes with NVIDIA's driver"

    @asynccontextmanager
    async def while_made(self, served: ServedSlice) -> AsyncGenerator[Path]:
        """The pipe directory of the card's server, which runs from now on; the slot is made inside.

        Raises NotSupported: none can run here; Unavailable: not now.
        """
        self._preparing[served.uuid] += 1
        try:
            async with self._lock:
                await asyncio.to_thread(self._have, served)
            yield self._directory / served.uuid / PIPES
        finally:
            self._preparing[served.uuid] -= 1

    async def leave(self, uuids: Iterable[str]) -> None:
        """Another technology has these cards from now on: no container with a slice of them runs any more, although its
        slot may still be there. Raises NotSupported, Unavailable."""
        for uuid in uuids:
            if not (self._directory / uuid).exists():
                continue
            async with self._lock:
                if (self._directory / uuid).exists():  # and nobody has ended it meanwhile
                    await asyncio.to_thread(self._end, uuid)

    def _have(self, served: ServedSlice) -> None:
        directory, size = self._directory / served.uuid, f"{served.core_percent} {served.memory_mib}"
        if _read(directory / SIZE_FILE) not in ("", size):
            self._end(served.uuid)
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / SIZE_FILE, size.encode())
        self._serve(served.uuid)

    def _serve(self, uuid: str) -> None:
        """Its daemon runs and was told what `size` says. Raises NotSupported, Unavailable."""
        directory = self._directory / uuid
        running = self._driver.find(directory)
        if running is not None and _read(directory / PID_FILE) == _text(running):
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
        log.info("an MPS server runs", uuid=uuid, core_percent=core_percent, memory_mib=memory_mib)

    def _end(self, uuid: str) -> None:
        self._driver.end(self._directory / uuid)
        self._driver.set_exclusive(uuid, exclusive=False)
        rmtree(self._directory / uuid)
        log.info("an MPS server has ended", uuid=uuid)

    async def run(self) -> None:
        while True:
            try:
                await self.step()
            except OSError as error:
                log.warning("MPS servers are not looked after", reason=str(error))
            await rest(INTERVAL_SECONDS)

    async def step(self) -> Sequence[str]:
        """Start daemons that died again, and end those that no container wants; returns the cards whose had died."""
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
                    log.warning("an MPS server is not as it should be", uuid=directory.name, reason=str(error))
            if directory.name in died:
                await self._tell(directory.name, users)
        return died

    def _has_died(self, directory: Path) -> bool:
        """Whether the daemon that was told is gone; one that never was is being made."""
        told = _read(directory / PID_FILE)
        running = self._driver.find(directory)
        return bool(told) and (running is None or _text(running) != told)

    def _users(self, uuid: str) -> list[SlotRecord]:
        return [
            record
            for record in self._slots.records()
            if record.allocation.provisioner == names.MPS and any(one.uuid == uuid for one in record.allocation.cards)
        ]

    async def _tell(self, uuid: str, users: Sequence[SlotRecord]) -> None:
        """An event on each pod that has a slice of the card, where `kubectl describe` shows it."""
        log.warning("the MPS control daemon of a card died", uuid=uuid, slots=[one.slot_id for one in users])
        if self._events is None:
            return
        for one in users:
            subject = Pod(metadata=ObjectMeta(name=one.pod, namespace=one.namespace, uid=one.pod_uid))
            message = f"container {one.container}: the MPS server of card {uuid} died and is started again; programs"
            message += " that used it have ended with an error, and must be started again"
            await self._events.warn(subject, "MPSServerDied", message)


def _read(path: Path) -> str:
    """What stands there; empty where nothing does."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _text(process: Process) -> str:
    return f"{process.pid} {process.start_time}"
