"""GPU that a node's CPU and memory can no longer serve.

Each job shape has a ratio of CPU to GPU. On a node with `g` GPU and `c` CPU free, jobs of ratio k can use min(g, c/k):
the rest is stranded for them. Averaged over the job mix, weighted by GPU, that is g · F(c/g) with
F(x) = E[max(0, 1 - x/k)], a convex falling curve that is tabulated once; the same for memory.
"""

from typing import Final

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.packing.fleet import Fleet
from egpu.core.packing.shapes import Mix, Shape

_BINS: Final = 8192
_POPULAR = 0.999
"""Share of GPU whose ratios the table resolves; rarer, higher ratios count as never stranded beyond its end."""


def _curve(ratios: FloatArray, weights: FloatArray) -> tuple[float, FloatArray]:
    """Bins per unit of the ratio, and F at the bins' starts; 0 at the end."""
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
    """`growth` of a node's stranded GPU by placing a pod, in thousandths of a card."""

    def __init__(self, mix: Mix) -> None:
        asking = [(shape, weight) for shape, weight in mix.weights.items() if shape.gpu_milli]
        gpu = np.array([shape.gpu_milli for shape, _ in asking] or [1], dtype=np.float64)
        weights = gpu * np.array([weight for _, weight in asking] or [1.0])
        cpu_scale, cpu = _curve(np.array([s.cpu_milli for s, _ in asking] or [0]) / gpu, weights)
        ram_scale, ram = _curve(np.array([s.ram_mib for s, _ in asking] or [0]) / gpu, weights)
        self._curves = np.concatenate([cpu, ram])
        self._scales = np.array([[cpu_scale], [ram_scale]] * 2)
        self._starts: IntArray = np.array([[0], [_BINS + 1]] * 2)

    def growth(
        self, fleet: Fleet, shape: Shape, rows: IntArray, gpu: IntArray, *, cpu_weight: float, ram_weight: float
    ) -> FloatArray:
        """Growth by CPU and by memory, weighted and added, shape (rows,); `gpu` is what `rows` have free."""
        count = len(rows)
        left = np.empty((4, count))
        left[:2] = fleet.host.take(rows, axis=1)
        left[2] = left[0] - shape.cpu_milli
        left[3] = left[1] - shape.ram_mib
        card = np.empty((4, count))
        card[:2] = gpu
        card[2:] = gpu - shape.gpu_milli
        bins = np.minimum(left * self._scales / np.maximum(card, 0.5), _BINS).astype(np.int64)
        bins += self._starts
        signs = np.array([-cpu_weight, -ram_weight, cpu_weight, ram_weight])
        return signs @ (self._curves.take(bins) * card)
