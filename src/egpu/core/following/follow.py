"""All stages of a pod in order, and the finding: the first stage that the pod has not passed."""

from collections.abc import Callable, Mapping
from typing import Final

from egpu.core.following import admitted, on_node
from egpu.core.following.evidence import Evidence, Passing, Stage

STAGES: Final[Mapping[str, Callable[[Evidence], Stage]]] = {
    "admission": admitted.webhook,
    "claim": admitted.claim,
    "scheduling": admitted.scheduler,
    "allocation": admitted.allocation,
    "kubelet": on_node.kubelet,
    "slot": on_node.slot,
    "preparation": on_node.preparation,
    "container": on_node.container,
    "program": on_node.program,
}
_STOPS: Final = (Passing.FAILED, Passing.WAITS)


def follow(evidence: Evidence) -> Mapping[str, Stage]:
    """Return the result of each stage by name, in order. Stages after the finding are ahead."""
    stages = dict[str, Stage]()
    stopped = False
    for name, stage in STAGES.items():
        stages[name] = Stage("-", Passing.AHEAD, "not reached") if stopped else stage(evidence)
        stopped = stopped or stages[name].state in _STOPS
    return stages


def finding(stages: Mapping[str, Stage]) -> tuple[str, Stage] | None:
    """Return the first stage that is not passed, with its name; None if all that we can see are passed."""
    return next(((name, stage) for name, stage in stages.items() if stage.state in _STOPS), None)
