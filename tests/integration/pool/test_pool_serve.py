"""The node daemon with a stand-in for the executor: who is started, joined, resized, found again and ended."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.cards.nvml import CardProcess, NvmlInventory
from egpu.adapters.executors.leftovers import processes_of
from egpu.adapters.executors.supervisor import POLL_SECONDS
from egpu.adapters.pool import authority, messages
from egpu.adapters.pool.bridge import GONE, Bridge, Target
from egpu.adapters.pool.client import PoolClient, dial, machine_id, parse_address
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.lease import HeldLease
from egpu.adapters.pool.security import Credentials
from egpu.adapters.slices import overruns
from egpu.adapters.slices.pages import read_policy
from egpu.apps.broker import Broker
from egpu.apps.serve import ServeConfig, Server, app
from egpu.core.leasing import tokens
from egpu.core.leasing.records import LeaseRequest, Report
from egpu_base.errors import DoesNotFit, NotFound, Refused, TooSoon, Unavailable
from egpu_base.runtime.supervisor import Supervisor
from egpu_sim.machines.machine import Machine
from support import in_process_pool
from support.waiting import DEADLINE_SECONDS, until

pytestmark = pytest.mark.usefixtures("executor_that_runs_nothing")

ASKED_OFFSET = 64 + 72
"""In a usage file: when the first card was last asked for something."""
REQUEST = LeaseRequest(cards=1, core=50, memory_mib=1000)


@contextlib.asynccontextmanager
async def serving(
    broker: Broker,
    credentials: Credentials,
    machine: Machine,
    state_dir: Path,
    name: str = "one",
    *,
    watch_seconds: float = ServeConfig.watch_seconds,
    report_seconds: float = ServeConfig.report_seconds,
) -> AsyncGenerator[Server]:
    """A daemon in this process; leaving it is as killing it, as far as its executors can tell."""
    config = ServeConfig(
        name=name, broker=str(broker.address), credentials=credentials, state_dir=state_dir,
        driver_dir=machine.driver_dir, nvml_library=machine.driver_dir / "libnvidia-ml.so.1", link_mbps=1000,
        watch_seconds=watch_seconds, report_seconds=report_seconds,
    )  # fmt: skip
    server = Server(config)
    supervisor = Supervisor(signals=())
    running = asyncio.create_task(server.run(supervisor))
    try:
        await until(lambda: name in broker.service.pool.servers or running.done())
        yield server
    finally:
        supervisor.stop()
        await running


async def acquire(client: PoolClient, request: str = "1", *, cards: int = 1, core: int = 50) -> messages.Granted:
    return await client.acquire(request=request, holder="pod:a", cards=cards, core=core, memory_mib=1000)


async def join(server: Server, granted: messages.Granted, credentials: Credentials, **other: str) -> Connection:
    said: dict[str, Any] = {"lease": granted.lease.lease, "token": granted.token, **other}
    hello = messages.Hello(role="data", **said)
    connection, _ = await dial(server.listener.address, credentials, hello, expect="server")
    connection.writer.write(b"\n")
    return connection


async def test_an_executor_runs_with_its_limits_and_its_cards_and_is_gone_at_the_end(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with (
        in_process_pool.broker(credentials) as broker,
        serving(broker, credentials, machine, state_dir) as server,
    ):
        client = await in_process_pool.client(broker, credentials)
        granted = await acquire(client, cards=2)
        directory = state_dir / "leases" / granted.lease.lease
        policy = read_policy(directory / "policy")
        assert [(device.core_ppm, device.memory_limit_bytes >> 20) for device in policy.devices] == [
            (500_000, 1000)
        ] * 2
        connection = await join(server, granted, credentials)
        greeting = (await connection.reader.readline()).decode().split()
        assert greeting == [granted.lease.lease, ",".join(card.share.uuid for card in granted.lease.cards)]
        connection.writer.write(b"ping")
        assert await connection.reader.readexactly(4) == b"ping"

        await client.resize(granted.lease.lease, core=20, memory_mib=2000)
        policy = read_policy(directory / "policy")
        assert [(device.core_ppm, device.memory_limit_bytes >> 20) for device in policy.devices] == [
            (200_000, 2000)
        ] * 2

        pids = processes_of(directory)
        assert pids
        await client.release(granted.lease.lease)
        await until(lambda: not broker.service.pool.leases)
        assert processes_of(directory) == []
        assert not directory.exists()
        assert await connection.reader.read() == b""
        await client.close()


async def test_leases_that_work_at_once_have_windows(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    """Nobody else is there to share out the cards' time."""
    credentials = in_process_pool.secret(tmp_path)
    async with (
        in_process_pool.broker(credentials) as broker,
        serving(broker, credentials, machine, state_dir) as server,
    ):
        client = await in_process_pool.client(broker, credentials)
        leases = [await acquire(client, str(number)) for number in range(2)]
        programs = [await join(server, lease, credentials) for lease in leases]
        places = [state_dir / "leases" / lease.lease.lease for lease in leases]

        def both_have_windows() -> bool:
            for place in places:
                with (place / "usage").open("r+b") as usage:
                    usage.seek(ASKED_OFFSET)
                    usage.write(struct.pack("<Q", time.monotonic_ns()))
            return all(read_policy(place / "policy").devices[0].window is not None for place in places)

        await until(both_have_windows)
        for program in programs:
            await program.close()
        await client.close()


