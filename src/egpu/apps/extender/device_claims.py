"""Allocates the ResourceClaims of waiting pods on nodes with `elasticgpu.io/allocator=priced`.

kube-scheduler cannot allocate them there, because of the devices' taint, and keeps the pod waiting. Once the claims
have an allocation, it binds the pod to their node. It needs no setting for this.

kube-scheduler takes an allocation back if the pod does not fit on the node after all. The extender then avoids that
node for a while."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from egpu.api import names
from egpu.apps.extender.claim_looks import ClaimLooks
from egpu.apps.extender.device_claim_writer import DeviceClaimWriter
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.quotas import Quotas
from egpu.apps.extender.view import View
from egpu.core.dra.asking import Asked, KnownAsks, check_gang_size, check_size
from egpu.core.dra.choosing import Choice, Wish, choose, request_of, with_room, without_held
from egpu.core.dra.held import node_of
from egpu.core.dra.references import claim_names, is_for, single_node
from egpu.core.dra.together import WishOf, choose_together, objection
from egpu.core.gangs.membership import Gang
from egpu.core.policies.registry import Policies
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.api.wire import rfc3339
from egpu_base.errors import (
    Conflict,
    DoesNotFit,
    ElasticGPUError,
    InvalidInput,
    MissingExtra,
    NotFound,
    NotSupported,
    Refused,
)
from egpu_base.kubernetes import Change
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Loop, Result

RETRY_SECONDS: Final = 10.0
AVOID_SECONDS: Final = 60.0
"""The time for which a pod's claims get no cards of a node from which kube-scheduler took them back."""
GANG_SECONDS: Final = 1.0
"""The pause before a member of a gang is looked at again that another member's turn may have served."""
WORKERS: Final = 32
"""Pods whose claims are written at the same time. Most of the time is spent waiting for the API server."""

Read = Mapping[str, ResourceClaim]
"""Claims by UID, as they were before the fence is asked."""

log = structlog.get_logger(__name__)


