"""The cheapest way to recover the loss of a line: proposals only.

Unused claims come first, as releasing them costs nothing. Next is a smaller request. For a waiting pod: an idle slice
that would make room, or else the moves of `egpu defrag`, which end running programs.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from egpu.core.bill.lines import Bill, Cause, Line
from egpu.core.moves.defrag import MAX_MOVES, propose
from egpu.core.moves.movable import Movers
from egpu.core.placement.cache import SchedulerCache
from egpu.core.policies.price import KnownPrice
from egpu.core.policies.shapes import Mix
from egpu.core.replay.export import shapes_of
from egpu.core.view import SliceView, Waits
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import MIB_BYTES, format_mib

MAX_PENDING: Final = 16
"""Waiting pods for which room is searched, those with the largest loss first; a search is expensive."""
MAX_TRIED: Final = 32
"""Idle slices that are removed one by one, as a trial, for one waiting pod."""
CORE_HEADROOM: Final = 1.5
"""A smaller request stays above the average by this factor: usage comes in bursts."""
MEMORY_HEADROOM: Final = 1.2
_CORE_STEP: Final = 5
_MEMORY_STEP_MIB: Final = 256


@dataclass(frozen=True)
class Size:
    """The size of a slice."""

    core_percent: int
    memory_mib: int


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A proposal: release a claim, end a pod, ask for less (`size`), move `moves` pods, or nothing; in words:
    `text`."""

    kind: Literal["release", "end", "shrink", "move", "none"]
    text: str
    size: Size | None = None
    moves: int = 0


def remedies(bill: Bill, cache: SchedulerCache, pods: Sequence[Pod], nodes: Sequence[str]) -> Iterator[Remedy]:
    """Yield one remedy per line, in order; each is searched on demand. `cache` was shown `pods`; it stays unchanged."""
    idle = [line.slice for line in bill.lines if line.slice is not None and line.cause is not Cause.UNDER_USED]
    rooms = _Rooms(cache, pods, nodes, idle)
    looked = 0
    for line in bill.lines:
        if line.pending is not None and line.pending.reason is Waits.ROOM and looked < MAX_PENDING:
            looked += 1
            yield rooms.remedy(line.pending.uid)
        else:
            yield own_remedy(line)


def own_remedy(line: Line) -> Remedy:
    """Return what the owner of a line can do alone. It names no other pods and no nodes."""
    if line.pending is not None:
        return Remedy(kind="none", text=line.pending.message)
    return _of_slice(line)


def right_size(one: SliceView) -> Size | None:
    """Return a size that would have been enough, with headroom; None if it is not smaller, or usage is unknown."""
    used = one.used
    if used is None or not used.age_seconds:
        return None
    average = 100 * used.gpu_seconds / used.age_seconds
    core = _CORE_STEP * max(1, math.ceil(CORE_HEADROOM * average / _CORE_STEP))
    memory = _MEMORY_STEP_MIB * max(1, math.ceil(MEMORY_HEADROOM * used.peak_bytes / MIB_BYTES / _MEMORY_STEP_MIB))
    given_core = 100 if one.exclusive else one.core_percent
    given_memory = one.card_memory_mib if one.exclusive else one.memory_mib
    size = Size(min(core, given_core), min(memory, given_memory))
    return size if size != Size(given_core, given_memory) else None


def _of_slice(line: Line) -> Remedy:
    one = line.slice
    assert one is not None
    if line.cause is Cause.UNUSED:
        what = f"claim {one.name}" if one.claim else f"the retained slice {one.name}"
        return Remedy(kind="release", text=f"release {what}: no pod uses it")
    if line.cause is Cause.IDLE:
        whom = ", ".join(sorted({user.pod for user in one.users}))
        released = f"end pod {whom} and release claim {one.claim}" if one.claim else f"end pod {whom}"
        return Remedy(kind="release" if one.claim else "end", text=f"{released}: it does not use its card")
    size = right_size(one)
    if size is None:
        return Remedy(kind="none", text="a smaller request would not be enough")
    text = f"ask for {size.core_percent} % and {format_mib(size.memory_mib)}: enough for {_hours(line)} of history"
    return Remedy(kind="shrink", text=text, size=size)


def _hours(line: Line) -> str:
    hours = line.history_seconds / 3600
    return f"{hours:.0f} h" if hours >= 10 else f"{hours:.1f} h"


class _Rooms:
    """Searches room for waiting pods."""

    def __init__(
        self, cache: SchedulerCache, pods: Sequence[Pod], nodes: Sequence[str], idle: Iterable[SliceView]
    ) -> None:
        self._cache = cache
        self._pods = {pod.uid: pod for pod in pods}
        self._nodes = nodes
        self._idle = sorted(idle, key=lambda one: one.share)[:MAX_TRIED]
        self._movers: Movers | None = None

    def remedy(self, uid: str) -> Remedy:
        pod = self._pods[uid]
        return self._without_an_idle_one(pod) or self._with_moves(pod)

    def _without_an_idle_one(self, pod: Pod) -> Remedy | None:
        for one in self._idle:
            with self._gone(one):
                fits = self._cache.filter(self._cache.request(pod), self._nodes).fits
            if fits:
                kind, verb = ("end", "end pod") if one.holder.kind == "pod" else ("release", "release")
                whom = f"{verb} {one.namespace}/{one.name}"
                return Remedy(kind=kind, text=f"{whom}, which is idle; the pod then fits on {fits[0]}")
        return None

    @contextmanager
    def _gone(self, one: SliceView) -> Generator[None]:
        """Release what the holder of a slice holds, within the context."""
        ledger = self._cache.ledger
        held = ledger.holding(one.holder)
        ledger.release(one.holder)
        try:
            yield
        finally:
            if held is not None:
                ledger.hold(one.holder, held)

    def _with_moves(self, pod: Pod) -> Remedy:
        nothing = Remedy(kind="none", text=f"up to {MAX_MOVES} moves make no room; add cards")
        wanted = shapes_of(self._cache, [pod])
        if not wanted or not wanted[0].cards:
            return nothing
        if self._movers is None:
            self._movers = Movers(self._cache, list(self._pods.values()))
        movers, fleet = self._movers, self._movers.fleet
        found = propose(
            fleet,
            KnownPrice.of(Mix.of([*(one.shape for one in movers.placed), *wanted]), fleet),
            movers.placed,
            wanted[0],
            accept=lambda one: movers.accepts(one.moves, pod, fleet.machines[one.place.row].name),
        )
        if found is None:
            return nothing
        node, count = fleet.machines[found.place.row].name, len(found.moves)
        what = ", ".join(f"{move.name} to {fleet.machines[move.target.row].name}" for move in found.moves)
        return Remedy(kind="move", text=f"move {what}; the pod then fits on {node}", moves=count)
