"""The cheapest thing that would recover what a line of the bill loses: proposed, never done.

What nobody uses comes first, for giving it back costs nobody anything; then a smaller request; and for a pod that waits
what is idle and would make room for it, or else the moves of `egpu defrag`, which end running programs.
"""

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from egpu.api.kubernetes import Pod
from egpu.api.quantities import MIB_BYTES, format_mib
from egpu.core.bill.lines import Bill, Cause, Line
from egpu.core.placement.cache import SchedulerCache
from egpu.core.policies.price import KnownPrice
from egpu.core.policies.shapes import Mix
from egpu.core.simulation.defrag import MAX_MOVES, propose
from egpu.core.simulation.export import shapes_of
from egpu.core.simulation.moving import Movers
from egpu.core.view import SliceView, Waits

MAX_PENDING: Final = 16
"""Waiting pods for which room is looked for, the dearest first; looking is dear."""
MAX_TRIED: Final = 32
"""Idle slices of which each is thought away for one waiting pod."""
CORE_HEADROOM: Final = 1.5
"""A smaller request leaves so much above the average: what was used came in bursts."""
MEMORY_HEADROOM: Final = 1.2
_CORE_STEP: Final = 5
_MEMORY_STEP_MIB: Final = 256


@dataclass(frozen=True)
class Size:
    """Of a slice."""

    core_percent: int
    memory_mib: int


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """`kind`: release a claim, end a pod, ask for less (`size`), move `moves` pods, or nothing that was found. `text`
    says it in a sentence."""

    kind: Literal["release", "end", "shrink", "move", "none"]
    text: str
    size: Size | None = None
    moves: int = 0


def remedies(bill: Bill, cache: SchedulerCache, pods: Sequence[Pod], nodes: Sequence[str]) -> Iterator[Remedy]:
    """One a line, in their order; each is looked for when it is asked for. `cache` was shown `pods`; after each it
    is as it was."""
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
    """What whoever it is of can do by himself; nobody else's pods, and no nodes, are in it."""
    if line.pending is not None:
        return Remedy(kind="none", text=line.pending.message)
    return _of_slice(line)


def right_size(one: SliceView) -> Size | None:
    """What would have been enough, with something to spare; None where that is no less, or nobody says."""
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
        return Remedy(kind="release" if one.claim else "end", text=f"{released}: it asks nothing of its card")
    size = right_size(one)
    if size is None:
        return Remedy(kind="none", text="it was given no more than the least")
    text = f"ask for {size.core_percent} % and {format_mib(size.memory_mib)}: enough for {_hours(line)} of history"
    return Remedy(kind="shrink", text=text, size=size)


def _hours(line: Line) -> str:
    hours = line.history_seconds / 3600
    return f"{hours:.0f} h" if hours >= 10 else f"{hours:.1f} h"


class _Rooms:
    """Looks for room for pods that wait."""

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
                return Remedy(kind=kind, text=f"{whom}, which is idle: then it fits on {fits[0]}")
        return None

    @contextmanager
    def _gone(self, one: SliceView) -> Generator[None]:
        """As if the holder of a slice held nothing."""
        ledger = self._cache.ledger
        held = ledger.holding(one.holder)
        ledger.release(one.holder)
        try:
            yield
        finally:
            if held is not None:
                ledger.hold(one.holder, held)

    def _with_moves(self, pod: Pod) -> Remedy:
        nothing = Remedy(kind="none", text=f"no {MAX_MOVES} moves or fewer would make room; more cards would")
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
        return Remedy(kind="move", text=f"move {what}: then it fits on {node}", moves=count)
