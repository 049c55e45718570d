"""GPU that a node's CPU and memory can no longer serve.

Each job shape has a ratio of CPU to GPU. On a node with `g` GPU and `c` CPU free, jobs of ratio k can use min(g, c/k):
the rest is stranded for them. Averaged over the job mix, weighted by GPU, that is g · F(c/g) with
F(x) = E[max(0, 1 - x/k)], a convex falling curve that is tabulated once; the same for memory.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.policies.fleet import GPU, RAM
from egpu.core.policies.shapes import Mix, Shape

_BINS: Final = 8192
_POPULAR = 0.999
"""Share of GPU whose ratios the table resolves; rarer, higher ratios count as never stranded beyond its end."""


def _curve(ratios: FloatArray, weights: FloatArray) -> tuple[float, FloatArray]:
    """Return bins per unit of the ratio, and F at the bins' starts; 0 at the end."""
    order = np.argsort(ratios)
    reached = np.cumsum(weights[order]) / weights.sum()
    end = float(ratios[order][min(int(np.searchsorted(reached, _POPULAR)), len(ratios) - 1)])
    if end <= 0:
        return 0.0, np.zeros(_BINS + 1)
    points = np.linspace(0, end, _BINS + 1)
    share = weights / weights.sum()
    short = np.maximum(0, 1 - points[:, None] / np.maximum(ratios[None, :], 1e-9)) * (ratios[None, :] > 0)
    curve = (short * share).sum(axis=1)
    curve[-1] = 0
    return _BINS / end, curve


class Stranding:
    """The stranded GPU for a mix. `weighted` is used for scores."""

    def __init__(self, mix: Mix) -> None:
        asking = [(shape, weight) for shape, weight in mix.weights.items() if shape.gpu_milli]
        gpu = np.array([shape.gpu_milli for shape, _ in asking] or [1], dtype=np.float64)
        weights = gpu * np.array([weight for _, weight in asking] or [1.0])
        self._cpu = _curve(np.array([s.cpu_milli for s, _ in asking] or [0]) / gpu, weights)
        self._ram = _curve(np.array([s.ram_mib for s, _ in asking] or [0]) / gpu, weights)

    def weighted(self, cpu: float, ram: float) -> "Stranded":
        """Return stranding by CPU and by memory, times these weights, added."""
        (cpu_scale, cpu_curve), (ram_scale, ram_curve) = self._cpu, self._ram
        return Stranded(
            curves=np.concatenate([cpu * cpu_curve, ram * ram_curve]), scales=np.array([[cpu_scale], [ram_scale]])
        )


@dataclass(frozen=True)
class Stranded:
    """Both curves in a row, in thousandths of a card per thousandth of a card free."""

    curves: FloatArray
    scales: FloatArray

    def growth(self, state: IntArray, shape: Shape) -> tuple[FloatArray, IntArray]:
        """Return how much more of nodes in `state` (as of a fleet, shape (5, rows)) is stranded with the pod placed, in
        thousandths of a card, shape (rows,); and the CPU and memory then left, shape (2, rows)."""
        host, gpu = _asked(shape)
        left: IntArray = state[: RAM + 1] - host
        card: IntArray = state[GPU] - gpu
        bins = left / np.maximum(card, 0.5)[:, None]
        bins *= self.scales
        np.minimum(bins, _BINS, out=bins)
        at = bins.astype(np.intp)
        at += _STARTS
        short: FloatArray = self.curves.take(at)
        stranded: FloatArray = short[:, 0] + short[:, 1]
        stranded *= card
        return stranded[1] - stranded[0], left[1]


_STARTS: Final = np.array([[0], [_BINS + 1]])


@lru_cache(maxsize=2048)
def _asked(shape: Shape) -> tuple[IntArray, IntArray]:
    """Return the CPU and memory, and the GPU, taken before (nothing) and after: shapes (2, 2, 1) and (2, 1)."""
    host = np.array([[[0], [0]], [[shape.cpu_milli], [shape.ram_mib]]], dtype=np.int64)
    return host, np.array([[0], [shape.gpu_milli]], dtype=np.int64)
