"""Other programs that give out NVIDIA's cards of a node: device plugins and DRA drivers, known by the labels of their
pods.

A card has one bookkeeper. Two programs that give out the same card do not know what the other gave.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from egpu_base.api.kubernetes import Pod

_NAMES: Final = frozenset({"name", "app", "k8s-app", "app.kubernetes.io/name", "app.kubernetes.io/component"})
"""Labels with the name of a program."""
WITHOUT_PLUGIN: Final = "nvidia.com/gpu.deploy.device-plugin=false"
"""The label of a node that keeps only the device plugin of NVIDIA's GPU Operator away."""
WITHOUT_GKE_PLUGIN: Final = "gke-no-default-nvidia-gpu-device-plugin=true"
"""The label of a node pool that keeps GKE's own device plugin away."""


@dataclass(frozen=True)
class Rival:
    """A program that gives out cards. `mend`: how to keep it off a node."""

    name: str
    mend: str


_OPERATORS: Final = Rival("GPU Operator's device plugin", f"kubectl label node NODE {WITHOUT_PLUGIN}")
_NVIDIA: Final = Rival("NVIDIA's device plugin", "exclude the node in the plugin's node selector, or remove the plugin")
_GKE: Final = Rival("GKE's device plugin", f"create the node pool with the label {WITHOUT_GKE_PLUGIN}")
_HAMI: Final = Rival("HAMi's device plugin", "kubectl label node NODE gpu-")
_VOLCANO: Final = Rival("Volcano's vGPU device plugin", "exclude the node in the plugin's node selector")
DRA: Final = Rival(
    "NVIDIA's DRA driver", "install it with resources.gpus.enabled=false, or keep it off the node by its node selector"
)

_BY_LABEL: Final[Mapping[str, Rival]] = {
    "nvidia-device-plugin-daemonset": _OPERATORS,
    "nvidia-device-plugin": _NVIDIA,
    "nvidia-device-plugin-ds": _NVIDIA,
    "nvidia-gpu-device-plugin": _GKE,
    "hami-device-plugin": _HAMI,
    "volcano-device-plugin": _VOLCANO,
}
_DRA_COMPONENT: Final = "kubelet-plugin"
_DRA_CONTAINER: Final = "gpus"
"""The container of NVIDIA's DRA driver that gives out cards. Its other one serves compute domains alone."""


def rival(pod: Pod) -> Rival | None:
    """Return the program that gives out cards in this pod, if it is one."""
    labels = pod.metadata.labels or {}
    for label in _NAMES & labels.keys():
        if (found := _BY_LABEL.get(labels[label])) is not None:
            return found
    if _DRA_COMPONENT in labels.values() and any(one.name == _DRA_CONTAINER for one in pod.containers):
        return DRA
    return None


def rivals_by_node(pods: Iterable[Pod]) -> dict[str, Rival]:
    """Return the other program on each node that has one. A finished pod gives out nothing."""
    found: dict[str, Rival] = {}
    for pod in pods:
        if pod.spec.node_name and not pod.finished and (one := rival(pod)) is not None:
            found[pod.spec.node_name] = one
    return found
