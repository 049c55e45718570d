"""Arrivals and departures, from a trace and a seed. They are the same for every policy: common random numbers."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.policies.shapes import Shape
from egpu_base.errors import InvalidInput

MAX_EVENTS: Final = 50_000_000
PARETO_SHAPE: Final = 1.5
"""Default tail: finite mean, infinite variance."""


@dataclass(frozen=True)
class Lifetime:
    """The distribution of lifetimes with this mean: exponential, or Pareto with a tail of the given `shape` (above
    1)."""

    kind: Literal["exp", "pareto"]
    mean: float
    shape: float = PARETO_SHAPE

    @classmethod
    def parse(cls, text: str) -> "Lifetime":
        """Parse `exp:MEAN`, `pareto:MEAN` or `pareto:MEAN:SHAPE`. Raises InvalidInput."""
        kind, *numbers = text.split(":")
        try:
            values = [float(number) for number in numbers]
        except ValueError:
            values = []
        if kind == "exp" and len(values) == 1 and values[0] > 0:
            return cls("exp", values[0])
        if kind == "pareto" and len(values) in (1, 2) and values[0] > 0:
            shape = values[1] if len(values) == 2 else PARETO_SHAPE
            if shape > 1:
                return cls("pareto", values[0], shape)
        raise InvalidInput("lifetime", f"{text!r} is none of exp:MEAN, pareto:MEAN, pareto:MEAN:SHAPE (SHAPE above 1)")

    def draw(self, random: np.random.Generator, count: int) -> FloatArray:
        """Return random lifetimes, shape (count,)."""
        if self.kind == "exp":
            return random.exponential(self.mean, count)
        return self._least * (1 + random.pareto(self.shape, count))

    def draw_rest(self, random: np.random.Generator, count: int) -> FloatArray:
        """Return random rests of lifetimes of pods that run at some moment of a steady state, shape (count,).

        A lifetime is met with a chance in proportion to its length, at a uniform point of it. For the exponential that
        is the same exponential; for a Pareto of shape a, a uniform part of a Pareto of shape a - 1.
        """
        if self.kind == "exp":
            return random.exponential(self.mean, count)
        return random.random(count) * self._least * (1 + random.pareto(self.shape - 1, count))

    @property
    def _least(self) -> float:
        return self.mean * (self.shape - 1) / self.shape


@dataclass(frozen=True)
class Workload:
    """The arrivals and departures. `shapes` in order of arrival. `events` in order: i is the arrival of pod i, ~i its
    end.

    `counted_from` is the first arrival that statistics count: earlier ones only fill the cluster. `node_order` is the
    random permutation that breaks ties between nodes. `gangs` has a number per arrival, equal for pods that are placed
    all or none, which come one after the other; -1 for a pod of no gang; None without gangs.
    """

    shapes: Sequence[Shape]
    events: IntArray
    node_order: IntArray
    counted_from: int = 0
    gangs: IntArray | None = None


Unit = tuple[int, ...]
"""Pods that come together, by their places in the trace: a gang, or one pod."""


def units_of(count: int, gangs: Sequence[str]) -> list[Unit]:
    """Return the units of a trace of `count` pods; `gangs` names each one's gang ("" for none; empty: no gangs)."""
    if not gangs:
        return [(at,) for at in range(count)]
    members: dict[str, list[int]] = {}
    for at, gang in enumerate(gangs):
        members.setdefault(gang or f"\0{at}", []).append(at)
    return [tuple(places) for places in members.values()]


def _arrivals(
    pods: Sequence[Shape], order: Sequence[Unit], gangs: Sequence[str]
) -> tuple[list[Shape], IntArray | None]:
    """Return the shapes of the units' pods in order, and the gang of each."""
    shapes = [pods[place] for unit in order for place in unit]
    if not gangs:
        return shapes, None
    numbers = [number if gangs[place] else -1 for number, unit in enumerate(order) for place in unit]
    return shapes, np.array(numbers, dtype=np.int64)


