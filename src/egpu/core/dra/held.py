"""The ResourceClaims that have our cards, as holders in a ledger.

A claim holds from the moment its allocation is sent until the watch shows that it has none, whoever wrote it. Pods that
use it hold nothing themselves.

An allocation of a priced card by kube-scheduler does not count: kube-scheduler can make it only for a claim that
tolerates the taint, and the node's driver never prepares such a claim.
"""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import NamedTuple

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.core.dra.consumers import Consumers
from egpu.core.dra.devices import PRICED, device_name
from egpu.core.dra.grants import NodeCard, containers_with, grants, main_request, ours
from egpu.core.placement.ledger import Holder, Ledger
from egpu.core.placement.node_names import NodeNames
from egpu.core.placement.requests import Request
from egpu_base.api.devices import AllocatedDevice, ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import TerminalError


class ClaimUser(NamedTuple):
    """A pod that a claim is reserved for. `containers`: the names of those that get the request, joined."""

    namespace: str
    pod: str
    containers: str


def holder(uid: str) -> Holder:
    return Holder("resourceclaim", uid)


def bypasses(device: AllocatedDevice) -> bool:
    """Return whether kube-scheduler gave out a priced card, by a toleration of the claim."""
    return any(one.tolerates(PRICED) for one in device.tolerations or ())


def node_of(claim: ResourceClaim) -> str:
    """Return the node of a claim's cards of ours; "" if it has none. An allocation never has those of two nodes."""
    allocation = claim.status.allocation
    results = allocation.devices.results or () if allocation is not None else ()
    return next((one.pool for one in results if one.driver == names.DRIVER), "")


