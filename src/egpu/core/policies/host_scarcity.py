"""Scarcity of hosts: whether pods without GPU use up the CPU or memory of a cluster before its GPU is allocated.

The largest multiple of a workload that fits a cluster, with everything divisible and nodes pooled, is a linear
programme with one row for each of GPU, CPU and memory. The row binds of which the workload takes the largest part of
the cluster; by complementary slackness the others have the price 0. The workload is everything placed so far, with pods
without GPU. Near a tie neither price is certain, so prices change gradually.

If pods with GPU need all the CPU or memory themselves, their match with nodes counts (`stranding`), and GPU keeps its
price.
"""

from typing import Final

from egpu.core.policies.fleet import Fleet
from egpu.core.policies.shapes import Mix

PRIOR: Final = 0.03
"""This part of the cluster counts as taken evenly from the start: a few pods say nothing about the mix."""
WIDTH: Final = 0.1
"""The distance from the tie at which prices are certain, as a part of the taken GPU."""
STEPS: Final = 8
"""Steps of the share; all scores are computed again at each."""


class HostScarcity:
    """The certainty that hosts run out first: `share`, 0 to 1. `mix`: of pods with GPU."""

    def __init__(self, mix: Mix, fleet: Fleet) -> None:
        self.share = 0.0
        asked = [0.0, 0.0, 0.0]
        for shape, weight in mix.weights.items():
            if shape.cards:
                amounts = (shape.cpu_milli, shape.ram_mib, shape.gpu_milli)
                asked = [sum_ + weight * amount for sum_, amount in zip(asked, amounts, strict=True)]
        have = fleet.count > 0
        self._cpu, self._ram = int(fleet.cpu_total[have].sum()), int(fleet.ram_total[have].sum())
        gpu = fleet.capacity_milli
        self._known = bool(self._cpu and self._ram and gpu and asked[2])
        if self._known:
            part = asked[2] / gpu
            self._cpu_spared = _between(1 - asked[0] / self._cpu / part)
            self._ram_spared = _between(1 - asked[1] / self._ram / part)

    def attend(self, fleet: Fleet) -> bool:
        """Update `share` from the fleet alone, however often it is called. Return whether it changed."""
        if not self._known:
            return False
        gpu = fleet.allocated_milli / fleet.capacity_milli + PRIOR
        cpu = _between((fleet.cpu_taken / self._cpu + PRIOR) / gpu - 1)
        ram = _between((fleet.ram_taken / self._ram + PRIOR) / gpu - 1)
        sure = max(cpu * self._cpu_spared, ram * self._ram_spared)
        before, self.share = self.share, round(sure * STEPS) / STEPS
        return self.share != before


def _between(excess: float) -> float:
    """Return the certainty, 0 to 1, of this excess over a tie."""
    return min(max(excess / WIDTH, 0.0), 1.0)
