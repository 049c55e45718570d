"""Look at a cluster before anything is written: its platform, its GPU nodes, other programs that give out cards, what
is installed, and our rights."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from egpu.adapters.installation import Document
from egpu.api import names
from egpu.api.vocabularies import POD_RESOURCES
from egpu.apps.install.objects import KINDS, OWNER, OWNER_LABEL, Kind, Objects
from egpu.apps.install.record import Record, read_record
from egpu.core.gpu_nodes import AFFINITY, BY_DEFAULT, GpuNode, agent_pod, gpu_node, platform
from egpu.core.rivals import DRA, DRA_DRIVER, Rival, rivals_by_node
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import NotFound, Refused
from egpu_base.kubernetes import Client

OLDEST_KUBERNETES: Final = (1, 30)
"""The first version with admission policies and with node names in pods' tokens, which one of our policies needs."""
WRITING: Final = ("get", "create", "patch")
"""The verbs of server-side apply."""
REMOVING: Final = ("get", "list", "delete")
_OPERATOR: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusterpolicies.nvidia.com"
_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
AGENTS: Final = "elastic-gpu-agent"
"""The name of the agents' DaemonSet."""
_PART_OF: Final = "app.kubernetes.io/part-of=elastic-gpu"


@dataclass(frozen=True)
class Survey:
    """A cluster as an installation sees it. `installer`: who installed us (egpu, Helm, or kubectl); empty if nothing is
    installed. `unadmitted`: pods that wait for a GPU and that our webhook has not seen. `rights`: verbs and kinds that
    we lack. `discovery`: labels choose the agents' nodes, and not a node selector or affinity of the site."""

    version: str
    platform: str
    nodes: int
    gpu_nodes: tuple[GpuNode, ...] = ()
    operator: str = ""
    rivals: Mapping[str, Rival] | None = None
    installer: str = ""
    record: Record | None = None
    rights: tuple[str, ...] = ()
    unadmitted: tuple[str, ...] = ()
    discovery: bool = True

    @property
    def new_enough(self) -> bool:
        """Return whether this Kubernetes has all that we need; True for a version that cannot be read."""
        found = re.match(r"v(\d+)\.(\d+)", self.version)
        return found is None or (int(found[1]), int(found[2])) >= OLDEST_KUBERNETES

    @property
    def contested(self) -> Mapping[str, Rival]:
        """Return the other program of each GPU node that would get an agent."""
        served = {node.name for node in self.gpu_nodes if node.served}
        return {node: one for node, one in (self.rivals or {}).items() if node in served}

    @property
    def unserved(self) -> Sequence[GpuNode]:
        """Return the GPU nodes without an agent."""
        return [node for node in self.gpu_nodes if not node.served]


async def survey(
    client: Client, namespace: str, documents: Sequence[Document], *, verbs: Sequence[str] = WRITING
) -> Survey:
    """Look at the cluster. `documents` and `verbs`: what is to be done to which kinds. Raises the API server's
    errors."""
    objects = Objects(client)
    version, nodes, pods = await asyncio.gather(
        client.raw("GET", "/version"), client.list(Node), client.list(Pod, labels=None)
    )
    said = str(version["gitVersion"])
    agents = next((agent_pod(one) for one in documents if _is_agents(one)), BY_DEFAULT)
    found = [one for node in nodes if (one := gpu_node(node, agents)) is not None]
    by_pods = rivals_by_node(pods)
    by_slices = dict.fromkeys(await _dra_nodes(client), DRA)
    return Survey(
        version=said,
        platform=platform(said, nodes),
        nodes=len(nodes),
        gpu_nodes=tuple(sorted(found, key=lambda one: one.name)),
        operator=await _operator(objects, [*by_pods.values(), *by_slices.values()]),
        rivals=by_pods | by_slices,
        installer=await installer(objects, namespace),
        record=await read_record(objects, namespace),
        rights=await _missing_rights(objects, namespace, documents, verbs),
        unadmitted=tuple(pod.key for pod in pods if _waits_unseen(pod)),
        discovery=agents.spec.affinity == AFFINITY,
    )


def _is_agents(document: Document) -> bool:
    return (document["kind"], document["metadata"]["name"]) == ("DaemonSet", AGENTS)


async def scheduler_tag(objects: Objects) -> str:
    """Return the tag of Kubernetes' own kube-scheduler image for this API server, such as v1.36.2; empty if its version
    cannot be read, which leaves the tag of deploy/."""
    said = str((await objects.get("/version") or {}).get("gitVersion", ""))
    found = re.match(r"v\d+\.\d+\.\d+", said)
    return found[0] if found else ""


async def installer(objects: Objects, namespace: str) -> str:
    """Return who installed us in the namespace: egpu, Helm or kubectl; empty if nobody did. Definitions alone, which an
    uninstallation with --keep-claims leaves, are no installation."""
    for kind in (KINDS["Deployment"], KINDS["DaemonSet"]):
        for found in await objects.all(kind, labels=_PART_OF, namespace=namespace):
            labels = found["metadata"].get("labels", {})
            return {OWNER: "egpu", "Helm": "Helm"}.get(labels.get(OWNER_LABEL, ""), "kubectl")
    return ""


async def _operator(objects: Objects, rivals: Sequence[Rival]) -> str:
    """Return the mode of NVIDIA's GPU Operator; empty without it."""
    if await objects.get(_OPERATOR) is None:
        return ""
    modes = [name for name, found in (("DRA", DRA in rivals), ("device plugin", any(one != DRA for one in rivals)))
             if found]  # fmt: skip
    return " and ".join(modes) or "without device plugin and DRA driver"


async def _dra_nodes(client: Client) -> set[str]:
    """Return the nodes whose cards NVIDIA's DRA driver publishes; none if the API server has no such kind, or does not
    let us see it."""
    try:
        slices: dict[str, Any] = await client.raw("GET", _SLICES)
    except (NotFound, Refused):
        return set()
    specs = [one.get("spec", {}) for one in slices["items"]]
    return {one.get("nodeName", "") for one in specs if one.get("driver") == DRA_DRIVER} - {""}


async def _missing_rights(
    objects: Objects, namespace: str, documents: Sequence[Document], verbs: Sequence[str]
) -> tuple[str, ...]:
    kinds: dict[str, Kind] = {one["kind"]: KINDS[one["kind"]] for one in documents}
    wanted = [(verb, kind) for kind in kinds.values() for verb in verbs]
    answers = await asyncio.gather(*(objects.allowed(kind, verb, namespace) for verb, kind in wanted))
    return tuple(f"{verb} {kind.plural}" for (verb, kind), may in zip(wanted, answers, strict=True) if not may)


def _waits_unseen(pod: Pod) -> bool:
    """Return whether a pod waits for a GPU and our webhook never saw it. `nvidia.com/gpu` alone may be another's."""
    if pod.spec.node_name or pod.finished or names.DEMAND in pod.annotations:
        return False
    asked = {
        resource
        for container in pod.all_containers
        if container.resources is not None
        for resource in (container.resources.limits or {}) | (container.resources.requests or {})
    }
    return bool(asked & set(POD_RESOURCES))
