"""The pool with asyncio: callers that wait for a lease, notices about its end, and orders to servers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import structlog

from egpu.adapters.pool import messages
from egpu.api.text import check_plain
from egpu.apps.broker.metrics import Acquisitions, Moves
from egpu.apps.broker.views import lease_view, server_views
from egpu.core.leasing import moves, tokens
from egpu.core.leasing.belief import believed
from egpu.core.leasing.pool import MAX_LEASES, Pool
from egpu.core.leasing.records import LeaseRequest, Look, Report, lease_name
from egpu.core.leasing.state import Lease
from egpu.core.leasing.targets import on_sick_cards
from egpu.core.policies.registry import Policies
from egpu_base.errors import DoesNotFit, ElasticGPUError, InvalidInput, NotFound, Refused, Unavailable

log = structlog.get_logger(__name__)

START_SECONDS: Final = 30.0
"""The time that executors may take to start before the lease is given up."""
APPLY_SECONDS: Final = 5.0
MAX_WITHIN_SECONDS: Final = 7 * 86_400.0
"""The longest time that new limits may take to be in force."""
MAX_TEXT: Final = 256
"""Most characters of a caller's name, its request and its machine."""
TRY_AGAIN_SECONDS: Final = 60.0
"""The time after which a lease on a sick card is tried again."""
MAX_NAMED: Final = 8
"""Most leases that one log line names."""


class Holder(NamedTuple):
    """The connection of a lease's program. `on_end` gets the lease and the reason; `on_moved` is None for a program
    that does not follow moves. `places`: what it knows."""

    on_end: Callable[[str, str], None]
    on_moved: Callable[[messages.Moved], None] | None = None
    places: tuple[tuple[str, int], ...] = ()


