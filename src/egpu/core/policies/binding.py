"""Whether pods without GPU use up the CPU or memory of a cluster before its GPU is given out.

The largest multiple of a workload that fits a cluster, everything divisible and nodes pooled, is a linear programme
with one row for each of GPU, CPU and memory. The row binds of which the workload takes the largest part of the cluster;
by complementary slackness the others have the price nought. The workload is what has been placed so far, pods without
GPU as well. Near the tie neither price is sure, so prices go over gradually.

Where pods with GPU need all the CPU or memory themselves, it is their match with nodes that counts (`stranding`), and
GPU keeps its price.
"""

from typing import Final

from egpu.core.policies.fleet import Fleet
from egpu.core.policies.shapes import Mix

PRIOR: Final = 0.03
"""Of the cluster counts as taken evenly from the start: a few pods say nothing of the mix."""
WIDTH: Final = 0.1
"""How far from the tie, as a part of what is taken of GPU, prices are sure."""
STEPS: Final = 8
"""All scores are computed anew at each of so many steps of the share."""


class HostBinding:
    """`share`, 0 to 1, is how sure it is. `mix`: of pods with GPU."""

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
        """Whether `share` is another one. It follows from the fleet alone: who asks more often comes to the same."""
        if not self._known:
            return False
        gpu = fleet.allocated_milli / fleet.capacity_milli + PRIOR
        cpu = _between((fleet.cpu_taken / self._cpu + PRIOR) / gpu - 1)
        ram = _between((fleet.ram_taken / self._ram + PRIOR) / gpu - 1)
        sure = max(cpu * self._cpu_spared, ram * self._ram_spared)
        before, self.share = self.share, round(sure * STEPS) / STEPS
        return self.share != before


def _between(excess: float) -> float:
    """How sure it is, 0 to 1, that what exceeds a tie by so much does."""
    return min(max(excess / WIDTH, 0.0), 1.0)
