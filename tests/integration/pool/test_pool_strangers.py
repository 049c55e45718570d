"""Who is not known yet: takes the broker's port before it starts, says nothing, says it thousands of times, reads
nothing, or has a certificate with a strange name."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from cryptography import x509

from egpu.adapters.pool import authority, connection, listener, messages
from egpu.adapters.pool.client import PoolClient, dial
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.listener import Listener
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import Credentials
from egpu.apps.broker.sessions import MAX_PENDING
from egpu_base.errors import InvalidInput, Refused, Unavailable
from egpu_base.http.listening import Listen
from egpu_base.http.strangers import Strangers
from support import in_process_pool
from support.waiting import DEADLINE_SECONDS, until

either = pytest.mark.parametrize("relayed", [True, False], ids=["relay", "Python"])


@contextlib.asynccontextmanager
async def relay_of(credentials: Credentials, relayed: bool) -> AsyncGenerator[Relay | None]:
    relay = Relay(credentials) if relayed else None
    try:
        yield relay
    finally:
        if relay is not None:
            await relay.close()


@contextlib.asynccontextmanager
async def listening(credentials: Credentials, *, relayed: bool, room: int = 8) -> AsyncGenerator[Listener]:
    """A listener that welcomes everybody who is known, with room for few who are not."""

    async def come_in(caller: Connection, _: messages.Hello) -> None:
        await caller.send(messages.Welcome(name=caller.peer))
        await caller.reader.read()

    made = Listener(credentials, "127.0.0.1:0", come_in, max_connections=4, relayed=relayed)
    await made.open()
    made.strangers = Strangers(at_most=room)
    serving = asyncio.create_task(made.serve())
    try:
        yield made
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


class Impostor:
    """Has bound the port first, and writes down all that is said to it. With `real` it passes everything on."""

    def __init__(self, real: Listen | None = None) -> None:
        self.heard = b""
        self._real = real

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[Listen]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield Listen("127.0.0.1", server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._real is None:
            # As the broker of old did, and then as one that has proved nothing.
            self.heard += await reader.read(1 << 16)
            body = messages.encode(messages.Proof(nonce="0" * 64, digest="0" * 64))
            writer.write(len(body).to_bytes(4, "big") + body)
            self.heard += await reader.read()
            writer.close()
            return
        theirs, ours = await asyncio.open_connection(self._real.host, self._real.port)
        await asyncio.gather(self._copy(reader, ours), self._copy(theirs, writer))

    async def _copy(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            self.heard += data
            to.write(data)
        to.close()


@either
@pytest.mark.parametrize("role", ["server", "client", "data"])
async def test_who_took_the_brokers_port_is_not_told_the_secret(tmp_path: Path, role: str, relayed: bool) -> None:
    credentials = in_process_pool.secret(tmp_path)
    hello = messages.Hello(role=role, name="gpu-1", lease="lease-1", token="a token")
    impostor = Impostor()
    async with impostor.listening() as address, relay_of(credentials, relayed) as relay:
        with pytest.raises(Refused, match="does not know the pool's secret"):
            await dial(address, credentials, hello, expect="broker", relay=relay)
    assert impostor.heard
    for secret in (credentials.secret(), "a token", "lease-1"):
        assert secret.encode() not in impostor.heard


@either
async def test_who_took_the_brokers_port_cannot_pass_on_what_the_real_one_proves(tmp_path: Path, relayed: bool) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker, relay_of(credentials, relayed) as relay:
        impostor = Impostor(broker.address)
        async with impostor.listening() as address:
            with pytest.raises(Refused, match="does not know the pool's secret"):
                await dial(address, credentials, messages.Hello(role="client"), expect="broker", relay=relay)
    assert b'"Proof"' in impostor.heard, "the real broker was asked"


async def test_a_proof_that_was_heard_once_opens_nothing(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        reader, writer = await asyncio.open_connection(broker.address.host, broker.address.port)
        caller = Connection(reader, writer)
        await caller.send(messages.Challenge(nonce="mine"))
        proof = await caller.expect(messages.Proof)
        await caller.send(messages.Hello(role="client", proof=proof.digest))  # its own, said back
        assert (await caller.expect(messages.Rejected)).reason == "wrong secret; use the --secret-file of this pool"
        await caller.close()


async def test_a_secret_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = in_process_pool.secret(tmp_path)
    assert credentials.secret_file is not None
    owner = credentials.secret_file.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner != 0:  # root's is everybody's
        with pytest.raises(InvalidInput, match="not to us"):
            credentials.secret()


@either
async def test_silent_connections_go_and_who_is_known_comes_in(tmp_path: Path, relayed: bool) -> None:
    ann = authority.issue(tmp_path, "client", "ann")
    silent: list[socket.socket] = []
    async with listening(authority.issue(tmp_path, "server", "s"), relayed=relayed) as made:
        try:
            for number in range(60):
                silent.append(socket.create_connection((made.address.host, made.address.port)))
                silent[-1].setblocking(False)
                if number % 2:  # half of them begin with TLS and stop
                    silent[-1].send(b"\x16\x03\x01\x02\x00\x01")
                await asyncio.sleep(0)
            await until(lambda: sum(_is_closed(one) for one in silent) >= 60 - 8, seconds=listener.HELLO_SECONDS / 2)
            known, welcome = await dial(made.address, ann, messages.Hello(role="data"), expect="server")
            assert welcome.name == "client/ann"
            assert len(made.strangers) <= 8
            for _ in range(20):  # nobody who is known goes for them
                silent.append(socket.create_connection((made.address.host, made.address.port)))
            await until(lambda: len(made.strangers) == 8)
            assert not known.reader.at_eof()
            await known.close()
        finally:
            for one in silent:
                one.close()


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@either
@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "secret"])
async def test_who_says_nothing_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relayed: bool, tls: bool
) -> None:
    monkeypatch.setattr(listener, "HELLO_SECONDS", 0.2)
    credentials = authority.issue(tmp_path, "server", "s") if tls else in_process_pool.secret(tmp_path)
    async with listening(credentials, relayed=relayed) as made:
        reader, writer = await asyncio.open_connection(made.address.host, made.address.port)
        await reader.read()  # until it is closed
        writer.close()
        await until(lambda: not len(made.strangers))


async def test_beyond_the_most_that_are_taken_one_is_told_to_come_again(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with listening(credentials, relayed=False) as made:
        made.known.update({"client/others": 2})
        known = [await dial(made.address, credentials, messages.Hello(role="data"), expect="") for _ in range(2)]
        with pytest.raises(Unavailable, match="4 connections are open"):
            await dial(made.address, credentials, messages.Hello(role="data"), expect="")
        made.known.clear()
        made.known.update({"admin/local": 2})
        with pytest.raises(Unavailable, match="admin/local has 2 connections open"):
            await dial(made.address, credentials, messages.Hello(role="data"), expect="")
        made.known.update({"client/others": 1})
        for one, _ in known:
            await one.close()
        await until(lambda: dict(made.known) == {"client/others": 1})
        again, _ = await dial(made.address, credentials, messages.Hello(role="data"), expect="")
        await again.close()


async def test_who_reads_nothing_is_not_read_and_then_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        deaf, _ = await dial(broker.address, credentials, messages.Hello(role="client"), expect="broker")
        assert isinstance(deaf.writer.transport, asyncio.Transport)
        deaf.writer.transport.pause_reading()
        monkeypatch.setattr(connection, "SEND_SECONDS", 3.0)
        asked = messages.encode(messages.Renew(number=1, lease="x" * 200))
        frame = len(asked).to_bytes(4, "big") + asked
        transport = deaf.writer.transport
        sizes: list[int] = []
        tasks: list[int] = []

        def stuck() -> bool:
            if transport.get_write_buffer_size() < 1 << 18:  # it goes on asking for as long as somebody reads
                transport.write(frame * 400)
            sizes.append(transport.get_write_buffer_size())
            tasks.append(len(asyncio.all_tasks()))
            return len(sizes) > 10 and sizes[-1] > 0 and len(set(sizes[-10:])) == 1

        await until(stuck, "the broker reads on", seconds=DEADLINE_SECONDS / 3)
        assert max(tasks) < MAX_PENDING + 50, "each request that is not answered is a task"
        await until(lambda: not broker.listener.known)  # dropped
        await deaf.close()
        other = await in_process_pool.client(broker, credentials)
        assert await other.servers() == ()
        await other.close()


@pytest.mark.parametrize(
    "name", ["client/ann\nadmin/op", "client/\x1b[2Jann", "client/a/b", "ann", "client/", "king/ann"]
)
@either
async def test_a_certificate_with_a_strange_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, relayed: bool
) -> None:
    """An authority of theirs may have made it: ours does not."""
    server = authority.issue(tmp_path, "server", "s")
    with monkeypatch.context() as patched:
        patched.setattr(authority, "_name", lambda _: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        strange = authority.issue(tmp_path, "client", "ann")
    async with listening(server, relayed=relayed) as made:
        with pytest.raises(Refused, match="common name is"):
            await dial(made.address, strange, messages.Hello(role="data"), expect="server")
    with pytest.raises(InvalidInput):
        authority.issue(tmp_path, "client", "ann\nadmin")


async def test_a_holder_that_is_not_to_be_seen_is_refused(tmp_path: Path) -> None:
    credentials = in_process_pool.secret(tmp_path)
    async with in_process_pool.broker(credentials) as broker:
        client = await PoolClient.connect(broker.address, credentials)
        with pytest.raises(Refused, match=r"holder: \\x1b\[2J"):
            await client.acquire(request="1", holder="\x1b[2J", cards=1, core=1, memory_mib=1)
        await client.close()
