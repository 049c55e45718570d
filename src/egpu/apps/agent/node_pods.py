"""Reads pods from the API server. The agent writes nothing to them: its account may not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from egpu.core.kept_pods import of_node, of_node_of_large
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client

READS: Final = 4
"""Concurrent reads. When many containers start together, each further connection would begin with a handshake, which
costs both sides several times as much as the answer."""


class NodePods:
    """The pods of one node. Every request goes to the API server: a copy could be older than what kubelet acts on."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._node = node
        self._reads = asyncio.Semaphore(READS)

    async def read(self, namespace: str, name: str) -> Pod:
        async with self._reads:
            return await self._client.get(Pod, name, namespace=namespace)

    async def on_node(self) -> Sequence[Pod]:
        """Return all pods of the node. What is large in them and of no use here is left out."""
        fields = f"spec.nodeName={self._node}"
        return await self._client.list(Pod, fields=fields, transform=of_node, large=of_node_of_large)
