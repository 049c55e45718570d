"""What the extender knows: the API server's objects, followed by watches into the core's ledger. Nothing else."""

from collections.abc import Callable

from egpu.adapters.kubernetes import Caches, Change, Client
from egpu.api import names
from egpu.api.disruption import PodDisruptionBudget
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ClaimAllocation, ClaimPhase, ElasticGPU, ElasticGPUClaim, ElasticGPUClass, ElasticGPUSpec
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.requests import awaits_placement
from egpu.core.policies.registry import Policies
from egpu.core.preemption.scene import Scene


class View:
    """The caches and the ledger they cache."""

    def __init__(self, client: Client) -> None:
        self.cache = SchedulerCache()
        self.caches = Caches(client)
        self.classes = self.caches.add(ElasticGPUClass)
        self.gpus = self.caches.add(ElasticGPU)
        self.claims = self.caches.add(ElasticGPUClaim)
        self.nodes = self.caches.add(Node)
        self.pods = self.caches.add(Pod)
        self.budgets = self.caches.add(PodDisruptionBudget)
        self.waiting: dict[str, Pod] = {}
        """Pods that ask for cards and have no node, by UID: few of all pods."""
        self._listeners: list[Callable[[], None]] = []
        self.classes.on_change(self._class)
        self.gpus.on_change(self._gpu)
        self.claims.on_change(self._claim)
        self.nodes.on_change(self._node)
        self.pods.on_change(self._pod)

    def on_room(self, listener: Callable[[], None]) -> None:
        """`listener` is called when cards may have become free or new ones appeared."""
        self._listeners.append(listener)

    def usable_nodes(self) -> list[str]:
        """Nodes on which a claim may be bound before any pod is there to be scheduled."""
        return sorted(node.name for node in self.nodes if not node.spec.unschedulable and _ready(node))

    def scene(self, policies: Policies) -> Scene:
        """What a plan to evict somebody looks at."""
        nodes = {node.name: node for node in self.nodes}
        return Scene(self.cache, nodes, list(self.pods), list(self.budgets), policies)

    def made_room(self) -> None:
        """Cards may have become free, or new ones have appeared."""
        for listener in self._listeners:
            listener()

    def _class(self, change: Change[ElasticGPUClass]) -> None:
        if change.new is None:
            self.cache.class_deleted(change.subject.name)
        else:
            self.cache.class_changed(change.new)
            self.made_room()  # claims may have waited for it

    def _node(self, change: Change[Node]) -> None:
        known = self.cache.ledger.pool.get(change.subject.name)
        if change.new is None:
            self.cache.node_deleted(change.subject.name)
        else:
            self.cache.node_changed(change.new)
        if self.cache.ledger.pool.get(change.subject.name) != known:
            self.made_room()

    def _gpu(self, change: Change[ElasticGPU]) -> None:
        if change.new is None:
            self.cache.gpu_deleted(change.subject.name)
        else:
            self.cache.gpu_changed(change.new)
        if change.old is None or change.new is None or _offers(change.old) != _offers(change.new):
            self.made_room()

    def _claim(self, change: Change[ElasticGPUClaim]) -> None:
        if change.new is None:
            self.cache.claim_deleted(change.subject.uid)
            self.made_room()
            return
        self.cache.claim_changed(change.new)
        if change.old is None or _gives(change.old) != _gives(change.new):
            self.made_room()  # pods may have waited for the claim, or for it to be bound

    def _pod(self, change: Change[Pod]) -> None:
        uid, new = change.subject.uid, change.new
        if new is None or not awaits_placement(new):
            self.waiting.pop(uid, None)
        else:
            self.waiting[uid] = new
        if new is None:
            self.cache.pod_deleted(uid)
            self.made_room()
            return
        had_reserved = uid in self.cache.reservations
        self.cache.pod_changed(new)
        before = change.old.annotations.get(names.ALLOCATION) if change.old is not None else None
        ended = new.finished and not (change.old is not None and change.old.finished)
        gave_back = before is not None and before != new.annotations.get(names.ALLOCATION)
        if ended or gave_back or (had_reserved and uid not in self.cache.reservations):
            self.made_room()


def _offers(gpu: ElasticGPU) -> tuple[ElasticGPUSpec, bool]:
    """What claims may wait for; what else a card's status says is written from here."""
    return gpu.spec, gpu.healthy


def _gives(claim: ElasticGPUClaim) -> tuple[ClaimAllocation | None, ClaimPhase | None]:
    """What pods may wait for: its cards, and, of one that several use, that it keeps them."""
    return claim.status.allocation, claim.status.phase


def _ready(node: Node) -> bool:
    """Ready, or nobody has said anything yet."""
    return all(one.status == "True" for one in node.status.conditions or [] if one.type == "Ready")
