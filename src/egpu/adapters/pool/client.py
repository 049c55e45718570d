"""The program's side of the pool: a connection to the broker, and connections to executors on its servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import socket
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from msgspec.structs import replace

from egpu.adapters.pool import messages, proof
from egpu.adapters.pool.connection import MAX_HELLO_BYTES, STREAM_BYTES, Connection
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import LOCAL_PEER, TLS_OPTIONS, Credentials, common_name
from egpu_base import errors
from egpu_base.errors import (
    AlreadyExists,
    CorruptData,
    ElasticGPUError,
    InvalidInput,
    NotSupported,
    Refused,
    Unavailable,
)
from egpu_base.http.listening import Listen
from egpu_base.system.processes import boot_id, start_time

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 40.0
"""Longer than the time that the broker waits for executors to start."""
MOVE_SECONDS: Final = 700.0
"""Longer than the time after which the broker gives up a move, and the time for this."""
_NOT_TLS: Final = "WRONG_VERSION_NUMBER"
"""OpenSSL's reason for an answer that is no TLS record."""
M = TypeVar("M", bound=messages.Message)


def parse_address(text: str, field: str = "--pool") -> Listen:
    """Parse HOST:PORT of a broker or server, with or without `egpu://`. Raises InvalidInput."""
    listen = Listen.parse(re.sub(r"^[a-z]+://", "", text))
    if not listen.port:
        raise InvalidInput(field, f"{text!r} has no port; give HOST:PORT")
    return listen


def machine_id() -> str:
    """Return an identity of this machine for its running time, or its host name where the kernel has none.

    Programs that get a socket of "the same machine" still check that they see it; a container does not.
    """
    return boot_id() or socket.gethostname()


async def dial(
    address: Listen, credentials: Credentials, hello: messages.Hello, *, expect: str, relay: Relay | None = None
) -> tuple[Connection, messages.Welcome]:
    """Connect and identify ourselves. `expect` is the role in the other side's certificate, or its whole name. With
    `relay` the connection can be handed over.

    Raises:
        Unavailable: no answer, or the answer "later"; or our certificate is unusable at this moment.
        Refused: the other side refuses us, or has an unexpected name.
        AlreadyExists: another process is connected there under our name.
        InvalidInput: a plain connection beyond this machine.
    """
    credentials.check_address(address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            between, connection = await (
                _open(address, credentials) if relay is None else _open_relayed(address, credentials, relay)
            )
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError) as error:
        raise Unavailable(f"{address} ended the connection during the TLS handshake") from error
    except ssl.SSLError as error:
        if error.reason == _NOT_TLS:
            raise Refused(f"{address} does not use TLS. Leave out {TLS_OPTIONS}, or start it with them") from error
        raise Refused(f"{address} and we do not accept each other's certificates: {error.reason or error}") from error
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{address} does not answer: {_reason(error)}") from error
    if credentials.tls and connection.peer != expect and connection.peer.partition("/")[0] != expect:
        await connection.close()
        raise Refused(f"expected a certificate of {expect} there, and found one of {connection.peer}")
    answer: messages.AnyMessage | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if not credentials.tls:
                hello = replace(hello, proof=await proof.prove(connection, credentials.secret(), between))
            await connection.send(hello)
            answer = await connection.receive(limit_bytes=MAX_HELLO_BYTES)
        return connection, _welcome(answer, address)
    except TimeoutError as error:
        await connection.close()
        raise Unavailable(f"{address} accepted the connection and does not answer") from error
    except Unavailable as error:
        await connection.close()
        if answer is None and not credentials.tls and await _uses_tls(address):
            raise Refused(f"{address} uses TLS. Give {TLS_OPTIONS}") from error
        raise
    except BaseException:
        await connection.close()
        raise


async def _uses_tls(address: Listen) -> bool:
    """Return whether a TLS handshake with any certificate begins there. Nothing of ours is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _reason(error: OSError) -> str:
    """Return the reason of a failed connection, as the system gives it: asyncio's text repeats the address."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or "connection timed out"


