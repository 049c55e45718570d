"""Leases that move away from this server: the executor's sessions are sent to the target, and leave when all are
restored.

Only the executor decides that they have left (`egpu.core.leasing.moves` says why). Until `finish` is said to it,
closing its control connection keeps everything here. After that, its events tell what it did."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final

import structlog
from msgspec.structs import replace

from egpu.adapters.executors.moving import Control, ExecutorLook, Progress
from egpu.adapters.pool import messages
from egpu.adapters.pool.client import dial, parse_address
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import LOCAL_PEER, Credentials
from egpu.apps.serve.arrivals import Arrivals
from egpu.apps.serve.owners import LeaseExecutor, set_owner
from egpu.apps.serve.supervisor import LeaseSupervisor
from egpu.core.leasing.records import Departure, Look, MoveRecord, RunningLease
from egpu_base.errors import ElasticGPUError, Refused, Unavailable

log = structlog.get_logger(__name__)

CONNECT_SECONDS: Final = 30.0
"""The time for the target's executor to start."""
AGAIN_SECONDS: Final = 0.05
SETTLE_SECONDS: Final = 0.5


class _Hindered(Refused):
    """Something in the program prevents the move."""


class Departures:
    """The moves from this server. `connected` returns whether the broker will hear of the end."""

    def __init__(
        self,
        name: str,
        credentials: Credentials,
        leases: LeaseSupervisor,
        arrivals: Arrivals,
        connected: Callable[[], bool],
    ) -> None:
        self._name = name
        self._credentials = credentials
        self._relay = Relay(credentials)
        self._leases = leases
        self._arrivals = arrivals
        self._connected = connected
        self._moves: dict[str, MoveRecord] = {}
        """The order for each leaving executor."""
        self._states: dict[str, Departure] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finishing: set[str] = set()
        """Executors that may leave at any moment: nothing cancels these."""
        self._asked: dict[str, int] = {}
        self._looks: dict[str, Look] = {}
        self._looking: set[asyncio.Task[None]] = set()

    def order(self, orders: messages.Orders) -> None:
        """Begin and cancel moves as ordered. Comes after the orders for the executors."""
        leaving = {one.lease: one for one in orders.moves if one.source == self._name and one.token}
        self._moves = {
            name: leaving[executor.record.owner.lease.lease]
            for name, executor in self._leases.running.items()
            if (move := leaving.get(executor.record.owner.lease.lease)) and executor.record.owner.place < move.place
        }
        for name, state in list(self._states.items()):
            move = self._moves.get(name)
            if (move is None or move.place != state.place) and name not in self._finishing:
                if name in self._tasks:
                    self._tasks.pop(name).cancel()
                self._forget(name)
        self._asked = {one.lease: one.number for one in orders.looks}
        self._looks = {lease: look for lease, look in self._looks.items() if self._asked.get(lease) == look.number}
        for lease, number in self._asked.items():
            if lease not in self._looks:
                self._spawn(self._look(lease, number))
        self._begin()

    def adopt(self) -> None:
        """Find out about executors to which an earlier daemon may have said that they shall leave."""
        for name, executor in self._leases.running.items():
            if executor.record.owner.leaving and not executor.moved:
                self._finishing.add(name)
                self._spawn(self._settle(executor))

    def noted(self, one: RunningLease) -> RunningLease:
        """Return the report of a lease with its move, and with the answer to a question about it."""
        executor = self._leases.running.get(one.record.executor)
        if executor is None:
            return one
        state = self._states.get(executor.name)
        owner = executor.record.owner
        if executor.moved:
            state = replace(state or Departure(place=owner.leaving, state="left"), state="left")
        elif state is None and owner.leaving:
            state = Departure(place=0, state="unsure")
        look = None if one.arriving else self._looks.get(one.record.lease)
        return one if state is None and look is None else replace(one, departure=state, look=look)

    async def run(self) -> None:
        """Keep the connections of moves until cancelled."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            tasks = [*self._tasks.values(), *self._looking]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._relay.close()

    # --- one move -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for name, move in self._moves.items():
            executor = self._leases.running.get(name)
            if executor is not None and name not in self._states and not executor.record.owner.leaving:
                self._states[name] = Departure(place=move.place, state="going")
                self._tasks[name] = asyncio.create_task(self._leave(executor, move))
                self._leases.changed.set()

    async def _leave(self, executor: LeaseExecutor, move: MoveRecord) -> None:
        name = executor.name
        try:
            set_owner(executor, replace(executor.record.owner, leaving=move.place))
            self._states[name] = await self._moved(executor, move)
        except (ElasticGPUError, OSError) as error:
            if name in self._finishing and await self._has_left(executor):
                self._states[name] = replace(self._states[name], state="left")
            else:
                log.info("lease stays", lease=move.lease, target=move.target, reason=str(error))
                set_owner(executor, replace(executor.record.owner, leaving=0))
                self._states[name] = Departure(
                    place=move.place, state="refused", why=str(error), hindrance=isinstance(error, _Hindered)
                )
        finally:
            self._finishing.discard(name)
            if self._tasks.get(name) is asyncio.current_task():
                del self._tasks[name]
            self._leases.changed.set()

    async def _moved(self, executor: LeaseExecutor, move: MoveRecord) -> Departure:
        """Send the sessions, and let them leave. Raises ElasticGPUError, OSError."""
        with contextlib.closing(await Control.connect(executor.directory)) as control:
            look = await control.look()
            if not look.movable:
                raise _Hindered("; ".join(look.prevents))
            async with self._stream(move) as stream:
                sent = _expected(await control.send(stream), "restored")
                if not self._connected():
                    raise Unavailable("the broker does not answer, so that the program would not find the new place")
                paused_ns = sent.quiesced_ns + sent.copied_ns
                going = Departure(place=move.place, state="going", bytes=sent.bytes, paused_ns=paused_ns)
                self._states[executor.name] = going  # its events may be read before its answer
                self._finishing.add(executor.name)
                _expected(await control.finish(), "left")
            executor.follow()
            log.info("lease has left", lease=move.lease, target=move.target, bytes=sent.bytes, ms=paused_ns // 10**6)
            return replace(going, state="left")

    @contextlib.asynccontextmanager
    async def _stream(self, move: MoveRecord) -> AsyncGenerator[socket.socket]:
        """Yield a stream to the target's executor. Raises Refused, Unavailable."""
        hello = messages.Hello(role="move", name=self._name, lease=move.lease, token=move.token, place=move.place)
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                connection = await self._connected_to(move, hello)
                break
            except Unavailable:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)
        if isinstance(connection, socket.socket):
            with contextlib.closing(connection):
                yield connection
            return
        ours, theirs = socket.socketpair()
        with contextlib.closing(ours), contextlib.closing(theirs):
            carrying = asyncio.create_task(connection.hand_over(ours))
            try:
                yield theirs
            finally:
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)
                await connection.close()

    async def _connected_to(self, move: MoveRecord, hello: messages.Hello) -> socket.socket | Connection:
        """Return the stream of an executor on this server, or a connection to one elsewhere. Raises Refused,
        Unavailable."""
        if move.target == self._name:
            return self._arrivals.claim(LOCAL_PEER, hello)
        address = parse_address(move.address, "server")
        expected = f"server/{move.target}"
        connection, _ = await dial(address, self._credentials, hello, expect=expected, relay=self._relay)
        return connection

    async def _has_left(self, executor: LeaseExecutor) -> bool:
        """Return whether an executor that was told to leave did, once that cannot change any more."""
        while True:
            alive = executor.is_alive()
            executor.follow()
            if executor.moved or not alive:
                return executor.moved
            with contextlib.suppress(ElasticGPUError):
                await _looked(executor)
                executor.follow()
                return executor.moved
            await asyncio.sleep(SETTLE_SECONDS)

    async def _settle(self, executor: LeaseExecutor) -> None:
        if not await self._has_left(executor):
            set_owner(executor, replace(executor.record.owner, leaving=0))
        self._finishing.discard(executor.name)
        self._leases.changed.set()
        self._begin()

    def _forget(self, name: str) -> None:
        del self._states[name]
        executor = self._leases.running.get(name)
        if executor is not None and not executor.moved:
            set_owner(executor, replace(executor.record.owner, leaving=0))
        self._leases.changed.set()

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _look(self, lease: str, number: int) -> None:
        executor = self._leases.executor(lease)
        try:
            if executor is None or executor.name in self._tasks or executor.record.owner.leaving:
                raise Unavailable("it is moving, or ending")
            found = await _looked(executor)
            answer = Look(number=number, bytes=found.bytes, prevents=() if found.movable else found.prevents)
        except ElasticGPUError as error:
            answer = Look(number=number, prevents=(str(error),))
        if self._asked.get(lease) == number:
            self._looks[lease] = answer
            self._leases.changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)


async def _looked(executor: LeaseExecutor) -> ExecutorLook:
    """Ask an executor what prevents a move; nothing happens any more that an earlier daemon said. Raises Unavailable,
    CorruptData."""
    with contextlib.closing(await Control.connect(executor.directory)) as control:
        return await control.look()


def _expected(progress: Progress, state: str) -> Progress:
    """Return it, if it is that. Raises Refused with the executor's reason."""
    if progress.state != state:
        raise Refused(progress.why or f"the executor is {progress.state}, not {state}")
    return progress
