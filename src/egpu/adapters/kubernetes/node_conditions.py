"""Writes the condition ElasticGPUReady of a node, and takes it away."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from egpu.core.node_condition import Standing, removed, written
from egpu_base.api.kubernetes import Node
from egpu_base.api.wire import rfc3339
from egpu_base.errors import Conflict, NotAllowed, NotFound, Refused
from egpu_base.kubernetes import Client

TRIES: Final = 4
"""A patch names a place in the list of conditions, which kubelet may have changed meanwhile."""

Operations = Sequence[Mapping[str, Any]]


async def write(client: Client, name: str, standing: Standing) -> Node:
    """Write the condition if it differs; return the node as it was. Raises the API server's errors."""
    return await _patched(client, await client.get(Node, name), lambda node: written(node, standing, now=_now()))


async def remove(client: Client, node: Node) -> None:
    """Take the condition away if it is there. A node that is gone has none. Raises the API server's errors."""
    try:
        await _patched(client, node, removed)
    except NotFound:
        return


async def _patched(client: Client, node: Node, operations: Callable[[Node], Operations]) -> Node:
    for left in reversed(range(TRIES)):
        if not (wanted := operations(node)):
            break
        try:
            await client.patch_json(Node, node.name, wanted, subresource="status")
            break
        except (Conflict, Refused) as error:
            if not left or isinstance(error, NotAllowed):
                raise
            node = await client.get(Node, node.name)
    return node


def _now() -> str:
    return rfc3339(time.time())