def _welcome(answer: messages.AnyMessage, address: Listen) -> messages.Welcome:
    if isinstance(answer, messages.Welcome):
        return answer
    if isinstance(answer, messages.Rejected):
        taken = answer.kind == AlreadyExists.__name__
        raise (AlreadyExists if taken else Unavailable if answer.retryable else Refused)(f"{address}: {answer.reason}")
    raise CorruptData(f"{address} answers a Hello with {type(answer).__name__}")


async def _open(address: Listen, credentials: Credentials) -> tuple[str, Connection]:
    """Return a connection, and both its ends, for the proofs."""
    try:
        context = credentials.client_context()
    except InvalidInput as error:  # its files may be under replacement
        raise Unavailable(str(error)) from error
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context, limit=STREAM_BYTES)
    connection = Connection(reader, writer)
    connection.peer = common_name(writer.get_extra_info("peercert") or {}) if credentials.tls else LOCAL_PEER
    try:
        return proof.ends(writer.get_extra_info("socket"), accepted=False), connection
    except Unavailable:
        await connection.close()
        raise


async def _open_relayed(address: Listen, credentials: Credentials, relay: Relay) -> tuple[str, Connection]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, family=family, type=socket.SOCK_STREAM)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, found[0][4])
        between = proof.ends(sock, accepted=False)
    except BaseException:
        sock.close()
        raise
    connection = await relay.secure(sock, server=False)
    if not credentials.tls:
        connection.peer = LOCAL_PEER
    return between, connection


