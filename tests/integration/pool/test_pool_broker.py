"""The broker over real sockets: grants and their ends, who may do what, restarts, thousands of leases at once."""

import asyncio
import re
import socket
import struct
from dataclasses import replace
from pathlib import Path

import httpx2
import msgspec
import pytest

from egpu.adapters import native
from egpu.adapters.pool import messages
from egpu.adapters.pool.client import PoolClient, dial
from egpu.adapters.pool.lease import HeldLease
from egpu.adapters.pool.programs import run_in_pool
from egpu.adapters.pool.security import Credentials, create_secret
from egpu.apps.broker import Broker, BrokerConfig
from egpu.core.leasing.pool import TTL_SECONDS
from egpu.core.leasing.records import LeaseRequest
from egpu.laptop.machines import making_ptx
from egpu_base.errors import DoesNotFit, InvalidInput, NotFound, Refused, Unavailable
from egpu_base.http.listening import Listen
from egpu_base.runtime.supervisor import Supervisor
from support import in_process_pool
from support.waiting import DEADLINE_SECONDS, until

REQUEST = LeaseRequest(cards=1, core=50, memory_mib=1000)


async def acquire(client: PoolClient, request: str = "1", **other: int | str) -> messages.Granted:
    asked = {"cards": 1, "core": 50, "memory_mib": 1000, "holder": "pod:a", **other}
    return await client.acquire(request=request, **asked)  # type: ignore[arg-type]


