"""Executors as children of the shim: started and ended as the agent orders, reaped when they end by themselves.

Only the agent knows the owner of an executor; the shim copies it from the order into the record. Everything continues
while no agent runs. If an agent stays away for long, unused executors are ended, so that a node without an agent leaves
only a bounded amount behind."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from egpu.adapters.cards import mps
from egpu.adapters.executors import process
from egpu.adapters.executors import record as records
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.shim import MPS_FOLDER, ShimDirectory, orders
from egpu_base.errors import CorruptData, ElasticGPUError, InvalidInput
from egpu_base.system.private import private_directory

log = structlog.get_logger(__name__)

FOLDERS: Final = ("executors", "served")
"""Folders in the agent's state directory: executors of this node's slots, and of other nodes' pods."""
LOOK_SECONDS: Final = 1.0
_UUID: Final = re.compile(r"GPU-[0-9a-fA-F-]{1,64}")
AWAY_SECONDS: Final = 600.0
"""The time that unused executors wait for an agent to return."""
ASK_PART: Final = 0.02
"""The part of that time after which the agent is asked whether it runs: each connection costs it some work."""


class OrderedExecutors:
    """Every executor of this node. `open`, then `serve` and `look_after` as long as the shim runs."""

    def __init__(
        self,
        state_dir: Path,
        directory: ShimDirectory,
        *,
        driver_dir: Path | None,
        confinement: Confinement,
        images: Images | None = None,
        registered: Callable[[], bool],
        away_seconds: float = AWAY_SECONDS,
        libraries: Sequence[Path] = (),
    ) -> None:
        """Take the parts. `registered` returns whether kubelet knows the shim."""
        self._state_dir = state_dir
        self._folders = {name: private_directory(state_dir / name) for name in FOLDERS}
        self._directory = directory
        self._driver_dir = driver_dir
        self._confinement = confinement
        self._images = images
        self._libraries = libraries
        self._registered = registered
        self._away_seconds = away_seconds
        self._known: dict[Path, Executor[msgspec.Raw]] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._agent_seen = time.monotonic()

    async def open(self) -> asyncio.Server:
        """Find the executors of an earlier shim, then listen. Raises Unavailable."""
        for folder in self._folders.values():
            for executor in await asyncio.to_thread(process.find, folder, msgspec.Raw, self._confinement):
                self._known[executor.directory] = executor
        return await asyncio.start_unix_server(self._come_in, self._directory.orders_socket, limit=orders.MAX_LINE)

    async def _come_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if line:
                writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
                await writer.drain()
        except (OSError, ValueError) as error:
            log.info("order not answered", reason=str(error))
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> orders.Answer:
        try:
            # An order is completed even if the agent that gave it ends meanwhile.
            return await asyncio.shield(self._carry_out(msgspec.json.decode(line, type=orders.Order)))
        except ElasticGPUError as error:
            return orders.Failed(str(error), error.retryable)
        except (msgspec.MsgspecError, OSError) as error:
            return orders.Failed(str(error), False)

    async def _carry_out(self, order: orders.Order) -> orders.Answer:
        match order:
            case orders.Start(folder, record):
                starting = asyncio.create_task(self._start(self._folder(folder), record))
                self._starting.add(starting)
                starting.add_done_callback(self._starting.discard)
                await starting
                return orders.Done()
            case orders.Running(folder):
                return orders.Done(await self._running(self._folder(folder)))
            case orders.End(folder, name):
                await self._end(self._folder(folder) / name)
                return orders.Done()
            case orders.StartMps(uuid):
                await asyncio.to_thread(self._start_mps, uuid)
                return orders.Done()
            case orders.Describe():
                return orders.State(self._confinement.told, self._confinement.lacks, self._registered())

    def _start_mps(self, uuid: str) -> None:
        """Start an MPS daemon. Raises InvalidInput, NotSupported."""
        if not _UUID.fullmatch(uuid):
            raise InvalidInput("uuid", f"{uuid!r} is not the UUID of a card")
        library = None if self._driver_dir is None else self._driver_dir / "libnvidia-ml.so.1"
        mps.start(self._state_dir / MPS_FOLDER / uuid, uuid, library)

    def _folder(self, name: str) -> Path:
        if name not in self._folders:
            raise InvalidInput("folder", f"{name!r} is not one of {', '.join(FOLDERS)}")
        return self._folders[name]

    async def _start(self, folder: Path, text: msgspec.Raw) -> None:
        record = msgspec.json.decode(text, type=ExecutorRecord[msgspec.Raw])
        executor = await asyncio.to_thread(
            process.start, folder, record, self._driver_dir, self._confinement, self._images, libraries=self._libraries
        )
        self._known[executor.directory] = executor
        log.info("executor started", name=executor.name, pid=executor.process.pid)

    async def _running(self, folder: Path) -> tuple[str, ...]:
        """Answer an agent that has just started: wait for the earlier agent's orders, and remove dead executors."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        here = [executor for directory, executor in self._known.items() if directory.parent == folder]
        for executor in here:
            if not executor.is_alive():
                await self._end(executor.directory)
        return tuple(executor.name for executor in here if executor.directory in self._known)

    async def _end(self, directory: Path) -> None:
        """End an executor. Raises InvalidInput, Unavailable."""
        if directory.name in ("", ".", "..") or directory.parent not in self._folders.values():
            raise InvalidInput("name", f"{directory.name!r} is not the name of an executor")
        executor = self._known.get(directory)
        if executor is None:  # started by an earlier shim
            try:
                executor = Executor(directory, records.read(directory, msgspec.Raw), self._confinement)
            except CorruptData:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                return
        await asyncio.to_thread(executor.end)
        self._known.pop(directory, None)
        log.info("executor ended", name=executor.name)

    async def look_after(self) -> None:
        """Reap ended executors, and end unused ones on a node without an agent, forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            unseen_seconds = time.monotonic() - self._agent_seen
            if unseen_seconds > ASK_PART * self._away_seconds and await asyncio.to_thread(self._agent_answers):
                self._agent_seen, unseen_seconds = time.monotonic(), 0.0
            away = unseen_seconds > self._away_seconds
            for executor in list(self._known.values()):
                executor.follow()
                if (executor.is_alive() and executor.sessions) or not away:
                    continue
                log.warning("agent away: unused executor ended", name=executor.name)
                try:
                    await self._end(executor.directory)
                except (ElasticGPUError, OSError) as error:
                    log.warning("executor not ended", name=executor.name, reason=str(error))

    def _agent_answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as stream:
                stream.settimeout(LOOK_SECONDS)
                stream.connect(str(self._directory.agent_socket))
        except OSError:
            return False
        return True