class PoolClient:
    """One connection to a broker. `on_ended` is called with a lease and the reason when the broker ended it, `on_moved`
    with a lease that is elsewhere. `cards` is the kind of cards in the pool at the time of connecting."""

    def __init__(
        self,
        connection: Connection,
        on_ended: Callable[[str, str], None],
        welcome: messages.Welcome,
        on_moved: Callable[[messages.Moved], None] | None,
    ) -> None:
        self.cards: messages.Cards = welcome.cards
        self._moves = welcome.moves
        self._connection = connection
        self._on_ended = on_ended
        self._on_moved = on_moved
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[messages.AnyMessage]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(
        cls,
        address: Listen,
        credentials: Credentials,
        on_ended: Callable[[str, str], None] = lambda _l, _r: None,
        on_moved: Callable[[messages.Moved], None] | None = None,
    ) -> PoolClient:
        """Connect. Raises as `dial`."""
        hello = messages.Hello(role="client", follows=on_moved is not None)
        connection, welcome = await dial(address, credentials, hello, expect="broker")
        return cls(connection, on_ended, welcome, on_moved)

    @property
    def lost(self) -> asyncio.Task[None]:
        """Return a task that ends with the connection."""
        return self._listening

    async def acquire(
        self,
        *,
        request: str,
        holder: str,
        cards: int,
        core: int,
        memory_mib: int,
        host: str = "",
        resident_percent: int = 0,
        park_idle_seconds: float = 0.0,
    ) -> messages.Granted:
        """Take a lease, and return when its executors run. Raises DoesNotFit, TooSoon, Refused, InvalidInput,
        Unavailable, as the broker answers."""
        return await self._ask(
            lambda number: messages.Acquire(
                number=number,
                request=request,
                holder=holder,
                cards=cards,
                core=core,
                memory_mib=memory_mib,
                host=host,
                resident_percent=resident_percent,
                park_idle_seconds=park_idle_seconds,
            ),
            messages.Granted,
        )

    async def attach(self, lease: str) -> messages.Granted:
        """Use this connection for an earlier lease, after a lost one. Raises NotFound, Refused, Unavailable."""
        return await self._ask(lambda number: messages.Attach(number=number, lease=lease), messages.Granted)

    async def renew(self, lease: str) -> messages.Granted:
        return await self._ask(lambda number: messages.Renew(number=number, lease=lease), messages.Granted)

    async def resize(
        self, lease: str, *, core: int | None, memory_mib: int | None, within_seconds: float | None = None
    ) -> messages.Granted:
        """Set other limits; return once they are in force. Raises NotFound, DoesNotFit, Refused, InvalidInput."""
        return await self._ask(
            lambda number: messages.Resize(
                number=number, lease=lease, core=core, memory_mib=memory_mib, within_seconds=within_seconds
            ),
            messages.Granted,
        )

    async def move(self, lease: str, *, source: str = "", server: str = "", card: str = "") -> messages.Arrived:
        """Move a lease to other cards; return when it is there. Raises NotFound, DoesNotFit, Refused, InvalidInput,
        Unavailable; NotSupported for a broker that knows no moves."""
        self._check_moves()
        return await self._ask(
            lambda number: messages.Move(number=number, lease=lease, source=source, server=server, card=card),
            messages.Arrived,
            seconds=MOVE_SECONDS,
        )

    async def movable(self, lease: str, *, source: str = "") -> messages.Movable:
        """Return what prevents a move of a lease. Raises as `move`."""
        self._check_moves()
        return await self._ask(
            lambda number: messages.Move(number=number, lease=lease, source=source, check=True), messages.Movable
        )

    async def cordon(self, server: str, *, cordoned: bool) -> None:
        """Keep new leases off the cards of a server, or allow them again. Raises as `move`."""
        self._check_moves()
        await self._ask(lambda number: messages.Cordon(number=number, server=server, cordoned=cordoned), messages.Done)

    def _check_moves(self) -> None:
        if not self._moves:
            raise NotSupported("this broker's version does not know moves of leases; upgrade the broker")

    async def release(self, lease: str, reason: str = "released") -> None:
        await self._ask(lambda number: messages.Release(number=number, lease=lease, reason=reason), messages.Done)

    async def leases(self) -> tuple[messages.LeaseView, ...]:
        return (await self._ask(lambda number: messages.ListLeases(number=number), messages.Leases)).leases

    async def servers(self) -> tuple[messages.ServerView, ...]:
        return (await self._ask(lambda number: messages.ListServers(number=number), messages.Servers)).servers

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._connection.close()

    async def _ask(
        self, make: Callable[[int], messages.Message], kind: type[M], *, seconds: float = ANSWER_SECONDS
    ) -> M:
        if self._listening.done():
            raise Unavailable("the connection to the broker was lost")
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._connection.send(make(number))
            async with asyncio.timeout(seconds):
                answer = await future
        except TimeoutError as error:
            raise Unavailable(f"the broker did not answer within {seconds:g} s") from error
        finally:
            self._waiting.pop(number, None)
        return answer_of(answer, kind)

    async def _listen(self) -> None:
        reason = "the connection to the broker was lost"
        try:
            while True:
                message = await self._connection.receive()
                if isinstance(message, messages.Ended):
                    self._on_ended(message.lease, message.reason)
                    continue
                if isinstance(message, messages.Moved):
                    if self._on_moved is not None:
                        self._on_moved(message)
                    continue
                future = self._waiting.get(getattr(message, "number", 0))
                if future is not None and not future.done():
                    future.set_result(message)
        except ElasticGPUError as error:
            reason = f"{reason}: {error}"
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(Unavailable(reason))


def answer_of(answer: messages.AnyMessage, kind: type[M]) -> M:
    """Return the expected answer. Raises the other side's error, or CorruptData for any other message."""
    if isinstance(answer, messages.Failed):
        raise _error(answer)
    if not isinstance(answer, kind):
        raise CorruptData(f"{type(answer).__name__} arrived instead of {kind.__name__}")
    return answer


def _error(failed: messages.Failed) -> ElasticGPUError:
    """Return the other side's error as the same kind, if it is one of ours that takes one sentence."""
    kind = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, ElasticGPUError):
        if issubclass(kind, InvalidInput):
            field, _, reason = failed.reason.partition(": ")
            return kind(field, reason)
        with contextlib.suppress(TypeError):
            return kind(failed.reason)
    return Refused(failed.reason)


def process_holder() -> str:
    """Return our own process as a holder: pid and start time, on this machine."""
    return f"process:{socket.gethostname()}:{os.getpid()}:{start_time(os.getpid())}"
