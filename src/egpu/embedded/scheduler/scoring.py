"""How much kube-scheduler itself likes a node, beside what extenders say: its two plugins that look at resources. Pure.

Its other default plugins give every node of this cluster the same: there are no images, spreading or preferences.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import sqrt

from egpu.api.kubernetes import Node
from egpu.api.quantities import quantity_or_zero
from egpu.api.resources import CPU, Amounts

MEMORY = "memory"
MAX_NODE_SCORE = 100
MAX_EXTENDER_SCORE = 10
LEAST: Mapping[str, Fraction] = {CPU: Fraction(1, 10), MEMORY: Fraction(200 * 1024 * 1024)}
"""What a pod that asks for nothing is taken to need, in cores and bytes."""


def score(node: Node, *, requests: Amounts, used: Mapping[str, Fraction]) -> int:
    """0 to 200: how free the node is left (NodeResourcesFit, LeastAllocated), and how evenly (BalancedAllocation)."""
    offered = node.status.allocatable or {}
    fractions: list[float] = []
    for resource, least in LEAST.items():
        there = quantity_or_zero(offered.get(resource, 0))
        wanted = used.get(resource, Fraction(0)) + (requests.get(resource) or least)
        fractions.append(min(1.0, float(wanted / there)) if there else 1.0)
    mean = sum(fractions) / len(fractions)
    spread = sqrt(sum((one - mean) ** 2 for one in fractions) / len(fractions))
    return int(MAX_NODE_SCORE * (1 - mean)) + int(MAX_NODE_SCORE * (1 - spread))


def extender_score(answer: int, *, weight: int) -> int:
    """What an extender's 0 to 10 counts beside the plugins' 0 to 100."""
    return answer * weight * (MAX_NODE_SCORE // MAX_EXTENDER_SCORE)
