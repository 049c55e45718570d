"""Gives claims their cards, at once (Immediate) or with their first pod, because one ledger must decide.

It writes only `status.allocation`, always with the claim's resourceVersion. Phases, slices and finalizers belong to the
controller. `egpu.apps.extender.fence` says why the resourceVersion is enough."""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from egpu.api.objects import ClaimAllocation, ElasticGPUClaim
from egpu.apps.extender.fence import Fence, touch
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.quotas import Quotas
from egpu.apps.extender.view import View
from egpu.core.claims.lifecycle import needs_binding
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import Condition
from egpu_base.api.wire import replacing
from egpu_base.errors import (
    Conflict,
    CorruptData,
    DoesNotFit,
    ElasticGPUError,
    InvalidInput,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    UnknownProvisioner,
)
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Loop, Result

RETRY_SECONDS = 10.0
ROLLBACKS = 3
SETTLE_SECONDS = 5.0

log = structlog.get_logger(__name__)


class ClaimWriter:
    """Writes and withdraws `status.allocation`. `quotas` are those that a write may have to respect."""

    def __init__(self, client: Client, view: View, fence: Fence) -> None:
        self.quotas = Quotas(client, view)
        self._client = client
        self._view = view
        self._fence = fence
        self._doubts: dict[str, tuple[ElasticGPUClaim, ClaimAllocation]] = {}
        """Writes with an unknown outcome, by the claim's uid."""

    async def check(self) -> None:
        """Check that this process may write, after the object to be written was read. Raises LeadershipLost."""
        await self._fence.check()

    async def bind_waiting(self, pod: Pod, waiting: Mapping[str, ClaimAllocation]) -> tuple[ElasticGPUClaim, ...]:
        """Give the claims (by name) that wait for this pod their cards: all or none. Returns them as written."""
        written: list[ElasticGPUClaim] = []
        try:
            for name, allocation in waiting.items():
                claim = self._view.claims.get(name, pod.namespace)
                if claim is None:
                    raise Conflict(f"claim {pod.namespace}/{name} was deleted during the bind")
                await self._fence.check()  # asked after the claim was read
                written.append(await self.write(claim, allocation))
        except ElasticGPUError:
            await self.roll_back(written)
            raise
        return tuple(written)

    async def write(self, claim: ElasticGPUClaim, allocation: ClaimAllocation) -> ElasticGPUClaim:
        """Give the claim its cards: first in the ledger, then in the API. Raises Conflict, Unavailable."""
        cache = self._view.cache
        cache.assume_claim(claim.uid, allocation)
        patch = {
            "metadata": {"uid": claim.uid, "resourceVersion": claim.metadata.resource_version},
            "status": {"allocation": replacing(claim.status.allocation, allocation)},
        }
        try:
            return await self._patch(claim, patch, subresource="status")
        except (OutcomeUnknown, Conflict) as error:
            # The conflict may be with this very write, sent again because its first answer was lost.
            self._doubts[claim.uid] = (claim, allocation)
            done = await self._resolve(claim.uid)
            if done is None:
                raise Conflict(f"claim {claim.key}: not written; try again") from error
            return done
        except ElasticGPUError:
            cache.forget_claim(claim.uid)
            raise

    async def patch_allocation(self, claim: ElasticGPUClaim, allocation: ClaimAllocation) -> None:
        """Write a smaller allocation. The ledger counts less once the watch shows it. Raises Conflict, Unavailable."""
        await self._patch_status(claim, {"allocation": replacing(claim.status.allocation, allocation)})

    async def patch_conditions(self, claim: ElasticGPUClaim, conditions: Sequence[Condition]) -> None:
        """Write all conditions of the claim. Raises Conflict, Unavailable."""
        await self._patch_status(claim, {"conditions": conditions})

    async def _patch_status(self, claim: ElasticGPUClaim, status: Mapping[str, object]) -> None:
        version = claim.metadata.resource_version
        patch = {"metadata": {"uid": claim.uid, "resourceVersion": version}, "status": status}
        await self._patch(claim, patch, subresource="status")

    async def resolve_doubts(self) -> None:
        """Find out about every write with an unknown outcome, before anything is chosen for its claim or pod.

        Raises OutcomeUnknown while the API server does not answer."""
        for uid in list(self._doubts):
            await self._resolve(uid)

    async def settle(self) -> None:
        """Resolve doubts from time to time, even if no request needs them."""
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            try:
                await self.resolve_doubts()
            except OutcomeUnknown as error:
                log.warning("claims not settled yet", reason=str(error))

    async def _resolve(self, uid: str) -> ElasticGPUClaim | None:
        """Return the claim if the write in doubt landed; None if it did not and never will.

        Touches the claim, so that the write cannot land later. Until the outcome is known the cards stay assumed, and
        the caller gets OutcomeUnknown."""
        if uid not in self._doubts:
            return None  # resolved by another call meanwhile
        claim, allocation = self._doubts[uid]
        try:
            fresh = await self._touched(claim)
        except (NotFound, Conflict):
            fresh = None
        except ElasticGPUError as error:
            raise OutcomeUnknown(f"claim {claim.key}: outcome still unknown: {error}") from error
        self._doubts.pop(uid, None)
        if fresh is not None and fresh.status.allocation == allocation:
            return fresh
        self._view.cache.forget_claim(uid)
        return None

    async def _touched(self, claim: ElasticGPUClaim) -> ElasticGPUClaim | None:
        """Touch the claim, or only read one that cannot grow: the larger write in doubt cannot land on it either. All
        claims wait for this answer, so the claim's author must not be able to block it."""
        try:
            fresh: ElasticGPUClaim | None = await touch(self._client, claim, "settle")
        except Refused:
            fresh = await self._client.find(ElasticGPUClaim, claim.name, namespace=claim.namespace)
            if fresh is None or fresh.uid != claim.uid:
                return None
        self._view.claims.absorb(fresh)
        return fresh

    async def roll_back(self, written: Sequence[ElasticGPUClaim]) -> None:
        """Withdraw the cards of claims whose pod definitely did not get them.

        A claim that cannot be rolled back stays bound. That loses nothing: it is a reservation like any other.
        Everybody sees it, its pod's next attempt uses it, and deleting the claim ends it."""
        for claim in written:
            allocation = claim.status.allocation
            current: ElasticGPUClaim | None = claim
            for _ in range(ROLLBACKS):
                if current is None or current.uid != claim.uid or current.status.allocation != allocation:
                    break
                if current.status.phase == "Bound":
                    return  # the controller has seen it: without its cards the claim would become Lost
                version = current.metadata.resource_version
                patch = {
                    "metadata": {"uid": claim.uid, "resourceVersion": version},
                    "status": {"allocation": None},
                }
                try:
                    await self._patch(claim, patch, subresource="status")
                    break
                except Conflict:
                    current = await self._client.find(ElasticGPUClaim, claim.name, namespace=claim.namespace)
                except ElasticGPUError as error:
                    log.warning("claim stays bound", claim=claim.key, reason=str(error))
                    return
            self._view.cache.forget_claim(claim.uid)

    async def _patch(
        self, claim: ElasticGPUClaim, patch: Mapping[str, object], *, subresource: str | None = None
    ) -> ElasticGPUClaim:
        answer = await self._client.patch(
            ElasticGPUClaim, claim.name, patch, namespace=claim.namespace, subresource=subresource
        )
        self._view.claims.absorb(answer)
        return answer


