"""The extender's knowledge: the API server's objects, followed by watches into the core's ledger. Nothing else."""

import contextlib
import math
import time
from collections.abc import Callable

from egpu.adapters.kubernetes.followed import FollowedCache
from egpu.api import names
from egpu.api.objects import ClaimAllocation, ClaimPhase, ElasticGPU, ElasticGPUClaim, ElasticGPUClass, ElasticGPUSpec
from egpu.core.placement.requests import awaits_placement
from egpu.core.policies.registry import Policies
from egpu.core.preemption.budgets import kept_budget
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene
from egpu_base.api.devices import DeviceClass
from egpu_base.api.disruption import PodDisruptionBudget
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import CorruptData, InvalidInput
from egpu_base.kubernetes import Change, Client


class View(FollowedCache):
    """The caches, and the ledger that they feed."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.budgets = self.caches.add(PodDisruptionBudget, transform=kept_budget)
        self.device_classes = self.caches.add(DeviceClass, optional=True)
        self.waiting: dict[str, Pod] = {}
        """Pods that ask for cards and have no node, by UID: few of all pods."""
        self._read_at: dict[str, float] = {}
        self.population = Population(self.pods.by_uid)
        self._usable: set[str] = set()
        self._listeners: list[Callable[[], None]] = []

    def not_ready(self) -> str | None:
        """Return why nothing may be given out now, or None."""
        if (why := self.caches.not_ready()) is not None:
            return why
        priced = self.cache.device_claims.priced_nodes()
        if priced and not self.device_claims.listed.is_set():
            return f"node {priced[0]} gives cards to ResourceClaims, and the API server does not serve these"
        return None

    async def synced(self) -> None:
        """Wait until everything that holds cards is listed."""
        await self.caches.synced()
        if self.cache.device_claims.priced_nodes():
            await self.device_claims.listed.wait()

    def on_room(self, listener: Callable[[], None]) -> None:
        """Call `listener` when cards may have become free or new ones appeared."""
        self._listeners.append(listener)

    def usable_nodes(self) -> list[str]:
        """Return the nodes on which a claim may be bound before it has a pod."""
        return sorted(self._usable)

    def read_at(self, pod: Pod) -> float:
        """Return the time at which this version of a waiting pod was read, by `time.monotonic`; infinity for other
        pods."""
        known = self.waiting.get(pod.uid)
        same = known is not None and known.metadata.resource_version == pod.metadata.resource_version
        return self._read_at[pod.uid] if same else math.inf

    def scene(self, policies: Policies) -> Scene:
        """Return the input of an eviction plan."""
        return Scene(self.cache, self.nodes.snapshot(), self.population, list(self.budgets), policies)

    def made_room(self) -> None:
        """Tell all listeners that cards may have become free or new ones appeared."""
        for listener in self._listeners:
            listener()

    def _class(self, change: Change[ElasticGPUClass]) -> None:
        super()._class(change)
        if change.new is not None:
            self.made_room()  # claims may have waited for it

    def _node(self, change: Change[Node]) -> None:
        before = self._offered(change.subject.name)
        self._usable.discard(change.subject.name)
        if change.new is not None and not change.new.spec.unschedulable and _ready(change.new):
            self._usable.add(change.new.name)
        super()._node(change)
        if self._offered(change.subject.name) != before:
            self.made_room()

    def _offered(self, node: str) -> object:
        ledger = self.cache.ledger
        return ledger.pool.get(node), ledger.host_memory(node)[0]

    def _gpu(self, change: Change[ElasticGPU]) -> None:
        super()._gpu(change)
        if change.old is None or change.new is None or _offers(change.old) != _offers(change.new):
            self.made_room()

    def _claim(self, change: Change[ElasticGPUClaim]) -> None:
        super()._claim(change)
        if change.old is None or change.new is None or _gives(change.old) != _gives(change.new):
            self.made_room()  # pods may have waited for the claim, or for its binding

    def _pod(self, change: Change[Pod]) -> None:
        uid, new = change.subject.uid, change.new
        if new is None:
            self.population.gone(uid)
        else:
            self.population.changed(new)
        if new is None or not awaits_placement(new):
            self.cache.promises.release(uid)
            self.waiting.pop(uid, None)
            self._read_at.pop(uid, None)
        else:
            self.waiting[uid], self._read_at[uid] = new, time.monotonic()
            with contextlib.suppress(InvalidInput, CorruptData):  # a later request gets the error
                self.cache.request(new)  # kube-scheduler asks for it in a moment, and would then wait for the answer
        had_reserved = uid in self.cache.reservations
        super()._pod(change)
        if new is None:
            self.made_room()
            return
        before = change.old.annotations.get(names.ALLOCATION) if change.old is not None else None
        ended = new.finished and not (change.old is not None and change.old.finished)
        gave_back = before is not None and before != new.annotations.get(names.ALLOCATION)
        if ended or gave_back or (had_reserved and uid not in self.cache.reservations):
            self.made_room()


def _offers(gpu: ElasticGPU) -> tuple[ElasticGPUSpec, bool]:
    """Return what claims may wait for. The extender itself writes the rest of the card's status."""
    return gpu.spec, gpu.healthy


def _gives(claim: ElasticGPUClaim) -> tuple[ClaimAllocation | None, ClaimPhase | None]:
    """Return what pods may wait for: the claim's cards, and for a shared claim that it keeps them."""
    return claim.status.allocation, claim.status.phase


def _ready(node: Node) -> bool:
    """Return whether the node is ready, or has not reported yet."""
    return all(one.status == "True" for one in node.status.conditions or [] if one.type == "Ready")
