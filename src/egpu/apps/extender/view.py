"""What the extender knows: the API server's objects, followed by watches into the core's ledger. Nothing else."""

from collections.abc import Callable

from msgspec.structs import replace

from egpu.adapters.kubernetes import Caches, Change, Client
from egpu.api import names
from egpu.api.disruption import PodDisruptionBudget
from egpu.api.kubernetes import Node, NodeStatus, Pod
from egpu.api.objects import ClaimAllocation, ClaimPhase, ElasticGPU, ElasticGPUClaim, ElasticGPUClass, ElasticGPUSpec
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.requests import awaits_placement
from egpu.core.policies.registry import Policies
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene


class View:
    """The caches and the ledger they cache."""

    def __init__(self, client: Client) -> None:
        self.cache = SchedulerCache()
        self.caches = Caches(client)
        self.classes = self.caches.add(ElasticGPUClass)
        self.gpus = self.caches.add(ElasticGPU, packed=True)
        self.claims = self.caches.add(ElasticGPUClaim)
        self.nodes = self.caches.add(Node, packed=True, transform=_node_part)
        self.pods = self.caches.add(Pod, packed=True, transform=_pod_part)
        self.budgets = self.caches.add(PodDisruptionBudget)
        self.waiting: dict[str, Pod] = {}
        """Pods that ask for cards and have no node, by UID: few of all pods."""
        self.population = Population(self.pods.by_uid)
        self._usable: set[str] = set()
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
        return sorted(self._usable)

    def scene(self, policies: Policies) -> Scene:
        """What a plan to evict somebody looks at."""
        return Scene(self.cache, self.nodes.snapshot(), self.population, list(self.budgets), policies)

    def cards(self, node: str) -> list[ElasticGPU]:
        """The cards that the node's agent published; none for a node without."""
        found = (self.gpus.get(name) for name in self.cache.card_names(node))
        return [gpu for gpu in found if gpu is not None]

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
        self._usable.discard(change.subject.name)
        if change.new is not None and not change.new.spec.unschedulable and _ready(change.new):
            self._usable.add(change.new.name)
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
        if new is None:
            self.population.gone(uid)
        else:
            self.population.changed(new)
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


def _offers(gpu: ElasticGPU) -> tuple[ElasticGPUSpec, bool]:
    """What claims may wait for; what else a card's status says is written from here."""
    return gpu.spec, gpu.healthy


def _gives(claim: ElasticGPUClaim) -> tuple[ClaimAllocation | None, ClaimPhase | None]:
    """What pods may wait for: its cards, and, of one that several use, that it keeps them."""
    return claim.status.allocation, claim.status.phase


def _ready(node: Node) -> bool:
    """Ready, or nobody has said anything yet."""
    return all(one.status == "True" for one in node.status.conditions or [] if one.type == "Ready")
