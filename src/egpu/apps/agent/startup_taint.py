"""Takes away the taint that keeps GPU pods off a node before its slots can be given out.

kubelet fails a pod for good that it admits before the device plugin has registered. An administrator can register new
nodes with the taint `elasticgpu.io/agent-not-ready`, or set it before a reboot. Each agent takes it away once, when it
is ready and kubelet has counted its slots. A taint that is set later stays until the next agent starts, so that it
can be set before a planned reboot, under a running agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog

from egpu.api import names
from egpu.apps.agent.dra.allocator import Allocator
from egpu_base.api.kubernetes import Node
from egpu_base.api.quantities import quantity_or_zero
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Client
from egpu_base.runtime.beats import rest

LOOK_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class StartupTaint:
    """Works in `run()`. `not_ready` returns why containers cannot be prepared now, or None. `allocator` says whether
    kube-scheduler gives out the cards, by claims: such a node has no slots."""

    def __init__(
        self, client: Client, node: str, not_ready: Callable[[], str | None], allocator: Allocator | None = None
    ) -> None:
        self._client = client
        self._node = node
        self._not_ready = not_ready
        self._allocator = allocator

    async def run(self) -> None:
        """Return once the taint is gone."""
        while True:
            try:
                if self._not_ready() is None and await self.removed():
                    return
            except ElasticGPUError as error:
                log.warning("start-up taint not removed yet", reason=str(error))
                await rest(RETRY_SECONDS)
            await rest(LOOK_SECONDS)

    async def removed(self) -> bool:
        """Remove the taint, whatever its effect, if kubelet has counted this node's slots. Returns whether it is gone.
        Raises the API server's errors; one of them if the taints changed meanwhile."""
        node = await self._client.get(Node, self._node)
        ours = [at for at, taint in enumerate(node.spec.taints or ()) if taint.key == names.AGENT_NOT_READY]
        if not ours:
            return True
        slots = quantity_or_zero((node.status.allocatable or {}).get(names.SLOT, 0))
        if not slots and not (self._allocator is not None and self._allocator.only_by_claims):
            return False
        # The other taints may have fields that we do not know: they are not written again.
        operations: list[dict[str, Any]] = []
        for at in reversed(ours):
            path = f"/spec/taints/{at}"
            operations += [{"op": "test", "path": f"{path}/key", "value": names.AGENT_NOT_READY}]
            operations += [{"op": "remove", "path": path}]
        await self._client.patch_json(Node, self._node, operations)
        log.info("start-up taint removed: kubelet gives out slots", node=self._node)
        return True
