"""A pool of the real broker and daemons in one process, with a stand-in for the executor, and a program whose counter
goes on wherever it is."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from egpu.adapters.executors.leftovers import processes_of
from egpu.adapters.pool import authority, messages
from egpu.adapters.pool.bridge import Bridge
from egpu.adapters.pool.client import PoolClient
from egpu.adapters.pool.lease import HeldLease
from egpu.adapters.pool.security import Credentials, Role
from egpu.apps.broker import Broker
from egpu.apps.serve import ServeConfig, Server
from egpu.core.leasing.records import LeaseRequest
from egpu_base.errors import Refused, Unavailable
from egpu_base.runtime.supervisor import Supervisor
from egpu_sim.machines.machine import Machine
from support import in_process_pool
from support.waiting import until

LATE_SECONDS = 0.5
REQUEST = LeaseRequest(cards=1, core=50, memory_mib=1000)


class Daemons:
    """Servers of one pool in this process. `stop` is as killing one: executors stay."""

    def __init__(
        self, address: str, credentials: Callable[[str], Credentials], machine: Machine, state_dir: Path
    ) -> None:  # fmt: skip
        self._address, self._credentials, self._machine, self._state_dir = address, credentials, machine, state_dir
        self.servers: dict[str, Server] = {}
        self._running: dict[str, tuple[Supervisor, asyncio.Task[None]]] = {}

    async def start(self, name: str) -> Server:
        config = ServeConfig(
            name=name,
            broker=self._address,
            credentials=self._credentials(f"server/{name}"),
            state_dir=self._state_dir / name,
            driver_dir=self._machine.driver_dir,
            nvml_library=self._machine.driver_dir / "libnvidia-ml.so.1",
            link_mbps=1000,
        )
        server = self.servers[name] = Server(config)
        supervisor = Supervisor(signals=())
        running = asyncio.create_task(server.run(supervisor))
        self._running[name] = supervisor, running
        await until(lambda: server.connected or running.done())
        return server

    async def stop(self, name: str) -> None:
        supervisor, running = self._running.pop(name)
        supervisor.stop()
        await running

    async def close(self) -> None:
        for name in list(self._running):
            await self.stop(name)

    def places(self, lease: str) -> list[str]:
        """The directories of its executors, by server."""
        return sorted(
            f"{path.parent.parent.name}/{path.name}"
            for path in self._state_dir.glob(f"*/leases/{lease}*")
            if path.is_dir()
        )

    def processes(self, place: str = "*/leases/lease-*") -> list[int]:
        """The processes of executors in these directories."""
        return [pid for path in self._state_dir.glob(place) for pid in processes_of(path)]

    def kill(self, place: str) -> None:
        pids = self.processes(place)
        assert pids, f"no executor runs in {place}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def hears_late(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a server carry its orders out when all others have done so long ago."""
        server = self.servers[name]
        obey, loop = server._order, asyncio.get_running_loop()
        monkeypatch.setattr(server, "_order", lambda orders: loop.call_later(LATE_SECONDS, obey, orders))

    def slow(self, name: str) -> None:
        """Let targets on this server answer late."""
        (self._state_dir / name / "leases" / "slow").touch()

    def fast(self) -> None:
        for slow in self._state_dir.glob("*/leases/slow"):
            slow.unlink()

    def hinder(self, place: str, *, hindered: bool) -> None:
        file = self._state_dir / place / "hindrance"
        if hindered:
            file.touch()
        else:
            file.unlink()

    def files_with(self, secret: str) -> list[Path]:
        """The files of the servers that have this text."""
        files = [path for path in self._state_dir.rglob("*") if path.is_file()]
        return [path for path in files if secret.encode() in path.read_bytes()]


