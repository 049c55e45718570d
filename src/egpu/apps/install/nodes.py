"""Label nodes for agents, and take everything that agents wrote off them: amounts, labels, annotations and their
condition. Labels of administrators stay."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from egpu.adapters.kubernetes import node_conditions
from egpu.api import names
from egpu.apps.install.objects import Kind, Objects
from egpu.apps.install.survey import Survey
from egpu.core import node_condition
from egpu.core.gpu_nodes import NODE_LABEL
from egpu.core.offered import withdrawn
from egpu.core.rivals import rivals_by_node
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import InvalidInput
from egpu_base.kubernetes import Client

NODES: Final = Kind("v1", "nodes", 6, namespaced=False)
_OURS: Final = f"{names.GROUP}/"
_ANNOTATIONS: Final = (
    names.INJECTION,
    names.PARKING_MEMORY,
    names.POOL_ADDRESS,
    names.POOL_LINK,
    names.THRASHING_CARDS,
)
"""Annotations that agents write."""
_LABELS: Final = f"{names.GROUP}/gpu-"
"""Labels that agents write."""


def marked(node: Node) -> bool:
    """Return whether an agent has written anything on the node."""
    labels = node.metadata.labels or {}
    amounts = {*(node.status.capacity or {}), *(node.status.allocatable or {})}
    return (
        any(name.startswith(_OURS) for name in amounts)
        or any(name in node.annotations for name in _ANNOTATIONS)
        or any(name.startswith(_LABELS) for name in labels)
        or node_condition.condition_of(node) is not None
    )


def metadata_patch(node: Node) -> dict[str, Any]:
    """Return a merge patch without our labels and annotations; empty if there are none."""
    labels = dict.fromkeys(name for name in node.metadata.labels or {} if name.startswith(_LABELS))
    annotations = dict.fromkeys(name for name in _ANNOTATIONS if name in node.annotations)
    parts = {"labels": labels, "annotations": annotations}
    found = {key: value for key, value in parts.items() if value}
    return {"metadata": found} if found else {}


def status_patch(node: Node, *, others: bool) -> dict[str, Any]:
    """Return a merge patch without our amounts; empty if there are none. `others` as in `withdrawn`."""
    status: dict[str, Mapping[str, None]] = {}
    for field, amounts in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        gone = withdrawn(amounts or {}, others=others)
        if names.SLOT in (amounts or {}):
            gone[names.SLOT] = None
        if gone:
            status[field] = gone
    return {"status": status} if status else {}


async def label_nodes(objects: Objects, found: Survey) -> None:
    """Put agents on the GPU nodes without one. Raises InvalidInput if labels do not choose the agents' nodes, and the
    API server's errors."""
    if not found.discovery:
        raise InvalidInput("label-nodes", "your values choose the agents' nodes: change agent.nodeSelector or affinity")
    for node in found.unserved:
        await objects.merge(NODES.path(name=node.name), {"metadata": {"labels": {NODE_LABEL: "true"}}})


async def waiting_nodes(client: Client) -> list[str]:
    """Return the nodes whose agent waits for a driver or for the end of another program, with the reason and what to
    do."""
    said = [(node.name, node_condition.not_offering(node)) for node in await client.list(Node)]
    return [f"{name} offers nothing, {one[0]}: {one[1]}" for name, one in said if one is not None]


async def clean_nodes(client: Client) -> list[str]:
    """Clean all nodes, and return those that were changed. Raises the API server's errors."""
    objects, rivals = Objects(client), rivals_by_node(await client.list(Pod))
    changed: list[str] = []
    for node in await marked_nodes(client):
        path = NODES.path(name=node.name)
        status, metadata = status_patch(node, others=node.name in rivals), metadata_patch(node)
        if status:
            await objects.merge(f"{path}/status", status)
        if metadata:
            await objects.merge(path, metadata)
        await node_conditions.remove(client, node)
        changed.append(node.name)
    return changed


async def marked_nodes(client: Client) -> Sequence[Node]:
    """Return the nodes that have something of ours."""
    return [node for node in await client.list(Node) if marked(node)]


async def labelled(client: Client) -> list[str]:
    """Return the nodes that an administrator labelled for us."""
    return [node.name for node in await client.list(Node) if NODE_LABEL in (node.metadata.labels or {})]
