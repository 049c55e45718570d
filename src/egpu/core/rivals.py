"""Other programs that give out NVIDIA's cards of a node: device plugins and DRA drivers.

A card has one bookkeeper. Two programs that give out the same card do not know what the other gave. The others are
known by the labels of their pods, by the resources that kubelet has of them, and by their ResourceSlices. This is the
only list of conflicts: the agent's node condition, `egpu install` and `egpu doctor` take their words from it.

Any tenant may write such a label on its own pods. So a pod counts only if it mounts a folder of kubelet, as every
program must that registers there. Whoever may mount these folders is root on the node.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

import msgspec

from egpu.core.offered import is_offered
from egpu_base.api.kubernetes import Pod
from egpu_base.api.wire import Wire

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

    def conflict(self, where: str) -> str:
        """Return the conflict as a sentence; `where` names the nodes."""
        return f"{self.name} and our agent would both give out the cards of {where}"

    def mend_on(self, node: str) -> str:
        """Return how to keep it off this node."""
        return re.sub(r"\bNODE\b", node, self.mend)


_OPERATORS: Final = Rival(
    "GPU Operator's device plugin",
    f"kubectl label node NODE {WITHOUT_PLUGIN}, or install GPU Operator with devicePlugin.enabled=false",
)
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
DRA_DRIVER: Final = "gpu.nvidia.com"
"""The driver in the ResourceSlices of NVIDIA's DRA driver for cards. Compute domains have another one."""
_DRA_COMPONENT: Final = "kubelet-plugin"
_DRA_CONTAINER: Final = "gpus"
"""The container of NVIDIA's DRA driver that gives out cards. Its other one serves compute domains alone."""
_KUBELETS: Final = frozenset({"kubelet", "device-plugins", "plugins_registry"})
"""Names of kubelet's folders. The folder above them depends on the distribution."""
_ABOVE: Final = frozenset({"/", "/var", "/var/lib"})


def rival(pod: Pod) -> Rival | None:
    """Return the program that gives out cards in this pod, if it is one."""
    if not _reaches_kubelet(pod):
        return None
    labels = pod.metadata.labels or {}
    for label in _NAMES & labels.keys():
        if (found := _BY_LABEL.get(labels[label])) is not None:
            return found
    if _DRA_COMPONENT in labels.values() and any(one.name == _DRA_CONTAINER for one in pod.containers):
        return DRA
    return None


def _reaches_kubelet(pod: Pod) -> bool:
    """Return whether the pod mounts a folder in which programs register with kubelet."""
    paths = [PurePosixPath(one.host_path.path) for one in _volumes(pod) if one.host_path is not None]
    return any(str(path) in _ABOVE or _KUBELETS & {*path.parts} for path in paths)


class _HostPath(Wire, frozen=True):
    path: str = ""


class _Volume(Wire, frozen=True):
    host_path: _HostPath | None = None


def _volumes(pod: Pod) -> list[_Volume]:
    try:
        return msgspec.convert(pod.spec.volumes or (), list[_Volume])
    except msgspec.ValidationError:
        return []  # no API server has such a pod


def unknown_plugin(resources: Iterable[str]) -> Rival:
    """Return the device plugin that gives out these resources and whose pod is not known. Some nodes have such a plugin
    built in."""
    mend = (
        "remove it from the node (kubectl get pods -A --field-selector spec.nodeName=NODE). If the node's image has it "
        "built in, as with EKS Auto Mode or Bottlerocket, use another image, or keep our agent away: "
        "kubectl label node NODE elasticgpu.io/node=false"
    )
    return Rival(f"a device plugin that offers {', '.join(sorted(resources))}", mend)


def rivals_of(pods: Iterable[Pod], *, resources: Iterable[str], drivers: Iterable[str]) -> tuple[Rival, ...]:
    """Return the other programs of one node, by name. `pods`: those on the node. `resources`: what kubelet gives out by
    its device plugins. `drivers`: whose ResourceSlices have devices of the node."""
    found = {one for pod in pods if not pod.finished and (one := rival(pod)) is not None}
    if DRA_DRIVER in drivers:
        found.add(DRA)
    taken = sorted(name for name in resources if is_offered(name))
    if taken and not found - {DRA}:
        found.add(unknown_plugin(taken))
    return tuple(sorted(found, key=lambda one: one.name))


def by_rival(rivals: Mapping[str, Rival]) -> dict[Rival, list[str]]:
    """Return the nodes of each other program, from the program of each node."""
    named: dict[Rival, list[str]] = {}
    for node, one in sorted(rivals.items()):
        named.setdefault(one, []).append(node)
    return named


def rivals_by_node(pods: Iterable[Pod]) -> dict[str, Rival]:
    """Return the other program on each node that has one. A finished pod gives out nothing."""
    found: dict[str, Rival] = {}
    for pod in pods:
        if pod.spec.node_name and not pod.finished and (one := rival(pod)) is not None:
            found[pod.spec.node_name] = one
    return found
