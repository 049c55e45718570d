"""Connections to the broker: programs and people on one side, servers on the other."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Final

import structlog

from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.security import check_role, may_speak_for
from egpu.api.text import check_plain, escaped
from egpu.apps.broker.service import Holder, LeaseService
from egpu_base.errors import AlreadyExists, ElasticGPUError, InvalidInput, Refused

log = structlog.get_logger(__name__)

MAX_CLIENT_MESSAGE_BYTES: Final = 8 * 1024
MAX_PENDING: Final = 256
"""Requests of one connection whose answers its caller has not read; more wait in the socket."""
MAX_UNTOLD: Final = 1024
"""Unread notices of ended leases; a caller with more does not read at all."""
MAX_REASON: Final = 200
GATHER_SECONDS: Final = 0.002
"""Orders have everything that shall run, so many changes at once are sent in one."""


class ClientSession:
    """One program's or person's connection. Its leases are let go when it ends."""

    def __init__(self, service: LeaseService, connection: Connection, *, follows: bool = False) -> None:
        """`follows`: the program follows moves."""
        self._service = service
        self._holder = Holder(self._ended, self._moved if follows else None)
        self._connection = connection
        self._peer = connection.peer
        self._leases: set[str] = set()
        self._pending = asyncio.Semaphore(MAX_PENDING)
        self._outgoing: asyncio.Queue[messages.AnyMessage] = asyncio.Queue(MAX_PENDING + MAX_UNTOLD)

    async def run(self) -> None:
        """Run until the connection ends. Raises Unavailable, CorruptData."""
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write())
                try:
                    while True:
                        await self._pending.acquire()
                        asked = await self._connection.receive(limit_bytes=MAX_CLIENT_MESSAGE_BYTES)
                        group.create_task(self._answer(asked))
                finally:
                    writing.cancel()
        finally:
            for lease in self._leases:
                self._service.let_go(lease, self._ended)

    def _ended(self, lease: str, reason: str) -> None:
        self._leases.discard(lease)
        self._notify(messages.Ended(lease=lease, reason=reason))

    def _moved(self, moved: messages.Moved) -> None:
        self._notify(moved)

    def _notify(self, notice: messages.AnyMessage) -> None:
        if self._outgoing.qsize() < MAX_UNTOLD:
            self._outgoing.put_nowait(notice)
        else:
            self._connection.writer.transport.abort()

    async def _write(self) -> None:
        """Write answers and notices. Lists are built now, because many unread ones would be large."""
        while True:
            said = await self._outgoing.get()
            if isinstance(said, messages.ListLeases):
                mine = [one for one in self._service.views() if may_speak_for(self._peer, one.peer)]
                said = messages.Leases(number=said.number, leases=tuple(mine))
            elif isinstance(said, messages.ListServers):
                said = messages.Servers(number=said.number, servers=self._service.server_views())
            await self._connection.send(said)
            if not isinstance(said, messages.Ended | messages.Moved):
                self._pending.release()

    async def _answer(self, asked: messages.AnyMessage) -> None:
        number = getattr(asked, "number", 0)
        try:
            answer = await self._do(asked)
        except ElasticGPUError as error:
            answer = messages.Failed(number=number, kind=type(error).__name__, reason=str(error))
        await self._outgoing.put(answer)

    async def _do(self, asked: messages.AnyMessage) -> messages.AnyMessage:
        match asked:
            case messages.Acquire():
                check_role(self._peer, "client", "admin")
                granted = await self._service.acquire(asked, self._peer, self._holder)
                self._leases.add(granted.lease.lease)
                return granted
            case messages.Attach():
                granted = self._service.attach(asked.number, asked.lease, self._peer, self._holder)
                self._leases.add(asked.lease)
                return granted
            case messages.Renew():
                return self._service.renew(asked.number, asked.lease, self._peer)
            case messages.Resize():
                return await self._service.resize(asked, self._peer)
            case messages.Move():
                work = self._service.movable if asked.check else self._service.move
                return await work(asked, self._peer)
            case messages.Cordon():
                check_role(self._peer, "admin")
                self._service.cordon(asked.server, cordoned=asked.cordoned)
                return messages.Done(number=asked.number)
            case messages.Release():
                self._leases.discard(asked.lease)
                self._service.release(asked.lease, self._peer, escaped(asked.reason[:MAX_REASON]))
                return messages.Done(number=asked.number)
            case messages.ListLeases() | messages.ListServers():
                return asked  # built when it is written
            case _:
                raise InvalidInput("message", f"a broker does not accept {type(asked).__name__}")


class ServerSessions:
    """The connections of all servers, by name. A newer connection replaces an older one of the same run of the daemon.
    Another run waits until the older one is gone: its kernel closes the connection, or it stays silent."""

    def __init__(self, service: LeaseService) -> None:
        self._service = service
        self._changed: dict[str, asyncio.Event] = {}
        self._numbers = itertools.count(1)
        self._current: dict[str, tuple[int, str]] = {}
        """The number of the connection, and the server's run that has it."""
        service.push = self._push

    def _push(self, servers: set[str]) -> None:
        for server in servers:
            if server in self._changed:
                self._changed[server].set()

    async def run(self, hello: messages.Hello, connection: Connection, welcome: messages.Welcome) -> None:
        """Run until the connection ends. Raises Refused for a name that the caller may not use, AlreadyExists for one
        in use by another server, Unavailable, CorruptData."""
        name = hello.name
        check_role(connection.peer, "server")
        if connection.peer.startswith("server/") and connection.peer != f"server/{name}":
            raise Refused(f"{connection.peer} may not report as {escaped(name[:MAX_REASON])}")
        check_plain("name", name, at_most=MAX_REASON)
        check_plain("instance", hello.instance, at_most=MAX_REASON, empty=True)
        self._check_free(name, hello.instance)
        mine = next(self._numbers), hello.instance
        changed = asyncio.Event()
        self._current[name] = mine
        self._changed[name] = changed
        still: Callable[[], bool] = lambda: self._current.get(name) == mine  # noqa: E731
        try:
            await connection.send(welcome)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send_orders(name, connection, changed))
                await self._receive(name, connection, still)
                # Orders to the connection before may have been lost with it, whether or not the broker saw it end.
                if still():
                    changed.set()
                while still():
                    await self._receive(name, connection, still)
                raise Refused(f"another connection reports as {name} now")
        finally:
            if still():
                del self._current[name], self._changed[name]
                self._service.server_away(name)
                log.info("server away", server=name)

    def _check_free(self, name: str, instance: str) -> None:
        """Check that the name is free. Raises AlreadyExists."""
        if name not in self._current or self._current[name][1] == instance:
            return
        known = self._service.pool.servers.get(name)
        where = f", and serves at {known.address}" if known is not None else ""
        raise AlreadyExists(
            f"another server is connected as {name}{where}: use another --name, or end that server; its name is free "
            f"after {messages.SERVER_SILENCE_SECONDS:g} s of silence"
        )

    async def _receive(self, name: str, connection: Connection, still: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(messages.SERVER_SILENCE_SECONDS):
                reported = await connection.expect(messages.Reported)
        except TimeoutError as error:
            raise Refused(f"{name} was silent for {messages.SERVER_SILENCE_SECONDS:g} s") from error
        if reported.report.server != name:
            raise Refused(f"{name} reports as another server")
        if still():
            self._service.report(reported.report)

    async def _send_orders(self, name: str, connection: Connection, changed: asyncio.Event) -> None:
        took = 0.0
        while True:
            await changed.wait()
            await asyncio.sleep(max(GATHER_SECONDS, 2 * took))
            changed.clear()
            began = time.thread_time()
            await connection.send(self._service.orders(name))
            took = time.thread_time() - began
