"""One pod, followed from its admission to the CUDA calls of its programs: which stage it has not passed, and why.

follow         all stages in order, and the finding
admitted       webhook, claim, scheduler and allocation, from the API server's objects
on_node        kubelet, slot, preparation, container and program, from statuses, events and figures
evidence       what is known about a pod, and the result of a stage
"""

from egpu.core.following.evidence import Evidence, Passing, Stage
from egpu.core.following.follow import finding, follow

__all__ = ["Evidence", "Passing", "Stage", "finding", "follow"]
