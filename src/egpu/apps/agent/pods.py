"""What the agent reads of pods and writes to them."""

from __future__ import annotations

from collections.abc import Sequence

from egpu.adapters.kubernetes import Client
from egpu.api import names
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

    async def mark_assigned(self, pod: Pod) -> None:
        """Tell gpushare's own tools that the pod has its memory. Nothing happens for pods of other vocabularies."""
        if pod.annotations.get(names.ALIYUN_MEM_ASSIGNED) != "false":
            return
        patch = {"metadata": {"uid": pod.uid, "annotations": {names.ALIYUN_MEM_ASSIGNED: "true"}}}
        await self._client.patch(Pod, pod.name, patch, namespace=pod.namespace)
