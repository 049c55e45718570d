"""kube-scheduler's own scores of a node, beside the extenders': its two plugins that look at resources. Pure.

Its other default plugins score all nodes of this cluster alike: there are no images, and preferences are ignored.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import sqrt

from egpu_base.api.kubernetes import Node
from egpu_base.api.quantities import quantity_or_zero
from egpu_base.api.resources import CPU, Amounts

MEMORY = "memory"
MAX_NODE_SCORE = 100
MAX_EXTENDER_SCORE = 10
LEAST: Mapping[str, Fraction] = {CPU: Fraction(1, 10), MEMORY: Fraction(200 * 1024 * 1024)}
"""The assumed needs of a pod without requests, in cores and bytes."""


def score(node: Node, *, requests: Amounts, used: Mapping[str, Fraction]) -> int:
    """Return 0 to 200: how free the node stays (NodeResourcesFit, LeastAllocated), and how even
    (BalancedAllocation)."""
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
    """Convert an extender's 0 to 10 to the scale of the plugins' 0 to 100."""
    return answer * weight * (MAX_NODE_SCORE // MAX_EXTENDER_SCORE)
