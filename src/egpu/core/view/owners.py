"""The owners of slices: what is shown of each holder of cards, and which claims pods use."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.core.dra.held import holder as device_holder
from egpu.core.dra.held import node_of
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.ledger import Holder
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Pod

_NO_LABELS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Owner:
    """The shown data of a holder. `claims`: a pod's (container, claim) pairs; `node`: where it runs."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    made: str | None = None
    node: str = ""
    claims: tuple[tuple[str, str], ...] = ()


class Owners:
    """Updated by changes of objects, after `cache` was. Methods return the nodes on which another owner is now shown;
    the ledger reports all other changes."""

    def __init__(self, cache: SchedulerCache) -> None:
        self._cache = cache
        self._owners: dict[Holder, Owner] = {}
        self._users: dict[str, str] = {}
        """The nodes of placed pods with ResourceClaims, by UID."""

    def get(self, holder: Holder) -> Owner | None:
        """Return the owner of a holder; None for a reservation, and for an unknown holder."""
        return self._owners.get(holder)

    def pod_changed(self, pod: Pod) -> Iterator[str]:
        allocation = self._cache.pod_allocation(pod.uid)
        if allocation is None:
            yield from self.pod_deleted(pod.uid)
            yield from self._uses_claims(pod)
            return
        used = tuple(sorted((name, one.claim) for name, one in allocation.containers.items() if one.claim))
        meta = pod.metadata
        labels = meta.labels or _NO_LABELS
        owner = Owner(pod.namespace, pod.name, labels, meta.creation_timestamp, pod.spec.node_name or "", used)
        yield from self._own(Holder("pod", pod.uid), owner)

    def pod_deleted(self, uid: str) -> Iterator[str]:
        yield from self._own(Holder("pod", uid), None)
        if (node := self._users.pop(uid, "")) != "":
            yield node

    def _uses_claims(self, pod: Pod) -> Iterator[str]:
        """Yield the node of a placed pod with ResourceClaims: it is shown with these."""
        if pod.spec.resource_claims and pod.spec.node_name:
            self._users[pod.uid] = pod.spec.node_name
            yield pod.spec.node_name

    def device_claim_changed(self, claim: ResourceClaim) -> Iterator[str]:
        """Record a ResourceClaim with cards of ours."""
        node = node_of(claim)
        if not node:
            return self.device_claim_deleted(claim.uid)
        meta = claim.metadata
        owner = Owner(claim.namespace, claim.name, meta.labels or _NO_LABELS, meta.creation_timestamp, node)
        self._own(device_holder(claim.uid), owner)
        return iter((node,))

    def device_claim_deleted(self, uid: str) -> Iterator[str]:
        return self._own(device_holder(uid), None)

    def claim_changed(self, claim: ElasticGPUClaim) -> Iterator[str]:
        meta = claim.metadata
        owner = Owner(claim.namespace, claim.name, meta.labels or _NO_LABELS, meta.creation_timestamp)
        return self._own(Holder("claim", claim.uid), owner)

    def claim_deleted(self, uid: str) -> None:
        self._owners.pop(Holder("claim", uid), None)

    def gpu_changed(self, gpu: ElasticGPU) -> None:
        """Record a slice, which holds by itself when its claim does not. Cards have no owner."""
        claim = gpu.spec.claim_ref
        if claim is not None and gpu.spec.slice is not None:
            self._owners[Holder("slice", gpu.name)] = Owner(claim.namespace, gpu.name, _NO_LABELS)
        else:
            self.gpu_deleted(gpu.name)

    def gpu_deleted(self, name: str) -> None:
        self._owners.pop(Holder("slice", name), None)

    def _own(self, holder: Holder, owner: Owner | None) -> Iterator[str]:
        before = self._owners.get(holder)
        if owner == before:
            return iter(())
        if owner is None:
            del self._owners[holder]
        else:
            self._owners[holder] = owner
        return self._shown_on(holder, before, owner)

    def _shown_on(self, holder: Holder, *versions: Owner | None) -> Iterator[str]:
        """Yield the nodes of its cards, and of the claims that it used or uses."""
        yield from self._nodes(holder)
        for owner in versions:
            for _, name in owner.claims if owner is not None else ():
                claim = self._cache.claim(owner.namespace, name) if owner is not None else None
                if claim is not None:
                    yield from self._nodes(Holder("claim", claim.uid))

    def _nodes(self, holder: Holder) -> Iterator[str]:
        allocation = self._cache.ledger.holding(holder)
        if allocation is not None:
            yield from {one.cards_node(allocation.node) for one in allocation.containers.values()}