async def test_a_lease_is_granted_resized_and_released(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        server = in_process_pool.FakeServer("one", broker.address, credentials, cards=2)
        await server.start()
        client = await in_process_pool.client(broker, credentials)
        granted = await acquire(client, cards=2)
        lease = granted.lease.lease
        assert granted.lease.state == "active"
        assert [card.share.core for card in granted.lease.cards] == [50, 50]
        assert lease in server.runs

        resized = await client.resize(lease, core=20, memory_mib=3000)
        assert [(card.share.core, card.share.memory_mib) for card in resized.lease.cards] == [(20, 3000)] * 2
        assert server.runs[lease].cards[0].memory_mib == 3000
        with pytest.raises(DoesNotFit, match="has 100 %"):
            await client.resize(lease, core=None, memory_mib=in_process_pool.CARD_MIB + 1)
        with pytest.raises(InvalidInput, match="core"):
            await client.resize(lease, core=101, memory_mib=None)

        await client.release(lease)
        await until(lambda: not broker.service.pool.leases)
        assert server.runs == {}
        with pytest.raises(NotFound, match="it ended, released"):
            await client.renew(lease)
        await client.close()
        await server.stop()


async def test_what_does_not_fit_says_why_and_changes_nothing(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        client = await in_process_pool.client(broker, credentials)
        with pytest.raises(DoesNotFit, match="no server"):
            await acquire(client)
        server = in_process_pool.FakeServer("one", broker.address, credentials)
        await server.start()
        await acquire(client, core=80)
        with pytest.raises(DoesNotFit, match="one: "):
            await acquire(client, "2", core=30)
        assert len(broker.service.pool.leases) == 1
        await metrics_are_for_who_has_the_token(broker, tmp_path)
        await client.close()
        await server.stop()


async def metrics_are_for_who_has_the_token(broker: Broker, tmp_path: Path) -> None:
    """One lease, and two requests that found no room."""

    async def page(token: str = "") -> httpx2.Response:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://broker") as http:
            assert (await http.get("/healthz")).status_code == 200
            return await http.get("/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})

    app = broker.monitoring_app()
    assert (await page("secret")).status_code == 404, "without a token nobody may"
    file = tmp_path / "token"
    broker.config = replace(broker.config, metrics_token_file=file)
    app = broker.monitoring_app()
    assert [(await page(token)).status_code for token in ("", "secret")] == [401, 401], "there is no such file"
    file.write_text("secret\n")
    assert [(await page(token)).status_code for token in ("", "other", "secret")] == [401, 401, 200]
    told = (await page("secret")).text
    assert 'elasticgpu_pool_refusals_total{reason="room"} 2.0' in told
    assert "elasticgpu_pool_acquire_seconds_count 1.0" in told
    (age,) = re.findall(r'elasticgpu_pool_lease_age_seconds\{holder="pod:a",.*state="active"\} ([\d.e-]+)', told)
    assert 0 <= float(age) < DEADLINE_SECONDS


async def test_orders_that_were_on_their_way_to_a_replaced_connection_are_sent_again(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        deaf = in_process_pool.FakeServer("one", broker.address, credentials)
        await deaf.start()
        await until(lambda: deaf.read[0] != "")
        assert deaf.task is not None
        deaf.task.cancel()  # what is sent to it from now on is lost, and nobody has noticed that its connection is
        client = await in_process_pool.client(broker, credentials)
        asking = asyncio.create_task(acquire(client))
        await until(lambda: bool(broker.service.pool.leases))
        await asyncio.sleep(0.2)
        again = in_process_pool.FakeServer("one", broker.address, credentials)
        again.read = deaf.read
        await again.start()
        assert (await asking).lease.lease in again.runs
        await client.close()
        await again.stop()
        await deaf.stop()


async def test_what_may_fit_when_a_server_is_back_is_asked_again_and_not_refused(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        server = in_process_pool.FakeServer("one", broker.address, credentials)
        await server.start()
        client = await in_process_pool.client(broker, credentials)
        await server.stop()
        await until(lambda: broker.service.pool.servers["one"].away_since is not None)
        with pytest.raises(Unavailable, match="one may be back soon"):
            await acquire(client)
        held = HeldLease(broker.address, credentials, REQUEST, holder="pod:a")
        taking = asyncio.create_task(held.take())
        await asyncio.sleep(0.3)
        assert not taking.done()
        await server.start()
        assert (await taking).lease in server.runs
        await held.close()
        await client.close()
        await server.stop()


async def test_a_broker_that_does_not_answer_is_spoken_of_at_once_and_asked_again(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = Listen("127.0.0.1", nobody.getsockname()[1])
        said: list[str] = []
        held = HeldLease(address, credentials, REQUEST, holder="pod:a", on_silence=said.append)
        taking = asyncio.create_task(held.take())
        await until(lambda: bool(said))
        await asyncio.sleep(0.5)
        assert not taking.done()
        taking.cancel()
        await held.close()
    assert len(said) == 1
    assert f"127.0.0.1:{address.port} does not answer" in said[0]


async def test_who_does_not_want_to_wait_for_a_broker_is_told_at_once(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = Listen("127.0.0.1", nobody.getsockname()[1])
        held = HeldLease(address, credentials, REQUEST, holder="pod:a", wait_seconds=0)
        with pytest.raises(Unavailable, match="does not answer"):
            await asyncio.wait_for(held.take(), 30)  # it would be asked for a minute
        await held.close()


async def test_a_broker_that_has_just_started_refuses_nobody_for_want_of_servers(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials, gather_seconds=DEADLINE_SECONDS) as broker:
        client = await in_process_pool.client(broker, credentials)
        with pytest.raises(Unavailable, match="started a moment ago"):
            await acquire(client)
        await client.close()


async def test_the_same_machine_comes_first_then_the_fastest_link_then_several_servers(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        servers = [
            in_process_pool.FakeServer("slow", broker.address, credentials, link=1_000),
            in_process_pool.FakeServer("fast", broker.address, credentials, link=100_000),
            in_process_pool.FakeServer("here", broker.address, credentials, link=1_000, host="my-machine"),
        ]
        for server in servers:
            await server.start()
        client = await in_process_pool.client(broker, credentials)

        async def where(request: str, **other: int | str) -> list[str]:
            return [card.server for card in (await acquire(client, request, host="my-machine", **other)).lease.cards]

        assert await where("1", core=60) == ["here"]
        assert await where("2", core=60) == ["fast"]
        assert await where("3", core=40, cards=3) == ["here", "fast", "slow"]
        await client.close()
        for server in servers:
            await server.stop()


async def test_a_killed_holder_gives_back_at_once(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        server = in_process_pool.FakeServer("one", broker.address, credentials)
        await server.start()
        client = await in_process_pool.client(broker, credentials)
        await acquire(client)
        client._connection.writer.transport.abort()  # what the kernel does for a killed process
        await until(lambda: not broker.service.pool.leases, seconds=TTL_SECONDS / 2)  # noticed, not timed out
        assert server.runs == {}
        await client.close()
        await server.stop()


async def test_a_holder_that_comes_back_at_once_keeps_its_lease(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        server = in_process_pool.FakeServer("one", broker.address, credentials)
        await server.start()
        first = await in_process_pool.client(broker, credentials)
        lease = (await acquire(first)).lease.lease
        await first.close()
        second = await in_process_pool.client(broker, credentials)
        assert (await second.attach(lease)).lease.lease == lease
        await asyncio.sleep(1.5)
        assert lease in server.runs
        await second.close()
        await server.stop()


async def test_leases_survive_a_new_broker_and_a_restarted_server(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        address = str(broker.address)
        server = in_process_pool.FakeServer("one", broker.address, credentials)
        await server.start()
        client = await in_process_pool.client(broker, credentials)
        granted = await acquire(client, core=70)
        lease = granted.lease.lease
        await server.stop()  # the server's daemon is killed: its executor runs on
        await server.start()
        await asyncio.sleep(0.3)
        assert lease in server.runs
    await server.stop()
    await client.close()
    async with in_process_pool.broker(credentials, address) as broker:
        client = await in_process_pool.client(broker, credentials)
        with pytest.raises(Unavailable, match="not known yet"):
            await client.attach(lease)
        await server.start()
        await until(lambda: lease in broker.service.pool.leases)
        again = await client.attach(lease)
        assert again.lease.cards == granted.lease.cards
        assert server.runs.keys() == {lease}
        with pytest.raises(DoesNotFit):
            await acquire(client, "2", core=40)
        await client.release(lease)
        await until(lambda: not broker.service.pool.leases)
        await client.close()
        await server.stop()


async def test_a_new_broker_that_knows_half_of_a_lease_leaves_its_ordinals_as_they_were(tmp_path: Path) -> None:
    """Otherwise a program would look for its session on another server, whose executor does not know it."""
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        address = str(broker.address)
        servers = [in_process_pool.FakeServer(name, broker.address, credentials) for name in ("one", "two")]
        for server in servers:
            await server.start()
        held = HeldLease(broker.address, credentials, replace(REQUEST, cards=2), holder="pod:a")
        parts = (await held.take()).parts
    for server in servers:
        await server.stop()
    second = next(server for server in servers if server.name == parts[1].server)
    second.host = "moved"
    async with in_process_pool.broker(credentials, address) as broker:
        await second.start()

        async def now() -> tuple[messages.PartView, ...]:
            return (await held.take()).parts

        async def has_attached() -> bool:
            return any(part.host == "moved" for part in await now())

        await until(has_attached)
        assert await now() == (parts[0], msgspec.structs.replace(parts[1], host="moved"))
        await held.close()
        await second.stop()


async def test_a_server_whose_executor_is_gone_ends_the_lease_and_tells_its_holder(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    ended: list[tuple[str, str]] = []
    async with in_process_pool.broker(credentials) as broker:
        server = in_process_pool.FakeServer("one", broker.address, credentials)
        await server.start()
        client = await PoolClient.connect(broker.address, credentials, lambda lease, why: ended.append((lease, why)))
        lease = (await acquire(client)).lease.lease
        server.runs.clear()
        await until(lambda: bool(ended))
        assert ended[0][0] == lease
        assert "executor on one is gone" in ended[0][1]
        await client.close()
        await server.stop()


async def test_strangers_are_turned_away(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    other = tmp_path / "other"
    create_secret(other)
    async with in_process_pool.broker(credentials) as broker:
        with pytest.raises(Refused, match="secret"):
            await PoolClient.connect(broker.address, Credentials(secret_file=other))
        with pytest.raises(Refused, match="role"):
            await dial(broker.address, credentials, messages.Hello(role="king"), expect="broker")
        assert broker.service.pool.servers == {}


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 2**31) + b"x", struct.pack(">I", 4) + b"null", b"\0\0\0\2{}", b""],
)
async def test_noise_ends_only_its_own_connection(tmp_path: Path, said: bytes) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        with socket.create_connection((broker.address.host, broker.address.port)) as noise:
            noise.sendall(said)
            noise.shutdown(socket.SHUT_WR)
            noise.settimeout(DEADLINE_SECONDS)
            while await asyncio.to_thread(noise.recv, 4096):
                pass
        client = await in_process_pool.client(broker, credentials)
        assert await client.servers() == ()
        await client.close()


async def test_beyond_loopback_only_with_tls(tmp_path: Path) -> None:
    config = BrokerConfig(in_process_pool.secret(tmp_path), listen="0.0.0.0:0")
    with pytest.raises(InvalidInput, match="loopback"):
        await Broker(config).run(Supervisor(signals=()))
    with pytest.raises(InvalidInput, match="loopback"):
        await PoolClient.connect(Listen("192.0.2.1", 1), in_process_pool.secret(tmp_path))


async def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    assert credentials.secret_file is not None
    credentials.secret_file.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        credentials.secret()


async def test_two_thousand_leases_at_once_and_none_is_left(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        servers = [in_process_pool.FakeServer(f"s{n}", broker.address, credentials, cards=8) for n in range(4)]
        for server in servers:
            await server.start()
        clients = [await in_process_pool.client(broker, credentials) for _ in range(8)]

        async def take(number: int) -> str:
            client = clients[number % len(clients)]
            return (await acquire(client, str(number), holder=f"pod:{number}", core=1)).lease.lease

        leases = await asyncio.gather(*(take(number) for number in range(2000)))
        assert len(set(leases)) == 2000
        assert sum(len(server.runs) for server in servers) == 2000
        assert broker.service.pool.ledger.overcommits() == []
        for client in clients:
            await client.close()
        await until(lambda: not broker.service.pool.leases)
        assert all(not server.runs for server in servers)
        for server in servers:
            await server.stop()


async def test_a_program_without_a_broker_is_told_once_and_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program whose connection is closed without a word asks again, for half a minute."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = Listen("127.0.0.1", nobody.getsockname()[1])
        said: list[str] = []
        outcome = await run_in_pool(
            [str(native.path("samples/egpu-sample-vectoradd"))], address, in_process_pool.secret(tmp_path), REQUEST,
            holder="pod:a", note=said.append, wait_seconds=0, making_ptx=making_ptx,
        )  # fmt: skip
    assert outcome.status != 0
    assert said == [f"no lease: {address} does not answer: Connection refused"]
    assert capfd.readouterr().err == "vectoradd: init: CUDA_ERROR_DEVICE_UNAVAILABLE\n", "the library repeats nothing"