async def test_a_lease_that_stays_over_its_memory_is_ended_and_says_why(
    tmp_path: Path, machine: Machine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the driver's word alone; another lease, which its broker shrank while it held more, lives on. Whose it was
    waits for the next one."""
    held: dict[int, int] = {}

    def processes(_: NvmlInventory) -> dict[str, tuple[CardProcess, ...]]:
        return {card.uuid: tuple(CardProcess(*each) for each in held.items()) for card in machine.cards}

    monkeypatch.setattr(NvmlInventory, "processes", processes)
    credentials = in_process_pool.secret(tmp_path)
    async with (
        in_process_pool.broker(credentials) as broker,
        serving(broker, credentials, machine, state_dir) as server,
    ):
        told: dict[str, str] = {}
        client = await PoolClient.connect(broker.address, credentials, told.__setitem__)
        hostile, shrunk = await acquire(client, "1"), await acquire(client, "2")
        for granted, mib in ((hostile, 5000), (shrunk, 1000)):
            executor = server.leases.executor(granted.lease.lease)
            assert executor is not None
            held[executor.process.pid] = mib << 20
        with (state_dir / "leases" / shrunk.lease.lease / "usage").open("r+b") as usage:
            usage.seek(64)
            usage.write((1000 << 20).to_bytes(8, "little"))  # what its interposer granted before
        await client.resize(shrunk.lease.lease, core=50, memory_mib=100)
        await until(lambda: told.keys() == {hostile.lease.lease})
        assert "holds 5000 MiB of card GPU-" in told[hostile.lease.lease]
        assert "may hold 1000 MiB" in told[hostile.lease.lease]
        assert processes_of(state_dir / "leases" / hostile.lease.lease) == []
        await asyncio.sleep(overruns.INTERVAL_SECONDS * 6)
        assert server.leases.executor(shrunk.lease.lease) is not None
        with pytest.raises(TooSoon, match=r"local exceeded its GPU memory limit and was terminated once; try again"):
            await acquire(client, "3")
        await client.renew(shrunk.lease.lease)
        await client.close()


async def test_the_broker_hears_of_a_server_however_long_reports_take_and_not_the_same_again_and_again(
    tmp_path: Path, machine: Machine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REPORT_REST", 1e9)
    monkeypatch.setattr(app, "REPORT_AGAIN_SECONDS", POLL_SECONDS)
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        heard: list[Report] = []
        take_in = broker.service.report
        monkeypatch.setattr(broker.service, "report", lambda report: (heard.append(report), take_in(report)))
        async with serving(broker, credentials, machine, state_dir, report_seconds=POLL_SECONDS) as server:
            await until(lambda: len(heard) > 3)
            made: list[Report] = []
            make = server.report
            monkeypatch.setattr(server, "report", lambda: made.append(make()) or made[-1])
            monkeypatch.setattr(app, "REPORT_AGAIN_SECONDS", DEADLINE_SECONDS)
            monkeypatch.setattr(app, "REPORT_REST", 0.0)
            await until(lambda: len(made) > 1)
            before = len(heard)
            await until(lambda: len(made) > 10)
            assert len(heard) == before
            server.leases.cards = {}
            await until(lambda: len(heard) > before and heard[-1].cards == ())


async def test_what_an_idle_lease_uses_is_read_again_once_a_program_has_used_it(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with (
        in_process_pool.broker(credentials) as broker,
        serving(broker, credentials, machine, state_dir) as server,
    ):
        client = await in_process_pool.client(broker, credentials)
        granted = await acquire(client)
        place = state_dir / "leases" / granted.lease.lease

        def uses(mib: int) -> None:
            with (place / "usage").open("r+b") as usage:
                usage.seek(64)
                usage.write((mib << 20).to_bytes(8, "little"))

        def told() -> list[tuple[int, tuple[int, ...]]]:
            return [(one.sessions, one.used_mib) for one in server.leases.report()]

        await until(lambda: told() == [(0, (0,))])
        program = await join(server, granted, credentials)
        uses(500)
        await until(lambda: told() == [(1, (500,))])
        uses(700)
        assert told() == [(1, (700,))]
        uses(20)
        await program.close()
        await until(lambda: told() == [(0, (20,))])
        await client.close()


async def test_a_daemon_that_starts_again_finds_its_executors(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        client = await in_process_pool.client(broker, credentials)
        async with serving(broker, credentials, machine, state_dir):
            granted = await acquire(client)
        directory = state_dir / "leases" / granted.lease.lease
        before = processes_of(directory)
        (state_dir / "leases" / "lease-torn").mkdir()
        async with serving(broker, credentials, machine, state_dir) as server:
            await until(lambda: server.leases.executor(granted.lease.lease) is not None)
            assert processes_of(directory) == before
            assert not (state_dir / "leases" / "lease-torn").exists()
            renewed = await client.renew(granted.lease.lease)
            connection = await join(server, renewed, credentials)
            assert (await connection.reader.readline()).startswith(granted.lease.lease.encode())
            await client.close()
            await until(lambda: not broker.service.pool.leases)
        assert processes_of(directory) == []


async def test_leases_survive_the_broker_and_their_holder_goes_on(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        first = in_process_pool.broker(credentials)
        broker = await first.__aenter__()
        address = str(broker.address)
        await stack.enter_async_context(serving(broker, credentials, machine, state_dir))
        lost: list[str] = []
        held = HeldLease(parse_address(address), credentials, REQUEST, holder="pod:a", on_ended=lost.append)
        lease = (await held.take()).lease
        directory = state_dir / "leases" / lease
        before = processes_of(directory)
        await first.__aexit__(None, None, None)
        await asyncio.sleep(1.5)
        again = await stack.enter_async_context(in_process_pool.broker(credentials, address))
        await until(lambda: lease in again.service._holding)
        assert processes_of(directory) == before
        assert lost == []
        await held.close()
        await until(lambda: not again.service.pool.leases)
        assert processes_of(directory) == []


async def test_a_killed_executor_ends_the_lease_though_its_holder_renews_it(
    tmp_path: Path, machine: Machine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("egpu.apps.serve.supervisor.ALL_SECONDS", 3600.0)  # it is told, not looked for
    credentials = in_process_pool.secret(tmp_path)
    ended: list[tuple[str, str]] = []
    async with in_process_pool.broker(credentials) as broker, serving(broker, credentials, machine, state_dir):
        client = await PoolClient.connect(broker.address, credentials, lambda *lease_why: ended.append(lease_why))
        one, other = await acquire(client), await acquire(client, "2", core=20)
        for pid in processes_of(state_dir / "leases" / one.lease.lease):
            os.kill(pid, signal.SIGKILL)
        [(lease, why)] = await until(lambda: ended)
        assert lease == one.lease.lease
        assert "its executor is gone" in why
        assert (await client.renew(other.lease.lease)).lease.state == "active"
        await client.close()


async def test_forged_expired_and_foreign_tokens_open_nothing(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with (
        in_process_pool.broker(credentials) as broker,
        serving(broker, credentials, machine, state_dir) as server,
    ):
        client = await in_process_pool.client(broker, credentials)
        one, other = await acquire(client), await acquire(client, "2", core=20)
        lease = broker.service.pool.leases[one.lease.lease]

        def issued(key: str = lease.key, **changed: str | float) -> str:
            said = {
                "lease": lease.id,
                "holder": lease.holder,
                "peer": lease.peer,
                "expires": time.time() + 60,
                **changed,
            }
            return tokens.issue(tokens.Claims(**said), key)  # type: ignore[arg-type]

        for token, why in (
            (other.token, "not issued for"),
            (one.token[:-2] + "AA", "not issued for"),
            ("", "not a lease token"),
            ("x" * 4000, "not a lease token"),
            (issued(key="0" * 64), "not issued for"),
            (issued(peer="client/else"), "may not use it"),
            (issued(lease=other.lease.lease), "is for lease"),
        ):
            with pytest.raises(Refused, match=why):
                await join(server, one, credentials, token=token)
        with pytest.raises(Unavailable, match="expired"):  # clocks may differ, until they are set right
            await join(server, one, credentials, token=issued(expires=time.time() - 1))
        with pytest.raises((Refused, NotFound)):
            await join(server, one, credentials, lease="../../etc")
        connection = await join(server, one, credentials)
        assert await connection.reader.readline()
        await connection.close()
        await client.close()


async def test_an_executor_that_cannot_start_says_why_and_holds_nothing(
    tmp_path: Path, machine: Machine, state_dir: Path
) -> None:
    """Also when the daemon's own watch is the first to see that it is dead, as here."""
    credentials = in_process_pool.secret(tmp_path)
    (tmp_path / "egpu-executor").write_text("#!/bin/sh\necho 'the driver is too old' >&2\nsleep 0.05\nexit 5\n")
    async with (
        in_process_pool.broker(credentials) as broker,
        serving(broker, credentials, machine, state_dir, watch_seconds=POLL_SECONDS / 10),
    ):
        client = await in_process_pool.client(broker, credentials)
        with pytest.raises(DoesNotFit, match="the driver is too old"):
            await acquire(client)
        await until(lambda: not broker.service.pool.leases)
        await until(lambda: list((state_dir / "leases").iterdir()) == [])
        await client.close()


@pytest.mark.parametrize("way", ["same machine", "by its server", "over TLS"])
async def test_a_program_takes_its_lease_when_it_first_connects(
    tmp_path: Path, machine: Machine, state_dir: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "same machine":
        monkeypatch.setattr("egpu.adapters.pool.bridge._connectable", lambda _path: False)
    credentials = of_broker = of_server = in_process_pool.secret(tmp_path)
    if way == "over TLS":
        credentials = authority.issue(tmp_path / "pki", "client", "ann")
        of_broker, of_server = (authority.issue(tmp_path / "pki", role, "one") for role in ("broker", "server"))
    async with in_process_pool.broker(of_broker) as broker, serving(broker, of_server, machine, state_dir):
        state_dir.joinpath("program").mkdir()
        held = HeldLease(broker.address, credentials, REQUEST, holder="process:a")
        bridge = Bridge(state_dir / "program", credentials, held.take)
        await bridge.open()
        assert broker.service.pool.leases == {}

        def talk() -> bytes:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(DEADLINE_SECONDS)
                sock.connect(str(state_dir / "program" / "lease0.sock"))
                sock.sendall(b"\n")
                file = sock.makefile("rb")
                said = file.readline()
                much = os.urandom(3_000_001)
                sending = threading.Thread(target=sock.sendall, args=(much,))
                sending.start()
                assert file.read(len(much)) == much
                sending.join()
                return said

        said = await asyncio.to_thread(talk)
        (lease,) = broker.service.pool.leases
        assert said.startswith(lease.encode())
        assert (await asyncio.to_thread(talk)).startswith(lease.encode())
        await held.close()
        await bridge.close()
        await until(lambda: not broker.service.pool.leases)


async def test_a_killed_program_is_said_goodbye_for(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker, serving(broker, credentials, machine, state_dir):
        state_dir.joinpath("program").mkdir()
        held = HeldLease(broker.address, credentials, REQUEST, holder="process:a")
        bridge = Bridge(state_dir / "program", credentials, held.take)
        await bridge.open()
        code = (
            "import socket,time,sys\ns=socket.socket(socket.AF_UNIX)\n"
            f"s.connect({str(state_dir / 'program' / 'lease0.sock')!r})\ns.send(b'.')\ns.recv(1)\n"
            "print(flush=True)\ntime.sleep(60)"
        )
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        await child.stdout.readline()
        child.kill()
        await child.wait()
        (lease,) = broker.service.pool.leases
        events = state_dir / "leases" / lease / "events"
        await until(lambda: '"goodbye"' in events.read_text())
        await held.close()
        await bridge.close()


async def test_a_program_whose_executor_is_dead_is_told(tmp_path: Path, state_dir: Path) -> None:
    dead = state_dir / "dead.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(dead))
    part = messages.PartView(server="one", address="127.0.0.1:1", host=machine_id(), socket=str(dead), cards=1)

    greeted = asyncio.Event()

    async def take() -> Target:
        await greeted.wait()
        return Target("lease", (part,), "")

    bridge = Bridge(state_dir, in_process_pool.secret(tmp_path), take)
    await bridge.open()
    reader, writer = await asyncio.open_unix_connection(str(state_dir / "lease0.sock"))
    writer.write(b"a greeting that nobody will read")
    await writer.drain()
    greeted.set()
    await asyncio.sleep(0.2)  # by now it is closed, where nobody waits for the greeting
    assert await reader.readexactly(len(GONE)) == GONE
    writer.close()
    await bridge.close()


async def test_mutual_tls_knows_everybody_by_name(tmp_path: Path, machine: Machine, state_dir: Path) -> None:
    pki = tmp_path / "pki"
    of = {name: authority.issue(pki, role, name) for role, name in (  # type: ignore[arg-type]
        ("broker", "b"), ("server", "one"), ("server", "two"), ("client", "ann"), ("client", "bob"), ("admin", "op"),
    )}  # fmt: skip
    foreign = authority.issue(tmp_path / "foreign", "client", "ann")
    async with in_process_pool.broker(of["b"]) as broker, serving(broker, of["one"], machine, state_dir) as server:
        ann, bob = await in_process_pool.client(broker, of["ann"]), await in_process_pool.client(broker, of["bob"])
        granted = await acquire(ann)
        lease = granted.lease.lease
        assert granted.lease.peer == "client/ann"
        connection = await join(server, granted, of["ann"])
        assert (await connection.reader.readline()).startswith(lease.encode())
        await connection.close()
        with pytest.raises(Refused, match="client/bob may not use it"):
            await join(server, granted, of["bob"])
        for attempt in (bob.renew(lease), bob.release(lease), bob.resize(lease, core=1, memory_mib=None)):
            with pytest.raises(NotFound, match="there is no lease"):
                await attempt
        assert await bob.leases() == ()
        operator = await in_process_pool.client(broker, of["op"])
        assert [one.lease for one in await operator.leases()] == [lease]
        with pytest.raises((Refused, Unavailable)):
            await PoolClient.connect(broker.address, foreign)
        with pytest.raises((Refused, Unavailable)):
            await PoolClient.connect(broker.address, in_process_pool.secret(tmp_path))
        hello = messages.Hello(role="server", name="one")
        for who in ("two", "ann"):
            with pytest.raises(Refused, match="may not"):
                await dial(broker.address, of[who], hello, expect="broker")
        with pytest.raises(Refused, match="expected a certificate of broker"):
            await dial(server.listener.address, of["ann"], hello, expect="broker")
        await operator.release(lease)
        for client in (ann, bob, operator):
            await client.close()
