"""One policy, one workload: every pod is offered once, and a refused pod is dropped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.policies.fgd import Fgd
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.learning import LearnedMix
from egpu.core.policies.placer import Placer
from egpu.core.policies.prices import compute_prices
from egpu.core.policies.registry import Setting, make_policy
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.replay.parking import contended_percent
from egpu.core.replay.workload import Workload

Clock = Callable[[], float]
PROGRESS_EVERY: Final = 500


@dataclass(frozen=True)
class Point:
    """The cluster when the arrived GPU passed `arrived_percent` of its capacity."""

    arrived_percent: int
    allocated_percent: float
    fragmented_percent: float
    """The part of the free GPU that the job mix cannot use in expectation; nan if not measured."""


@dataclass
class Outcome:
    """The result of a run. `decision_seconds` holds one entry per decision, prices not included."""

    policy: str
    curve: list[Point]
    refused_gpu_percent: float
    refused_pods: int
    decisions: int
    decision_seconds: FloatArray
    price_seconds: float
    contended_percent: float = 0.0
    """Of the cards whose room pods share at the end, those where they wait for each other."""
    placements: dict[int, Placement | None] = field(default_factory=dict[int, Placement | None])
    """The place of each arrival (rows in the workload's node order), on request."""

    @property
    def decisions_per_second(self) -> float:
        """The rate over the whole run, on the given clock."""
        return self.decisions / max(float(self.decision_seconds.sum()), 1e-9)

    def allocated_at(self, arrived_percent: int) -> float:
        """Return the allocated GPU, percent of capacity, when `arrived_percent` had arrived (or at the end)."""
        passed = [point for point in self.curve if point.arrived_percent >= arrived_percent]
        return (passed[0] if passed else self.curve[-1]).allocated_percent


def run(
    policy: str,
    machines: Sequence[Machine],
    workload: Workload,
    mix: Mix,
    *,
    seed: int = 0,
    clock: Clock,
    progress: Callable[[int], None] | None = None,
    fragmentation: bool = False,
    keep_placements: bool = False,
) -> Outcome:
    """Offer the workload to the policy called `policy`. A policy with prices learns the mix on the way, as in a
    cluster; others know it beforehand. `progress` gets the number of processed events. Raises InvalidInput,
    MissingExtra."""
    fleet = Fleet([machines[int(place)] for place in workload.node_order])
    chosen = make_policy(policy, Setting(fleet, mix, seed))
    placer = Placer(fleet, chosen)
    learned, priced = LearnedMix(), Mix()
    groups = _Gangs(workload.gangs, fleet, workload.shapes) if workload.gangs is not None else None
    gauge = _Gauge(fleet, Fgd(mix, fleet.models) if fragmentation else None)
    seconds, price_seconds = list[float](), 0.0
    places: dict[int, Placement] = {}
    kept: dict[int, Placement | None] = {}
    offered = refused = refused_pods = 0
    shapes = workload.shapes
    events: list[int] = workload.events.tolist()
    for done, event in enumerate(events):
        if progress is not None and done % PROGRESS_EVERY == 0:
            progress(done)
        if event < 0:
            place = places.pop(~event, None)
            if place is not None:
                fleet.release(shapes[~event], place)
            continue
        shape = shapes[event]
        if chosen.priced and shape.cards:  # as for an extender, which sees no others
            began = clock()
            if learned.see(shape) and not (now := learned.mix()).is_like(priced):
                priced = now
                chosen.use_prices(fleet, compute_prices(now, fleet))
            price_seconds += clock() - began
        began = clock()
        place = placer.place(shape) if groups is None or groups.whole(event) else None
        seconds.append(clock() - began)
        if place is not None:
            places[event] = place
        lost = [event] if place is None else []
        if groups is not None and lost:
            lost += groups.undo(event, places)
        if keep_placements:
            kept[event] = place
            kept |= dict.fromkeys(lost)
        if event >= workload.counted_from:
            offered += shape.gpu_milli
            refused += sum(shapes[one].gpu_milli for one in lost)
            refused_pods += len(lost)
        for one in (shape,) if groups is None else groups.decided(event):
            gauge.arrived(one)
    if progress is not None:
        progress(len(workload.events))
    gauge.finish()
    return Outcome(
        policy=policy,
        curve=gauge.curve,
        refused_gpu_percent=100 * refused / max(offered, 1),
        refused_pods=refused_pods,
        decisions=len(seconds),
        decision_seconds=np.array(seconds),
        price_seconds=price_seconds,
        contended_percent=contended_percent((shapes[event], place) for event, place in places.items()),
        placements=kept,
    )


class _Gangs:
    """Pods that are placed all or none, one after the other in the order of the trace."""

    def __init__(self, numbers: IntArray, fleet: Fleet, shapes: Sequence[Shape]) -> None:
        self._numbers: list[int] = numbers.tolist()
        self._fleet, self._shapes = fleet, shapes
        self._failed = -1

    def whole(self, event: int) -> bool:
        """Return whether no pod of this one's gang was refused so far."""
        return self._numbers[event] < 0 or self._numbers[event] != self._failed

    def decided(self, event: int) -> Sequence[Shape]:
        """Return the arrivals that are decided with this one: the whole gang with its last pod."""
        gang, numbers = self._numbers[event], self._numbers
        if gang < 0:
            return self._shapes[event : event + 1]
        if event + 1 < len(numbers) and numbers[event + 1] == gang:
            return ()
        first = event
        while first > 0 and numbers[first - 1] == gang:
            first -= 1
        return self._shapes[first : event + 1]

    def undo(self, event: int, places: dict[int, Placement]) -> list[int]:
        """Take off the earlier pods of a refused pod's gang, and return them."""
        gang = self._numbers[event]
        if gang < 0 or gang == self._failed:
            return []
        self._failed = gang
        undone: list[int] = []
        while event > 0 and self._numbers[event - 1] == gang:
            event -= 1
            self._fleet.release(self._shapes[event], places.pop(event))
            undone.append(event)
        return undone


class _Gauge:
    """Measures the cluster each time another percent of its capacity has arrived."""

    def __init__(self, fleet: Fleet, fragments: Fgd | None) -> None:
        self._fleet = fleet
        self._fragments = fragments
        self._arrived = 0
        self._next = 1
        self.curve: list[Point] = []

    def arrived(self, shape: Shape) -> None:
        self._arrived += shape.gpu_milli
        percent = 100 * self._arrived // self._fleet.capacity_milli
        while self._next <= percent:
            self._read(self._next)
            self._next += 1

    def finish(self) -> None:
        """Measure the last point. Sums of shares may miss their mark by a little, so the arrived GPU is rounded."""
        percent = round(100 * self._arrived / self._fleet.capacity_milli)
        if percent >= self._next or not self.curve:
            self._read(percent)

    def _read(self, percent: int) -> None:
        fleet = self._fleet
        fragmented = float("nan")
        if self._fragments is not None:
            free = fleet.capacity_milli - fleet.allocated_milli
            fragmented = 100 * float(self._fragments.fragments(fleet).sum()) / max(free, 1)
        self.curve.append(Point(percent, 100 * fleet.allocated_milli / fleet.capacity_milli, fragmented))