class LeaseService:
    """The only user of the pool. `push` gets servers whose orders changed, at the end of a step."""

    def __init__(
        self,
        *,
        policy: str,
        settle_seconds: float,
        gather_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pool = Pool(
            secrets.token_hex(8), Policies.named(policy, policy), unix_at_zero=round(time.time() - clock(), 3)
        )
        self._clock = clock
        self._settled = clock() + settle_seconds
        self._gathered = clock() + gather_seconds
        self._told_settled = False
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._holding: dict[str, Holder] = {}
        self.push: Callable[[set[str]], None] = lambda _: None
        self.acquisitions = Acquisitions()
        self.moves = Moves(self.acquisitions.registry)
        self._moved: dict[str, int] = {}
        """The last move of each lease that was counted."""
        self._tried: dict[str, float] = {}
        """When each lease on a sick card was last ordered to move."""

    # --- programs -----------------------------------------------------------------------------------------------------

    async def acquire(self, asked: messages.Acquire, peer: str, holder: Holder) -> messages.Granted:
        """Reserve a lease, and wait until its executors run; an error meanwhile ends it.

        Raises DoesNotFit, TooSoon, Refused, InvalidInput, Unavailable."""
        with self.acquisitions.one():
            return await self._acquired(asked, peer, holder)

    async def _acquired(self, asked: messages.Acquire, peer: str, holder: Holder) -> messages.Granted:
        for what, text in (("holder", asked.holder), ("request", asked.request), ("host", asked.host)):
            check_plain(what, text, at_most=MAX_TEXT, empty=what == "host")
        lease = self._grant(asked, peer)
        self._holding[lease.id] = holder._replace(places=lease.places)
        self.step()
        try:
            await self._until(lease.id, lambda one: one.state == "active", START_SECONDS, "start its executors")
        except BaseException as error:
            self._holding.pop(lease.id, None)
            self.end(lease.id, f"not started: {error or type(error).__name__}")
            raise
        log.info("granted", lease=lease.id, holder=asked.holder, peer=peer, servers=list(lease.servers))
        return self.granted(asked.number, lease.id)

    def _grant(self, asked: messages.Acquire, peer: str) -> Lease:
        key = secrets.token_hex(32)
        try:
            return self.pool.grant(
                LeaseRequest(
                    cards=asked.cards,
                    core=asked.core,
                    memory_mib=asked.memory_mib,
                    host=asked.host,
                    resident_percent=asked.resident_percent,
                    park_idle_seconds=asked.park_idle_seconds,
                ),
                lease=lease_name(key),
                key=key,
                holder=asked.holder,
                peer=peer,
                request=asked.request,
                now=self._clock(),
            )
        except DoesNotFit as error:
            if self._clock() < self._gathered:
                raise Unavailable(f"{error}; this broker started a moment ago; servers may still connect") from error
            raise

    def attach(self, number: int, lease: str, peer: str, holder: Holder) -> messages.Granted:
        """Attach to a lease. Raises NotFound, Unavailable."""
        self.owned(lease, peer)
        found = self.pool.attach(lease, peer, self._clock())
        self._holding[lease] = holder._replace(places=found.places)
        self.step()
        return self.granted(number, lease)

    def renew(self, number: int, lease: str, peer: str) -> messages.Granted:
        """Renew a lease. Raises NotFound, Unavailable."""
        self.owned(lease, peer)
        self.pool.renew(lease, self._clock())
        return self.granted(number, lease)

    async def resize(self, asked: messages.Resize, peer: str) -> messages.Granted:
        """Resize a lease. Raises NotFound, Refused, DoesNotFit, InvalidInput, Unavailable."""
        self.owned(asked.lease, peer)
        within = asked.within_seconds
        if within is not None and not 0 <= within <= MAX_WITHIN_SECONDS:
            raise InvalidInput("within", f"{within:g} s is not between 0 and {MAX_WITHIN_SECONDS:g}")
        fit_by = None if within is None else self._clock() + within
        self.pool.resize(asked.lease, core=asked.core, memory_mib=asked.memory_mib, fit_by=fit_by)
        self.step()
        await self._until(asked.lease, lambda one: one.in_force, APPLY_SECONDS, "put the new limits in force")
        log.info("resized", lease=asked.lease, core=asked.core, memory_mib=asked.memory_mib, peer=peer)
        return self.granted(asked.number, asked.lease)

    async def move(self, asked: messages.Move, peer: str) -> messages.Arrived:
        """Move a lease of the caller. Raises NotFound, Refused, DoesNotFit, InvalidInput, Unavailable."""
        with self.moves.asked():
            self.owned(asked.lease, peer)
            for what, text in (("from", asked.source), ("to", asked.server), ("card", asked.card)):
                check_plain(what, text, at_most=MAX_TEXT, empty=True)
            place = self._begin_move(asked.lease, source=asked.source, server=asked.server, card=asked.card)
        found = await self._until(
            asked.lease, lambda one: one.moved is not None and one.moved.place == place,
            moves.MOVE_SECONDS + START_SECONDS, "move it",
        )  # fmt: skip
        moved = found.moved
        assert moved is not None
        if moved.why:
            raise Refused(f"lease {asked.lease} stays where it is: {moved.why}")
        view = self.granted(asked.number, asked.lease).lease
        return messages.Arrived(number=asked.number, lease=view, bytes=moved.bytes, paused_ns=moved.paused_ns)

    def _begin_move(self, lease: str, *, source: str = "", server: str = "", card: str = "") -> int:
        """Order a move, and return the number of the new place. Raises as `move`."""
        self.pool.live(lease)
        if not (known := self._holding.get(lease)) or known.on_moved is None:
            raise Refused(
                f"the program with lease {lease} does not follow moves: "
                + ("its `egpu run` is of an earlier version" if known else "it is not connected to the broker now")
            )
        moving = self.pool.move(
            lease, token=secrets.token_hex(32), now=self._clock(), source=source, server=server, card=card
        )
        self.step()
        assert moving.second is not None
        return moving.second.part.place

    async def movable(self, asked: messages.Move, peer: str) -> messages.Movable:
        """Return what prevents a move of a lease of the caller. Raises as `move`."""
        self.owned(asked.lease, peer)
        found, source = self.pool.ask_about(asked.lease, asked.source)
        number = found.looks
        self.step()

        def answer(one: Lease) -> Look | None:
            part = one.parts.get(source)
            look = None if part is None or part.running is None else part.running.look
            return look if look is not None and look.number >= number else None

        found = await self._until(
            asked.lease, lambda one: answer(one) is not None or source not in one.parts, APPLY_SECONDS, "answer",
        )  # fmt: skip
        if (look := answer(found)) is None:
            raise Unavailable(f"lease {asked.lease} has moved meanwhile; ask again")
        return messages.Movable(number=asked.number, look=look)

    def cordon(self, server: str, *, cordoned: bool) -> None:
        """Keep new leases off a server's cards, or allow them again. Raises NotFound."""
        self.pool.cordon(server, cordoned=cordoned)
        log.info("cordoned" if cordoned else "uncordoned", server=server)
        self.step()

    def release(self, lease: str, peer: str, reason: str) -> None:
        """Release a lease. Raises NotFound, Unavailable."""
        self.owned(lease, peer)
        self._holding.pop(lease, None)
        self.end(lease, reason)

    def let_go(self, lease: str, on_end: Callable[[str, str], None]) -> None:
        """Handle the end of the connection for `lease`, unless another connection has taken over."""
        if (known := self._holding.get(lease)) is not None and known.on_end == on_end:
            del self._holding[lease]
            self.pool.let_go(lease, self._clock())

    def granted(self, number: int, lease: str) -> messages.Granted:
        """Return the answer for the lease's program, with a fresh token. Raises NotFound if it ended meanwhile."""
        found = self.pool.leases.get(lease)
        if found is None or found.state == "ending":
            raise NotFound(f"lease {lease} ended: {self.pool.why_ended(lease)}")
        claims = tokens.Claims(
            lease=lease, holder=found.holder, peer=found.peer, expires=time.time() + tokens.LIFETIME_SECONDS
        )
        return messages.Granted(
            number=number, lease=lease_view(self.pool, found), token=tokens.issue(claims, found.key)
        )

    # --- servers ------------------------------------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """Take a server's report. Raises Refused for impossible reports, and beyond the limit of servers."""
        report, doubted = believed(report, self.pool, max_leases=MAX_LEASES)
        if doubted:
            log.warning(
                "reported leases ignored", server=report.server, count=len(doubted), leases=doubted[:MAX_NAMED],
            )  # fmt: skip
        self.pool.report(report, self._clock())
        self.step()

    def server_away(self, name: str) -> None:
        self.pool.server_away(name, self._clock())

    def orders(self, server: str) -> messages.Orders:
        version, records = self.pool.orders(server)
        return messages.Orders(
            epoch=self.pool.epoch, version=version, leases=records, links=self.pool.links(server),
            settled=self._clock() >= self._settled, moves=self.pool.moves(server), looks=self.pool.looks(server),
            cordon=self.pool.servers[server].to_cordon,
        )  # fmt: skip

    def cards(self) -> messages.Cards:
        """Return the pool's cards, including those of servers that may return in a moment."""
        kinds = {server.simulated for server in self.pool.servers.values()}
        if not kinds:
            return "gathering" if self._clock() < self._gathered else "none"
        if len(kinds) > 1:
            return "mixed"
        return "simulated" if True in kinds else "real"

    # --- all ----------------------------------------------------------------------------------------------------------

    def end(self, lease: str, reason: str) -> None:
        self.pool.end(lease, reason)
        self.step()

    def tick(self) -> None:
        self.pool.tick(self._clock())
        if not self._told_settled and self._clock() >= self._settled:
            self._told_settled = True
            self.pool.changed.update(self.pool.servers)
        self._empty_sick_cards()
        self.step()

    def step(self) -> None:
        """Tell servers, callers of ended leases, and waiting callers. Called after every change."""
        if self.pool.changed or self.pool.touched:
            self.pool.relink()
        if self.pool.changed:
            changed = set(self.pool.changed)
            self.pool.changed.clear()
            self.push(changed)
        touched = set(self.pool.touched)
        self.pool.touched.clear()
        for lease in touched:
            self._count_move(lease)
            if lease in self._holding:
                self._tell(lease, self._holding[lease])
            for future in self._waiting.pop(lease, ()):
                if not future.done():
                    future.set_result(None)

    def _count_move(self, lease: str) -> None:
        found = self.pool.leases.get(lease)
        if found is None:
            self._moved.pop(lease, None)
        elif found.moved is not None and found.moved.place != self._moved.get(lease):
            self._moved[lease] = found.moved.place
            self.moves.ended(found.moved)
            log.info(
                "not moved" if found.moved.why else "moved",
                lease=lease,
                servers=list(found.servers),
                bytes=found.moved.bytes,
                paused_ms=found.moved.paused_ns // 10**6,
                reason=found.moved.why,
            )

    def _empty_sick_cards(self) -> None:
        """Begin to move a lease off a card that does not work any more, if there is one to move."""
        now = self._clock()
        self._tried = {lease: at for lease, at in self._tried.items() if now - at < TRY_AGAIN_SECONDS}
        for lease, source in on_sick_cards(self.pool):
            if lease.id not in self._tried:
                self._tried[lease.id] = now
                try:
                    with self.moves.asked():
                        self._begin_move(lease.id, source=source)
                except ElasticGPUError as error:
                    log.warning("a lease stays on a sick card", lease=lease.id, server=source, reason=str(error))
                return

    def _tell(self, lease: str, holder: Holder) -> None:
        """Tell the holder of a lease that it has ended, or is elsewhere."""
        if self._ending(lease):
            del self._holding[lease]
            holder.on_end(lease, self.pool.why_ended(lease) or "its servers are gone")
            return
        found = self.pool.leases[lease]
        if len(found.parts) == found.expected_parts and found.places != holder.places:
            self._holding[lease] = holder._replace(places=found.places)
            if holder.on_moved is not None and holder.places:
                granted = self.granted(0, lease)
                holder.on_moved(messages.Moved(lease=granted.lease, token=granted.token))

    def views(self) -> tuple[messages.LeaseView, ...]:
        return tuple(lease_view(self.pool, lease) for lease in self.pool.leases.values())

    def lease_ages(self) -> Iterator[tuple[Lease, float]]:
        """Return the seconds for which this broker has known each lease."""
        now = self._clock()
        return ((lease, now - lease.since) for lease in self.pool.leases.values())

    def server_views(self) -> tuple[messages.ServerView, ...]:
        return server_views(self.pool)

    def owned(self, lease: str, peer: str) -> None:
        """Return the caller's lease. Raises Refused for other callers' leases, in the words for a missing one: names
        are not revealed."""
        found = self.pool.leases.get(lease)
        if found is None and not self.pool.why_ended(lease) and self._clock() < self._settled:
            raise Unavailable(f"lease {lease} is not known yet: this broker started a moment ago")
        if found is not None and found.peer != peer and peer.partition("/")[0] != "admin":
            raise NotFound(f"there is no lease {lease}")

    def _ending(self, lease: str) -> bool:
        found = self.pool.leases.get(lease)
        return found is None or found.state == "ending"

    async def _until(self, lease: str, holds: Callable[[Lease], bool], seconds: float, what: str) -> Lease:
        """Wait for a condition, and return the lease. Raises DoesNotFit if the lease ends meanwhile, Unavailable after
        `seconds`."""
        deadline = self._clock() + seconds
        while True:
            found = self.pool.leases.get(lease)
            if found is None or found.state == "ending":
                raise DoesNotFit(f"lease {lease} ended: {self.pool.why_ended(lease)}")
            if holds(found):
                return found
            if self._clock() >= deadline:
                raise Unavailable(f"{', '.join(found.servers)} did not {what} within {seconds:g} s")
            future = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(lease, []).append(future)
            await asyncio.wait([future], timeout=deadline - self._clock())
