"""The pool with asyncio: callers that wait for a lease, notices about its end, and orders to servers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from egpu.adapters.pool import messages
from egpu.api.text import check_plain
from egpu.apps.broker.metrics import Acquisitions
from egpu.core.leasing import tokens
from egpu.core.leasing.belief import believed
from egpu.core.leasing.pool import MAX_LEASES, Pool
from egpu.core.leasing.records import LeaseRequest, Report, lease_name
from egpu.core.leasing.state import Lease
from egpu.core.policies.registry import Policies
from egpu_base.errors import DoesNotFit, InvalidInput, NotFound, Unavailable

log = structlog.get_logger(__name__)

START_SECONDS: Final = 30.0
"""The time that executors may take to start before the lease is given up."""
APPLY_SECONDS: Final = 5.0
MAX_WITHIN_SECONDS: Final = 7 * 86_400.0
"""The longest time that new limits may take to be in force."""
MAX_TEXT: Final = 256
"""Most characters of a caller's name, its request and its machine."""
MAX_NAMED: Final = 8
"""Most leases that one log line names."""
EXECUTOR_SOCKET: Final = "lease.sock"


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
        self._holding: dict[str, Callable[[str, str], None]] = {}
        self.push: Callable[[set[str]], None] = lambda _: None
        self.acquisitions = Acquisitions()

    # --- programs -----------------------------------------------------------------------------------------------------

    async def acquire(self, asked: messages.Acquire, peer: str, on_end: Callable[[str, str], None]) -> messages.Granted:
        """Reserve a lease, and wait until its executors run; an error meanwhile ends it.

        Raises DoesNotFit, TooSoon, Refused, InvalidInput, Unavailable."""
        with self.acquisitions.one():
            return await self._acquired(asked, peer, on_end)

    async def _acquired(
        self, asked: messages.Acquire, peer: str, on_end: Callable[[str, str], None]
    ) -> messages.Granted:
        for what, text in (("holder", asked.holder), ("request", asked.request), ("host", asked.host)):
            check_plain(what, text, at_most=MAX_TEXT, empty=what == "host")
        lease = self._grant(asked, peer)
        self._holding[lease.id] = on_end
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
                LeaseRequest(cards=asked.cards, core=asked.core, memory_mib=asked.memory_mib, host=asked.host),
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

    def attach(self, number: int, lease: str, peer: str, on_end: Callable[[str, str], None]) -> messages.Granted:
        """Attach to a lease. Raises NotFound, Unavailable."""
        self._owned(lease, peer)
        self.pool.attach(lease, peer, self._clock())
        self._holding[lease] = on_end
        self.step()
        return self.granted(number, lease)

    def renew(self, number: int, lease: str, peer: str) -> messages.Granted:
        """Renew a lease. Raises NotFound, Unavailable."""
        self._owned(lease, peer)
        self.pool.renew(lease, self._clock())
        return self.granted(number, lease)

    async def resize(self, asked: messages.Resize, peer: str) -> messages.Granted:
        """Resize a lease. Raises NotFound, Refused, DoesNotFit, InvalidInput, Unavailable."""
        self._owned(asked.lease, peer)
        within = asked.within_seconds
        if within is not None and not 0 <= within <= MAX_WITHIN_SECONDS:
            raise InvalidInput("within", f"{within:g} s is not between 0 and {MAX_WITHIN_SECONDS:g}")
        fit_by = None if within is None else self._clock() + within
        self.pool.resize(asked.lease, core=asked.core, memory_mib=asked.memory_mib, fit_by=fit_by)
        self.step()
        await self._until(asked.lease, lambda one: one.in_force, APPLY_SECONDS, "put the new limits in force")
        log.info("resized", lease=asked.lease, core=asked.core, memory_mib=asked.memory_mib, peer=peer)
        return self.granted(asked.number, asked.lease)

    def release(self, lease: str, peer: str, reason: str) -> None:
        """Release a lease. Raises NotFound, Unavailable."""
        self._owned(lease, peer)
        self._holding.pop(lease, None)
        self.end(lease, reason)

    def let_go(self, lease: str, on_end: Callable[[str, str], None]) -> None:
        """Handle the end of the connection for `lease`, unless another connection has taken over."""
        if self._holding.get(lease) == on_end:
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
        return messages.Granted(number=number, lease=self.view(found), token=tokens.issue(claims, found.key))

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
            settled=self._clock() >= self._settled,
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
            if lease in self._holding and self._ending(lease):
                on_end = self._holding.pop(lease)
                on_end(lease, self.pool.why_ended(lease) or "its servers are gone")
            for future in self._waiting.pop(lease, ()):
                if not future.done():
                    future.set_result(None)

    def views(self) -> tuple[messages.LeaseView, ...]:
        return tuple(self.view(lease) for lease in self.pool.leases.values())

    def view(self, lease: Lease) -> messages.LeaseView:
        cards: list[messages.CardView] = []
        parts: list[messages.PartView] = []
        for name, part in lease.parts.items():
            running, server = part.running, self.pool.servers.get(name)
            shares = part.wanted or (running.record.cards if running is not None else ())
            used = running.used_mib if running is not None and len(running.used_mib) == len(shares) else None
            cards += [
                messages.CardView(server=name, share=share, used_mib=None if used is None else used[place])
                for place, share in enumerate(shares)
            ]
            if server is not None:
                socket = f"{server.directory}/{lease.id}/{EXECUTOR_SOCKET}" if server.directory else ""
                view = messages.PartView(
                    server=name, address=server.address, host=server.host, socket=socket, cards=len(shares),
                    libraries=server.libraries,
                )  # fmt: skip
                parts.append(view)
        running_parts = [part.running for part in lease.parts.values() if part.running is not None]
        return messages.LeaseView(
            lease=lease.id, holder=lease.holder, peer=lease.peer, state=lease.state, cards=tuple(cards),
            parts=tuple(parts), over_limit=lease.over_limit,
            gpu_seconds=sum(one.gpu_seconds for one in running_parts),
            sessions=sum(one.sessions for one in running_parts),
        )  # fmt: skip

    def lease_ages(self) -> Iterator[tuple[Lease, float]]:
        """Return the seconds for which this broker has known each lease."""
        now = self._clock()
        return ((lease, now - lease.since) for lease in self.pool.leases.values())

    def server_views(self) -> tuple[messages.ServerView, ...]:
        views: list[messages.ServerView] = []
        for server in self.pool.servers.values():
            row = self.pool.ledger.row(server.name)
            ledger = self.pool.ledger
            view = messages.ServerView(
                server=server.name, address=server.address, host=server.host, link_mbps=server.link_mbps,
                connected=server.away_since is None, cards=len(server.cards), leases=len(server.leases),
                core=100 * len(server.cards), core_free=0 if row is None else int(ledger.core_free[row].sum()),
                memory_mib=sum(card.memory_mib for card in server.cards),
                memory_free_mib=0 if row is None else int(ledger.memory_free[row].sum()),
                confinement=server.confinement, libraries=server.libraries,
            )  # fmt: skip
            views.append(view)
        return tuple(views)

    def _owned(self, lease: str, peer: str) -> None:
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

    async def _until(self, lease: str, holds: Callable[[Lease], bool], seconds: float, what: str) -> None:
        """Wait for a condition. Raises DoesNotFit if the lease ends meanwhile, Unavailable after `seconds`."""
        deadline = self._clock() + seconds
        while True:
            found = self.pool.leases.get(lease)
            if found is None or found.state == "ending":
                raise DoesNotFit(f"lease {lease} ended: {self.pool.why_ended(lease)}")
            if holds(found):
                return
            if self._clock() >= deadline:
                raise Unavailable(f"{', '.join(found.servers)} did not {what} within {seconds:g} s")
            future = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(lease, []).append(future)
            await asyncio.wait([future], timeout=deadline - self._clock())
