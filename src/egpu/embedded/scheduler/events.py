"""Which changes of the cluster let kube-scheduler look at a rejected pod again. Pure.

kube-scheduler keeps a rejected pod aside until something happens that concerns one of the plugins that rejected it. An
extender has no say in that: a pod that an extender rejected is looked at again after any change of the kinds below, and
after none that kube-scheduler does not watch: a card, a claim or a slice of ours is no such kind.
"""

from collections.abc import Iterable
from enum import Enum, auto

from egpu.api.kubernetes import Node, Pod
from egpu.api.resources import Amounts, effective_requests
from egpu.core.placement.node_filters import NODE_AFFINITY, NODE_RESOURCES_FIT, NODE_UNSCHEDULABLE, TAINT_TOLERATION

EXTENDER = "Extender"
"""Stands for all extenders among the plugins that rejected a pod."""


class Event(Enum):
    """A change that kube-scheduler knows about."""

    NODE_ADDED = auto()
    NODE_ALLOCATABLE = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()
    NODE_CONDITIONS = auto()
    NODE_ANNOTATIONS = auto()
    NODE_DELETED = auto()
    POD_GONE = auto()
    """A pod that had a node is deleted or finished, or could not be bound after all."""
    POD_SCALED_DOWN = auto()
    """A pod that has a node, or the waiting one itself, asks for less than before."""
    OWN_TOLERATIONS = auto()
    OWN_LABELS = auto()
    OWN_UPDATE = auto()
    """Anything else about the waiting pod, its annotations and status too."""


CONCERNS: dict[str, frozenset[Event]] = {
    NODE_UNSCHEDULABLE: frozenset({Event.NODE_ADDED, Event.NODE_TAINTS}),
    TAINT_TOLERATION: frozenset({Event.NODE_ADDED, Event.NODE_TAINTS, Event.OWN_TOLERATIONS}),
    NODE_AFFINITY: frozenset({Event.NODE_ADDED, Event.NODE_LABELS}),
    NODE_RESOURCES_FIT: frozenset({Event.NODE_ADDED, Event.NODE_ALLOCATABLE, Event.POD_GONE, Event.POD_SCALED_DOWN}),
    EXTENDER: frozenset(Event),
}
"""The events after which what a plugin rejected may be otherwise."""


def may_help(event: Event, plugins: Iterable[str]) -> bool:
    """Whether a pod that these plugins rejected is worth another look."""
    return any(event in CONCERNS[plugin] for plugin in plugins)


def node_events(old: Node | None, new: Node | None) -> list[Event]:
    """What a change of a node is: every aspect that changed."""
    if old is None or new is None:
        return [Event.NODE_DELETED if new is None else Event.NODE_ADDED]
    aspects = {
        Event.NODE_TAINTS: old.spec.taints != new.spec.taints
        or (old.spec.unschedulable and not new.spec.unschedulable),
        Event.NODE_ALLOCATABLE: old.status.allocatable != new.status.allocatable,
        Event.NODE_LABELS: old.metadata.labels != new.metadata.labels,
        Event.NODE_CONDITIONS: _conditions(old) != _conditions(new),
        Event.NODE_ANNOTATIONS: old.annotations != new.annotations,
    }
    if _ready(old) != _ready(new):
        aspects[Event.NODE_TAINTS] = True  # Kubernetes' node controller would have changed the taint
    return [event for event, changed in aspects.items() if changed]


def waiting_pod_events(old: Pod, new: Pod) -> list[Event]:
    """What a change of a pod without a node is. Any change is one, a new status included."""
    aspects = {
        Event.OWN_LABELS: old.metadata.labels != new.metadata.labels,
        Event.POD_SCALED_DOWN: scaled_down(old, new),
        Event.OWN_TOLERATIONS: len(old.spec.tolerations or []) != len(new.spec.tolerations or []),
    }
    return [event for event, changed in aspects.items() if changed] or [Event.OWN_UPDATE]


def scaled_down(old: Pod, new: Pod) -> bool:
    """Whether the pod asks for less of anything than before."""
    now: Amounts = effective_requests(new)
    return any(now.get(name, 0) < amount for name, amount in effective_requests(old).items())


def _conditions(node: Node) -> dict[str, str]:
    return {one.type: one.status for one in node.status.conditions or []}


def _ready(node: Node) -> bool:
    return _conditions(node).get("Ready") == "True"
