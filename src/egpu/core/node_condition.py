"""The condition ElasticGPUReady of a node: whether its agent offers the cards; if not, why, and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from egpu.core.rivals import Rival
from egpu_base.api.kubernetes import Node
from egpu_base.api.objects import Condition

TYPE: Final = "ElasticGPUReady"
Reason = Literal["Ready", "Starting", "NoDriver", "OtherPlugin", "AgentGone"]
ENDED_BY_PEOPLE: Final = frozenset({"NoDriver", "OtherPlugin"})
"""The reasons that last until a person, or another program, changes the node. The agent itself works well."""


@dataclass(frozen=True)
class Standing:
    """Why an agent offers what it offers. `message` is for people."""

    reason: Reason
    message: str

    @property
    def ready(self) -> bool:
        """Return whether the node's cards are offered."""
        return self.reason == "Ready"


def standing(node: str, *, rivals: Sequence[Rival], driver: str | None, starting: str | None, users: int) -> Standing:
    """Return the standing of a node's agent. `rivals`: other programs that give out the cards. `driver`: why NVIDIA's
    driver does not answer. `starting`: why containers cannot be prepared yet. `users`: pods with cards of the node."""
    if rivals:
        named = "; ".join(f"{one.conflict('this node')}. To end this: {one.mend_on(node)}" for one in rivals)
        offered = f"no more than its {users} GPU pods have, and they go on" if users else "nothing"
        return Standing("OtherPlugin", f"the agent offers {offered}: {named}")
    if driver is not None:
        return Standing("NoDriver", driver)
    if starting is not None:
        return Standing("Starting", starting)
    return Standing("Ready", "the agent offers this node's cards")


def without_driver(reason: str, *, loaded: bool) -> str:
    """Return what to do where NVIDIA's driver does not answer. `loaded`: the kernel has it."""
    if loaded:
        mend = (
            "The kernel has it, so either it failed (see nvidia-smi on the node), or the agent's container has no "
            "libraries of it: set agent.runtimeClass to nvidia, or make NVIDIA's runtime the node's default"
        )
    else:
        mend = "Install NVIDIA's driver on this node, or wait until GPU Operator has. The agent then starts by itself"
    return f"NVIDIA's driver does not answer: {reason.rstrip('.')}. {mend}"


def condition_of(node: Node) -> Condition | None:
    """Return the node's condition; None if no agent has written one."""
    return next((one for one in node.status.conditions or () if one.type == TYPE), None)


def not_offering(node: Node) -> tuple[str, str] | None:
    """Return reason and message if the node's agent says that it does not offer the cards; None otherwise."""
    found = condition_of(node)
    return (found.reason, found.message) if found is not None and found.status == "False" else None


def written(node: Node, wanted: Standing, *, now: str) -> list[dict[str, Any]]:
    """Return the JSON patch of the node's status that writes the condition; empty if it is there already. It changes no
    other condition: a merge patch would replace them all."""
    there, status = condition_of(node), "True" if wanted.ready else "False"
    if there is not None and (there.status, there.reason, there.message) == (status, wanted.reason, wanted.message):
        return []
    since = there.last_transition_time if there is not None and there.status == status else None
    value = {
        "type": TYPE,
        "status": status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since or now,
    }
    if not node.status.conditions:
        return [{"op": "add", "path": "/status/conditions", "value": [value]}]
    if there is None:
        return [{"op": "add", "path": "/status/conditions/-", "value": value}]
    path = _path(node)
    return [{"op": "test", "path": f"{path}/type", "value": TYPE}, {"op": "replace", "path": path, "value": value}]


def removed(node: Node) -> list[dict[str, Any]]:
    """Return the JSON patch of the node's status that takes the condition away; empty if it is not there."""
    if condition_of(node) is None:
        return []
    path = _path(node)
    return [{"op": "test", "path": f"{path}/type", "value": TYPE}, {"op": "remove", "path": path}]


def _path(node: Node) -> str:
    at = next(at for at, one in enumerate(node.status.conditions or ()) if one.type == TYPE)
    return f"/status/conditions/{at}"
