"""Attacks from outside of any slice: connections of nobody, leases of others, wrong frames, another local user.

Each says what it got that it should not have; nothing, if all is well.
"""

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from egpu.adapters.pool import messages
from egpu.adapters.pool.client import PoolClient, dial
from egpu.adapters.pool.security import Credentials
from egpu_base.errors import ElasticGPUError, NotFound, Refused, Unavailable
from egpu_base.http.listening import Listen
from support.raw_session import OPS, Raw
from support.strangers import STRANGER, as_stranger
from support.waiting import DEADLINE_SECONDS

FLOOD = 40
"""Connections at once, of each tenant that floods."""

SHOWN_OUT_SECONDS = 20.0


async def flood(ports: Sequence[int], chance: random.Random) -> list[str]:
    """Silent connections, TLS that stops, and noise; closed when the round is over."""
    held: list[socket.socket] = []
    try:
        for _ in range(FLOOD):
            sock = socket.create_connection(("127.0.0.1", chance.choice(ports)), timeout=5)
            held.append(sock)
            with contextlib.suppress(OSError):
                sock.sendall(
                    chance.choice((b"", b"\x16\x03\x01\x02\x00\x01", chance.randbytes(300), b"GET / HTTP/1.1\r\n"))
                )
            await asyncio.sleep(0)
    except OSError as error:
        return [f"a port does not take connections: {error}"]
    finally:
        for sock in held:
            sock.close()
    return []


async def without_certificate(ports: Sequence[int], chance: random.Random) -> list[str]:
    """TLS without a certificate, and a greeting of somebody important."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = chance.choice(ports)
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            body = messages.encode(messages.Hello(role=chance.choice(("admin", "server", "client")), name="one"))
            writer.write(len(body).to_bytes(4, "big") + body)
            answer = await reader.read(4096)
            writer.close()
            if b"Welcome" in answer:
                return [f"port {port} welcomes who has no certificate"]
    return []


async def connected(broker: Listen, credentials: Credentials) -> PoolClient:
    """As programs connect: a broker that has too much to do, with strangers or on a busy machine, is asked again."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return await PoolClient.connect(broker, credentials)
        except Unavailable:
            if time.monotonic() > deadline:
                raise


async def thief(broker: Listen, credentials: Credentials, theirs: Sequence[messages.LeaseView]) -> list[str]:
    """A client of the pool with leases of others in mind: to speak for, resize, end, and reach them."""
    found: list[str] = []
    client = await connected(broker, credentials)
    try:
        seen = {one.lease for one in await client.leases()}
        found += [f"is shown the lease {one.lease} of {one.peer}" for one in theirs if one.lease in seen]
        for lease in theirs[:3]:
            for what, attempt in (
                ("attach", client.attach(lease.lease)),
                ("renew", client.renew(lease.lease)),
                ("resize", client.resize(lease.lease, core=1, memory_mib=1)),
                ("release", client.release(lease.lease)),
            ):
                with contextlib.suppress(Refused, NotFound, Unavailable):
                    await attempt
                    found.append(f"could {what} a lease of {lease.peer}")
            part = lease.parts[0]
            host, _, port = part.address.rpartition(":")
            hello = messages.Hello(role="data", lease=lease.lease, token="0" * 64)
            found += await _let_in(Listen(host, int(port)), credentials, hello, f"server/{part.server}")
    finally:
        await client.close()
    return found


async def impostor(broker: Listen, credentials: Credentials, server: str) -> list[str]:
    """A client that says that it is a server, or an administrator."""
    return [
        said
        for role in ("server", "admin", "broker")
        for said in await _let_in(broker, credentials, messages.Hello(role=role, name=server), "broker")
    ]


async def _let_in(address: Listen, credentials: Credentials, hello: messages.Hello, expect: str) -> list[str]:
    try:
        connection, _ = await dial(address, credentials, hello, expect=expect)
    except ElasticGPUError:
        return []
    try:
        async with asyncio.timeout(SHOWN_OUT_SECONDS):
            said = await connection.receive()  # it is greeted by its own name before its role is looked at
    except ElasticGPUError:
        return []
    except TimeoutError:
        said = None
    finally:
        await connection.close()
    if isinstance(said, messages.Rejected):
        return []
    return [f"{address} lets it in as {hello.role} {hello.name} with lease {hello.lease!r}"]


async def hoarder(broker: Listen, credentials: Credentials) -> list[str]:
    """Asks a pool whose cards are all given away for more."""
    client = await connected(broker, credentials)
    try:
        granted = await client.acquire(request="more", holder="hoarder", cards=1, core=100, memory_mib=1)
        await client.release(granted.lease.lease)
    except ElasticGPUError:
        return []
    finally:
        await client.close()
    return ["was given a whole card of a pool that is full"]


def wrong_frames(sock: Path, chance: random.Random) -> list[str]:
    """Frames of no protocol to its own executor: true ones with anything in them, and noise from the start."""
    with contextlib.suppress(OSError, EOFError, struct.error):
        noise = socket.socket(socket.AF_UNIX)
        noise.settimeout(20)
        with contextlib.closing(noise):
            noise.connect(str(sock))
            noise.sendall(chance.randbytes(chance.randrange(1, 2000)))
    with contextlib.suppress(OSError, EOFError, AssertionError, struct.error):
        raw = Raw(sock)
        with contextlib.closing(raw.socket):
            for _ in range(20):
                payload = chance.randbytes(8 * chance.randrange(0, 12))
                length = chance.choice((None, None, None, 1 << 31))
                raw.post(chance.choice(list(OPS.values())), payload, flags=chance.choice((0, 1, 5)), length=length)
    return []


LOCAL_USER = r"""
had() { echo "had: $*"; }
for file in $SECRETS; do cat "$file" > /dev/null 2>&1 && had read "$file"; done
for file in $SECRETS $FILES; do
    ( : >> "$file" ) 2> /dev/null && had write "$file"
    rm -f "$file" 2> /dev/null; test -e "$file" 2> /dev/null || ! test -x "$(dirname "$file")" || had remove "$file"
done
for place in $DIRECTORIES /etc /etc/cron.d /run /usr/lib; do
    mkdir "$place/egpu-hostile" 2> /dev/null && had make something in "$place" && rmdir "$place/egpu-hostile"
done
for pid in $PIDS; do
    kill -0 "$pid" 2> /dev/null && had signal "$pid"
    cat "/proc/$pid/environ" > /dev/null 2>&1 && had read the environment of "$pid"
    ( : >> "/proc/$pid/mem" ) 2> /dev/null && had open the memory of "$pid"
done
forged=/dev/shm/egpu-sim-hostile-$$; mkfifo $forged && rm -f $forged
forged=/dev/shm/egpu-$$; mkdir $forged && ln -s /etc $forged/machine && rm -rf $forged
( echo evil > /etc/ld.so.preload ) 2> /dev/null && had write /etc/ld.so.preload
true
"""


def local_user(
    *, secrets: Sequence[Path], files: Sequence[Path], directories: Sequence[Path], pids: Sequence[int]
) -> list[str]:
    """What another user of this machine gets of our files and processes. What it forges in shared memory it removes."""
    words = {"SECRETS": secrets, "FILES": files, "DIRECTORIES": directories, "PIDS": pids}
    given = [f"{name}={' '.join(map(str, values))}" for name, values in words.items()]
    done = as_stranger("env", *given, "bash", "-c", LOCAL_USER)
    if done.returncode:
        return [f"the attack of user {STRANGER} did not end: {done.returncode} {done.stderr[-300:]}"]
    return [line.removeprefix("had: ") for line in done.stdout.splitlines() if line.startswith("had: ")]
