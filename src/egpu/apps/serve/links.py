"""Networks of executors, and their links with those of the same caller on other servers, as the broker orders.

Of two servers the one whose name comes first connects to the other, over the pool's own connections. Each checks that
its orders name the other for that caller. So a link needs the broker's order on both sides, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from egpu.adapters.executors.networks import open_network
from egpu.adapters.pool import messages
from egpu.adapters.pool.client import dial, parse_address
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.links import LinkProcess
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import LOCAL_PEER, Credentials
from egpu.api.text import escaped
from egpu.core.leasing.links import network_address
from egpu_base.errors import ElasticGPUError, Refused, Unavailable
from egpu_base.system.processes import Process

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.5
AGAIN_SECONDS: Final = (0.1, 0.2, 0.5, 1.0)
MAX_NAME: Final = 64
"""Longest part of a stranger's name that messages quote."""
Key = tuple[str, str]
"""A caller, and the other server."""


class Links:
    """Links networks. `running` returns, by caller, a process of this server in its network."""

    def __init__(self, name: str, credentials: Credentials, running: Callable[[], Mapping[str, Process]]) -> None:
        self._name = name
        self._credentials = credentials
        self._running = running
        self._relay = Relay(credentials)
        self._wanted: dict[Key, str] = {}
        """The address of each server's listener."""
        self._processes: dict[str, LinkProcess] = {}
        self._opening = asyncio.Lock()
        self._calling: dict[Key, asyncio.Task[None]] = {}
        self._answering: dict[Key, asyncio.Task[None]] = {}
        self._orders_changed = asyncio.Event()

    def order(self, orders: messages.Orders) -> None:
        wanted = {(one.caller, one.server): one.address for one in orders.links}
        if not orders.settled:
            callers = {record.peer for record in orders.leases}
            wanted |= {key: address for key, address in self._wanted.items() if key[0] in callers and key not in wanted}
        self._wanted = wanted
        self._orders_changed.set()

    async def open(self, caller: str, process: Process) -> None:
        """Prepare the caller's network, in which this process is, for links: give it an address. NCCL reads the
        addresses once, when a program first uses it, so later links must find it there."""
        async with self._opening:
            network = await asyncio.to_thread(open_network, process)
            if network is None:
                return
            try:
                known = self._processes.get(caller)
                if known is not None and known.is_alive and known.inode == os.fstat(network).st_ino:
                    return
                if known is not None:
                    del self._processes[caller]
                    await known.close()
                self._processes[caller] = await LinkProcess.start(network, network_address(self._name))
            except ElasticGPUError as error:
                log.warning("network without a device: its links wait", caller=caller, reason=str(error))
            finally:
                os.close(network)

    async def run(self) -> None:
        """Keep the ordered links, forever."""
        try:
            while True:
                await self._step()
                self._orders_changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._orders_changed.wait()
        finally:
            tasks = [*self._calling.values(), *self._answering.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for process in self._processes.values():
                await process.close()
            await self._relay.close()

    async def _step(self) -> None:
        for caller, process in self._running().items():
            await self.open(caller, process)
        # Asked again: an executor that started meanwhile has its network ready.
        for caller in self._processes.keys() - self._running().keys():
            async with self._opening:
                await self._processes.pop(caller).close()
        for tasks in (self._calling, self._answering):
            for key in [key for key, task in tasks.items() if key not in self._wanted or task.done()]:
                tasks.pop(key).cancel()
        for key in self._wanted:
            if self._name < key[1] and key not in self._calling:
                self._calling[key] = asyncio.create_task(self._keep_calling(key))

    async def _keep_calling(self, key: Key) -> None:
        caller, server = key
        failures = 0
        while True:
            try:
                await self._call(caller, server)
                failures = 0
            except (ElasticGPUError, OSError) as error:
                log.info("not linked", caller=caller, server=server, reason=str(error))
                failures += 1
            await asyncio.sleep(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)])

    async def _call(self, caller: str, server: str) -> None:
        """Run one link, until it ends."""
        hello = messages.Hello(role="link", name=self._name, caller=caller)
        address = parse_address(self._wanted[caller, server], "server")
        expected = f"server/{server}"
        connection, _ = await dial(address, self._credentials, hello, expect=expected, relay=self._relay)
        await self._carry(connection, caller, server, last=None)

    async def come_in(self, connection: Connection, hello: messages.Hello) -> None:
        """Serve another server's link, until it ends. Raises Refused if the orders do not name it, Unavailable."""
        key = (hello.caller, hello.name)
        if connection.peer not in (f"server/{hello.name}", LOCAL_PEER):
            raise Refused(f"{connection.peer} is not server {escaped(hello.name[:MAX_NAME])}")
        if key not in self._wanted or hello.name >= self._name:
            raise Refused("the broker has not ordered this link")
        task = asyncio.current_task()
        assert task is not None
        before = self._answering.pop(key, None)
        if before is not None:
            before.cancel()
        self._answering[key] = task
        try:
            await self._carry(connection, *key, last=messages.Welcome(name=connection.peer))
        finally:
            if self._answering.get(key) is task:
                del self._answering[key]

    async def _carry(self, connection: Connection, caller: str, server: str, *, last: messages.Message | None) -> None:
        """Carry a link. The side that connects speaks first: earlier data of the other side would be lost."""
        try:
            process = self._processes.get(caller)
            if process is None:
                raise Unavailable(f"no executor of {caller} has a network on {self._name} now")
            ours, theirs = socket.socketpair()
            with contextlib.closing(ours):
                with contextlib.closing(theirs):
                    process.join(network_address(server), theirs, answers=last is not None)
                log.info("linked", caller=caller, server=server)
                await connection.hand_over(ours, last=last)
        finally:
            if last is None:  # the listener closes incoming connections
                await connection.close()
