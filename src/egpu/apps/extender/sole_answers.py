"""When the filter may name only the best node of those that fit.

kube-scheduler then takes that node without scoring it, and asks no second question about it. At 1,000 nodes this saves
a quarter of its time for a pod with an extender. The filter names all nodes that fit when the pod, or the best
node, gives kube-scheduler's scores a say:

    preferred affinity and anti-affinity, constraints of topologySpread
    a controller of replicas, which kube-scheduler spreads by default
    volumes from claims, and ResourceClaims: what they need may be missing on the best node
    a taint PreferNoSchedule on the best node

If kube-scheduler asks about the pod again, the binding to the named node has failed: this answer names all nodes. The
preferences of other pods about this pod, and the images that nodes have already, do not count.
Source: schedulePod in pkg/scheduler/schedule_one.go of Kubernetes 1.36, and the plugins with a Score.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from egpu_base.api.kubernetes import Node, Pod

_SPREAD: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""Kinds of controllers whose pods kube-scheduler spreads over nodes and zones by default."""
_AFFINITIES: Final = ("nodeAffinity", "podAffinity", "podAntiAffinity")
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_FROM_CLAIMS: Final = ("persistentVolumeClaim", "ephemeral")


def has_wishes(pod: Pod) -> bool:
    """Return whether kube-scheduler's own scores should have a say in the pod's node."""
    spec = pod.spec
    return bool(
        spec.topology_spread_constraints
        or spec.resource_claims
        or any(owner.controller and owner.kind in _SPREAD for owner in pod.metadata.owner_references or ())
        or _prefers(spec.affinity or {})
        or _from_claims(spec.volumes or ())
    )


def is_avoided(node: Node | None) -> bool:
    """Return whether pods should rather go to other nodes, or the node is not known yet."""
    return node is None or any(taint.effect == "PreferNoSchedule" for taint in node.spec.taints or ())


def _prefers(affinity: Mapping[str, Any]) -> bool:
    kinds: list[Mapping[str, Any] | None] = [affinity.get(kind) for kind in _AFFINITIES]
    return any(kind.get(_PREFERRED) for kind in kinds if kind)


def _from_claims(volumes: Sequence[Mapping[str, Any]]) -> bool:
    return any(volume.get(source) for volume in volumes for source in _FROM_CLAIMS)