class Program:
    """What a program's driver does: it connects to its socket again and again, and repeats what has no answer."""

    def __init__(self, directory: Path, name: str = "one") -> None:
        self._socket = directory / "lease0.sock"
        self._name = name
        self.number = 0
        self.lost = ""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_unix_connection(str(self._socket))
                with contextlib.closing(writer):
                    while True:
                        writer.write(f"{self._name} {self.number + 1}\n".encode())
                        line = (await reader.readline()).decode(errors="replace")
                        if not line.endswith("\n"):
                            break
                        if line != f"{self.number + 1} {self.number + 1}\n":
                            self.lost = line
                            return
                        self.number += 1
                        await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)

    async def goes_on(self) -> None:
        """Wait until it has counted further."""
        before = self.number
        await until(lambda: self.number > before + 5 or bool(self.lost))
        assert not self.lost

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class World:
    """A pool with two servers, and a program with a lease on one of them."""

    def __init__(
        self, broker: Broker, daemons: Daemons, held: HeldLease, program: Any, asker: PoolClient,
        running: contextlib.AsyncExitStack,
    ) -> None:  # fmt: skip
        self.broker, self.daemons, self.held, self.program, self.asker = broker, daemons, held, program, asker
        assert held.lease is not None
        self.lease = held.lease.lease
        self._running = running

    async def restart_broker(self, credentials: Credentials) -> None:
        """Another broker, which knows nothing, at the same address."""
        address = str(self.broker.address)
        await self._running.aclose()
        self.broker = await self._running.enter_async_context(in_process_pool.broker(credentials, address))
        await self.asker.close()
        self.asker = await in_process_pool.client(self.broker, credentials)
        await until(lambda: self.lease in self.broker.service._holding)

    @property
    def where(self) -> str:
        assert self.held.lease is not None
        return self.held.lease.parts[0].server

    @property
    def elsewhere(self) -> str:
        return "two" if self.where == "one" else "one"

    async def settled(self) -> None:
        """Wait until the broker knows one place of the lease only, so that the lease can move again."""
        await until(lambda: self.broker.service.pool.leases[self.lease].second is None)


@contextlib.asynccontextmanager
async def world(
    directory: Path,
    machine: Machine,
    state_dir: Path,
    *,
    tls: bool = False,
    program_of: Callable[[Path], Any] = Program,
) -> AsyncGenerator[World]:
    """A pool with its secret or certificates in `directory`, and its servers below `state_dir`; `program_of` starts the
    program in a directory with its socket."""

    def of(name: str) -> Credentials:
        role, _, who = name.partition("/")
        return authority.issue(directory / "pki", cast(Role, role), who) if tls else in_process_pool.secret(directory)

    credentials = of("admin/ann")
    async with contextlib.AsyncExitStack() as running, contextlib.AsyncExitStack() as stack:
        broker = await running.enter_async_context(in_process_pool.broker(of("broker/b")))
        daemons = Daemons(str(broker.address), of, machine, state_dir)
        stack.push_async_callback(daemons.close)
        for name in ("one", "two"):
            await daemons.start(name)
        held = HeldLease(broker.address, credentials, REQUEST, holder="h")
        stack.push_async_callback(held.close)
        program_dir = state_dir / "program"
        os.mkdir(program_dir)
        bridge = Bridge(program_dir, credentials, held.take, follow=held.follow)
        stack.push_async_callback(bridge.close)
        await bridge.open()
        program = program_of(program_dir)
        stack.push_async_callback(program.close)
        await program.goes_on()
        made = World(broker, daemons, held, program, await in_process_pool.client(broker, credentials), running)
        yield made
        await made.asker.close()


async def begun(made: World, target: str) -> "asyncio.Task[messages.Arrived]":
    """Begin a move whose target has the sessions and does not say so until the file `slow` is gone."""
    made.daemons.slow(target)
    moving = asyncio.create_task(made.asker.move(made.lease, server=target))
    arrivals = made.daemons.servers[target].arrivals
    # The source has the stream of every executor that is ready for it.
    await until(lambda: bool(arrivals._ready - arrivals._waiting.keys()), lambda: f"the move began: {moving}")
    return moving


async def not_moved(made: World, moving: "asyncio.Task[messages.Arrived]", source: str) -> None:
    with pytest.raises((Refused, Unavailable)):
        await moving
    made.daemons.fast()
    await made.program.goes_on()
    assert made.where == source
    await until(lambda: len(made.daemons.places(made.lease)) == 1)
    await until(lambda: len(made.broker.service.pool.ledger.holders()) == 1)
    await made.settled()
    await made.asker.move(made.lease)
    await made.program.goes_on()
