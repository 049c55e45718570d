"""Certificates of the pool are replaced while connections are open: these go on, the next ones use the new ones, and
what the old authority signed is refused once nobody trusts it."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path

import pytest
from cryptography import x509

from egpu.adapters.pool import authority, client, messages
from egpu.adapters.pool.client import dial
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.listener import Listener
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import Credentials, Role
from egpu_base.errors import ElasticGPUError, InvalidInput, Refused, Unavailable
from support import in_process_pool, rotation

BEARERS: tuple[tuple[Role, str], ...] = (("server", "one"), ("client", "ann"))
either = pytest.mark.parametrize("relayed", [True, False], ids=["relay", "Python"])


async def say_back(caller: Connection, _: messages.Hello) -> None:
    await caller.send(messages.Welcome(name=caller.peer))
    while line := await caller.reader.readline():
        caller.writer.write(line)


@contextlib.asynccontextmanager
async def listening(
    credentials: Credentials,
    *,
    relayed: bool,
    come_in: Callable[[Connection, messages.Hello], Coroutine[None, None, None]] = say_back,
) -> AsyncGenerator[Listener]:
    """A listener that says back what it is told, or does with callers what `come_in` says."""
    made = Listener(credentials, "127.0.0.1:0", come_in, max_connections=16, relayed=relayed)
    await made.open()
    serving = asyncio.create_task(made.serve())
    try:
        yield made
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


class Caller:
    """Whoever has `credentials`, and calls a listener."""

    def __init__(self, listener: Listener, credentials: Credentials, relay: Relay | None) -> None:
        self._listener, self._credentials, self._relay = listener, credentials, relay

    async def call(self) -> Connection:
        hello = messages.Hello(role="data")
        return (await dial(self._listener.address, self._credentials, hello, expect="server/one", relay=self._relay))[0]

    async def served(self) -> int:
        """The serial number of the certificate there."""
        at, context = self._listener.address, self._credentials.client_context()
        _, writer = await asyncio.open_connection(at.host, at.port, ssl=context)
        certificate = writer.get_extra_info("peercert")
        writer.close()
        return int(certificate["serialNumber"], 16)


async def lives(connection: Connection) -> bool:
    connection.writer.write(b"there?\n")
    return await connection.reader.readline() == b"there?\n"


@contextlib.asynccontextmanager
async def pool(pki: Path, *, relayed: bool) -> AsyncGenerator[tuple[Listener, Caller]]:
    """A listener and a caller, with certificates of one authority."""
    server, ann = (authority.issue(pki, role, name) for role, name in BEARERS)
    relay = Relay(ann) if relayed else None
    try:
        async with listening(server, relayed=relayed) as listener:
            yield listener, Caller(listener, ann, relay)
    finally:
        if relay is not None:
            await relay.close()


def serial(pki: Path) -> int:
    return x509.load_pem_x509_certificate((pki / "server-one.crt").read_bytes()).serial_number


@either
async def test_a_renewed_certificate_is_used_for_the_next_connection(tmp_path: Path, relayed: bool) -> None:
    async with pool(tmp_path / "pki", relayed=relayed) as (_, ann):
        live, before = await ann.call(), await ann.served()
        rotation.renewed(tmp_path / "pki", BEARERS)
        assert await lives(live)
        assert await ann.served() == serial(tmp_path / "pki") != before
        assert await lives(await ann.call())


@either
async def test_an_authority_is_replaced_and_nobody_is_interrupted(tmp_path: Path, relayed: bool) -> None:
    pki = tmp_path / "pki"
    async with pool(pki, relayed=relayed) as (listener, ann):
        for name in ("client-ann.crt", "client-ann.key"):
            shutil.copy(pki / name, tmp_path / name)
        old = Credentials(ca=pki / "ca.crt", certificate=tmp_path / "client-ann.crt", key=tmp_path / "client-ann.key")
        open_ones = [await ann.call()]
        for step in rotation.new_authority(pki, BEARERS):
            open_ones += [await ann.call()]
            assert [await lives(one) for one in open_ones] == [True] * len(open_ones), step
            if step != "only the new one is trusted":
                assert await lives(await Caller(listener, old, None).call()), step
        with pytest.raises(ElasticGPUError):
            await Caller(listener, old, None).call()


@either
@pytest.mark.parametrize("who", ["server-one", "client-ann"])
async def test_between_two_files_a_caller_comes_again(tmp_path: Path, relayed: bool, who: str) -> None:
    """The key is there and its certificate is not yet: nobody has refused anybody."""
    pki = tmp_path / "pki"
    async with pool(pki, relayed=relayed) as (_, ann):
        certificate = pki / f"{who}.crt"
        kept = certificate.read_bytes()
        rotation.renewed(pki, BEARERS)
        new = certificate.read_bytes()
        certificate.write_bytes(kept)
        with pytest.raises(Unavailable):
            await ann.call()
        certificate.write_bytes(new)
        assert await lives(await ann.call())


@either
async def test_a_caller_without_certificates_is_told_of_tls(tmp_path: Path, relayed: bool) -> None:
    with_tls, plain = authority.issue(tmp_path / "pki", "server", "one"), in_process_pool.secret(tmp_path)
    relay = Relay(plain) if relayed else None
    async with listening(with_tls, relayed=relayed) as listener:
        with pytest.raises(Refused, match=r"uses TLS\. Give --tls-ca, --tls-cert and --tls-key"):
            await Caller(listener, plain, relay).call()
    if relay is not None:
        await relay.close()


async def test_a_listener_that_answers_later_is_not_asked_for_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def come_in(_: Connection, __: messages.Hello) -> None:
        raise Unavailable("it starts; try again in a moment")

    async def ask(_: object) -> bool:
        raise AssertionError("it has spoken without TLS")

    monkeypatch.setattr(client, "_uses_tls", ask)
    plain = in_process_pool.secret(tmp_path)
    async with listening(plain, relayed=False, come_in=come_in) as listener:
        with pytest.raises(Unavailable, match="try again in a moment"):
            await Caller(listener, plain, None).call()


async def test_a_caller_with_certificates_is_told_that_there_is_no_tls(tmp_path: Path) -> None:
    with_tls, plain = authority.issue(tmp_path / "pki", "client", "ann"), in_process_pool.secret(tmp_path)
    async with listening(plain, relayed=False) as listener:
        with pytest.raises(Refused, match=r"does not use TLS\. Leave out --tls-ca, --tls-cert and --tls-key"):
            await Caller(listener, with_tls, None).call()


@pytest.mark.parametrize(
    ("command", "code"), [(["get", "leases"], 1), (["run", "--memory", "1GiB"], 125)], ids=["get", "run"]
)
async def test_the_command_line_names_tls_in_one_line(tmp_path: Path, command: list[str], code: int) -> None:
    with_tls, plain = authority.issue(tmp_path / "pki", "broker", "one"), in_process_pool.secret(tmp_path)
    async with listening(with_tls, relayed=False) as listener:
        options = ["--pool", str(listener.address), "--secret-file", str(plain.secret_file)]
        program = ["--", "true"] if command[0] == "run" else []
        called = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "egpu", *command, *options, *program, stderr=asyncio.subprocess.PIPE
        )
        _, said = await called.communicate()
        assert said.decode() == f"error: {listener.address} uses TLS. Give --tls-ca, --tls-cert and --tls-key\n"
        assert called.returncode == code


async def test_files_that_are_wrong_from_the_start_are_said_to_be(tmp_path: Path) -> None:
    server = authority.issue(tmp_path / "pki", "server", "one")
    (tmp_path / "pki" / "server-one.crt").write_text("nothing")
    with pytest.raises(InvalidInput, match="server-one"):
        async with listening(server, relayed=True):
            pass
