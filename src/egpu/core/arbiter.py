"""Decide which slices of a card have their memory on it, if together they may have more than the card.

Each slice has a room: so many bytes of it may be on the card at the same time. It is never below the slice's floor,
which is its own and always free for it. A slice that needs more asks and waits. The arbiter gives it room that is free
or unused, or parks other slices: first idle ones, then those of lower priority, then those whose turn is over. Slices
that wait are served one after the other: by priority, then in the order in which they asked. A slice behind may take
what is free, until the first has waited for as long as a turn; then the room is kept for the first. So neither small
nor large slices starve.

A turn lasts ten times as long as it takes to swap the two slices, so a contended card works for most of the time.

A slice that has more on the card than its floor is *due* from the moment when it is asked to leave for one that waits,
or would be if its memory could leave. One that stays due does not leave, by its own fault or because its memory cannot.
Others decide what follows from that.

All figures are those that a slice gives for itself and the node agent's. One that lies about its own use gets no more
room by it: the rooms together never exceed the card, and the driver has the last word.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

TURN_SWAPS: Final = 10
"""A busy slice keeps its room for so many times as long as a swap with the slice that waits."""
IDLE_SWAPS: Final = 2
"""Likewise for an idle one: a slice that comes back at every call does not leave at every pause."""
SHORTEST_TURN_SECONDS: Final = 1.0
"""Asking, stopping and noticing take up to some tenths of a second, whatever the size."""
LEAVE_SECONDS: Final = 15.0
"""A slice that was asked to park, and still has its memory after this and the time for copying, did not do it."""
REFUSED_SECONDS: Final = 5.0
"""A slice that could not be parked is left alone for so long."""


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A slice on the card. Times are seconds of one clock, larger priorities are more important.

    `movable_bytes` of `on_card_bytes` can be parked; `away_bytes` are parked, or wait for room. `answered`: its
    processes have answered the last request to park. `stays`: it is never parked."""

    name: Hashable
    limit_bytes: int
    floor_bytes: int
    on_card_bytes: int = 0
    movable_bytes: int = 0
    away_bytes: int = 0
    room_bytes: int = 0
    asks: bool = False
    active_at: float = 0.0
    idle_seconds: float = 0.0
    priority: int = 0
    stays: bool = False
    answered: bool = True

    @property
    def wanted_bytes(self) -> int:
        """What it needs on the card to go on."""
        return max(self.floor_bytes, min(self.limit_bytes, self.on_card_bytes + self.away_bytes))

    @property
    def committed_bytes(self) -> int:
        """What is, or may be at any moment, on the card."""
        return max(self.room_bytes, self.on_card_bytes)

    @property
    def kept_bytes(self) -> int:
        """What stays committed when its room is no larger than what it uses."""
        return max(self.floor_bytes, self.on_card_bytes)

    @property
    def left_bytes(self) -> int:
        """What stays committed when it is parked."""
        return max(self.floor_bytes, self.on_card_bytes - self.movable_bytes)

    @property
    def waits(self) -> bool:
        return self.asks and self.room_bytes < self.wanted_bytes


@dataclass(frozen=True)
class Due:
    """Since when a slice is to leave, and for which one now."""

    since: float
    for_slice: Hashable


@dataclass(frozen=True)
class Turn:
    """What the arbiter remembers of a slice: since when it has its memory, has been asking, and has been leaving, until
    when it is left alone, and since when it is due."""

    since: float
    asked_since: float | None = None
    leaves_since: float | None = None
    refused_until: float = 0.0
    due: Due | None = None


class Why(Enum):
    """Reasons to park a slice for another, the first one first."""

    WAITS = "it waited for room too"
    IDLE = "it was idle"
    BELOW = "its priority is lower"
    TURN = "its turn was over"


@dataclass(frozen=True)
class Park:
    """A slice leaves the card for another one. `holds`: calls of its programs are held for a while."""

    for_slice: Hashable
    why: Why

    @property
    def holds(self) -> bool:
        return self.why is not Why.IDLE


@dataclass(frozen=True)
class Decision:
    """The changes of rooms; the slices to park; what to remember.

    `contended`: slices that are not idle wait for each other. A card that is contended for long thrashes."""

    turns: Mapping[Hashable, Turn]
    rooms: Mapping[Hashable, int] = field(default_factory=dict[Hashable, int])
    parks: Mapping[Hashable, Park] = field(default_factory=dict[Hashable, Park])
    contended: bool = False


