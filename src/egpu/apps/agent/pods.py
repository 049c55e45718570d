"""What the agent reads of pods. It writes nothing to them: its account may not."""

from __future__ import annotations

from collections.abc import Sequence

from egpu.adapters.kubernetes import Client
from egpu.api.kubernetes import Pod


class NodePods:
    """Pods of one node. Every question goes to the API server: a copy could be older than what kubelet acts on."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._node = node

    async def read(self, namespace: str, name: str) -> Pod:
        return await self._client.get(Pod, name, namespace=namespace)

    async def on_node(self) -> Sequence[Pod]:
        return await self._client.list(Pod, fields=f"spec.nodeName={self._node}")
