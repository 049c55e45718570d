"""Writes the allocations of ResourceClaims: all of a pod, or none.

kube-scheduler binds a pod as soon as all its claims have allocations. So those of a gang cannot be taken back together:
if one of its later pods fails, the others are still written, and the gang is completed or undone like all gangs
(`egpu.apps.extender.gang_controller`).

A claim gets allocation and reservation in one write. Before it, the claim needs its finalizer and a mark
(`egpu.apps.extender.fence` says why): from the webhook, or else by a write of their own. Each write carries the version
of the claim that it rests on. Before the last one the cards are chosen again and assumed, without an await, as for
pods.

When the outcome of the last write is unknown, the claim is touched. Either the touch shows the allocation, or it
cannot land any more. The cards stay assumed until this is known."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from egpu.apps.extender.fence import Fence, touch
from egpu.apps.extender.view import View
from egpu.core.dra.marking import mark, may_be_allocated
from egpu_base.api.devices import ResourceClaim
from egpu_base.errors import Conflict, ElasticGPUError, NotFound, OutcomeUnknown, Unavailable
from egpu_base.kubernetes import Client

SETTLE_SECONDS: Final = 5.0
ROLLBACKS: Final = 3
"""Times that an allocation is withdrawn again because the claim changed meanwhile."""

log = structlog.get_logger(__name__)


class DeviceClaimWriter:
    """Writes and withdraws allocations of ResourceClaims."""

    def __init__(self, client: Client, view: View, fence: Fence) -> None:
        self._client = client
        self._view = view
        self._fence = fence
        self._doubts: dict[str, ResourceClaim] = {}
        """Claims with an allocation whose write has an unknown outcome, by UID."""
        self.releasing: set[str] = set()
        """UIDs of claims whose allocations this process withdraws now."""

    async def mark(self, claim: ResourceClaim) -> ResourceClaim:
        """Prepare a claim for its allocation, and return it as written. Raises Conflict, NotFound, Refused."""
        if may_be_allocated(claim):
            return claim
        return await self._patch(claim, {"metadata": mark(claim, f"allocate-{time.time_ns()}")})

    async def write(self, choose: Callable[[], Sequence[Sequence[ResourceClaim]]]) -> None:
        """Ask the fence, call `choose` for the claims of each pod with their allocations, and write them: of each pod
        all or none, and nothing if the first pod's fail.

        Raises Conflict, Unavailable, OutcomeUnknown, and what `choose` raises; then nothing was given to some pod, or
        it is found out later."""
        await self._fence.check()  # asked after all claims were read
        # There is no await from here to the last `assume`: nothing else can choose in between.
        chosen = choose()
        book = self._view.cache.device_claims
        for claim in itertools.chain.from_iterable(chosen):
            book.assume(claim)
        first, *others = chosen
        try:
            await self._write_all(first)
        except BaseException:
            for claim in itertools.chain.from_iterable(others):
                book.forget(claim.uid)
            raise
        failed = await asyncio.gather(*map(self._write_all, others), return_exceptions=True)
        for error in failed:
            if error is not None:
                raise error

    async def _write_all(self, claims: Sequence[ResourceClaim]) -> None:
        """Write the allocations of one pod's claims: all or none."""
        written: list[ResourceClaim] = []
        for number, claim in enumerate(claims):
            try:
                written.append(await self._write(claim))
            except ElasticGPUError:
                for other in claims[number + 1 :]:
                    self._view.cache.device_claims.forget(other.uid)
                await self.release(written)
                raise

    async def _write(self, claim: ResourceClaim) -> ResourceClaim:
        """Write one allocation. Raises Conflict if it was not written, OutcomeUnknown if that is unknown."""
        status = {"allocation": claim.status.allocation, "reservedFor": claim.status.reserved_for}
        try:
            return await self._patch(claim, {"status": status}, subresource="status")
        except (OutcomeUnknown, Conflict) as error:
            # The conflict may be with this very write, sent again because its first answer was lost.
            self._doubts[claim.uid] = claim
            done = await self.resolve(claim.uid)
            if done is None:
                raise Conflict(f"claim {claim.key}: not written; try again") from error
            return done
        except ElasticGPUError:
            self._view.cache.device_claims.forget(claim.uid)
            raise

    async def resolve(self, uid: str) -> ResourceClaim | None:
        """Return the claim if the write in doubt landed; None if it did not and never will. Raises OutcomeUnknown."""
        claim = self._doubts.get(uid)
        if claim is None:
            return None
        try:
            fresh: ResourceClaim | None = await touch(self._client, claim, "settle")
        except (NotFound, Conflict):
            fresh = None  # deleted, or replaced by a claim of the same name
        except ElasticGPUError as error:
            raise OutcomeUnknown(f"claim {claim.key}: outcome still unknown: {error}") from error
        self._doubts.pop(uid, None)
        if fresh is not None:
            self._view.device_claims.absorb(fresh)
            if _same(fresh, claim):
                return fresh
        self._view.cache.device_claims.forget(uid)
        return None

    async def settle(self) -> None:
        """Resolve doubts from time to time."""
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            for uid in list(self._doubts):
                try:
                    await self.resolve(uid)
                except OutcomeUnknown as error:
                    log.warning("claims not settled yet", reason=str(error))

    async def release(self, claims: Sequence[ResourceClaim]) -> None:
        """Withdraw allocations of claims whose pod waits for another claim: kube-scheduler cannot bind it meanwhile.

        A claim that cannot be released keeps its cards. Everybody sees it, and the pod's next attempt uses it."""
        for claim in claims:
            self.releasing.add(claim.uid)
            try:
                await self._release(claim)
            except ElasticGPUError as error:
                log.warning("claim keeps its cards", claim=claim.key, reason=str(error))
            finally:
                self.releasing.discard(claim.uid)

    async def _release(self, claim: ResourceClaim) -> None:
        current: ResourceClaim | None = claim
        for _ in range(ROLLBACKS):
            if current is None or current.uid != claim.uid or not _same(current, claim):
                return
            if current.status.reserved_for != claim.status.reserved_for:
                log.info("claim keeps its cards: another pod uses it by now", claim=claim.key)
                return
            try:
                await self._fence.check()
                await self._patch(current, {"status": {"allocation": None, "reservedFor": None}}, subresource="status")
            except Conflict:
                current = await self._client.find(ResourceClaim, claim.name, namespace=claim.namespace)
            else:
                log.info("claim released", claim=claim.key)
                return

    async def _patch(
        self, claim: ResourceClaim, patch: dict[str, Any], *, subresource: str | None = None
    ) -> ResourceClaim:
        version = {"uid": claim.uid, "resourceVersion": claim.metadata.resource_version}
        patch = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
        answer = await self._client.patch(
            ResourceClaim, claim.name, patch, namespace=claim.namespace, subresource=subresource
        )
        if answer.uid != claim.uid:
            raise Unavailable(f"claim {claim.key}: the API server answered with another claim")
        self._view.device_claims.absorb(answer)
        return answer


def _same(one: ResourceClaim, other: ResourceClaim) -> bool:
    """Return whether both have the same devices: shares have UUIDs, so the allocations are one."""
    mine, theirs = one.status.allocation, other.status.allocation
    return mine is not None and theirs is not None and mine.devices.results == theirs.devices.results
