"""Take the amounts of nodes whose agent is gone out of their status, so that no pod is placed by them.

kubelet says so: it gives out no slots any more. A restarting shim is back long before GRACE_SECONDS. An agent publishes
amounts only on a node with slots, so the two do not undo each other's work.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from egpu.adapters.kubernetes import node_conditions
from egpu.core.node_condition import Standing
from egpu.core.offered import orphaned, withdrawn
from egpu.core.rivals import rivals_by_node
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import ElasticGPUError, NotFound
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder

GRACE_SECONDS: Final = 60.0
"""A node without slots for this long has lost its agent or its shim."""
LOOK_SECONDS: Final = 10.0

log = structlog.get_logger(__name__)


class Withdrawal:
    """Looks at all nodes again and again. `nodes` returns the present ones."""

    def __init__(
        self,
        client: Client,
        events: EventRecorder,
        *,
        nodes: Callable[[], Iterable[Node]],
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._client = client
        self._events = events
        self._nodes = nodes
        self._grace_seconds = grace_seconds
        self._since: dict[str, float] = {}
        """The time at which each orphaned node was first seen so."""

    async def run(self) -> None:
        while True:
            await self.look(time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, now: float) -> None:
        """Look once. A failed write is tried again at the next look."""
        found = {node.name: node for node in self._nodes() if orphaned(node.status.allocatable)}
        self._since = {name: self._since.get(name, now) for name in found}
        due = [node for name, node in found.items() if now - self._since[name] >= self._grace_seconds]
        for node in due:
            try:
                await self._withdraw(node)
            except ElasticGPUError as error:
                log.warning("amounts of a node without an agent stay for now", node=node.name, reason=str(error))

    async def _withdraw(self, node: Node) -> None:
        try:
            present = await self._client.get(Node, node.name)
        except NotFound:
            return
        if not orphaned(present.status.allocatable):
            return
        # Whole pods: the controller's copies have no volumes, by which other programs are known.
        others = bool(rivals_by_node(await self._client.list(Pod, fields=f"spec.nodeName={node.name}")))
        status = {
            "capacity": withdrawn(present.status.capacity or {}, others=others),
            "allocatable": withdrawn(present.status.allocatable or {}, others=others),
        }
        at = {"uid": present.uid, "resourceVersion": present.metadata.resource_version}
        await self._client.patch(Node, node.name, {"metadata": at, "status": status}, subresource="status")
        log.info("amounts of a node without an agent withdrawn", node=node.name)
        why = (
            "no agent serves this node, so it offers no GPU resources: look at the pods of elastic-gpu-agent and -shim"
        )
        await node_conditions.write(self._client, node.name, Standing("AgentGone", why))
        await self._events.warn(present, "AgentGone", why)
