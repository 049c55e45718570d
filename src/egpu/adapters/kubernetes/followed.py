"""The holders of cards, from the API server's objects, followed by watches into the core's scheduler cache."""

import asyncio
import gc
from datetime import UTC, datetime

import structlog
from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.dra.kept import kept_claim
from egpu.core.kept_claims import kept_gpu_claim
from egpu.core.kept_pods import kept, kept_of_large
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.published import kept_gpu
from egpu.core.view import ClusterView, LiveView
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Node, NodeStatus, Pod
from egpu_base.kubernetes.caches import Caches
from egpu_base.kubernetes.client import Client
from egpu_base.kubernetes.reflector import Change

log = structlog.get_logger(__name__)


class FollowedCache:
    """`cache` follows `caches`. A subclass that needs more of a change overrides these methods."""

    def __init__(self, client: Client) -> None:
        self.cache = SchedulerCache()
        self.caches = Caches(client)
        self.classes = self.caches.add(ElasticGPUClass)
        self.gpus = self.caches.add(ElasticGPU, packed=True, transform=kept_gpu)
        self.claims = self.caches.add(ElasticGPUClaim, transform=kept_gpu_claim)
        self.nodes = self.caches.add(Node, packed=True, transform=_node_part)
        self.pods = self.caches.add(Pod, packed=True, transform=kept, large=kept_of_large)
        self.device_claims = self.caches.add(ResourceClaim, transform=kept_claim, optional=True)
        self.classes.on_change(self._class)
        self.gpus.on_change(self._gpu)
        self.claims.on_change(self._claim)
        self.nodes.on_change(self._node)
        self.pods.on_change(self._pod_told)
        self.device_claims.on_change(self._device_claim)

    def cards(self, node: str) -> list[ElasticGPU]:
        """Return the cards that the node's agent published; none for a node without."""
        found = (self.gpus.get(name) for name in self.cache.card_names(node))
        return [gpu for gpu in found if gpu is not None]

    def _class(self, change: Change[ElasticGPUClass]) -> None:
        if change.new is None:
            self.cache.class_deleted(change.subject.name)
        else:
            self.cache.class_changed(change.new)

    def _node(self, change: Change[Node]) -> None:
        if change.new is None:
            self.cache.node_deleted(change.subject.name)
        else:
            self.cache.node_changed(change.new)

    def _gpu(self, change: Change[ElasticGPU]) -> None:
        if change.new is None:
            self.cache.gpu_deleted(change.subject.name)
        else:
            self.cache.gpu_changed(change.new)

    def _claim(self, change: Change[ElasticGPUClaim]) -> None:
        if change.new is None:
            self.cache.claim_deleted(change.subject.uid)
        else:
            self.cache.claim_changed(change.new)

    def _device_claim(self, change: Change[ResourceClaim]) -> None:
        if change.new is None:
            self.cache.device_claims.claim_deleted(change.subject.uid)
        else:
            self.cache.device_claims.claim_changed(change.new)

    def _pod_told(self, change: Change[Pod]) -> None:
        if not tells_only_how_it_does(change):
            self._pod(change)

    def _pod(self, change: Change[Pod]) -> None:
        if change.new is None:
            self.cache.pod_deleted(change.subject.uid)
        else:
            self.cache.pod_changed(change.new)


class FollowedView(FollowedCache):
    """A followed cache with `live`, the view of it."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.live = LiveView(self.cache)

        self._looked = False

    def view(self) -> ClusterView:
        """Return the present cluster."""
        return self.live.view(now=datetime.now(UTC))

    async def listed(self) -> None:
        """Wait until all is listed and processed once: later changes cost only themselves. Present objects stay, so the
        garbage collector need not search them again and again."""
        await self.caches.synced()
        for _ in self.live.freshen():
            await asyncio.sleep(0)
        first = self.view()
        gc.collect()
        gc.freeze()
        self._looked = True
        log.info("looked", nodes=len(first.nodes), cards=first.totals.cards, namespaces=len(first.namespaces))

    def not_ready(self) -> str | None:
        """Return why requests should wait, for /readyz."""
        return self.caches.not_ready() or (None if self._looked else "listed, but not processed yet")

    def _node(self, change: Change[Node]) -> None:
        super()._node(change)
        if change.new is None:
            self.live.node_deleted(change.subject.name)
        else:
            self.live.node_changed(change.new)

    def _gpu(self, change: Change[ElasticGPU]) -> None:
        super()._gpu(change)
        if change.new is None:
            self.live.gpu_deleted(change.subject.name)
        else:
            self.live.gpu_changed(change.new)

    def _claim(self, change: Change[ElasticGPUClaim]) -> None:
        super()._claim(change)
        if change.new is None:
            self.live.claim_deleted(change.subject.uid)
        else:
            self.live.claim_changed(change.new)

    def _device_claim(self, change: Change[ResourceClaim]) -> None:
        super()._device_claim(change)
        if change.new is None:
            self.live.device_claim_deleted(change.subject.uid)
        else:
            self.live.device_claim_changed(change.new)

    def _pod(self, change: Change[Pod]) -> None:
        super()._pod(change)
        if change.new is None:
            self.live.pod_deleted(change.subject.uid)
        else:
            self.live.pod_changed(change.new)


def tells_only_how_it_does(change: Change[Pod]) -> bool:
    """Return whether only the status of a placed pod changed, without its end: then the holders of cards are unchanged.
    A gang consists of its present pods."""
    old, new = change.old, change.new
    return (
        old is not None
        and new is not None
        and bool(new.spec.node_name)
        and old.finished == new.finished
        and names.GANG not in new.annotations
        and replace(old.metadata, resource_version=new.metadata.resource_version) == new.metadata
        and old.spec == new.spec
    )


def _node_part(node: Node) -> Node:
    """Return a node without unused parts: they are most of the size of thousands of nodes."""
    status = node.status
    ready = [one for one in status.conditions or () if one.type == "Ready"]
    return replace(node, status=NodeStatus(allocatable=status.allocatable or status.capacity, conditions=ready))