class DeviceClaims:
    """Feeds the ledger with ResourceClaims. Receives changes of claims, of cards, and of pods, for display."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._claims: dict[str, ResourceClaim] = {}
        """Claims with cards of ours, by UID."""
        self._assumed: dict[str, ResourceClaim] = {}
        """Claims with the allocation that is being sent, by UID."""
        self._nodes: dict[str, str] = {}
        """The node of each claim, by UID."""
        self._on: dict[str, set[str]] = {}
        """UIDs of claims by node."""
        self._held: dict[str, dict[str, None]] = {}
        """UIDs of the claims that hold cards in the ledger, by namespace."""
        self._namespaces: dict[str, str] = {}
        """The namespace of each of them."""
        self.unmet: dict[str, Request] = {}
        """Requests of pods that wait for claims because no card has room, by the pod's UID."""
        self._pods: dict[str, Pod] = {}
        """Placed pods with ResourceClaims, by UID."""
        self._priced: tuple[int, NodeNames] = (-1, NodeNames(()))
        self._consumers = Consumers()
        self._gone: set[str] = set()
        """UIDs of pods that are supposed to be gone."""

    # --- changes ----------------------------------------------------------------------------------------------------

    def claim_changed(self, claim: ResourceClaim) -> None:
        """Record a claim of the watch. An assumed allocation stays until the claim has one."""
        before = self.get(claim.uid)
        if claim.status.allocation is not None:
            self._assumed.pop(claim.uid, None)
        if node_of(claim):
            self._claims[claim.uid] = claim
        else:
            self._claims.pop(claim.uid, None)
        after = self.get(claim.uid)
        self._consumers.changed(claim.uid, after)
        if before is None and after is None:
            return
        if before is None or after is None or before.status.allocation != after.status.allocation:
            self._recount(claim.uid)

    def claim_deleted(self, uid: str) -> None:
        self._claims.pop(uid, None)
        self._assumed.pop(uid, None)
        self._consumers.changed(uid, None)
        self._recount(uid)

    def assume(self, claim: ResourceClaim) -> None:
        """Hold the claim's allocation while it is being sent, until the watch shows one, or `forget`."""
        self._assumed[claim.uid] = claim
        self._recount(claim.uid)

    def forget(self, uid: str) -> None:
        """Undo `assume`: the write failed."""
        self._assumed.pop(uid, None)
        self._recount(uid)

    def cards_changed(self, node: str) -> None:
        """Count again what claims hold on a node: only its cards tell the UUIDs of devices."""
        for uid in sorted(self._on.get(node, ())):
            self._recount(uid)

    def pod_changed(self, pod: Pod) -> None:
        if pod.spec.resource_claims and pod.spec.node_name and not pod.finished:
            self._pods[pod.uid] = pod
        else:
            self._pods.pop(pod.uid, None)

    def pod_deleted(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def _recount(self, uid: str) -> None:
        before = self._namespaces.pop(uid, "")
        if before:
            del self._held[before][uid]
            if not self._held[before]:
                del self._held[before]
        self._hold(uid)
        claim = self.get(uid)
        if claim is not None and self._ledger.holding(holder(uid)) is not None:
            self._namespaces[uid] = claim.namespace
            self._held.setdefault(claim.namespace, {})[uid] = None

    def _hold(self, uid: str) -> None:
        """Hold in the ledger what the claim has now."""
        claim = self.get(uid)
        node = node_of(claim) if claim is not None else ""
        self._move(uid, node)
        if claim is None or not node:
            self._ledger.release(holder(uid))
            return
        cards, known = self._ledger.cards(node), self._known(node)
        if any(card.priced for card in cards) and any(map(bypasses, ours(claim, node))):
            self._ledger.release(holder(uid))
            return
        try:
            found = {main_request(one.request): one.allocation for one in grants(claim, node, known)}
        except TerminalError:
            # The node refuses it; or a card of it is away, and then it holds what it held.
            held = self._ledger.holding(holder(uid))
            if held is None or held.node != node or known.keys() >= {one.device for one in ours(claim, node)}:
                self._ledger.release(holder(uid))
            return
        self._ledger.hold(holder(uid), PodAllocation(node=node, containers=found))

    def _known(self, node: str) -> dict[str, NodeCard]:
        """Return the node's cards by the names of their devices."""
        return {
            device_name(card.uuid): NodeCard(card.uuid, card.index, card.minor, card.memory_mib, card.model)
            for card in self._ledger.cards(node)
        }

    def _move(self, uid: str, node: str) -> None:
        before = self._nodes.pop(uid, "")
        if before:
            self._on[before].discard(uid)
            if not self._on[before]:
                del self._on[before]
        if node:
            self._nodes[uid] = node
            self._on.setdefault(node, set()).add(uid)

    @contextmanager
    def without(self, pods: Collection[str]) -> Generator[None]:
        """Suppose within the context that these pods (UIDs) are gone, and the claims that only they use are free. No
        await inside: no other reader."""
        ending = {*pods} - self._gone
        freed = {uid: self.allocation(uid) for uid in self._consumers.freed_by(ending, self._gone)}
        self._gone |= ending
        for uid in freed:
            self._ledger.release(holder(uid))
        try:
            yield
        finally:
            for uid, held in freed.items():
                if held is not None:
                    self._ledger.hold(holder(uid), held)
            self._gone -= ending

    # --- questions --------------------------------------------------------------------------------------------------

    def held_by(self, pod: str) -> list[str]:
        """Return the UIDs of the claims that hold cards and that the pod with this UID uses."""
        return sorted(self._namespaces.keys() & self._consumers.claims(pod))

    def holding(self) -> list[ResourceClaim]:
        """Return the claims that hold cards, by `namespace/name`."""
        found = (self.get(uid) for uid in self._namespaces)
        return sorted((one for one in found if one is not None), key=lambda one: one.key)

    def held_in(self, namespace: str) -> Collection[str]:
        """Return the UIDs of the claims of a namespace that hold cards."""
        return self._held.get(namespace, {}).keys()

    def get(self, uid: str) -> ResourceClaim | None:
        """Return a claim with cards, as shown or assumed."""
        return self._assumed.get(uid) or self._claims.get(uid)

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def allocation(self, uid: str) -> PodAllocation | None:
        """Return what a claim holds, by request; None for nothing."""
        return self._ledger.holding(holder(uid))

    def given(self, claim: ResourceClaim, node: str) -> list[ContainerAllocation]:
        """Return what an allocation of a claim gives on a node. Raises TerminalError."""
        return [one.allocation for one in grants(claim, node, self._known(node))]

    def users(self, uid: str, request: str) -> list[tuple[ClaimUser, str]]:
        """Return the placed pods that use a request of a claim, and the node of each."""
        claim = self.get(uid)
        reserved = (claim.status.reserved_for or ()) if claim is not None else ()
        pods = [pod for one in reserved if (pod := self._pods.get(one.uid)) is not None]
        return sorted(
            (ClaimUser(pod.namespace, pod.name, ",".join(containers)), pod.spec.node_name)
            for pod in pods
            if claim is not None and (containers := containers_with(pod, claim.name, request))
        )

    def is_priced(self, node: str) -> bool:
        """Return whether the extender gives the node's cards to claims."""
        return any(card.priced for card in self._ledger.cards(node))

    def priced_nodes(self) -> NodeNames:
        """Return the nodes whose cards the extender gives to claims."""
        version, found = self._priced
        if version != self._ledger.cards_version:
            nodes = self._ledger.nodes()
            found = NodeNames([name for name in nodes if self.is_priced(name)])
            self._priced = self._ledger.cards_version, found
        return found
