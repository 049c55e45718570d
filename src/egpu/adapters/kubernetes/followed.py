"""What the API server's objects say of who has which card, followed by watches into the core's scheduler cache."""

import asyncio
import gc
from datetime import UTC, datetime

import structlog
from msgspec.structs import replace

from egpu.adapters.kubernetes.caches import Caches
from egpu.adapters.kubernetes.client import Client
from egpu.adapters.kubernetes.reflector import Change
from egpu.api import names
from egpu.api.kubernetes import Node, NodeStatus, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.placement.cache import SchedulerCache
from egpu.core.view import ClusterView, LiveView

log = structlog.get_logger(__name__)


class FollowedCache:
    """`cache` is what `caches` say. Who needs more of a change takes it where these methods do."""

    def __init__(self, client: Client) -> None:
        self.cache = SchedulerCache()
        self.caches = Caches(client)
        self.classes = self.caches.add(ElasticGPUClass)
        self.gpus = self.caches.add(ElasticGPU, packed=True)
        self.claims = self.caches.add(ElasticGPUClaim)
        self.nodes = self.caches.add(Node, packed=True, transform=_node_part)
        self.pods = self.caches.add(Pod, packed=True, transform=_pod_part)
        self.classes.on_change(self._class)
        self.gpus.on_change(self._gpu)
        self.claims.on_change(self._claim)
        self.nodes.on_change(self._node)
        self.pods.on_change(self._pod_told)

    def cards(self, node: str) -> list[ElasticGPU]:
        """The cards that the node's agent published; none for a node without."""
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

    def _pod_told(self, change: Change[Pod]) -> None:
        if not tells_only_how_it_does(change):
            self._pod(change)

    def _pod(self, change: Change[Pod]) -> None:
        if change.new is None:
            self.cache.pod_deleted(change.subject.uid)
        else:
            self.cache.pod_changed(change.new)


class FollowedView(FollowedCache):
    """And `live` is the view of it."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.live = LiveView(self.cache)

        self._looked = False

    def view(self) -> ClusterView:
        """The cluster now."""
        return self.live.view(now=datetime.now(UTC))

    async def listed(self) -> None:
        """Returns when all is there, and was looked at once: what comes after that costs only what it changes. What is
        here stays, so the collector need not look through all of it again and again."""
        await self.caches.synced()
        for _ in self.live.freshen():
            await asyncio.sleep(0)
        first = self.view()
        gc.collect()
        gc.freeze()
        self._looked = True
        log.info("looked", nodes=len(first.nodes), cards=first.totals.cards, namespaces=len(first.namespaces))

    def not_ready(self) -> str | None:
        """Why nobody should ask yet, for /readyz."""
        return self.caches.not_ready() or (None if self._looked else "listed, and not looked at yet")

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

    def _pod(self, change: Change[Pod]) -> None:
        super()._pod(change)
        if change.new is None:
            self.live.pod_deleted(change.subject.uid)
        else:
            self.live.pod_changed(change.new)


def tells_only_how_it_does(change: Change[Pod]) -> bool:
    """Whether all that is new of a pod that has a node is its status, and it has not ended by that: who has which card
    is then as it was. A gang is its pods as they are."""
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


def _pod_part(pod: Pod) -> Pod:
    """A pod without what nobody asks any more once it has a node, which is half of it: why it may run there, and what
    its containers do."""
    if not pod.spec.node_name:
        return pod
    bare = {"env": None, "env_from": None, "image": "", "command": None, "args": None, "working_dir": ""}
    containers = [replace(one, **bare) for one in pod.spec.containers or ()]
    init = [replace(one, **bare) for one in pod.spec.init_containers or ()]
    spec = replace(
        pod.spec, containers=containers, init_containers=init or None, tolerations=None, volumes=None,
        scheduling_gates=None,
    )  # fmt: skip
    return replace(pod, spec=spec)


def _node_part(node: Node) -> Node:
    """A node without what nobody asks: of thousands it is most of what they weigh."""
    status = node.status
    ready = [one for one in status.conditions or () if one.type == "Ready"]
    return replace(node, status=NodeStatus(allocatable=status.allocatable or status.capacity, conditions=ready))
