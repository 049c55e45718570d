"""Evicts less important pods for a pod that waits for cards, and keeps their room for it.

kube-scheduler preempts by the totals of a node, and gives up if these have room although no card has. So the preemptor
looks at each pod that kube-scheduler called unschedulable, card by card (`egpu.core.preemption.plan`), a bounded number
per second.

The steps have an order in which being killed between any two loses and leaks nothing:

1. the cards are reserved in the ledger, and the pod gets an annotation with the victims and the deadline;
2. the pod's nominatedNodeName tells kube-scheduler, which keeps the node's CPU and memory from less important pods;
3. the victims are evicted one by one, by the Eviction API, which respects budgets and gives pods their time to end.
   It is asked about all of them before the first is evicted. A refused eviction is only tried again later.

A pod with ResourceClaims is treated alike once the extender found no place for them
(`egpu.apps.extender.device_claims`). Pods that have cards by ResourceClaims are victims as well: their claims become
free when Kubernetes' controller sees that no user is left.

A new leader finds the reservation in the pod and continues with 2 and 3. The reservation ends with its time in any
case. When the cards are free, the pod is woken like all others (`egpu.apps.extender.waker`)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from egpu.api import names
from egpu.apps.extender.fence import Fence
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.view import View
from egpu.core.placement.card_usage import card_usage
from egpu.core.placement.requests import awaits_placement
from egpu.core.placement.reservations import Reservation, Reserved, priority
from egpu.core.policies.registry import Policies
from egpu.core.preemption.plan import confirmed, plan_in_slices
from egpu.core.preemption.scene import InVain, Plan, card_names
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import BudgetSpent, Conflict, ElasticGPUError, NotFound, RetryableError, TerminalError
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.clock import even_time_of_day

LOOK_SECONDS: Final = 0.5
PLANS_PER_LOOK: Final = 1
"""A plan takes some tenths of a second when 6,000 pods have cards."""
SLICE_SECONDS: Final = 0.005
"""The longest time for which other work waits for a plan, and then the plan for other work."""
EVICTIONS_PER_LOOK: Final = 16
RESERVED_SECONDS: Final = 60.0
"""Extra time of a reservation, beyond the grace period of the victims."""
LONGEST_GRACE_SECONDS: Final = 600.0
"""The longest grace period that a reservation counts. A pod that needs longer to end does not block others for its
successor."""
AGAIN_SECONDS: Final = 5.0
"""Time until a pod without possible victims is looked at again, a refused eviction is tried again, and an annotation
that the watch has not shown is written again."""

log = structlog.get_logger(__name__)


class Preemptor:
    """Looks at waiting pods from time to time. `clock` returns seconds since the epoch, because other processes read
    the result."""

    def __init__(
        self,
        client: Client,
        view: View,
        fence: Fence,
        policies: Policies,
        *,
        events: EventRecorder,
        metrics: Metrics,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock`: seconds since the epoch, for annotations of pods; it must not jump."""
        self._client = client
        self._view = view
        self._fence = fence
        self._policies = policies
        self._events = events
        self._metrics = metrics
        self._clock = clock or even_time_of_day()
        self._not_before: dict[str, float] = {}
        """The next time for a waiting pod or a victim, by UID."""
        self._looked_at: dict[str, float] = {}
        """The time of the last plan for a pod of each namespace."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except ElasticGPUError as error:
                log.warning("preemption failed; trying again", reason=str(error))

    async def look(self) -> None:
        """End expired reservations, continue the others, and start with the most important waiting pod. Raises the API
        server's errors."""
        now = self._clock()
        self._not_before = {uid: at for uid, at in self._not_before.items() if at > now}
        self._looked_at = {name: at for name, at in self._looked_at.items() if now - at < LONGEST_GRACE_SECONDS}
        for reservation in self._view.cache.reservations.over(now):
            await self._end(reservation, "the reservation expired")
        for reservation in self._view.cache.reservations:
            try:
                await self._go_on(reservation)
            except TerminalError as error:  # reservations of other pods do not wait for this one
                log.warning("preemption not continued", pod=reservation.key, reason=str(error))
        for pod in self._waiting()[:PLANS_PER_LOOK]:
            self._looked_at[pod.namespace] = now
            try:
                await self._begin(pod)
            except RetryableError:
                raise
            except Exception:  # concerns this pod alone; the others must get their turn
                self._put_off(pod.uid)
                log.exception("cannot preempt", pod=pod.key)

    def _waiting(self) -> list[Pod]:
        """Return the unschedulable pods that are more important than some placed pod: the most important first.

        Among equals they take turns by namespace, so that one namespace's many hopeless pods do not block the others.
        """
        by_claims = self._view.population.read(self._view.cache.device_claims.unmet)
        known = [*self._view.waiting.values(), *by_claims]
        waiting = [pod for pod in known if self._waits(pod) and self._is_turn(pod.uid)]
        if not waiting:
            return []
        least = self._view.population.lowest
        waiting = [pod for pod in waiting if least is not None and priority(pod) > least]
        return sorted(waiting, key=self._place_in_line)

    def _place_in_line(self, pod: Pod) -> tuple[int, float, str, str]:
        looked_at = self._looked_at.get(pod.namespace, 0.0)
        return -priority(pod), looked_at, pod.metadata.creation_timestamp or "", pod.uid

    def _waits(self, pod: Pod) -> bool:
        """Return whether kube-scheduler found no place for the pod, and nothing has been evicted for it yet."""
        cache = self._view.cache
        has_cards = cache.pod_allocation(pod.uid) is not None or pod.uid in cache.reservations
        asks = awaits_placement(pod) or pod.uid in cache.device_claims.unmet
        return asks and not pod.spec.node_name and _unschedulable(pod) and not has_cards

    # --- a plan becomes a reservation -------------------------------------------------------------------------------

    async def _begin(self, pod: Pod) -> None:
        found = await self._plan(pod)
        if isinstance(found, InVain):
            log.debug("nothing is evicted for the pod", pod=pod.key, reason=found.reason)
            self._put_off(pod.uid)
            return
        known = self._view.pods.by_uid(pod.uid)
        if known is None or not self._waits(known):
            return
        await self._fence.check()
        # There is no await from here to the reservation: nothing can take the cards in between.
        found = confirmed(known, found, self._view.scene(self._policies))
        begun = [Reservation.of(one, self._reserved(one, found)) for one in found.pods]
        for reservation in begun:
            self._view.cache.reservations.keep(reservation)
        log.info("preempts", pod=pod.key, victims=[victim.key for victim in found.victims])
        written: list[Reservation] = []
        try:
            for one, reservation in zip(found.pods, begun, strict=True):
                await self._write(one, reservation)
                written.append(reservation)
        except (Conflict, NotFound):
            # Most often the scheduler wrote a condition into the pod: the next look sees it.
            await self._undo(begun, written)
            return
        except ElasticGPUError:
            await self._undo(begun, written)
            raise
        for one in found.pods:
            await self._events.note(one, "Preempting", _announced(found))
        for reservation in begun:
            await self._go_on(reservation)

    async def _plan(self, pod: Pod) -> Plan | InVain:
        """Compute a plan in slices of time, between which the scheduler's requests are answered."""
        ends = 0.0
        steps = plan_in_slices(pod, self._view.scene(self._policies), due=lambda: time.monotonic() >= ends)
        while True:
            ends = time.monotonic() + SLICE_SECONDS
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            await asyncio.sleep(SLICE_SECONDS)

    async def _undo(self, begun: Sequence[Reservation], written: Sequence[Reservation]) -> None:
        """Undo a reservation that not all members of a gang got: nothing is evicted for a part of a gang."""
        for reservation in begun:
            self._view.cache.reservations.drop(reservation.uid)
        for reservation in written:
            await self._end(reservation, "not all members of the gang could be updated")

    def _reserved(self, pod: Pod, found: Plan) -> Reserved:
        graces = [victim.spec.termination_grace_period_seconds or 0 for victim in found.victims]
        grace = min(max(graces, default=0), LONGEST_GRACE_SECONDS)
        return Reserved(
            allocation=found.allocations[pod.uid],
            until=int(self._clock() + grace + RESERVED_SECONDS),
            victims=tuple(victim.uid for victim in found.victims),
        )

    async def _write(self, pod: Pod, reservation: Reservation) -> None:
        """Write only into the pod as it was when the lease was checked: see rule 1 of the fence."""
        text = msgspec.json.encode(reservation.reserved).decode()
        meta = {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version}
        patch = {"metadata": meta | {"annotations": {names.RESERVATION: text}}}
        await self._client.patch(Pod, pod.name, patch, namespace=pod.namespace)

    # --- a reservation is made true ---------------------------------------------------------------------------------

    async def _go_on(self, reservation: Reservation) -> None:
        pod = self._view.pods.by_uid(reservation.uid)
        if pod is None:
            return
        node = reservation.reserved.allocation.node
        if pod.status.nominated_node_name != node and self._is_turn(reservation.uid):
            self._put_off(reservation.uid)
            await self._nominate(pod, node)
        known = [self._view.pods.by_uid(uid) for uid in reservation.reserved.victims]
        left = [one for one in known if one is not None and not one.finished]
        staying = [one for one in left if one.metadata.deletion_timestamp is None and self._is_turn(one.uid)]
        if not staying:
            return
        if unusable := self._unusable(reservation):
            await self._end_all(pod, unusable)
            return
        await self._fence.check()
        try:
            if len(left) == len(reservation.reserved.victims):
                for victim in staying:
                    await self._evict(victim, dry_run=True)
        except BudgetSpent as error:
            await self._end_all(pod, str(error))
            return
        for victim in staying[:EVICTIONS_PER_LOOK]:
            self._put_off(victim.uid)
            try:
                await self._evict(victim)
            except BudgetSpent as error:
                log.info("not evicted yet", pod=victim.key, reason=str(error))
                return
            self._metrics.pods_evicted.inc()
            await self._events.note(victim, "Preempted", _farewell(victim, pod, reservation))

    def _unusable(self, reservation: Reservation) -> str:
        """Return the reserved card that cannot take the pod any more, with the reason; "" if all can."""
        for key in sorted(card_usage(reservation.reserved.allocation)):
            card = next((one for one in self._view.cache.ledger.cards(key.node) if one.uuid == key.uuid), None)
            if card is None or not card.healthy:
                return f"card {key.uuid} of node {key.node} {'is away' if card is None else card.why_not}"
        return ""

    async def _evict(self, victim: Pod, *, dry_run: bool = False) -> None:
        try:
            await self._client.evict(victim.name, namespace=victim.namespace, uid=victim.uid, dry_run=dry_run)
        except (Conflict, NotFound):
            return  # ended by itself

    async def _nominate(self, pod: Pod, node: str) -> None:
        patch = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node or None}}
        try:
            await self._client.patch(Pod, pod.name, patch, namespace=pod.namespace, subresource="status")
        except (Conflict, NotFound):
            return  # replaced by another pod, or deleted

    async def _end_all(self, pod: Pod, why: str) -> None:
        """End the reservations of the pod and of its gang: nothing is evicted for a part of one."""
        for reservation in self._view.cache.reservations.own(pod):
            self._put_off(reservation.uid)
            await self._end(reservation, why)

    async def _end(self, reservation: Reservation, why: str) -> None:
        """End the reservation of a pod that still waits. A placed pod has released it already."""
        self._view.cache.reservations.drop(reservation.uid)
        self._view.made_room()
        pod = self._view.pods.by_uid(reservation.uid)
        log.info("no longer reserved", pod=reservation.key, reason=why)
        if pod is None:
            return
        await self._events.warn(pod, "PreemptionEnded", f"cards are no longer reserved for the pod: {why}")
        patch = {"metadata": {"uid": pod.uid, "annotations": {names.RESERVATION: None}}}
        try:
            await self._client.patch(Pod, pod.name, patch, namespace=pod.namespace)
        except (Conflict, NotFound):
            return  # replaced by another pod, or deleted
        await self._nominate(pod, "")

    # --- whose turn it is -------------------------------------------------------------------------------------------

    def _is_turn(self, uid: str) -> bool:
        return self._not_before.get(uid, 0.0) <= self._clock()

    def _put_off(self, uid: str) -> None:
        self._not_before[uid] = self._clock() + AGAIN_SECONDS


def _unschedulable(pod: Pod) -> bool:
    """Return whether kube-scheduler found no place for the pod, and may look again."""
    return pod.metadata.deletion_timestamp is None and any(
        one.type == "PodScheduled" and one.status == "False" and one.reason == "Unschedulable"
        for one in pod.status.conditions or []
    )


def _announced(found: Plan) -> str:
    """Return the message of the waiting pod's event."""
    where = "; ".join(card_names(each) for each in found.allocations.values())
    if not found.victims:
        return f"reserved {where}, where pods are about to end"
    return f"evicts {_listed(found.victims)} for {where}"


def _farewell(victim: Pod, pod: Pod, reservation: Reservation) -> str:
    """Return the message of the victim's event."""
    return f"Preempted by {pod.key} (priority {priority(pod)}) on {card_names(reservation.reserved.allocation)}"


def _listed(pods: Sequence[Pod]) -> str:
    return ", ".join(f"{pod.key} (priority {priority(pod)})" for pod in pods)
