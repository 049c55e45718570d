"""Changes of the cluster after which kube-scheduler looks at a rejected pod again. Pure.

kube-scheduler keeps a rejected pod aside until a change concerns one of the plugins that rejected it. An extender
cannot register changes: any change below requeues a pod that it rejected. kube-scheduler does not watch our kinds, so a
change of a card, a claim or a slice does not.
"""

from collections.abc import Iterable
from enum import Enum, auto

from egpu_base.api.kubernetes import Node, Pod
from egpu_sim.cluster.scheduler.filters import (
    NODE_AFFINITY,
    NODE_NAME,
    NODE_PORTS,
    NODE_RESOURCES_FIT,
    NODE_UNSCHEDULABLE,
    TAINT_TOLERATION,
)
from egpu_sim.cluster.scheduler.neighbours import INTER_POD_AFFINITY
from egpu_sim.cluster.scheduler.requests import requests_of
from egpu_sim.cluster.scheduler.spreading import POD_TOPOLOGY_SPREAD

DYNAMIC_RESOURCES = "DynamicResources"
EXTENDER = "Extender"
"""Stands for all extenders among the plugins that rejected a pod."""


class Event(Enum):
    """A change that kube-scheduler watches."""

    NODE_ADDED = auto()
    NODE_ALLOCATABLE = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()
    NODE_CONDITIONS = auto()
    NODE_ANNOTATIONS = auto()
    NODE_DELETED = auto()
    POD_GONE = auto()
    """A pod with a node was deleted or finished, or its binding failed."""
    POD_SCALED_DOWN = auto()
    """A pod with a node, or the waiting one itself, requests less than before."""
    NEIGHBOUR = auto()
    """Another pod got a node, or has one and got other labels."""
    CLAIM = auto()
    """A claim of devices was made, or is no longer allocated or reserved as before."""
    DEVICE_CLASS = auto()
    SLICE = auto()
    """Devices were published."""
    OWN_TOLERATIONS = auto()
    OWN_LABELS = auto()
    OWN_UPDATE = auto()
    """Any other change of the waiting pod, its annotations and status too."""


AROUND = frozenset({Event.NODE_ADDED, Event.NODE_LABELS, Event.POD_GONE, Event.NEIGHBOUR, Event.OWN_LABELS})

CONCERNS: dict[str, frozenset[Event]] = {
    NODE_UNSCHEDULABLE: frozenset({Event.NODE_ADDED, Event.NODE_TAINTS}),
    TAINT_TOLERATION: frozenset({Event.NODE_ADDED, Event.NODE_TAINTS, Event.OWN_TOLERATIONS}),
    NODE_AFFINITY: frozenset({Event.NODE_ADDED, Event.NODE_LABELS}),
    NODE_NAME: frozenset({Event.NODE_ADDED}),
    NODE_PORTS: frozenset({Event.NODE_ADDED, Event.POD_GONE}),
    NODE_RESOURCES_FIT: frozenset({Event.NODE_ADDED, Event.NODE_ALLOCATABLE, Event.POD_GONE, Event.POD_SCALED_DOWN}),
    POD_TOPOLOGY_SPREAD: AROUND | {Event.NODE_DELETED, Event.NODE_TAINTS},
    INTER_POD_AFFINITY: AROUND,
    DYNAMIC_RESOURCES: frozenset(
        {
            Event.NODE_ADDED,
            Event.NODE_LABELS,
            Event.NODE_ALLOCATABLE,
            Event.CLAIM,
            Event.DEVICE_CLASS,
            Event.SLICE,
            Event.OWN_UPDATE,
        }
    ),
    EXTENDER: frozenset(Event) - {Event.NEIGHBOUR},
}
"""The changes that may turn a plugin's rejection."""


def may_help(event: Event, plugins: Iterable[str]) -> bool:
    """Return whether a change may help a pod that these plugins rejected."""
    return any(event in CONCERNS[plugin] for plugin in plugins)


def node_events(old: Node | None, new: Node | None) -> list[Event]:
    """Return the changes of a node, one for every changed aspect."""
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
        aspects[Event.NODE_TAINTS] = True  # Kubernetes' node controller would have changed the taint.
    return [event for event, changed in aspects.items() if changed]


def waiting_pod_events(old: Pod, new: Pod) -> list[Event]:
    """Return the changes of a pod without a node. A new status is one too."""
    aspects = {
        Event.OWN_LABELS: old.metadata.labels != new.metadata.labels,
        Event.POD_SCALED_DOWN: scaled_down(old, new),
        Event.OWN_TOLERATIONS: len(old.spec.tolerations or []) != len(new.spec.tolerations or []),
    }
    return [event for event, changed in aspects.items() if changed] or [Event.OWN_UPDATE]


def scaled_down(old: Pod, new: Pod) -> bool:
    now = requests_of(new)
    return any(now.get(name, 0) < amount for name, amount in requests_of(old).items())


def _conditions(node: Node) -> dict[str, str]:
    return {one.type: one.status for one in node.status.conditions or []}


def _ready(node: Node) -> bool:
    return _conditions(node).get("Ready") == "True"
