"""Bind: the only writer of placements of pods.

One call chooses cards, assumes them in the ledger, and sends one POST that sets the node and the allocation together.
So a failed bind leaves nothing behind. There is no await between choosing and assuming: in this single-threaded process
that is the lock. `egpu.apps.extender.fence` says why another process cannot interfere.

When the outcome of a write is unknown, the binder *touches* the object, which changes its resourceVersion. If the write
landed before the touch, the touch's answer shows it. After the touch it cannot land any more. The cards stay assumed
until this is known."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from egpu.api import names
from egpu.api.allocation import PodAllocation, decode_allocation
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim
from egpu.apps.extender.claim_writer import ClaimWriter
from egpu.apps.extender.fence import Fence, touch
from egpu.apps.extender.view import View
from egpu.core.demand.kinds import with_kinds
from egpu.core.gangs.alike import native_group
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.binding_annotations import binding_annotations
from egpu.core.placement.requests import Request, claim_allocations
from egpu.core.placement.reservations import priority
from egpu.core.policies.registry import Policies
from egpu_base.api.extender import ExtenderBindingArgs
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import (
    Conflict,
    CorruptData,
    DoesNotFit,
    ElasticGPUError,
    LeadershipLost,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from egpu_base.kubernetes import Change, Client

ATTEMPTS = 3
SETTLE_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Assumed:
    """An allocation that the ledger has and the watch has not shown yet."""

    pod: Pod
    allocation: PodAllocation
    claims: tuple[ElasticGPUClaim, ...]
    in_doubt: bool
    since: float


class Binder:
    """Binds pods on request. `settle` runs beside it, and resolves unknown outcomes and assumptions that the watch
    never showed."""

    def __init__(self, client: Client, view: View, fence: Fence, claims: ClaimWriter, policies: Policies) -> None:
        self._client = client
        self._view = view
        self._fence = fence
        self._claims = claims
        self._policies = policies
        self._assumed: dict[str, Assumed] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self.clock = time.monotonic
        """Seconds, for promises."""
        view.pods.on_change(self._shown)

    def _shown(self, change: Change[Pod]) -> None:
        """Forget an assumption once the watch shows the pod bound or gone. `settle` resolves pods in doubt."""
        known = self._assumed.get(change.subject.uid)
        if known is not None and not known.in_doubt and (change.new is None or change.new.spec.node_name):
            del self._assumed[change.subject.uid]

    async def bind(self, args: ExtenderBindingArgs) -> None:
        """Bind the pod with this uid to the node, with cards. A repeated call is harmless.

        Raises:
            DoesNotFit: the node has no cards for it now. Conflict: the pod was replaced, or is bound elsewhere.
            Unavailable: the API server did not bind it. OutcomeUnknown: the outcome will be found out.
        """
        async with self._alone(self._turn(args.pod_uid)):
            if (doubt := self._assumed.get(args.pod_uid)) is not None and doubt.in_doubt:
                await self._resolve(args.pod_uid, doubt)
            pod = await self._current(args)
            if pod.spec.node_name:
                _same_node(pod, args.node)
                return
            known = self._assumed.get(args.pod_uid)
            if known is not None:  # the extender bound it; the watch is behind
                pod = await self._client.get(Pod, args.pod_name, namespace=args.pod_namespace)
                _same_node(pod, args.node)
                return
            promises = self._view.cache.promises
            promises.binds(native_group(pod), self.clock())
            try:
                await self._place(pod, args.node)
            except BaseException:
                promises.release(pod.uid)  # kube-scheduler tries this member again, and binds the others meanwhile
                raise

    async def _place(self, pod: Pod, node: str) -> None:
        await self._claims.resolve_doubts()
        quotas = await self._claims.quotas.for_pods(pod.namespace)
        # Read before the fence is asked: see rule 1 there.
        promises, group = self._view.cache.promises, native_group(pod)
        alone = self._binds_alone(pod, node)
        with promises.lifted(pod.uid, "" if alone else group):
            read = {member.uid: member for member in ((pod,) if alone else self._members(pod))}
        if not alone:
            await self._fence.check()  # the gang may change meanwhile; cards are chosen for the changed gang
        # There is no await from here to `_assumed`: nothing else can choose between this choice and its assumption.
        chosen: list[tuple[Pod, PodAllocation, dict[str, ClaimAllocation]]] = []
        with self._view.cache.reservations.lifted(pod), promises.lifted(pod.uid, "" if alone else group):
            chosen_cards = self._choose_one(pod, node) if alone else self._choose(pod, node, read)
            for uid, (request, allocation) in chosen_cards.items():
                kinds = with_kinds(allocation, priority(read[uid]), self._view.cache.classes)
                chosen.append((read[uid], kinds, claim_allocations(request, allocation)))
        waiting = {name: given.container for _, _, claims in chosen for name, given in claims.items()}
        self._claims.quotas.check_pods(quotas, [member for member, _, _ in chosen], waiting)
        for member, allocation, _ in chosen:
            promises.release(member.uid)
            self._view.cache.assume_pod(member, allocation)
            self._assume(member, allocation, ())
        # Runs while the API server works.
        asyncio.get_running_loop().call_soon(self._view.cache.ranking.catch_up)
        written: dict[str, tuple[ElasticGPUClaim, ...]] = {}
        try:
            if alone:  # the cards are assumed already, so other pods are not offered them
                ((_, _, unbound),) = chosen
                await self._fence.check(math.inf if unbound else self._view.read_at(pod))
            for member, _, waiting in chosen:
                written[member.uid] = await self._claims.bind_waiting(member, waiting)
        except BaseException:
            for member, _, _ in chosen:
                self._forget(member.uid)
            for claims in written.values():
                await self._claims.roll_back(claims)
            raise
        for member, allocation, _ in chosen:
            self._assume(member, allocation, written[member.uid])
        await self._post_all([(member, allocation, written[member.uid]) for member, allocation, _ in chosen])

    def _binds_alone(self, pod: Pod, node: str) -> bool:
        """Return whether only this pod is bound now: it has no gang, or kube-scheduler has asked about as many members
        as the gang needs, so that it binds them itself."""
        cache = self._view.cache
        gang = cache.gangs.of(pod)
        if gang is None:
            return True
        promised = cache.promises.of(pod.uid)
        return promised is not None and promised.node == node and gang.settled >= gang.terms.size

    def _members(self, pod: Pod) -> tuple[Pod, ...]:
        """Return the pod, and the waiting members of its gang."""
        gang = self._view.cache.gangs.of(pod)
        others = gang.waiting if gang is not None else ()
        return (pod, *(member for member in others if member.uid != pod.uid))

    def _choose(self, pod: Pod, node: str, read: Mapping[str, Pod]) -> dict[str, tuple[Request, PodAllocation]]:
        """Choose cards for the pod first, then for the waiting members of its gang. Changes nothing."""
        cache = self._view.cache
        gang = cache.gangs.of(pod)
        if gang is None:
            return self._choose_one(pod, node)
        verdict = place_gang(cache, gang, self._policies, pod=pod, nodes=[node])
        if verdict.reason:
            raise DoesNotFit(verdict.text())
        if verdict.allocations.keys() != read.keys():
            raise Conflict(f"gang {gang.key} changed during the bind; try again")
        return {uid: (cache.request(read[uid]), verdict.allocations[uid]) for uid in read}

    def _choose_one(self, pod: Pod, node: str) -> dict[str, tuple[Request, PodAllocation]]:
        request = self._view.cache.request(pod)
        return {pod.uid: (request, self._view.cache.ranking.choose(request, node, self._policies))}

    def _assume(self, pod: Pod, allocation: PodAllocation, claims: tuple[ElasticGPUClaim, ...]) -> None:
        self._assumed[pod.uid] = Assumed(pod, allocation, claims, False, time.monotonic())

    async def _post_all(self, chosen: Sequence[tuple[Pod, PodAllocation, tuple[ElasticGPUClaim, ...]]]) -> None:
        """Send the pod's own binding, and then those of its gang.

        If the first fails, none is sent. If a later one fails, the rest are still sent, and the gang is completed or
        undone (`egpu.apps.extender.gang_controller`)."""
        (pod, allocation, claims), *others = chosen
        try:
            await self._post(pod, allocation, claims)
        except BaseException:
            for member, _, held in others:
                self._forget(member.uid)
                await self._claims.roll_back(held)
            raise

        async def post(member: Pod, allocation: PodAllocation, claims: tuple[ElasticGPUClaim, ...]) -> None:
            try:
                await self._post(member, allocation, claims)
            except ElasticGPUError as error:
                log.warning("not bound with its gang", pod=member.key, node=allocation.node, reason=str(error))
            else:
                log.info("bound with its gang", pod=member.key, node=allocation.node)

        await asyncio.gather(*(post(*one) for one in others))

    async def _post(self, pod: Pod, allocation: PodAllocation, written: tuple[ElasticGPUClaim, ...]) -> None:
        node = allocation.node
        annotations = binding_annotations(allocation, assume_time_ns=time.time_ns())
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._client.bind(
                        pod.name,
                        node,
                        namespace=pod.namespace,
                        uid=pod.uid,
                        resource_version=pod.metadata.resource_version,
                        annotations=annotations,
                    )
                except Conflict:
                    # Most often the scheduler wrote a condition into the pod: read it, ask the fence again, try
                    # again.
                    pod = await self._reread(pod)
                    if pod.spec.node_name:
                        if _carries(pod, allocation):
                            return
                        raise
                    if attempt == ATTEMPTS:
                        raise
                    await self._fence.check()
                else:
                    return
        except OutcomeUnknown as error:
            log.warning("binding outcome unknown", pod=pod.key, node=node, reason=str(error))
            doubt = Assumed(pod, allocation, written, True, time.monotonic())
            self._assumed[pod.uid] = doubt
            if not await self._resolve(pod.uid, doubt):
                raise Unavailable(f"bind {pod.key}: the API server did not bind it; try again") from error
        except (Conflict, NotFound, Refused, Unavailable, LeadershipLost):
            self._forget(pod.uid)
            await self._claims.roll_back(written)
            raise

    async def _resolve(self, uid: str, doubt: Assumed) -> bool:
        """Find out whether the binding was written. Raises OutcomeUnknown while the API server does not answer."""
        try:
            pod: Pod | None = await touch(self._client, doubt.pod, "settle")
        except (NotFound, Conflict):
            pod = None  # deleted, or replaced by a pod of the same name: the binding cannot land any more
        except ElasticGPUError as error:
            raise OutcomeUnknown(f"bind {doubt.pod.key}: outcome still unknown: {error}") from error
        if pod is not None and pod.spec.node_name and _carries(pod, doubt.allocation):
            self._assumed[uid] = Assumed(doubt.pod, doubt.allocation, doubt.claims, False, time.monotonic())
            return True
        self._forget(uid)
        await self._claims.roll_back(doubt.claims)
        return False

    async def settle(self) -> None:
        """Resolve doubts every few seconds, and forget assumptions that the watch has shown or will never show."""
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            for uid, assumed in list(self._assumed.items()):
                shown = self._view.pods.by_uid(uid)
                if shown is not None and shown.spec.node_name:
                    self._assumed.pop(uid, None)  # the watch has put it into the ledger
                elif time.monotonic() - assumed.since > SETTLE_SECONDS:
                    async with self._alone(self._turn(uid)):
                        await self._settle_one(uid)

    async def _settle_one(self, uid: str) -> None:
        assumed = self._assumed.get(uid)
        if assumed is None:
            return
        try:
            if assumed.in_doubt:
                await self._resolve(uid, assumed)
            elif await self._is_gone(uid, assumed):
                self._forget(uid)
        except ElasticGPUError as error:
            log.warning("bindings not settled yet", pod=assumed.pod.key, reason=str(error))

    async def _is_gone(self, uid: str, assumed: Assumed) -> bool:
        """Return whether the pod was created, bound and deleted while the watch was broken, and so is never shown."""
        if self._view.pods.by_uid(uid) is not None:
            return False
        pod = await self._client.find(Pod, assumed.pod.name, namespace=assumed.pod.namespace)
        return pod is None or pod.uid != uid

    def _forget(self, uid: str) -> None:
        self._assumed.pop(uid, None)
        self._view.cache.forget_pod(uid)

    def _turn(self, uid: str) -> str:
        """Return the key of the lock: one for all members of a gang, because binding one binds the others."""
        pod = self._view.pods.by_uid(uid)
        gang = pod.annotations.get(names.GANG) if pod is not None else None
        return uid if pod is None or gang is None else f"{pod.namespace}/{gang}"

    async def _current(self, args: ExtenderBindingArgs) -> Pod:
        """Return the pod from the cache, or from the API server if the cache does not have it yet."""
        pod = self._view.pods.get(args.pod_name, args.pod_namespace)
        if pod is None or pod.uid != args.pod_uid:
            pod = await self._client.get(Pod, args.pod_name, namespace=args.pod_namespace)
        if pod.uid != args.pod_uid:
            raise Conflict(f"pod {pod.key} has uid {pod.uid}, not {args.pod_uid}: it was deleted and created again")
        if pod.metadata.deletion_timestamp is not None:
            raise Conflict(f"pod {pod.key} is being deleted")
        return pod

    async def _reread(self, pod: Pod) -> Pod:
        fresh = await self._client.get(Pod, pod.name, namespace=pod.namespace)
        if fresh.uid != pod.uid:
            raise Conflict(f"pod {pod.key} was deleted and created again")
        return fresh

    @asynccontextmanager
    async def _alone(self, turn: str) -> AsyncGenerator[None]:
        """Allow one bind at a time for each key. The lock is dropped with its last user."""
        lock, users = self._locks.get(turn, (asyncio.Lock(), 0))
        self._locks[turn] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(turn)
            if users > 1:
                self._locks[turn] = (lock, users - 1)


def _same_node(pod: Pod, node: str) -> None:
    if pod.spec.node_name != node:
        raise Conflict(f"pod {pod.key} is bound to {pod.spec.node_name or 'no node'}, not to {node}")


def _carries(pod: Pod, allocation: PodAllocation) -> bool:
    """Return whether the pod was bound with exactly this allocation."""
    try:
        return decode_allocation(pod.annotations.get(names.ALLOCATION, "")) == allocation
    except CorruptData:
        return False
