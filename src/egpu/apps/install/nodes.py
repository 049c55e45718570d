"""Take everything that agents wrote off the nodes: amounts, labels and annotations. Labels of administrators stay."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from egpu.api import names
from egpu.apps.install.objects import Kind, Objects
from egpu.core.gpu_nodes import NODE_LABEL
from egpu.core.offered import withdrawn
from egpu.core.rivals import rivals_by_node
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Client

NODES: Final = Kind("v1", "nodes", 6, namespaced=False)
_OURS: Final = f"{names.GROUP}/"
_ANNOTATIONS: Final = (names.INJECTION, names.POOL_ADDRESS, names.POOL_LINK)
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
        changed.append(node.name)
    return changed


async def marked_nodes(client: Client) -> Sequence[Node]:
    """Return the nodes that have something of ours."""
    return [node for node in await client.list(Node) if marked(node)]


async def labelled(client: Client) -> list[str]:
    """Return the nodes that an administrator labelled for us."""
    return [node.name for node in await client.list(Node) if NODE_LABEL in (node.metadata.labels or {})]
