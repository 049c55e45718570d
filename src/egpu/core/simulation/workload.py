"""Arrivals and departures, from a trace and a seed. The same for every policy: common random numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.packing.shapes import Shape
from egpu.errors import InvalidInput

MAX_EVENTS: Final = 50_000_000
PARETO_SHAPE: Final = 1.5
"""Default tail: finite mean, infinite variance."""


@dataclass(frozen=True)
class Lifetime:
    """How long pods stay: exponential, or Pareto with a tail of the given `shape` (above 1), both with this mean."""

    kind: Literal["exp", "pareto"]
    mean: float
    shape: float = PARETO_SHAPE

    @classmethod
    def parse(cls, text: str) -> "Lifetime":
        """`exp:MEAN`, `pareto:MEAN` or `pareto:MEAN:SHAPE`. Raises InvalidInput."""
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
        """Lifetimes, shape (count,)."""
        if self.kind == "exp":
            return random.exponential(self.mean, count)
        return self._least * (1 + random.pareto(self.shape, count))

    def draw_rest(self, random: np.random.Generator, count: int) -> FloatArray:
        """What is left of the lifetimes of pods found running at some moment of a steady state, shape (count,).

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
    """`shapes` in order of arrival. `events` is what happens in order: i is the arrival of pod i, ~i its end.

    `counted_from` is the first arrival that statistics count: earlier ones only fill the cluster. `node_order` is the
    random permutation that breaks ties between nodes.
    """

    shapes: Sequence[Shape]
    events: IntArray
    node_order: IntArray
    counted_from: int = 0


def published_arrivals(pods: Sequence[Shape], *, nodes: int, capacity_milli: int, load: float, seed: int) -> Workload:
    """The protocol of "Beware of Fragmentation": all pods in random order, then uniformly drawn clones until the GPU
    asked for reaches `load` times the capacity (or, of a longer trace, only as many pods). Nothing departs."""
    _check(pods, capacity_milli, load)
    random = np.random.default_rng(seed)
    order = [pods[int(place)] for place in random.permutation(len(pods))]
    wanted = load * capacity_milli
    asked = np.cumsum([shape.gpu_milli for shape in order])
    if asked[-1] > wanted:
        order = order[: int(np.searchsorted(asked, wanted, side="left")) + 1]
    total = sum(shape.gpu_milli for shape in order)
    while total < wanted:
        clone = pods[int(random.integers(len(pods)))]
        order.append(clone)
        total += clone.gpu_milli
    return Workload(order, np.arange(len(order)), random.permutation(nodes))


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
) -> Workload:
    """Poisson arrivals of pods drawn uniformly from the trace, each staying for a random lifetime, for `lifetimes` mean
    lifetimes, of which `warm_up` are not counted.

    `load` is the GPU that would be in use on average were nobody refused, as a share of the capacity. It is there from
    the start: the first arrivals, all at time 0, are the pods that a steady state would find running, with the rest of
    their lifetimes. From an empty cluster, heavy-tailed lifetimes would take hundreds of lifetimes to get there.
    """
    _check(pods, capacity_milli, load)
    mean_gpu = sum(shape.gpu_milli for shape in pods) / len(pods)
    running = load * capacity_milli / mean_gpu
    if not 0 < running * (lifetimes + 2) <= MAX_EVENTS / 2:
        raise InvalidInput("load", f"{running * lifetimes:.0f} arrivals; this simulates up to {MAX_EVENTS // 2}")
    random = np.random.default_rng(seed)
    found, later = int(random.poisson(running)), int(running * lifetimes)
    starts = np.concatenate([np.zeros(found), np.cumsum(random.exponential(lifetime.mean / running, later))])
    count = found + later
    chosen = random.integers(len(pods), size=count)
    ends = starts + np.concatenate([lifetime.draw_rest(random, found), lifetime.draw(random, later)])
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    order = order[times[order] <= starts[-1]]
    events = np.where(order < count, order, ~(order - count))
    counted = int(np.searchsorted(starts, warm_up * lifetime.mean))
    return Workload([pods[int(place)] for place in chosen], events, random.permutation(nodes), counted)


def _check(pods: Sequence[Shape], capacity_milli: int, load: float) -> None:
    if not any(shape.gpu_milli for shape in pods):
        raise InvalidInput("pods", "no pod of the trace asks for a GPU: there is no load to scale")
    if not capacity_milli:
        raise InvalidInput("nodes", "no node of the trace has a GPU")
    if not load > 0:
        raise InvalidInput("load", f"{load} is not above 0")