class PricedClaims:
    """One loop, over waiting pods by UID."""

    def __init__(
        self,
        view: View,
        writer: DeviceClaimWriter,
        policies: Policies,
        events: EventRecorder,
        *,
        quotas: Quotas,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._writer = writer
        self._policies = policies
        self._events = events
        self._quotas = quotas
        self._metrics = metrics
        self._waiting: dict[str, Pod] = {}
        self._users: dict[str, set[str]] = {}
        """UIDs of waiting pods by claim (`namespace/name`)."""
        self._gave: dict[str, str] = {}
        """The node of the claims of a waiting pod that this process gave, by the pod's UID."""
        self._avoided: dict[str, dict[str, float]] = {}
        """Nodes that a waiting pod avoids, and until when, by the pod's UID."""
        self._asks = KnownAsks(view.cache.classes, view.device_classes.get)
        self._gangs: set[str] = set()
        """Gangs (`namespace/name`) that are being served."""
        self._looks = ClaimLooks()
        self.loop: Loop[str] = Loop("priced claims", self.reconcile, workers=WORKERS)
        view.pods.on_change(self._pod)
        view.device_claims.on_change(self._claim)
        view.classes.on_change(lambda _: self._asks.forget())
        view.device_classes.on_change(lambda _: self._classes_changed())
        view.on_room(self.consider_all)

    # --- who waits --------------------------------------------------------------------------------------------------

    def consider_all(self) -> None:
        self._looks.made_room()
        for uid in self._waiting:
            self.loop.queue.add(uid)

    def _classes_changed(self) -> None:
        self._asks.forget()
        self.consider_all()

    def _pod(self, change: Change[Pod]) -> None:
        pod = change.new
        self._looks.changed(_gang_of(change.subject))
        before = self._waiting.pop(change.subject.uid, None)
        for name in claim_names(before) if before is not None else ():
            self._users[f"{change.subject.namespace}/{name}"].discard(change.subject.uid)
        if pod is None or not _waits(pod):
            self._view.cache.device_claims.unmet.pop(change.subject.uid, None)
            self._gave.pop(change.subject.uid, None)
            self._avoided.pop(change.subject.uid, None)
            return
        self._waiting[pod.uid] = pod
        for name in claim_names(pod):
            self._users.setdefault(f"{pod.namespace}/{name}", set()).add(pod.uid)
        self.loop.queue.add(pod.uid)

    def _claim(self, change: Change[ResourceClaim]) -> None:
        claim = change.subject
        users = self._users.get(claim.key, set())
        if not users:
            self._users.pop(claim.key, None)
        lost = change.old is not None and node_of(change.old) and (change.new is None or not node_of(change.new))
        by_others = lost and claim.uid not in self._writer.releasing
        for uid in users:
            if by_others and change.old is not None and self._gave.get(uid) == node_of(change.old):
                node = self._gave.pop(uid)
                self._avoided.setdefault(uid, {})[node] = time.monotonic() + AVOID_SECONDS
                self._view.cache.hosts.pod_gone(uid)
            if (waiting := self._waiting.get(uid)) is not None:
                self._looks.changed(_gang_of(waiting))
            self.loop.queue.add(uid)
        if lost:
            self._view.made_room()

    # --- one pod ----------------------------------------------------------------------------------------------------

    async def reconcile(self, uid: str) -> Result:
        pod = self._waiting.get(uid)
        if pod is None or not self._view.cache.device_claims.priced_nodes():
            return DONE  # a node that becomes a priced one makes room
        claims = [self._view.device_claims.get(name, pod.namespace) for name in claim_names(pod)]
        known = [one for one in claims if one is not None]
        if len(known) < len(claims) or not claims or any(one.metadata.deletion_timestamp for one in known):
            return DONE  # the pod, or its claims, will change
        try:
            wish = self._wish(pod, known)
            if wish is None:
                return DONE
            return await self._serve(wish)
        except (DoesNotFit, Refused) as error:
            reason = "DoesNotFit" if isinstance(error, DoesNotFit) else "QuotaExceeded"
            await self._events.warn(pod, reason, str(error))
            return Result(again_after_seconds=RETRY_SECONDS)
        except (InvalidInput, NotSupported, MissingExtra) as error:
            await self._events.warn(pod, "ClaimNotServed", str(error))
            return DONE
        except NotFound:
            return DONE

    def _wish(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Wish | None:
        """Return what the pod waits for; None if none of its claims waits for the extender."""
        view, book = self._view, self._view.cache.device_claims
        check_size(pod, claims, view.cache.classes)
        waiting: list[Asked] = []
        for claim in claims:
            if claim.status.allocation is None and not book.is_assumed(claim.uid):
                if not is_for(claim, pod):
                    return None  # kube-scheduler refuses the claim that was made for another pod
                wanted = self._asks.of(claim)
                if wanted is not None:
                    waiting.append(wanted)
        if not waiting:
            return None
        if names.DEMAND in pod.annotations:
            raise NotSupported("the pod asks for cards both by resource names or annotations and by ResourceClaims")
        held = {one.name: given for one in claims if (given := book.allocation(one.uid)) is not None}
        if any(not book.is_priced(one.node) for one in held.values()):
            return None  # kube-scheduler has begun to allocate the pod's claims, and is about to bind it
        nodes = {node for one in claims if (node := single_node(book.get(one.uid) or one))}
        if len(nodes) > 1:
            raise DoesNotFit(f"its claims are allocated on several nodes: {', '.join(sorted(nodes))}")
        return Wish(pod, waiting, held, next(iter(nodes), ""))

    async def _serve(self, wish: Wish) -> Result:
        pod = wish.pod
        if (rest := self._looks.rest_seconds(pod.namespace)) > 0:
            return Result(again_after_seconds=rest)
        if why := self._looks.why_not(_gang_of(pod)):
            raise DoesNotFit(why)
        gang, unmet = self._view.cache.gangs.of(pod), self._view.cache.device_claims.unmet
        if gang is not None:
            return await self._serve_gang(gang, pod)
        try:
            with self._looks.look(pod.namespace):
                self._look(wish)  # nothing is written while no cards fit
            own = self._waits_still
            await self._allocate(pod.namespace, [wish], lambda read: [(pod, self._choose(own(pod, read)))])
        except DoesNotFit:
            if await self._released(wish):
                return Result(again_after_seconds=0)
            if pod.uid in self._waiting:  # less important pods may be evicted for it
                unmet[pod.uid] = request_of(wish, self._view.scene(self._policies))
            raise
        unmet.pop(pod.uid, None)
        return DONE

    async def _allocate(
        self, namespace: str, wishes: Sequence[Wish], choose: Callable[[Read], Sequence[tuple[Pod, Choice]]]
    ) -> None:
        """Mark the claims of some pods, call `choose` with them, and write the allocations.

        `choose` must give cards to these versions of the claims alone: they were read before the fence is asked."""
        listing = asyncio.create_task(self._quotas.listed(namespace))
        try:
            waiting = [one.claim for wish in wishes for one in wish.waiting]
            marked = await asyncio.gather(*map(self._writer.mark, {one.uid: one for one in waiting}.values()))
            quotas = await listing
        finally:
            listing.cancel()
        read = {one.uid: one for one in marked}
        given: list[tuple[Pod, Choice]] = []

        def chosen() -> Sequence[Sequence[ResourceClaim]]:
            found = choose(read)
            self._quotas.check_device_claims(quotas, namespace, [choice for _, choice in found])
            for pod, choice in found:
                given.append((pod, choice))
                self._gave[pod.uid] = choice.node
                self._view.cache.hosts.pod_placed(pod, choice.node)
            return [choice.claims for _, choice in found]

        try:
            await self._writer.write(chosen)
        finally:
            for pod, choice in given:
                self._written(pod, choice)

    def _written(self, pod: Pod, choice: Choice) -> None:
        """Record whether the pod has its claims, after they were written or not."""
        book = self._view.cache.device_claims
        if all(book.get(claim.uid) is not None for claim in choice.claims):
            self._metrics.device_claims_allocated.inc(len(choice.claims))
            log.debug("claims allocated", pod=pod.key, node=choice.node, claims=len(choice.claims))
        elif self._gave.pop(pod.uid, None) is not None:
            self._view.cache.hosts.pod_gone(pod.uid)

    def _waits_still(self, pod: Pod, read: Read) -> Wish:
        """Return what the pod waits for, with its claims as read. Raises Conflict if that is not so any more."""
        found = self._wish_now(pod, read)
        if found is None:
            raise Conflict(f"pod {pod.key}: its claims changed meanwhile")
        return _as_read(found, read)

    def _wish_now(self, pod: Pod, read: Read | None = None) -> Wish | None:
        """Return what the pod waits for, with its claims as read; None if they have cards. Raises DoesNotFit if one is
        missing."""
        found = self._claims_of(pod)
        known = [(read or {}).get(one.uid, one) for one in found]
        if len(known) < len(claim_names(pod)) or not known:
            raise DoesNotFit(f"pod {pod.name} has not all its claims yet")
        return self._wish(pod, known)

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        """Return the pod's claims that exist."""
        found = (self._view.device_claims.get(name, pod.namespace) for name in claim_names(pod))
        return [one for one in found if one is not None]

    async def _serve_gang(self, gang: Gang, pod: Pod) -> Result:
        """Allocate the claims of all members that wait, or none."""
        if gang.key in self._gangs:
            return Result(again_after_seconds=GANG_SECONDS)  # another member's turn gives cards to all
        self._gangs.add(gang.key)
        try:
            mixed = [one for one in (*gang.waiting, *gang.bound) if names.DEMAND in one.annotations]
            if why := objection(gang, mixed):
                raise DoesNotFit(why)
            check_gang_size(gang.terms.name, map(self._claims_of, gang.waiting), self._view.cache.classes)
            with self._looks.look(pod.namespace, gang.key):
                self._together(gang, self._wish_now)  # nothing is written while they do not fit
            wishes = [wish for one in gang.waiting if (wish := self._wish_now(one)) is not None]
            await self._allocate(pod.namespace, wishes, lambda read: self._together_still(gang, pod, read))
        except ElasticGPUError:
            for one in gang.waiting:  # some of them may have their cards by now, and need no other turn
                self.loop.queue.add_after(one.uid, RETRY_SECONDS)
            raise
        finally:
            self._gangs.discard(gang.key)
        return DONE

    def _together_still(self, gang: Gang, pod: Pod, read: Read) -> list[tuple[Pod, Choice]]:
        now = self._view.cache.gangs.of(pod)
        if now is None or {one.uid for one in now.waiting} != {one.uid for one in gang.waiting} or now.problem():
            raise Conflict(f"gang {gang.key} changed meanwhile")

        def wish_of(one: Pod) -> Wish | None:
            found = self._wish_now(one, read)
            return None if found is None else _as_read(found, read)

        return self._together(now, wish_of)

    def _together(self, gang: Gang, wish_of: WishOf) -> list[tuple[Pod, Choice]]:
        return choose_together(gang, wish_of, self._choose, self._view.scene(self._policies))

    def _look(self, wish: Wish) -> None:
        """Count the wish in the job mix, and raise DoesNotFit while no node has the cards for it."""
        cache, scene = self._view.cache, self._view.scene(self._policies)
        request = request_of(wish, scene)
        cache.ranking.see(wish.pod.uid, request)
        with cache.reservations.lifted(wish.pod):
            with_room(wish, request, scene, avoided=self._avoids(wish.pod))

    def _choose(self, wish: Wish) -> Choice:
        avoided = self._avoids(wish.pod)
        with self._view.cache.reservations.lifted(wish.pod):
            return choose(wish, self._view.scene(self._policies), avoided=avoided, timestamp=rfc3339(time.time()))

    def _avoids(self, pod: Pod) -> set[str]:
        """Return the nodes from which kube-scheduler has just taken the pod's claims back."""
        now = time.monotonic()
        return {node for node, until in self._avoided.get(pod.uid, {}).items() if until > now}

    async def _released(self, wish: Wish) -> bool:
        """Release the claims that this pod alone has, if all of them together then find room on another node: a leader
        that ended between two writes left them. Return whether any was released."""
        view = self._view
        mine = [
            found
            for name in wish.held
            if (found := view.device_claims.get(name, wish.pod.namespace)) is not None
            and [one.uid for one in found.status.reserved_for or ()] == [wish.pod.uid]
        ]
        if len(mine) < len(wish.held) or not mine:
            return False
        as_new = [self._asks.of(one) for one in mine]
        try:
            self._choose(without_held(wish, [one for one in as_new if one is not None]))
        except DoesNotFit:
            return False
        await self._writer.release(mine)
        return True


def _as_read(wish: Wish, read: Read) -> Wish:
    """Return the wish. Raises Conflict if it waits for a claim that was not read."""
    if any(one.claim.uid not in read for one in wish.waiting):
        raise Conflict(f"pod {wish.pod.key}: its claims changed meanwhile")
    return wish


def _gang_of(pod: Pod) -> str:
    """Return the `namespace/name` of the gang that the pod names; "" for none."""
    name = pod.annotations.get(names.GANG)
    return f"{pod.namespace}/{name}" if name is not None else ""


def _waits(pod: Pod) -> bool:
    """Return whether the pod may be scheduled, and has claims."""
    ready = not pod.spec.node_name and not pod.finished and pod.metadata.deletion_timestamp is None
    return bool(ready and pod.spec.resource_claims and not pod.spec.scheduling_gates)
