"""One policy, one workload: every pod is offered once, and a refused pod is dropped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from egpu.core.arrays import FloatArray
from egpu.core.packing.fgd import Fgd
from egpu.core.packing.fleet import Fleet, Placement
from egpu.core.packing.learner import LearningPrice
from egpu.core.packing.placer import Placer
from egpu.core.packing.registry import Setting, scorer
from egpu.core.packing.shapes import Machine, Mix, Shape
from egpu.core.simulation.workload import Workload

Clock = Callable[[], float]
PROGRESS_EVERY: Final = 500


@dataclass(frozen=True)
class Point:
    """The cluster when the GPU that arrived passed `arrived_percent` of its capacity."""

    arrived_percent: int
    allocated_percent: float
    fragmented_percent: float
    """Of the free GPU, what the job mix cannot use in expectation; nan where not measured."""


@dataclass
class Outcome:
    """What came of it. `decision_seconds` holds one entry per decision, prices not included."""

    policy: str
    curve: list[Point]
    refused_gpu_percent: float
    refused_pods: int
    decisions: int
    decision_seconds: FloatArray
    price_seconds: float
    placements: dict[int, Placement | None] = field(default_factory=dict[int, Placement | None])
    """Where each arrival went (rows in the workload's node order), when asked to be kept."""

    @property
    def decisions_per_second(self) -> float:
        """Over the whole run, on the clock that was given."""
        return self.decisions / max(float(self.decision_seconds.sum()), 1e-9)

    def allocated_at(self, arrived_percent: int) -> float:
        """Allocated GPU, percent of capacity, when `arrived_percent` had arrived (or at the end)."""
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
    """Offer the workload to the policy called `policy`. `progress` is told how many events are done."""
    fleet = Fleet([machines[int(place)] for place in workload.node_order])
    chosen = scorer(policy, Setting(fleet, mix, seed))
    placer = Placer(fleet, chosen)
    learner = chosen if isinstance(chosen, LearningPrice) else None
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
        if learner is not None:
            began = clock()
            learner.see(shape)
            price_seconds += clock() - began
        began = clock()
        place = placer.place(shape)
        seconds.append(clock() - began)
        if keep_placements:
            kept[event] = place
        if place is not None:
            places[event] = place
        if event >= workload.counted_from:
            offered += shape.gpu_milli
            if place is None:
                refused += shape.gpu_milli
                refused_pods += 1
        gauge.arrived(shape)
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
        placements=kept,
    )


class _Gauge:
    """Reads the cluster each time another percent of its capacity has arrived."""

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
        """The last point: sums of shares may miss their mark by a little, so what had arrived is rounded."""
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
