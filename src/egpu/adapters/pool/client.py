"""The pool as a program's side sees it: a connection to the broker, and connections to executors on its servers."""

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

from egpu import errors
from egpu.adapters.listening import Listen
from egpu.adapters.pool import messages, proof
from egpu.adapters.pool.connection import MAX_HELLO_BYTES, STREAM_BYTES, Connection
from egpu.adapters.pool.relay import Relay
from egpu.adapters.pool.security import LOCAL_PEER, Credentials, common_name
from egpu.adapters.processes import boot_id, start_time
from egpu.errors import AlreadyExists, CorruptData, ElasticGPUError, InvalidInput, Refused, Unavailable

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 40.0
"""Longer than the broker waits for executors to start."""
M = TypeVar("M", bound=messages.Message)


def parse_address(text: str, field: str = "--pool") -> Listen:
    """HOST:PORT of a broker or server, with `egpu://` before it or not. Raises InvalidInput."""
    listen = Listen.parse(re.sub(r"^[a-z]+://", "", text))
    if not listen.port:
        raise InvalidInput(field, f"{text!r} names no port; give HOST:PORT")
    return listen


def machine_id() -> str:
    """What tells this machine from others as long as it runs; its host name where the kernel does not say.

    Programs that are told of a socket on "the same machine" still check that they see it: a container does not.
    """
    return boot_id() or socket.gethostname()


async def dial(
    address: Listen, credentials: Credentials, hello: messages.Hello, *, expect: str, relay: Relay | None = None
) -> tuple[Connection, messages.Welcome]:
    """Connect and be let in. `expect` is the role that the other side's certificate must have, or its whole name. With
    `relay` the connection can be handed over.

    Raises:
        Unavailable: nobody answers there, or says "later"; or our certificate cannot be used at this moment.
        Refused: the other side does not let us in, or is not who it should be.
        AlreadyExists: somebody else is let in there under our name.
        InvalidInput: a plain connection beyond this machine was asked for.
    """
    credentials.check_address(address)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            between, connection = await (
                _open(address, credentials) if relay is None else _open_relayed(address, credentials, relay)
            )
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError) as error:
        raise Unavailable(f"{address} ended the connection before TLS was agreed on") from error
    except ssl.SSLError as error:
        raise Refused(f"{address} does not accept our certificate, or we not its: {error.reason or error}") from error
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{address} does not answer: {_reason(error)}") from error
    if credentials.tls and connection.peer != expect and connection.peer.partition("/")[0] != expect:
        await connection.close()
        raise Refused(f"the certificate there is {connection.peer}'s, not that of {expect}")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if not credentials.tls:
                hello = replace(hello, proof=await proof.prove(connection, credentials.secret(), between))
            await connection.send(hello)
            answer = await connection.receive(limit_bytes=MAX_HELLO_BYTES)
        return connection, _welcome(answer, address)
    except TimeoutError as error:
        await connection.close()
        raise Unavailable(f"{address} took the connection and says nothing") from error
    except BaseException:
        await connection.close()
        raise


def _reason(error: OSError) -> str:
    """Why nobody answered, as the system says it: asyncio's own words name the address once more."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or "no connection in time"


def _welcome(answer: messages.AnyMessage, address: Listen) -> messages.Welcome:
    if isinstance(answer, messages.Welcome):
        return answer
    if isinstance(answer, messages.Rejected):
        taken = answer.kind == AlreadyExists.__name__
        raise (AlreadyExists if taken else Unavailable if answer.retryable else Refused)(f"{address}: {answer.reason}")
    raise CorruptData(f"{address} answers a greeting with {type(answer).__name__}")


async def _open(address: Listen, credentials: Credentials) -> tuple[str, Connection]:
    """A connection, and what both its ends are, for the proofs."""
    try:
        context = credentials.client_context()
    except InvalidInput as error:  # its files may just be replaced
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
    """One connection to a broker. `on_ended` is called with a lease and the reason when the broker ended it. `cards`:
    what cards the pool had when it was made."""

    def __init__(self, connection: Connection, on_ended: Callable[[str, str], None], cards: messages.Cards) -> None:
        self.cards: messages.Cards = cards
        self._connection = connection
        self._on_ended = on_ended
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[messages.AnyMessage]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(
        cls, address: Listen, credentials: Credentials, on_ended: Callable[[str, str], None] = lambda _l, _r: None
    ) -> PoolClient:
        """Raises as `dial`."""
        connection, welcome = await dial(address, credentials, messages.Hello(role="client"), expect="broker")
        return cls(connection, on_ended, welcome.cards)

    @property
    def lost(self) -> asyncio.Task[None]:
        """Ends when the connection does."""
        return self._listening

    async def acquire(
        self, *, request: str, holder: str, cards: int, core: int, memory_mib: int, host: str = ""
    ) -> messages.Granted:
        """A lease whose executors run. Raises DoesNotFit, TooSoon, Refused, InvalidInput, Unavailable, as the broker
        answers."""
        return await self._ask(
            lambda number: messages.Acquire(
                number=number, request=request, holder=holder, cards=cards, core=core, memory_mib=memory_mib, host=host
            ),
            messages.Granted,
        )

    async def attach(self, lease: str) -> messages.Granted:
        """Speak for a lease again after the connection was lost. Raises NotFound, Refused, Unavailable."""
        return await self._ask(lambda number: messages.Attach(number=number, lease=lease), messages.Granted)

    async def renew(self, lease: str) -> messages.Granted:
        return await self._ask(lambda number: messages.Renew(number=number, lease=lease), messages.Granted)

    async def resize(
        self, lease: str, *, core: int | None, memory_mib: int | None, within_seconds: float | None = None
    ) -> messages.Granted:
        """Other limits; returns once they are in force. Raises NotFound, DoesNotFit, Refused, InvalidInput."""
        return await self._ask(
            lambda number: messages.Resize(
                number=number, lease=lease, core=core, memory_mib=memory_mib, within_seconds=within_seconds
            ),
            messages.Granted,
        )

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

    async def _ask(self, make: Callable[[int], messages.Message], kind: type[M]) -> M:
        if self._listening.done():
            raise Unavailable("the connection to the broker was lost")
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._connection.send(make(number))
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await future
        except TimeoutError as error:
            raise Unavailable(f"the broker did not answer within {ANSWER_SECONDS:g} s") from error
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
    """The answer that was due. Raises what the other side says went wrong, or CorruptData for anything else."""
    if isinstance(answer, messages.Failed):
        raise _error(answer)
    if not isinstance(answer, kind):
        raise CorruptData(f"{type(answer).__name__} came where {kind.__name__} was due")
    return answer


def _error(failed: messages.Failed) -> ElasticGPUError:
    """The other side's error as the same kind here, where it is a kind of ours that takes one sentence."""
    kind = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, ElasticGPUError):
        if issubclass(kind, InvalidInput):
            field, _, reason = failed.reason.partition(": ")
            return kind(field, reason)
        with contextlib.suppress(TypeError):
            return kind(failed.reason)
    return Refused(failed.reason)


def process_holder() -> str:
    """This process as a holder: pid and start time, on this machine."""
    return f"process:{socket.gethostname()}:{os.getpid()}:{start_time(os.getpid())}"