def decide(
    tenants: Sequence[Tenant],
    turns: Mapping[Hashable, Turn],
    *,
    budget_bytes: int,
    bandwidth: float,
    now: float,
) -> Decision:
    """Decide for the slices of one card. `turns` are those of the last decision; none after a restart.

    `budget_bytes`: the card without what other slices are promised. `bandwidth`: bytes per second of a copy.
    """
    return _Card(tenants, turns, budget_bytes, bandwidth, now).decide()


class _Card:
    def __init__(
        self,
        tenants: Sequence[Tenant],
        turns: Mapping[Hashable, Turn],
        budget_bytes: int,
        bandwidth: float,
        now: float,
    ) -> None:
        self.tenants = tenants
        self.bandwidth = bandwidth
        self.now = now
        self.turns = {one.name: self._turn(one, turns.get(one.name)) for one in tenants}
        self.free = budget_bytes - sum(one.committed_bytes for one in tenants)
        self.rooms: dict[Hashable, int] = {}
        self.parks: dict[Hashable, Park] = {}

    def _turn(self, one: Tenant, before: Turn | None) -> Turn:
        turn = before or Turn(self.now)
        if turn.leaves_since is not None:
            patience = LEAVE_SECONDS + 2 * one.movable_bytes / self.bandwidth
            if not one.movable_bytes:
                turn = replace(turn, leaves_since=None)
            elif one.answered or self.now - turn.leaves_since > patience:
                turn = replace(turn, leaves_since=None, refused_until=self.now + REFUSED_SECONDS)
        if not one.waits:
            return replace(turn, asked_since=None)
        asked = self.now if turn.asked_since is None else turn.asked_since
        return replace(turn, since=self.now, asked_since=asked)

    def decide(self) -> Decision:
        queue = sorted((one for one in self.tenants if one.waits), key=self._place)
        contended = passed = False
        for place, one in enumerate(queue):
            if (need := one.wanted_bytes - one.committed_bytes) <= self.free:
                self._give(one, need, alone=len(queue) == 1)
                continue
            if passed:
                continue
            if self._make_room(one, need, queue[place + 1 :]):
                contended = any(park.holds for park in self.parks.values())
                break
            contended = True
            if self.now - self._asked(one) > self._longest_turn(one):
                break
            passed = True
        self._note_due([one for one in queue if one.name not in self.rooms])
        return Decision(self.turns, self.rooms, self.parks, contended)

    def _note_due(self, unserved: Sequence[Tenant]) -> None:
        """Two that wait are enough: whoever is not the first of them is to leave for it, or else for the second."""
        ranks = self._ranks(self.tenants)
        for each in self.tenants:
            turn, of = self.turns[each.name], None
            if each.on_card_bytes > each.floor_bytes and not each.stays:
                of = next((one for one in unserved[:2] if one is not each and self._is_due(each, one, ranks)), None)
            if of is not None:
                due = Due(self.now if turn.due is None else turn.due.since, of.name)
                self.turns[each.name] = replace(turn, due=due)
            elif turn.due is not None:
                self.turns[each.name] = replace(turn, due=None)

    def _is_due(self, each: Tenant, one: Tenant, ranks: Mapping[int, int]) -> bool:
        if self._leaves(each):
            return True
        was_asked = self.turns[each.name].due is not None
        if not was_asked and each.left_bytes == each.floor_bytes:
            return False
        return self._key(each, one, ranks[each.priority], waits=each.waits) is not None

    def _asked(self, one: Tenant) -> float:
        return self.turns[one.name].asked_since or self.now

    def _place(self, one: Tenant) -> tuple[int, float, str]:
        return -one.priority, self._asked(one), str(one.name)

    def _give(self, one: Tenant, need: int, *, alone: bool) -> None:
        """Give what it needs; alone it gets more, so that a program that grows does not ask at every step."""
        more = min(self.free - need, one.limit_bytes - one.wanted_bytes) if alone else 0
        self.rooms[one.name] = one.wanted_bytes + more
        self.free -= need + more

    def _make_room(self, one: Tenant, need: int, behind: Sequence[Tenant]) -> bool:
        """Take unused room back, and park slices if that is not enough. The room is free at a later step: a slice may
        be using it right now."""
        others = [each for each in self.tenants if each.name != one.name and each.name not in self.rooms]
        missing = need - self.free
        missing -= sum(each.committed_bytes - each.left_bytes for each in others if self._leaves(each))
        shrunk: dict[Hashable, int] = {}
        for each in sorted(others, key=lambda each: each.kept_bytes - each.committed_bytes):
            if missing > 0 and not self._leaves(each) and each.kept_bytes < each.committed_bytes:
                shrunk[each.name] = each.kept_bytes
                missing -= each.committed_bytes - each.kept_bytes
        victims = self._victims(one, missing, others, {each.name for each in behind}) if missing > 0 else {}
        if victims is None:
            return False
        self.rooms |= shrunk
        for each in self.tenants:
            if each.name in victims:
                self.rooms[each.name] = each.floor_bytes
                self.parks[each.name] = Park(one.name, victims[each.name])
                self.turns[each.name] = replace(self.turns[each.name], leaves_since=self.now)
        return True

    def _leaves(self, one: Tenant) -> bool:
        return self.turns[one.name].leaves_since is not None

    def _victims(
        self, one: Tenant, missing: int, others: Sequence[Tenant], behind: set[Hashable]
    ) -> dict[Hashable, Why] | None:
        """Return the slices to park, and why each; None if they do not make enough room."""
        ranks = self._ranks(others)
        able: list[tuple[_Key, Tenant]] = []
        for each in others:
            if each.kept_bytes <= each.left_bytes or each.stays or self._leaves(each):
                continue
            if self.turns[each.name].refused_until > self.now:
                continue
            if (key := self._key(each, one, ranks[each.priority], waits=each.name in behind)) is not None:
                able.append((key, each))
        chosen: list[tuple[Tenant, Why]] = []
        for key, each in sorted(able, key=lambda entry: (_ORDER[entry[0].why], *entry[0][1:])):
            if missing > 0:
                chosen.append((each, key.why))
                missing -= each.kept_bytes - each.left_bytes
        if missing > 0:
            return None
        for each, why in reversed(chosen[:-1]):  # the last is needed, and may be enough without another
            if missing + each.kept_bytes - each.left_bytes <= 0:
                chosen.remove((each, why))
                missing += each.kept_bytes - each.left_bytes
        return {each.name: why for each, why in chosen}

    @staticmethod
    def _ranks(tenants: Sequence[Tenant]) -> dict[int, int]:
        return {priority: rank for rank, priority in enumerate(sorted({each.priority for each in tenants}))}

    def _key(self, each: Tenant, one: Tenant, rank: int, *, waits: bool) -> _Key | None:
        """Return the place of a slice among those to park for `one`, the smallest first; None: not now."""
        had, idle = self.now - self.turns[each.name].since, self.now - each.active_at
        below = each.priority < one.priority
        if waits and not each.priority > one.priority:
            return _Key(Why.WAITS, 0, -self._asked(each))  # it cannot work anyway; the last to ask first
        if idle >= each.idle_seconds and (below or had >= self._swap(each, one) * IDLE_SWAPS):
            bytes_ = each.kept_bytes - each.left_bytes
            fit = min(1.0, max(0, one.wanted_bytes - one.committed_bytes) / max(1, bytes_))
            return _Key(Why.IDLE, 0, -(idle * fit) / (1 + rank))
        if below:
            return _Key(Why.BELOW, rank, -had)
        if each.priority == one.priority and had >= self._turn_seconds(each, one):
            return _Key(Why.TURN, 0, -had)
        return None

    def _swap(self, each: Tenant, one: Tenant) -> float:
        """Return the seconds in which one takes the other's place."""
        return (each.movable_bytes + one.away_bytes) / self.bandwidth

    def _turn_seconds(self, each: Tenant, one: Tenant) -> float:
        return max(SHORTEST_TURN_SECONDS, self._swap(each, one) * TURN_SWAPS)

    def _longest_turn(self, one: Tenant) -> float:
        return max((self._turn_seconds(each, one) for each in self.tenants if each.name != one.name), default=0.0)


class _Key(NamedTuple):
    """The place of a slice among those to park: by reason, then by priority, then by time."""

    why: Why
    rank: int
    time: float


_ORDER: Final = {why: place for place, why in enumerate(Why)}
