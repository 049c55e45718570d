"""The scheduler cache: Kubernetes objects in, a ledger and answers about pods out.

Everything here can be rebuilt from a list of ElasticGPUs, classes, claims and pods: that is how a restart begins, and a
property test holds the two ways equal. One thing lives here only between two events: *assumed* allocations, from the
moment a binding or another size is sent until the watch shows it. An allocation never gives way to an older revision.

Who holds what:

- a pod holds what its allocation annotation says, from the binding until it is finished or gone, not until its
  deletionTimestamp; except the containers whose claim holds for them;
- a claim holds what its `status.allocation` says, whatever its phase, as long as it exists;
- a slice (an ElasticGPU with a claimRef) holds when no claim with that UID does: a retained one, or one whose claim was
  just deleted.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ClaimAllocation, ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.demand.selection import Selection
from egpu.core.gangs.membership import Gangs
from egpu.core.placement import requests
from egpu.core.placement.fit import Filtered, filter_nodes
from egpu.core.placement.hosts import Hosts, pod_requests
from egpu.core.placement.ledger import Card, Holder, Ledger, NodeCards
from egpu.core.placement.published import card_of, is_card, pool_node, slice_allocation
from egpu.core.placement.ranking import Ranking
from egpu.core.placement.requests import CLAIM_CONTAINER, Request
from egpu.core.placement.reservations import Reservations
from egpu.errors import CorruptData


@dataclass
class _KnownPod:
    """What the ledger must know of a bound pod; the object itself is not kept."""

    key: str
    allocation: PodAllocation
    claims: dict[str, str]
    """Container → UID-independent key (`namespace/name`) of the claim it uses."""


class SchedulerCache:
    """Keeps a `Ledger` equal to the objects it was shown; `ranking` answers which place is best. Not thread-safe: its
    owner holds one lock."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.hosts = Hosts()
        self.selection = Selection()
        self.ranking = Ranking(self.ledger, self.hosts)
        self.classes: dict[str, ElasticGPUClass] = {}
        self._claims: dict[str, ElasticGPUClaim] = {}
        self._claim_uids: dict[str, str] = {}
        self._gpus: dict[str, ElasticGPU] = {}
        self._cards_of: dict[str, dict[str, ElasticGPU]] = {}
        self._slices_of: dict[str, dict[str, ElasticGPU]] = {}
        self._pods: dict[str, _KnownPod] = {}
        self._pods_of_claim: dict[str, set[str]] = {}
        self._assumed_claims: dict[str, ClaimAllocation] = {}
        self._problems: dict[str, str] = {}
        self.reservations = Reservations(self.ledger, self._pods.__contains__)
        self.gangs = Gangs(self._pods.__contains__)

    # --- ElasticGPUs ------------------------------------------------------------------------------------------------

    def gpu_changed(self, gpu: ElasticGPU) -> None:
        """A card was published or changed, or a slice was made or changed."""
        old = self._gpus.get(gpu.name)
        if old is not None and (is_card(old) != is_card(gpu) or old.spec.node_name != gpu.spec.node_name):
            self.gpu_deleted(gpu.name)
        self._gpus[gpu.name] = gpu
        if is_card(gpu):
            self._cards_of.setdefault(gpu.spec.node_name, {})[gpu.name] = gpu
            self._recount_node(gpu.spec.node_name)
        elif gpu.spec.slice and gpu.spec.claim_ref:
            self._slices_of.setdefault(gpu.spec.claim_ref.uid, {})[gpu.name] = gpu
            self._recount_slices(gpu.spec.claim_ref.uid)

    def gpu_deleted(self, name: str) -> None:
        gpu = self._gpus.pop(name, None)
        if gpu is None:
            return
        if is_card(gpu):
            self._cards_of[gpu.spec.node_name].pop(name, None)
            self._recount_node(gpu.spec.node_name)
        elif gpu.spec.claim_ref:
            self._slices_of.get(gpu.spec.claim_ref.uid, {}).pop(name, None)
            self.ledger.release(Holder("slice", name))

    def _recount_node(self, node: str) -> None:
        cards: dict[str, Card] = {}
        for gpu in sorted(self._cards_of.get(node, {}).values(), key=lambda gpu: gpu.name):
            card = card_of(gpu)
            if card.uuid in cards:
                self._problems[f"gpu/{gpu.name}"] = f"ElasticGPU {gpu.name} publishes {card.uuid} a second time"
                continue
            self._problems.pop(f"gpu/{gpu.name}", None)
            cards[card.uuid] = card
        if cards:
            self.ledger.set_node(NodeCards(node, tuple(cards.values())))
            self.selection.cards_changed(node, self.ledger.cards(node)[0].model)
        else:
            self._cards_of.pop(node, None)
            self.ledger.remove_node(node)
            self.selection.cards_changed(node, None)

    def _recount_slices(self, claim_uid: str) -> None:
        claimed = self.claim_allocation(claim_uid) is not None
        for name, gpu in self._slices_of.get(claim_uid, {}).items():
            if claimed:
                self.ledger.release(Holder("slice", name))
            else:
                self.ledger.hold(Holder("slice", name), slice_allocation(gpu))

    # --- classes and claims -----------------------------------------------------------------------------------------

    def class_changed(self, klass: ElasticGPUClass) -> None:
        self.classes[klass.name] = klass

    def class_deleted(self, name: str) -> None:
        self.classes.pop(name, None)

    def claim_changed(self, claim: ElasticGPUClaim) -> None:
        previous = self._claims.get(claim.key)
        if previous is not None and previous.uid != claim.uid:
            self.claim_deleted(previous.uid)  # deleted and made again between two lists
        self._claims[claim.key] = claim
        self._claim_uids[claim.uid] = claim.key
        assumed, shown = self._assumed_claims.get(claim.uid), claim.status.allocation
        if assumed is not None and shown is not None and shown.container.revision >= assumed.container.revision:
            del self._assumed_claims[claim.uid]
        self._recount_claim(claim.uid, claim.key)

    def claim_deleted(self, uid: str) -> None:
        key = self._claim_uids.pop(uid, None)
        self._assumed_claims.pop(uid, None)
        if key is not None and self._claims[key].uid == uid:
            del self._claims[key]
        self._recount_claim(uid, key)

    def claim(self, namespace: str, name: str) -> ElasticGPUClaim | None:
        return self._claims.get(f"{namespace}/{name}")

    def assume_claim(self, uid: str, allocation: ClaimAllocation) -> None:
        """The claim's status is being written: hold it now. Lasts until the watch shows it, or `forget_claim`."""
        self._assumed_claims[uid] = allocation
        self._recount_claim(uid, self._claim_uids.get(uid))

    def forget_claim(self, uid: str) -> None:
        """The write of an assumed claim failed."""
        self._assumed_claims.pop(uid, None)
        self._recount_claim(uid, self._claim_uids.get(uid))

    def claim_user(self, key: str, *, besides: str = "") -> str | None:
        """The pod (`namespace/name`) that uses the claim `key` (`namespace/name`) now, other than the pod whose UID is
        `besides`; None when there is none."""
        users = sorted(self._pods_of_claim.get(key, set()) - {besides})
        return self._pods[users[0]].key if users else None

    def claim_users(self, key: str) -> frozenset[tuple[str, str]]:
        """(pod UID, container) of whoever uses the claim `key` now, or is about to."""
        users = self._pods_of_claim.get(key, set())
        return frozenset((uid, name) for uid in users for name, used in self._pods[uid].claims.items() if used == key)

    def claims_of_pod(self, uid: str) -> frozenset[str]:
        """UIDs of the claims that a bound pod uses."""
        known = self._pods.get(uid)
        found = (self._claims.get(key) for key in known.claims.values()) if known is not None else ()
        return frozenset(claim.uid for claim in found if claim is not None)

    def pod_allocation(self, uid: str) -> PodAllocation | None:
        """What a bound pod was given, as written or as assumed; None for one that has nothing, or has ended."""
        known = self._pods.get(uid)
        return None if known is None else known.allocation

    def claim_allocation(self, uid: str) -> ClaimAllocation | None:
        """The cards of a claim, as written or as assumed; None when it has none."""
        key = self._claim_uids.get(uid)
        written = self._claims[key].status.allocation if key is not None else None
        return self._assumed_claims.get(uid) or written

    def _recount_claim(self, uid: str, key: str | None) -> None:
        allocation = self.claim_allocation(uid)
        if allocation is None:
            self.ledger.release(Holder("claim", uid))
        else:
            containers = {CLAIM_CONTAINER: allocation.container}
            self.ledger.hold(Holder("claim", uid), PodAllocation(node=allocation.node, containers=containers))
        self._recount_slices(uid)
        for pod in sorted(self._pods_of_claim.get(key, ())) if key else ():
            self._recount_pod(pod)

    # --- nodes ------------------------------------------------------------------------------------------------------

    def node_changed(self, node: Node) -> None:
        """What the node has beside cards, and whether it takes part in the pool."""
        self.hosts.node_changed(node)
        self.selection.node_changed(node)
        known = pool_node(node)
        if known is None:
            self.ledger.pool.pop(node.name, None)
        else:
            self.ledger.pool[node.name] = known

    def node_deleted(self, name: str) -> None:
        self.hosts.node_deleted(name)
        self.selection.node_deleted(name)
        self.ledger.pool.pop(name, None)

    # --- pods -------------------------------------------------------------------------------------------------------

    def pod_changed(self, pod: Pod) -> None:
        """A pod as the watch shows it. An assumed allocation stays until the pod carries one itself, or has ended."""
        self.gangs.pod_changed(pod)
        self.reservations.pod_changed(pod)
        if pod.finished:
            self._let_go(pod.uid)
            return
        if pod.spec.node_name:
            self.hosts.pod_placed(pod, pod.spec.node_name)
        text = pod.annotations.get(names.ALLOCATION)
        if text is None or not pod.spec.node_name:
            return
        problem = f"pod/{pod.uid}"
        try:
            allocation = decode_allocation(text)
        except CorruptData as error:
            self._problems[problem] = f"pod {pod.key}: {error}"
            return
        if allocation.node != pod.spec.node_name:
            where = f"is on {pod.spec.node_name}, its allocation says {allocation.node}"
            self._problems[problem] = f"pod {pod.key} {where}"
        else:
            self._problems.pop(problem, None)
        known = self._pods.get(pod.uid)
        if known is None or known.allocation.revision <= allocation.revision:
            self._know_pod(pod.uid, pod.key, pod.namespace, allocation)

    def pod_deleted(self, uid: str) -> None:
        """The pod is gone: it holds nothing any more."""
        self.gangs.pod_deleted(uid)
        self.reservations.drop(uid)
        self._let_go(uid)

    def _let_go(self, uid: str) -> None:
        self._problems.pop(f"pod/{uid}", None)
        self.hosts.pod_gone(uid)
        self._forget(uid)
        self.ledger.release(Holder("pod", uid))

    def _forget(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        if known is not None:
            for claim in known.claims.values():
                self._pods_of_claim[claim].discard(uid)
                if not self._pods_of_claim[claim]:
                    del self._pods_of_claim[claim]
            self.reservations.recount(uid)

    def assume_pod(self, pod: Pod, allocation: PodAllocation) -> None:
        """A binding is being sent: hold it now. Lasts until the watch shows it or the pod's end, or `forget_pod`."""
        self.hosts.pod_placed(pod, allocation.node)
        self._know_pod(pod.uid, pod.key, pod.namespace, allocation)

    def forget_pod(self, uid: str) -> None:
        """The binding of an assumed pod failed."""
        self._let_go(uid)

    @contextmanager
    def without(self, uids: Iterable[str]) -> Generator[None]:
        """As if these pods were gone, cards, claims, CPU and memory. No await inside: nobody else sees it so."""
        aside = [(uid, self._pods.get(uid), self.hosts.placed(uid)) for uid in uids]
        for uid, _, _ in aside:
            self.hosts.pod_gone(uid)
            self._forget(uid)
            self.ledger.release(Holder("pod", uid))
        try:
            yield
        finally:
            for uid, known, placed in aside:
                if placed is not None:
                    self.hosts.put(uid, *placed)
                if known is not None:
                    self._know_pod(uid, known.key, known.key.partition("/")[0], known.allocation)

    def assume_resize(self, pod: Pod, allocation: PodAllocation) -> None:
        """Another size of a bound pod is being sent. Lasts until the watch shows it, or `assume_resize` of what is."""
        self._know_pod(pod.uid, pod.key, pod.namespace, allocation)

    def _know_pod(self, uid: str, key: str, namespace: str, allocation: PodAllocation) -> None:
        known = self._pods.get(uid)
        if known is None or known.allocation != allocation:
            self._forget(uid)
            used = {
                name: f"{namespace}/{container.claim}"
                for name, container in allocation.containers.items()
                if container.claim
            }
            self._pods[uid] = _KnownPod(key, allocation, used)
            for claim in used.values():
                self._pods_of_claim.setdefault(claim, set()).add(uid)
            self.reservations.recount(uid)
        self._recount_pod(uid)

    def _recount_pod(self, uid: str) -> None:
        """Hold for a pod what no claim holds for it."""
        known = self._pods[uid]
        namespace, _, _ = known.key.partition("/")
        self.ledger.hold(Holder("pod", uid), self.held_by_pod(namespace, known.allocation))

    def held_by_pod(self, namespace: str, allocation: PodAllocation) -> PodAllocation:
        """The part of a pod's allocation that it holds itself, and no claim of its namespace for it."""
        own = {
            name: used
            for name, used in allocation.containers.items()
            if not (used.claim and self._claim_covers(f"{namespace}/{used.claim}", allocation.node, used))
        }
        return replace(allocation, containers=own)

    def _claim_covers(self, key: str, node: str, used: ContainerAllocation) -> bool:
        claim = self._claims.get(key)
        held = self.claim_allocation(claim.uid) if claim else None
        if held is None:
            return False
        # Of the same cards: how much of them, the claim says.
        same = [share.uuid for share in held.container.cards] == [share.uuid for share in used.cards]
        return same and held.node == used.cards_node(node)

    # --- questions --------------------------------------------------------------------------------------------------

    def request(self, pod: Pod) -> Request:
        """What `pod` needs now, claims looked up. Raises InvalidDemand for a pod that admission would have refused."""
        room, models = pod_requests(pod), self.selection.models(pod)
        asked = requests.pod_request(pod, self)
        return with_fields(asked, cpu_milli=room.cpu_milli, ram_mib=room.ram_mib, models=models)

    def claim_request(self, claim: ElasticGPUClaim) -> Request:
        """What an unbound claim needs, as a pod of one container called CLAIM_CONTAINER. Raises InvalidDemand."""
        return requests.claim_request(claim, self.classes)

    def filter(self, request: Request, nodes: Sequence[str]) -> Filtered:
        """Which of `nodes` can take the request now. Changes nothing."""
        return filter_nodes(request, self.ledger, nodes)

    def published_cards(self, node: str) -> list[ElasticGPU]:
        """The objects of a node's cards; none for a node without."""
        return list(self._cards_of.get(node, {}).values())

    def holder_name(self, holder: Holder) -> str:
        """As people know it: "pod NAMESPACE/NAME", "claim NAMESPACE/NAME", "slice NAME", "reserved for pod …"."""
        if holder.kind == "reservation":
            return f"reserved for pod {self.reservations.get(holder.id).key}"
        known = self._pods.get(holder.id)
        name = known.key if known is not None else self._claim_uids.get(holder.id, holder.id)
        return f"{holder.kind} {name}"

    def problems(self) -> list[str]:
        """What is wrong with the world as shown: over-commits, corrupt annotations, cards published twice."""
        over = [f"card {it.uuid} of node {it.node} {it.reason}" for it in self.ledger.overcommits()]
        return over + [text for _, text in sorted(self._problems.items())]


def rebuild(
    gpus: Iterable[ElasticGPU],
    pods: Iterable[Pod],
    claims: Iterable[ElasticGPUClaim],
    classes: Iterable[ElasticGPUClass] = (),
    nodes: Iterable[Node] = (),
) -> SchedulerCache:
    """A cache that was shown these objects, in whatever order they come: how a restart begins."""
    cache = SchedulerCache()
    for node in nodes:
        cache.node_changed(node)
    for klass in classes:
        cache.class_changed(klass)
    for gpu in gpus:
        cache.gpu_changed(gpu)
    for claim in claims:
        cache.claim_changed(claim)
    for pod in pods:
        cache.pod_changed(pod)
    return cache
