"""The last act of an agent whose DaemonSet was removed: nothing of what it published stays.

`kubectl delete -k deploy/` ends everything at once, also the agent's rights and the webhook. Amounts that stay would
place pods that ask for a GPU on this node, and kubelet would run them without one. So the agent asks at its end
whether it is removed, or only replaced. If it has no right left to change the node, it tells kubelet instead: it
registers every name as a device plugin without devices. kubelet then publishes 0 and refuses pods that ask for it.
kubelet forgets such a plugin after five minutes, and leaves the 0 in the node's status. If the agent is killed before
that, the shim does the same at its own end (`egpu.apps.shim.last_words`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final, Self

import structlog

from egpu.adapters.kubernetes import node_conditions
from egpu.adapters.nothing import offer_nothing
from egpu.adapters.shim import PublishedAmounts
from egpu.apps.agent.cards.publisher import Publisher
from egpu.apps.agent.config import AgentConfig
from egpu.core.offered import withdrawn
from egpu_base.api.kubernetes import Node
from egpu_base.errors import ElasticGPUError, NotFound, Refused
from egpu_base.kubernetes import Client

SECONDS: Final = 15.0
"""kubelet ends a pod after 30 seconds; this leaves time for the rest."""
RETRY_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class Farewell:
    """`daemon_set` is NAMESPACE/NAME; empty: the agent belongs to none, and never says farewell. `offered` returns the
    names that this agent publishes, `others` those that kubelet publishes for another device plugin. The shim reads
    `amounts` if this agent is killed."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        daemon_set: str,
        kubelet_dir: Path,
        offered: Callable[[], Iterable[str]],
        others: Callable[[], Collection[str]] = frozenset,
        amounts: PublishedAmounts | None = None,
    ) -> None:
        self._client = client
        self._node = node
        self._path = _path(daemon_set)
        self._kubelet_dir = kubelet_dir
        self._offered = offered
        self._others = others
        self._amounts = PublishedAmounts(None) if amounts is None else amounts
        self._may_ask = False

    @classmethod
    def of(
        cls,
        config: AgentConfig,
        client: Client,
        publisher: Publisher,
        *,
        others: Callable[[], Collection[str]],
        amounts: PublishedAmounts,
    ) -> Self:
        """Return the farewell of an agent with this configuration."""
        own, kubelet_dir = config.daemon_set, config.kubelet_dir
        return cls(
            client,
            config.node,
            daemon_set=own,
            kubelet_dir=kubelet_dir,
            offered=lambda: publisher.offered,
            others=others,
            amounts=amounts,
        )

    async def learn(self) -> None:
        """Learn that this agent may ask about its DaemonSet: only then does a later refusal mean that its rights are
        gone. Returns when it knows."""
        while self._path and not self._may_ask:
            try:
                await self._client.raw("GET", self._path)
                self._may_ask = True
            except (NotFound, Refused) as error:
                log.warning("this agent cannot tell its removal from its replacement", reason=str(error))
                return
            except ElasticGPUError as error:
                log.info("not known yet whether this agent may ask about its DaemonSet", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def end(self) -> None:
        """Withdraw everything if the agent is removed. Never raises: the process ends."""
        try:
            async with asyncio.timeout(SECONDS):
                if self._may_ask and await self._removed():
                    await self._withdraw()
        except (ElasticGPUError, TimeoutError, OSError) as error:
            log.warning("the node's amounts stay; run egpu uninstall", reason=str(error) or "no answer in time")
        else:
            self._amounts.clear()

    async def _removed(self) -> bool:
        try:
            found = await self._client.raw("GET", self._path)
        except (NotFound, Refused):
            return True
        return bool(found["metadata"].get("deletionTimestamp"))

    async def _withdraw(self) -> None:
        try:
            node = await self._client.get(Node, self._node)
            there = {*(node.status.capacity or {}), *(node.status.allocatable or {})} - {*self._others()}
            amounts = withdrawn(dict.fromkeys(there))
            patch = {"status": {"capacity": amounts, "allocatable": amounts}}
            await self._client.patch(Node, self._node, patch, subresource="status")
            await node_conditions.remove(self._client, node)
            log.info("removed: this node offers nothing any more")
        except Refused:
            await offer_nothing(self._kubelet_dir, self._offered())
            log.info("removed: kubelet refuses pods that ask for a GPU")


def _path(daemon_set: str) -> str:
    namespace, _, name = daemon_set.partition("/")
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}" if name else ""
