"""Nodes with NVIDIA's cards, by labels of this project, of NVIDIA's and of Kubernetes' providers; and the provider."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu_base.api.kubernetes import Node

NODE_LABEL: Final = f"{names.GROUP}/node"
"""Our label: "true" puts an agent on the node, "false" keeps it away, whatever else is known of the node."""
DISCOVERED: Final[Mapping[str, str]] = {
    NODE_LABEL: "true",
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-0302_10de.present": "true",
    "feature.node.kubernetes.io/pci-0300_10de.present": "true",
}
"""Labels of nodes with cards: ours, and those that NVIDIA's GPU Operator and Node Feature Discovery write. 10de is
NVIDIA's number at PCI; 0300 and 0302 are graphics and compute devices. An agent needs ours."""
_PROVIDERS: Final = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "eks.amazonaws.com/instance-gpu-name",
    "kubernetes.azure.com/accelerator",
)
"""Labels with which providers mark nodes with cards."""
_DRIVER: Final = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
_PLATFORMS: Final[Mapping[str, str]] = {
    "eks.amazonaws.com/": "EKS",
    "cloud.google.com/gke-": "GKE",
    "kubernetes.azure.com/": "AKS",
    "node.openshift.io/": "OpenShift",
}
_VERSIONS: Final[Mapping[str, str]] = {"-eks-": "EKS", "-gke.": "GKE", "+k3s": "k3s", "+rke2": "RKE2"}
MANAGED: Final = frozenset({"EKS", "GKE", "AKS"})
"""Platforms whose control plane belongs to the provider."""


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


def gpu_node(node: Node) -> GpuNode | None:
    """Return the node as one with cards, or None."""
    labels = node.metadata.labels or {}
    if labels.get(NODE_LABEL) == "false":
        return None
    ours = next((f"{name}={value}" for name, value in DISCOVERED.items() if labels.get(name) == value), "")
    known_by = ours or next((f"{name}={labels[name]}" for name in _PROVIDERS if labels.get(name, "none") != "none"), "")
    if not known_by and str((node.status.capacity or {}).get(names.NVIDIA_GPU, "0")) != "0":
        known_by = f"capacity {names.NVIDIA_GPU}"
    if not known_by:
        return None
    return GpuNode(
        node.name,
        known_by,
        served=labels.get(NODE_LABEL) == "true",
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
