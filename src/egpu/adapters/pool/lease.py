"""A lease of its holder: taken when first needed, renewed, reattached after every lost connection, and released."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
import structlog

from egpu.adapters.pool import messages
from egpu.adapters.pool.bridge import Target
from egpu.adapters.pool.client import PoolClient
from egpu.adapters.pool.security import Credentials
from egpu.core.leasing.records import LeaseRequest
from egpu_base.errors import ElasticGPUError, NotFound, Refused, RetryableError, Unavailable
from egpu_base.http.listening import Listen

log = structlog.get_logger(__name__)
T = TypeVar("T")

RENEW_SECONDS: Final = 5.0
RECONNECT_SECONDS: Final = 0.1
RELEASE_SECONDS: Final = 3.0
FOLLOW_SECONDS: Final = 30.0
"""The time for which a program looks for the new place of its lease: as long as its driver waits for an answer."""
SURE_SECONDS: Final = 1.5
"""The time for a server to report that an executor has died, before it counts as dead: the driver's calls fail within
two seconds."""
LOOK_SECONDS: Final = 0.25
TAKE_SECONDS: Final = 60.0
"""The default time of retries for a lease while the broker is silent: an upgrade takes less."""


class HeldLease:
    """A lease to `take` and `close`. `on_taken` is called once with it; `on_ended` with the reason when it was taken
    away; `on_moved` when it is elsewhere; `on_silence` once, when the broker does not answer and is asked again."""

    def __init__(
        self,
        broker: Listen,
        credentials: Credentials,
        request: LeaseRequest,
        *,
        holder: str,
        on_taken: Callable[[messages.LeaseView], None] = lambda _: None,
        on_ended: Callable[[str], None] = lambda _: None,
        on_moved: Callable[[messages.LeaseView], None] = lambda _: None,
        on_silence: Callable[[str], None] = lambda _: None,
        wait_seconds: float = TAKE_SECONDS,
    ) -> None:
        self._broker = broker
        self._credentials = credentials
        self._request = request
        self._holder = holder
        self._on_taken = on_taken
        self._on_ended = on_ended
        self._on_moved = on_moved
        self._on_silence = on_silence
        self._wait_seconds = wait_seconds
        self._request_id = secrets.token_hex(16)
        self._client: PoolClient | None = None
        self._attached: PoolClient | None = None
        """The connection that holds the lease."""
        self._granted: messages.Granted | None = None
        self._ended = ""
        self._renewing: asyncio.Task[None] | None = None
        self._taking = asyncio.Lock()
        self._told_silence = False
        self._changed = asyncio.Event()
        """Set when the broker has said where the lease is."""

    @property
    def lease(self) -> messages.LeaseView | None:
        """Return the lease as of its last renewal."""
        return None if self._granted is None else self._granted.lease

    async def cards(self) -> messages.Cards:
        """Return the kind of the pool's cards, which the broker tells every caller; take nothing. Raises as `take`."""
        return await self._asked(_known_cards)

    async def take(self) -> Target:
        """Return the lease; take it now if needed.

        Raises DoesNotFit, TooSoon, Refused, InvalidInput as the broker says; Unavailable when it does not answer;
        NotFound when the lease has ended.
        """
        async with self._taking:
            if self._ended:
                raise NotFound(f"the lease ended: {self._ended}")
            if self._granted is None:
                self._granted = await self._acquire()
                self._renewing = asyncio.create_task(self._keep(self._granted.lease.lease))
                self._on_taken(self._granted.lease)
            return Target(self._granted.lease.lease, self._granted.lease.parts, self._granted.token)

    async def follow(self, known: Target) -> bool:
        """Return True as soon as the lease is elsewhere than in `known`, and False when it is not: its executor is
        dead.

        Where the broker says that the lease is moving, or does not answer, this takes up to FOLLOW_SECONDS."""
        deadline = time.monotonic() + FOLLOW_SECONDS
        sure_at = time.monotonic() + SURE_SECONDS
        while not self._ended and self._granted is not None:
            if self._granted.lease.parts != known.parts:
                return True
            answers = self._client is not None and not self._client.lost.done() and self._client is self._attached
            moving = self._granted.lease.moving
            if time.monotonic() >= (sure_at if answers and not moving else deadline):
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
            await self._look()
        return False

    async def _look(self) -> None:
        """Ask where the lease is, if the broker answers."""
        client = self._attached
        if client is None or self._granted is None or client.lost.done():
            return
        with contextlib.suppress(ElasticGPUError):
            self._know(await client.renew(self._granted.lease.lease))

    def _know(self, granted: messages.Granted) -> None:
        self._granted = granted if self._granted is None else _in_its_order(granted, self._granted)
        self._changed.set()

    def _on_broker_moved(self, moved: messages.Moved) -> None:
        if self._granted is not None and moved.lease.lease == self._granted.lease.lease:
            self._know(messages.Granted(number=0, lease=moved.lease, token=moved.token))
            self._on_moved(self._granted.lease)

    async def close(self, reason: str = "its program has ended") -> None:
        """Release it; a broker that cannot be reached finds out by itself."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._client is None:
            return
        if self._granted is not None and not self._ended:
            with contextlib.suppress(ElasticGPUError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._client.release(self._granted.lease.lease, reason)
        await self._client.close()
        self._client = None

    async def _acquire(self) -> messages.Granted:
        async def acquire(client: PoolClient) -> messages.Granted:
            granted = await client.acquire(
                request=self._request_id,
                holder=self._holder,
                cards=self._request.cards,
                core=self._request.core,
                memory_mib=self._request.memory_mib,
                host=self._request.host,
                resident_percent=self._request.resident_percent,
                park_idle_seconds=self._request.park_idle_seconds,
            )
            self._attached = client
            return granted

        return await self._asked(acquire)

    async def _asked(self, question: Callable[[PoolClient], Awaitable[T]]) -> T:
        """Ask the broker, again and again while it is silent and a caller waits."""
        self._credentials.client_context()  # wrong files are an error at once
        deadline = time.monotonic() + self._wait_seconds
        while True:
            try:
                return await question(await self._connected())
            except Unavailable as error:
                if time.monotonic() >= deadline:
                    raise
                if not self._told_silence:
                    self._told_silence = True
                    self._on_silence(str(error))
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _connected(self) -> PoolClient:
        if self._client is not None and self._client.lost.done():
            await self._client.close()
            self._client = None
        if self._client is None:
            self._client = await PoolClient.connect(
                self._broker, self._credentials, self._on_broker_end, self._on_broker_moved
            )
        return self._client

    def _on_broker_end(self, _lease: str, reason: str) -> None:
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        if not self._ended:
            self._ended = reason
            self._on_ended(reason)

    async def _keep(self, lease: str) -> None:
        """Renew in time; after a lost connection reattach at once and repeatedly: the broker waits only a second."""
        while not self._ended:
            try:
                client = await self._connected()
                if self._granted is None or client is not self._attached:
                    granted = await client.attach(lease)
                    self._attached = client
                else:
                    granted = await client.renew(lease)
                self._know(granted)
                await asyncio.wait([client.lost], timeout=RENEW_SECONDS)
            except RetryableError as error:
                log.info("the broker does not answer", reason=str(error))
                await asyncio.sleep(RECONNECT_SECONDS)
            except (NotFound, Refused) as error:
                self._finish(str(error))
            except Exception as error:  # nobody waits for this task: who has the lease is told
                log.exception("the lease is not renewed any more", lease=lease)
                self._finish(f"it cannot be renewed: {error!r}")


async def _known_cards(client: PoolClient) -> messages.Cards:
    if client.cards == "gathering":
        await client.close()  # the next connection gets a new answer
        raise Unavailable("the pool's broker started a moment ago; its servers may not be connected yet")
    return client.cards


def _in_its_order(granted: messages.Granted, before: messages.Granted) -> messages.Granted:
    """Return it with the first parts of the lease in their order, which the program's ordinals follow. A restarted
    broker learns them one by one, as servers come back, in any order."""
    numbered = all(part.part >= 0 for part in (*granted.lease.parts, *before.lease.parts))
    known = {part.part if numbered else part.server: part for part in granted.lease.parts}
    parts = tuple(known.get(part.part if numbered else part.server, part) for part in before.lease.parts)
    return msgspec.structs.replace(granted, lease=msgspec.structs.replace(granted.lease, parts=parts))
