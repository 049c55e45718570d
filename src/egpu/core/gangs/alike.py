"""Members of a native group that kube-scheduler would allow on the same nodes."""

from typing import Final

from egpu_base.api.kubernetes import Pod

_FROM_CLAIMS: Final = ("persistentVolumeClaim", "ephemeral")


def native_group(pod: Pod) -> str:
    """Return `namespace/name` of the PodGroup of scheduling.k8s.io that the pod belongs to; "" for none."""
    name = (pod.spec.scheduling_group or {}).get("podGroupName")
    return f"{pod.namespace}/{name}" if isinstance(name, str) and name else ""


def is_placed_by_group(pod: Pod) -> bool:
    """Return whether kube-scheduler places the pod together with its group."""
    return bool(native_group(pod))


def is_alike(first: Pod, second: Pod) -> bool:
    """Return whether kube-scheduler treats both pods alike on every node, also if one of them is already there."""
    return _rules(first) == _rules(second) and not any(_depends(one) for one in (first, second))


def _rules(pod: Pod) -> tuple[object, ...]:
    spec = pod.spec
    asked = [one.resources for one in pod.all_containers]
    return (native_group(pod), spec.scheduler_name, spec.node_selector, spec.affinity, spec.tolerations, asked)


def _depends(pod: Pod) -> bool:
    """Return whether the pod's places depend on more than its node: on other pods, volumes, claims or ports."""
    spec = pod.spec
    affinity = spec.affinity or {}
    ports = any(port.host_port for one in pod.all_containers for port in one.ports or ())
    others = affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.topology_spread_constraints
    bound = any(volume.get(kind) for volume in spec.volumes or () for kind in _FROM_CLAIMS)
    return bool(ports or others or bound or spec.resource_claims or spec.scheduling_gates)