class ImmediateClaims:
    """Binds claims of Immediate classes as soon as there is room."""

    def __init__(
        self, view: View, writer: ClaimWriter, policies: Policies, events: EventRecorder, metrics: Metrics
    ) -> None:
        self._metrics = metrics
        self._view = view
        self._writer = writer
        self._policies = policies
        self._events = events
        # One worker: it places claims one after the other, and each sees the ones before.
        self.loop: Loop[str] = Loop("immediate claims", self.reconcile, workers=1)
        view.claims.on_change(lambda change: None if change.new is None else self._consider(change.new))
        view.on_room(self.consider_all)

    def consider_all(self) -> None:
        for claim in self._view.claims:
            self._consider(claim)

    def _consider(self, claim: ElasticGPUClaim) -> None:
        if claim.status.allocation is None:
            self.loop.queue.add(claim.uid)

    async def reconcile(self, uid: str) -> Result:
        await self._writer.resolve_doubts()
        claim = self._view.claims.by_uid(uid)
        klass = None if claim is None else self._view.classes.get(claim.spec.class_name)
        if claim is None or klass is None or not needs_binding(claim, klass):
            return DONE  # a change of the class brings the claim back
        try:
            self._choose(claim)  # without a question while it does not fit
            quotas = await self._writer.quotas.listed(claim.namespace)
            await self._writer.check()
            allocation = self._choose(claim)
            self._writer.quotas.check(quotas, claim.namespace, claims={uid: allocation.container})
        except (DoesNotFit, Refused) as error:
            reason = "DoesNotFit" if isinstance(error, DoesNotFit) else "QuotaExceeded"
            await self._events.warn(claim, reason, str(error))
            return Result(again_after_seconds=RETRY_SECONDS)
        except (InvalidInput, CorruptData, NotSupported, UnknownProvisioner) as error:
            await self._events.warn(claim, "CannotBeBound", str(error))
            return DONE
        await self._writer.write(claim, allocation)
        self._metrics.claims_bound.inc()
        log.info("claim bound", claim=claim.key, node=allocation.node)
        return DONE

    def _choose(self, claim: ElasticGPUClaim) -> ClaimAllocation:
        """Return the best node by the policy; among equals the first by name."""
        cache = self._view.cache
        request = cache.claim_request(claim)
        filtered = cache.filter(request, self._view.usable_nodes())
        if request.waiting:
            raise NotSupported(request.waiting)
        if not filtered.fits:
            reasons = [f"{node}: {refusal.reason}" for node, refusal in sorted(filtered.refusals().items())]
            raise DoesNotFit("; ".join(reasons) if reasons else "no node has a usable card")
        scores = cache.ranking.scores(request, filtered.fits, self._policies, all_fit=True)
        best = min(filtered.fits, key=lambda node: (-scores[node], node))
        allocation = cache.ranking.choose(request, best, self._policies)
        (container,) = allocation.containers.values()
        return ClaimAllocation(node=container.cards_node(best), container=container)