def published_arrivals(
    pods: Sequence[Shape], *, nodes: int, capacity_milli: int, load: float, seed: int, gangs: Sequence[str] = ()
) -> Workload:
    """Return the workload of "Beware of Fragmentation": all pods in random order, then uniformly drawn clones until the
    requested GPU reaches `load` times the capacity (or, of a longer trace, only as many pods). No pod departs. The pods
    of one gang come together, and are cloned together."""
    _check(pods, capacity_milli, load)
    random = np.random.default_rng(seed)
    units = units_of(len(pods), gangs)
    gpu = [sum(pods[place].gpu_milli for place in unit) for unit in units]
    order: list[int] = random.permutation(len(units)).tolist()
    wanted = load * capacity_milli
    asked = np.cumsum([gpu[unit] for unit in order])
    if asked[-1] > wanted:
        order = order[: int(np.searchsorted(asked, wanted, side="left")) + 1]
    total = sum(gpu[unit] for unit in order)
    while total < wanted:
        clone = int(random.integers(len(units)))
        order.append(clone)
        total += gpu[clone]
    shapes, numbers = _arrivals(pods, [units[unit] for unit in order], gangs)
    return Workload(shapes, np.arange(len(shapes)), random.permutation(nodes), gangs=numbers)


def churn(
    pods: Sequence[Shape],
    *,
    nodes: int,
    capacity_milli: int,
    load: float,
    lifetime: Lifetime,
    lifetimes: float,
    warm_up: float,
    seed: int,
    gangs: Sequence[str] = (),
) -> Workload:
    """Return Poisson arrivals of pods drawn uniformly from the trace, each with a random lifetime, for `lifetimes` mean
    lifetimes, of which `warm_up` are not counted. The pods of one gang are drawn, come and go together.

    `load` is the average GPU in use if no pod were refused, as a share of the capacity. It is there from the start: the
    first arrivals, all at time 0, are the pods that a steady state would have running, with the rest of their
    lifetimes. From an empty cluster, heavy-tailed lifetimes would take hundreds of lifetimes to get there.
    """
    _check(pods, capacity_milli, load)
    units = units_of(len(pods), gangs)
    mean_gpu = sum(shape.gpu_milli for shape in pods) / len(units)
    running = load * capacity_milli / mean_gpu
    if not 0 < running * (lifetimes + 2) <= MAX_EVENTS / 2:
        raise InvalidInput("load", f"{running * lifetimes:.0f} arrivals; the most is {MAX_EVENTS // 2}")
    random = np.random.default_rng(seed)
    found, later = int(random.poisson(running)), int(running * lifetimes)
    starts = np.concatenate([np.zeros(found), np.cumsum(random.exponential(lifetime.mean / running, later))])
    count = found + later
    chosen = random.integers(len(units), size=count)
    ends = starts + np.concatenate([lifetime.draw_rest(random, found), lifetime.draw(random, later)])
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    order = order[times[order] <= starts[-1]]
    events = np.where(order < count, order, ~(order - count))
    counted = int(np.searchsorted(starts, warm_up * lifetime.mean))
    drawn = [units[int(unit)] for unit in chosen]
    shapes, numbers = _arrivals(pods, drawn, gangs)
    node_order = random.permutation(nodes)
    if gangs:
        first = [0, *itertools.accumulate(len(unit) for unit in drawn)]
        events, counted = _by_pod(events, first), first[counted]
    return Workload(shapes, events, node_order, counted, numbers)


def _by_pod(events: IntArray, first: Sequence[int]) -> IntArray:
    """Convert events of units to events of their pods; unit u has the pods from `first[u]` to before `first[u + 1]`."""
    expanded: list[int] = []
    listed: list[int] = events.tolist()
    for event in listed:
        unit = event if event >= 0 else ~event
        pods = range(first[unit], first[unit + 1])
        expanded += pods if event >= 0 else [~pod for pod in pods]
    return np.array(expanded, dtype=np.int64)


def _check(pods: Sequence[Shape], capacity_milli: int, load: float) -> None:
    if not any(shape.gpu_milli for shape in pods):
        raise InvalidInput("pods", "no pod of the trace asks for a GPU: there is no load to scale")
    if not capacity_milli:
        raise InvalidInput("nodes", "no node of the trace has a GPU")
    if not load > 0:
        raise InvalidInput("load", f"{load} is not above 0")
