"""The scheduler cache: Kubernetes objects in, a ledger and answers about pods out.

Everything here can be rebuilt from a list of ElasticGPUs, classes, claims and pods: a restart begins this way, and a
property test compares both ways. One thing lives here only between two events: *assumed* allocations, from the moment a
binding or a new size is sent until the watch shows it. An allocation never gives way to an older revision.

The holders of cards are:

- a pod, for its allocation annotation, from the binding until it is finished or gone (not until its deletionTimestamp),
  except containers whose claim holds for them;
- a claim, for its `status.allocation`, in any phase, as long as it exists;
- a slice (an ElasticGPU with a claimRef), while no claim with that UID holds: a retained slice, or one whose claim was
  just deleted;
- a ResourceClaim, for its cards of ours (`egpu.core.dra.held`).
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation, with_shared_names
from egpu.api.objects import ClaimAllocation, ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.demand.selection import Selection
from egpu.core.dra.held import DeviceClaims
from egpu.core.gangs.membership import Gangs
from egpu.core.placement import requests
from egpu.core.placement.fit import Filtered, filter_nodes
from egpu.core.placement.hosts import Hosts, pod_requests
from egpu.core.placement.ledger import Holder, Ledger
from egpu.core.placement.promises import Promises
from egpu.core.placement.published import parking_memory, pool_node, slice_allocation
from egpu.core.placement.published_cards import PublishedCards
from egpu.core.placement.ranking import Ranking
from egpu.core.placement.requests import CLAIM_CONTAINER, Request
from egpu.core.placement.reservations import Reservations
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import CorruptData

_NO_CLAIMS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class _KnownPod:
    """A bound pod, as far as the ledger needs it; the object itself is not kept."""

    key: str
    allocation: PodAllocation
    claims: Mapping[str, str]
    """Container → key (`namespace/name`, without UID) of the claim that it uses."""


class SchedulerCache:
    """A `Ledger` equal to the objects that were shown, and a `ranking`. Not thread-safe: its owner holds one lock."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.hosts = Hosts()
        self.selection = Selection()
        self.ranking = Ranking(self.ledger, self.hosts)
        self.classes: dict[str, ElasticGPUClass] = {}
        self._claims: dict[str, ElasticGPUClaim] = {}
        self._claim_uids: dict[str, str] = {}
        self._slices: dict[str, ElasticGPU] = {}
        self._slices_of: dict[str, set[str]] = {}
        """Names of slices by the UID of their claim."""
        self._pods: dict[str, _KnownPod] = {}
        self._pods_of_claim: dict[str, set[str]] = {}
        self._requests = requests.KnownRequests()
        self._assumed_claims: dict[str, ClaimAllocation] = {}
        self._problems: dict[str, str] = {}
        self.device_claims = DeviceClaims(self.ledger)
        self._cards = PublishedCards(self.ledger, self.selection, self._problems, self.device_claims.cards_changed)
        self.reservations = Reservations(self.ledger, self._pods.__contains__)
        self.promises = Promises(self.ledger)
        self.gangs = Gangs(lambda uid: uid in self._pods or self.promises.of(uid) is not None)

    # --- ElasticGPUs ------------------------------------------------------------------------------------------------

    def gpu_changed(self, *gpus: ElasticGPU) -> None:
        """Record new or changed cards and slices. A node's cards are counted once per call."""
        self._cards.changed(*gpus)
        for gpu in gpus:
            known = self._slices.get(gpu.name)
            if known is not None and known.spec.claim_ref != gpu.spec.claim_ref:
                self._slice_deleted(gpu.name)
            if gpu.spec.slice and gpu.spec.claim_ref:
                self._slices[gpu.name] = gpu
                self._slices_of.setdefault(gpu.spec.claim_ref.uid, set()).add(gpu.name)
                self._recount_slices(gpu.spec.claim_ref.uid)

    def gpu_deleted(self, name: str) -> None:
        self._cards.deleted(name)
        self._slice_deleted(name)

    def _slice_deleted(self, name: str) -> None:
        gpu = self._slices.pop(name, None)
        if gpu is not None and gpu.spec.claim_ref:
            self._slices_of[gpu.spec.claim_ref.uid].discard(name)
            self.ledger.release(Holder("slice", name))

    def _recount_slices(self, claim_uid: str) -> None:
        claimed = self.claim_allocation(claim_uid) is not None
        for name in self._slices_of.get(claim_uid, ()):
            if claimed:
                self.ledger.release(Holder("slice", name))
            else:
                self.ledger.hold(Holder("slice", name), slice_allocation(self._slices[name]))

    # --- classes and claims -----------------------------------------------------------------------------------------

    def class_changed(self, klass: ElasticGPUClass) -> None:
        self._requests.clear()
        self.classes[klass.name] = klass

    def class_deleted(self, name: str) -> None:
        self._requests.clear()
        self.classes.pop(name, None)

    def claim_changed(self, claim: ElasticGPUClaim) -> None:
        if (previous := self._claims.get(claim.key)) is not None and previous.uid != claim.uid:
            self.claim_deleted(previous.uid)  # deleted and created again between two lists
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
        """Hold an allocation while its status is being written, until the watch shows it, or `forget_claim`."""
        self._assumed_claims[uid] = allocation
        self._recount_claim(uid, self._claim_uids.get(uid))

    def forget_claim(self, uid: str) -> None:
        """Undo `assume_claim`: the write failed."""
        self._assumed_claims.pop(uid, None)
        self._recount_claim(uid, self._claim_uids.get(uid))

    def claim_user(self, key: str, *, besides: str = "") -> str | None:
        """Return the pod (`namespace/name`) that uses the claim `key` (`namespace/name`) now, other than the pod with
        the UID `besides`; None if there is none."""
        users = sorted(self._pods_of_claim.get(key, set()) - {besides})
        return self._pods[users[0]].key if users else None

    def claim_users(self, key: str) -> frozenset[tuple[str, str]]:
        """Return (pod UID, container) of all users of the claim `key`, present or about to start."""
        users = self._pods_of_claim.get(key, set())
        return frozenset((uid, name) for uid in users for name, used in self._pods[uid].claims.items() if used == key)

    def claims_of_pod(self, uid: str) -> frozenset[str]:
        """Return the UIDs of the claims that a bound pod uses."""
        known = self._pods.get(uid)
        found = (self._claims.get(key) for key in known.claims.values()) if known is not None else ()
        return frozenset(claim.uid for claim in found if claim is not None)

    def pod_allocation(self, uid: str) -> PodAllocation | None:
        """Return a bound pod's allocation, as written or as assumed; None for none, and after the pod's end."""
        return known.allocation if (known := self._pods.get(uid)) is not None else None

    def claim_allocation(self, uid: str) -> ClaimAllocation | None:
        """Return the cards of a claim, as written or as assumed; None if it has none."""
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
        """Record a node's other resources, and whether it is part of the pool."""
        self.hosts.node_changed(node)
        self.selection.node_changed(node)
        self.ledger.set_host_memory(node.name, parking_memory(node))
        known = pool_node(node)
        if known is None:
            self.ledger.pool.pop(node.name, None)
        else:
            self.ledger.pool[node.name] = known

    def node_deleted(self, name: str) -> None:
        self.hosts.node_deleted(name)
        self.selection.node_deleted(name)
        self.ledger.set_host_memory(name, 0)
        self.ledger.pool.pop(name, None)

    # --- pods -------------------------------------------------------------------------------------------------------

    def pod_changed(self, pod: Pod) -> None:
        """Record a pod of the watch. An assumed allocation stays until the pod carries one, or has ended."""
        self.gangs.pod_changed(pod)
        self.reservations.pod_changed(pod)
        self.device_claims.pod_changed(pod)
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
        """Record that the pod is gone and holds nothing any more."""
        self.gangs.pod_deleted(uid)
        self.reservations.drop(uid)
        self.device_claims.pod_deleted(uid)
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
        """Hold an allocation whose binding is being sent, until the watch shows it, the pod's end, or `forget_pod`."""
        self.hosts.pod_placed(pod, allocation.node)
        self._know_pod(pod.uid, pod.key, pod.namespace, allocation)

    def forget_pod(self, uid: str) -> None:
        """Undo `assume_pod`: the binding failed."""
        self._let_go(uid)

    @contextmanager
    def without(self, uids: Iterable[str]) -> Generator[None]:
        """Remove these pods, with claims, CPU and memory, within the context. No await inside: no other reader."""
        aside = [(uid, self._pods.get(uid), self.hosts.placed(uid)) for uid in uids]
        for uid, _, _ in aside:
            self.hosts.pod_gone(uid)
            self._forget(uid)
            self.ledger.release(Holder("pod", uid))
        try:
            with self.device_claims.without([uid for uid, _, _ in aside]):
                yield
        finally:
            for uid, known, placed in aside:
                if placed is not None:
                    self.hosts.put(uid, *placed)
                if known is not None:
                    self._know_pod(uid, known.key, known.key.partition("/")[0], known.allocation)

    def assume_resize(self, pod: Pod, allocation: PodAllocation) -> None:
        """Hold a new size of a bound pod while it is being sent; to undo, pass the old size."""
        self._know_pod(pod.uid, pod.key, pod.namespace, allocation)

    def _know_pod(self, uid: str, key: str, namespace: str, allocation: PodAllocation) -> None:
        known = self._pods.get(uid)
        if known is None or known.allocation != allocation:
            self._forget(uid)
            used = {name: f"{namespace}/{each.claim}" for name, each in allocation.containers.items() if each.claim}
            self._pods[uid] = _KnownPod(key, with_shared_names(allocation), used or _NO_CLAIMS)
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
        """Return the part of a pod's allocation that the pod holds itself, not a claim of its namespace."""
        own = {
            name: used
            for name, used in allocation.containers.items()
            if not (used.claim and self._claim_covers(f"{namespace}/{used.claim}", allocation.node, used))
        }
        return allocation if len(own) == len(allocation.containers) else replace(allocation, containers=own)

    def _claim_covers(self, key: str, node: str, used: ContainerAllocation) -> bool:
        claim = self._claims.get(key)
        held = self.claim_allocation(claim.uid) if claim else None
        if held is None or held.node != used.cards_node(node):
            return False
        # Compare the cards only: the claim has the amounts.
        return [share.uuid for share in held.container.cards] == [share.uuid for share in used.cards]

    # --- questions --------------------------------------------------------------------------------------------------

    def request(self, pod: Pod) -> Request:
        """Return what `pod` needs now, with its claims. Raises InvalidDemand for a pod that admission would refuse."""
        if (unmet := self.device_claims.unmet.get(pod.uid)) is not None:
            return unmet
        models = self.selection.models(pod)
        if (known := self._requests.of(pod, models)) is not None:
            return known
        room, asked = pod_requests(pod), requests.pod_request(pod, self)
        request = with_fields(asked, cpu_milli=room.cpu_milli, ram_mib=room.ram_mib, models=models)
        self._requests.keep(pod, request)
        return request

    def claim_request(self, claim: ElasticGPUClaim) -> Request:
        """Return what an unbound claim needs, as a pod with a CLAIM_CONTAINER. Raises InvalidDemand."""
        return requests.claim_request(claim, self.classes)

    def filter(self, request: Request, nodes: Sequence[str]) -> Filtered:
        """Return which of `nodes` can take the request now. Changes nothing."""
        return filter_nodes(request, self.ledger, nodes)

    def card_names(self, node: str) -> list[str]:
        """Return the names of the objects of a node's cards; none for a node without."""
        return self._cards.names(node)

    def holder_name(self, holder: Holder) -> str:
        """Name a holder for people: "pod NAMESPACE/NAME", "claim …", "slice …", "reserved for pod …"."""
        if holder.kind == "reservation":
            return f"reserved for pod {self.reservations.get(holder.id).key}"
        if (claim := self.device_claims.get(holder.id)) is not None:
            return f"resourceclaim {claim.key}"
        known = self._pods.get(holder.id)
        name = known.key if known is not None else self._claim_uids.get(holder.id, holder.id)
        return f"{holder.kind} {name}"

    def problems(self) -> list[str]:
        """Return the problems of the objects: over-commits, corrupt annotations, cards published twice."""
        over = [f"card {it.uuid} of node {it.node} {it.reason}" for it in self.ledger.overcommits()]
        return over + [text for _, text in sorted(self._problems.items())]


def rebuild(
    gpus: Iterable[ElasticGPU],
    pods: Iterable[Pod],
    claims: Iterable[ElasticGPUClaim],
    classes: Iterable[ElasticGPUClass] = (),
    nodes: Iterable[Node] = (),
) -> SchedulerCache:
    """Build a cache from these objects, in any order, as a restart does."""
    cache = SchedulerCache()
    for node in nodes:
        cache.node_changed(node)
    for klass in classes:
        cache.class_changed(klass)
    cache.gpu_changed(*gpus)
    for claim in claims:
        cache.claim_changed(claim)
    for pod in pods:
        cache.pod_changed(pod)
    return cache
