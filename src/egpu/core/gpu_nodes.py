"""Nodes with NVIDIA's cards, by labels of this project, of NVIDIA's and of Kubernetes' providers; and the provider.

Agents run on nodes with one of these labels, unless an administrator says otherwise. deploy/ has the affinity in YAML,
and a test compares it with the one here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from egpu.api import names
from egpu.core.demand.selection import selects
from egpu_base.api.kubernetes import Node, Pod, PodSpec
from egpu_base.api.objects import ObjectMeta

NODE_LABEL: Final = f"{names.GROUP}/node"
"""Our label: "true" puts an agent on the node, "false" keeps it away, whatever else is known of the node."""
LABEL_ONE: Final = f"kubectl label node NODE {NODE_LABEL}=true"
"""The command that puts an agent on a node."""


@dataclass(frozen=True)
class Label:
    """A label of nodes with NVIDIA's cards. `value` empty: any value. `writer`: who writes it."""

    name: str
    value: str
    writer: str

    def of(self, node: Node) -> bool:
        """Return whether the node has it."""
        found = (node.metadata.labels or {}).get(self.name)
        return found is not None and self.value in ("", found)

    @property
    def expression(self) -> dict[str, Any]:
        """The label as an expression of a node selector."""
        return _expression(self.name, "In", self.value) if self.value else _expression(self.name, "Exists")


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


_NFD: Final = "Node Feature Discovery"
DISCOVERED: Final = (
    Label("nvidia.com/gpu.present", "true", "NVIDIA's GPU feature discovery"),
    Label("feature.node.kubernetes.io/pci-10de.present", "true", _NFD),
    Label("feature.node.kubernetes.io/pci-0302_10de.present", "true", _NFD),
    Label("feature.node.kubernetes.io/pci-0300_10de.present", "true", _NFD),
    Label("cloud.google.com/gke-accelerator", "", "GKE"),
    Label("eks.amazonaws.com/instance-gpu-manufacturer", "nvidia", "EKS Auto Mode"),
    Label("karpenter.k8s.aws/instance-gpu-manufacturer", "nvidia", "Karpenter on AWS"),
    Label("k8s.amazonaws.com/accelerator", "", "administrators, for the Cluster Autoscaler on AWS"),
    Label("kubernetes.azure.com/accelerator", "nvidia", "AKS"),
)
"""Labels that others write. 10de is NVIDIA's number at PCI; 0300 and 0302 are graphics and compute devices."""
_OURS: Final = Label(NODE_LABEL, "true", "an administrator")
_NOT_KEPT_AWAY: Final = _expression(NODE_LABEL, "NotIn", "false")
_NOT_WINDOWS: Final = _expression("kubernetes.io/os", "NotIn", "windows")


def _affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    selected = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selected}}


AFFINITY: Final = _affinity([_OURS.expression], *([one.expression, _NOT_KEPT_AWAY, _NOT_WINDOWS] for one in DISCOVERED))
"""The agents' nodes by default."""
SELECTED: Final = _affinity([_NOT_KEPT_AWAY])
"""The agents' nodes beside a site's own node selector."""
BY_DEFAULT: Final = Pod(metadata=ObjectMeta(name="agent"), spec=PodSpec(affinity=AFFINITY))


def agent_pod(daemon_set: Mapping[str, Any]) -> Pod:
    """Return a pod with the node selection of a DaemonSet, given as JSON."""
    spec: Mapping[str, Any] = daemon_set["spec"]["template"]["spec"]
    chosen = PodSpec(node_selector=spec.get("nodeSelector"), affinity=spec.get("affinity"))
    return Pod(metadata=ObjectMeta(name="agent"), spec=chosen)


_DRIVER: Final = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
_PLATFORMS: Final[Mapping[str, str]] = {
    "eks.amazonaws.com/": "EKS",
    "cloud.google.com/gke-": "GKE",
    "kubernetes.azure.com/": "AKS",
    "node.openshift.io/": "OpenShift",
}
_VERSIONS: Final[Mapping[str, str]] = {"-eks-": "EKS", "-gke.": "GKE", "+k3s": "k3s", "+rke2": "RKE2"}


@dataclass(frozen=True)
class GpuNode:
    """A node with cards. `known_by`: the label, or the resource. `served`: an agent runs on it. `driver`:
    its version, if a label has it."""

    name: str
    known_by: str
    served: bool
    driver: str = ""
    runtime: str = ""
    product: str = ""

    @property
    def kind(self) -> str:
        """The words that nodes of the same kind share."""
        return self.product or "GPU"


def gpu_node(node: Node, agents: Pod = BY_DEFAULT) -> GpuNode | None:
    """Return the node as one with cards, or None. `agents`: the node selection of the agents."""
    labels = node.metadata.labels or {}
    if labels.get(NODE_LABEL) == "false":
        return None
    served = selects(agents, node)
    known_by = next((f"{one.name}={labels[one.name]}" for one in (_OURS, *DISCOVERED) if one.of(node)), "")
    if not known_by and str((node.status.capacity or {}).get(names.NVIDIA_GPU, "0")) != "0":
        known_by = f"capacity {names.NVIDIA_GPU}"
    if not known_by and not served:
        return None
    return GpuNode(
        node.name,
        known_by or "the agents' node selector",
        served=served,
        driver=next((labels[name] for name in _DRIVER if name in labels), ""),
        runtime=node.status.node_info.container_runtime_version,
        product=labels.get("nvidia.com/gpu.product", labels.get(f"{names.GROUP}/gpu-product", "")),
    )


def platform(version: str, nodes: Iterable[Node]) -> str:
    """Return the Kubernetes distribution of an API server of that version; empty if nothing tells it."""
    for text, name in _VERSIONS.items():
        if text in version:
            return name
    for node in nodes:
        for label in node.metadata.labels or {}:
            for prefix, name in _PLATFORMS.items():
                if label.startswith(prefix):
                    return name
        if node.spec.provider_id.startswith("kind://"):
            return "kind"
    return ""
