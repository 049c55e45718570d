"""Orders for executors and MPS servers: order and answer are a line of JSON each, on a connection of their own."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Final

import msgspec
import structlog

from egpu.adapters.executors import record as records
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord, Owner
from egpu.adapters.shim import MPS_FOLDER, ShimDirectory
from egpu_base.errors import CorruptData, TerminalError, Unavailable

log = structlog.get_logger(__name__)

ANSWER_SECONDS: Final = 30.0
MAX_LINE: Final = 1024 * 1024


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start the executor of this record in `folder` of the state directory; `record` is an ExecutorRecord."""

    folder: str
    record: msgspec.Raw


class Running(msgspec.Struct, frozen=True, tag=True):
    """List the executors of `folder` that run."""

    folder: str


class End(msgspec.Struct, frozen=True, tag=True):
    """End that executor of `folder`, and its remains."""

    folder: str
    name: str


class StartMps(msgspec.Struct, frozen=True, tag=True):
    """Start the MPS control daemon of the card with this UUID."""

    uuid: str


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Describe the state of the shim."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The answer to an order; `names` are the running ones, where that was asked."""

    names: tuple[str, ...] = ()


class State(msgspec.Struct, frozen=True, tag=True):
    """The confinement of executors, in words; its missing `confinement.LAYERS`; whether the shim is registered."""

    held: str
    lacks: tuple[str, ...]
    registered: bool


class Failed(msgspec.Struct, frozen=True, tag=True):
    reason: str
    retryable: bool


Order = Start | Running | End | StartMps | Describe
Answer = Done | State | Failed


class Shim:
    """The shim of a node, as the `Parent` of the agent's executors. Calls block."""

    def __init__(self, directory: ShimDirectory) -> None:
        self._socket = directory.orders_socket

    async def state(self) -> State:
        """Return its state. Raises Unavailable."""
        answer = await asyncio.to_thread(self._ask, Describe())
        if not isinstance(answer, State):
            raise CorruptData(f"the shim answered {answer}")
        return answer

    async def started(self, *, retry_seconds: float) -> State:
        """Return its state, as soon as there is a shim."""
        told = False
        while True:
            try:
                return await self.state()
            except Unavailable as error:
                if not told:
                    log.warning("waiting for the shim of this node", reason=str(error))
                told = True
                await asyncio.sleep(retry_seconds)

    def start(self, below: Path, record: ExecutorRecord[Owner], *, restore: int | None = None) -> Executor[Owner]:
        """Start an executor. Raises as `process.start`, but InvalidInput and NativeMissing as a TerminalError."""
        if restore is not None:
            raise TerminalError("sessions do not move to a shim's executors")
        self._ask(Start(below.name, msgspec.Raw(msgspec.json.encode(record))))
        # The shim's record, with the process.
        return _executor(below / record.name, type(record.owner))

    def find(self, below: Path, owner: type[Owner]) -> list[Executor[Owner]]:
        """Return the running executors. Raises Unavailable."""
        answer = self._ask(Running(below.name))
        found: list[Executor[Owner]] = []
        for name in answer.names if isinstance(answer, Done) else ():
            try:
                executor = _executor(below / name, owner)
            except CorruptData:  # another version's agent started it: its owner is unknown
                self._ask(End(below.name, name))
                continue
            executor.follow()
            found.append(executor)
        return found

    def end(self, executor: Executor[Owner]) -> None:
        """End an executor. Raises Unavailable."""
        self._ask(End(executor.directory.parent.name, executor.name))

    def start_mps(self, directory: Path, uuid: str) -> None:
        """Start a daemon as `mps.start`, in a directory of the state directory. Raises Unavailable, TerminalError."""
        if directory.parts[-2:] != (MPS_FOLDER, uuid):
            raise TerminalError(f"{directory} is not the shim's directory for the MPS control daemon of card {uuid}")
        self._ask(StartMps(uuid))

    def _ask(self, order: Order) -> Done | State:
        try:
            with socket.socket(socket.AF_UNIX) as stream:
                stream.settimeout(ANSWER_SECONDS)
                stream.connect(str(self._socket))
                stream.sendall(msgspec.json.encode(order) + b"\n")
                with stream.makefile("rb") as answers:
                    line = answers.readline(MAX_LINE)
        except OSError as error:
            raise Unavailable(f"the shim of this node does not answer: {error}") from error
        if not line.endswith(b"\n"):
            raise Unavailable("the shim of this node ended before its answer")
        answer: Answer = msgspec.json.decode(line, type=Answer)
        if isinstance(answer, Failed):
            raise (Unavailable if answer.retryable else TerminalError)(answer.reason)
        return answer


def _executor(directory: Path, owner: type[Owner]) -> Executor[Owner]:
    return Executor(directory, records.read(directory, owner), None)
