"""Gives running slices another size, when a bound claim's request or a pod's `elasticgpu.io/resize-…` is edited.

`egpu.core.resizing` says what is written, and in which order. The resizer does it, one slice after the other, fenced
like every placement (`egpu.apps.extender.fence`). A claim or pod that cannot have its size gets the reason, and is
tried again when something is given back. `egpu.apps.extender.pod_sizes` handles pods."""

import time
from collections.abc import Mapping

import structlog
from msgspec.structs import replace

from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.api.objects import ClaimAllocation, ElasticGPU, ElasticGPUClaim
from egpu.apps.extender.claim_writer import ClaimWriter
from egpu.apps.extender.pod_sizes import RETRY_SECONDS, PodSizes
from egpu.apps.extender.view import View
from egpu.core import resizing
from egpu.core.claims.conditions import RESIZED, with_condition
from egpu.core.demand.claims import claim_class, claim_demand
from egpu.core.demand.pods import claims_by_container
from egpu.core.placement.ledger import Holder
from egpu.core.placement.requests import CLAIM_CONTAINER
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import Condition
from egpu_base.api.wire import rfc3339
from egpu_base.errors import DoesNotFit, ElasticGPUError, InvalidDemand, NotSupported, Refused
from egpu_base.kubernetes import Change, Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Loop, Result

REFUSALS: Mapping[type[ElasticGPUError], str] = {DoesNotFit: "DoesNotFit", Refused: "QuotaExceeded"}

log = structlog.get_logger(__name__)

Key = tuple[type[Pod] | type[ElasticGPUClaim], str]
"""An object that may need another size: its kind and its UID."""


class Resizer:
    """Runs `loop` while this extender leads."""

    def __init__(self, client: Client, view: View, writer: ClaimWriter, events: EventRecorder) -> None:
        self._client = client
        self._view = view
        self._writer = writer
        self._events = events
        self._pods = PodSizes(client, view, writer, events)
        self._refused: set[Key] = set()
        # One worker: each decision sees the one before.
        self.loop: Loop[Key] = Loop("sizes", self.reconcile, workers=1)
        view.claims.on_change(self._claim_changed)
        view.pods.on_change(self._pod_changed)
        view.gpus.on_change(self._card_changed)
        view.on_room(self._room)

    # --- what to look at ----------------------------------------------------------------------------------------------

    def _claim_changed(self, change: Change[ElasticGPUClaim]) -> None:
        claim = change.subject
        if change.new is not None and claim.status.allocation is not None:
            self.loop.queue.add((ElasticGPUClaim, claim.uid))
            for uid, _ in self._view.cache.claim_users(claim.key):
                self.loop.queue.add((Pod, uid))

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod = change.subject
        if self._view.cache.pod_allocation(pod.uid) is not None:
            self.loop.queue.add((Pod, pod.uid))
            return
        try:
            used = claims_by_container(pod).values()
        except InvalidDemand:
            return
        for name in used:  # it has ended: no policy page has to shrink any more
            if (claim := self._view.claims.get(name, pod.namespace)) is not None:
                self.loop.queue.add((ElasticGPUClaim, claim.uid))

    def _card_changed(self, change: Change[ElasticGPU]) -> None:
        if change.new is None or (change.old is not None and change.old.status.in_force == change.new.status.in_force):
            return
        for uid in {one.pod for one in change.new.status.in_force}:
            self.loop.queue.add((Pod, uid))
            for claim in self._view.cache.claims_of_pod(uid):
                self.loop.queue.add((ElasticGPUClaim, claim))

    def _room(self) -> None:
        for key in self._refused:
            self.loop.queue.add(key)

    # --- what to do ---------------------------------------------------------------------------------------------------

    async def reconcile(self, key: Key) -> Result:
        """Bring the allocation one step nearer to the request."""
        await self._writer.resolve_doubts()
        kind, uid = key
        self._refused.discard(key)
        fits = await (self._pods.look(uid) if kind is Pod else self._look_at_claim(uid))
        if not fits:
            self._refused.add(key)
        return DONE if fits else Result(again_after_seconds=RETRY_SECONDS)

    async def _look_at_claim(self, uid: str) -> bool:
        """Return False if the claim waits for room."""
        claim = self._view.claims.by_uid(uid)
        if claim is None or claim.status.allocation is None or claim.status.phase == "Lost":
            return True
        held = claim.status.allocation
        if held.container.held and self._is_in_force(claim, held):
            await self._settle(claim, held)
            return True  # its change brings it again
        if claim.metadata.deletion_timestamp is not None:
            return True
        try:
            wanted = self._wanted(claim, held)
            if wanted is not None:
                await self._writer.check()
                await self._check_quota(claim, wanted)
                asked = {CLAIM_CONTAINER: wanted}
                holder = Holder("claim", uid)
                resizing.check_room(self._view.cache.ledger, holder, PodAllocation(node=held.node, containers=asked))
        except (InvalidDemand, NotSupported, DoesNotFit, Refused) as error:
            await self._tell(claim, REFUSALS.get(type(error), "CannotBeResized"), str(error))
            return not isinstance(error, DoesNotFit | Refused)
        if wanted is None:
            await self._tell_settled(claim)
            return True
        await self._writer.write(claim, ClaimAllocation(node=held.node, container=wanted))
        log.info("claim resized", claim=claim.key, size=resizing.size_text(wanted), revision=wanted.revision)
        await self._events.note(claim, RESIZED, f"has {resizing.size_text(wanted)}")
        return True

    def _wanted(self, claim: ElasticGPUClaim, held: ClaimAllocation) -> ContainerAllocation | None:
        """Return the allocation that the claim's spec asks for, or None if it has it. Raises InvalidDemand,
        NotSupported, DoesNotFit."""
        if claim.spec.class_name not in self._view.cache.classes:
            return None  # a bound claim no longer needs its class, but cannot grow without it
        demand = claim_demand(claim, claim_class(claim, self._view.cache.classes))
        shares = resizing.demanded(held.container, demand, self._view.cache.ledger, held.node)
        if shares == held.container.cards and demand.core_limit == held.container.core_limit:
            return None
        within = resizing.asked_within(claim.annotations)
        return resizing.ordered(held.container, shares, within, core_limit=demand.core_limit)

    async def _check_quota(self, claim: ElasticGPUClaim, wanted: ContainerAllocation) -> None:
        """Check the quota. A claim counts with the pods that use it, or alone. Raises Refused."""
        quotas = await self._writer.quotas.listed(claim.namespace)
        after: dict[str, PodAllocation] = {}
        for uid, name in self._view.cache.claim_users(claim.key):
            if (given := self._view.cache.pod_allocation(uid)) is not None:
                after[uid] = replace(given, containers={**given.containers, name: wanted})
        alone = {} if after and not wanted.shared_claim else {claim.uid: wanted}
        self._writer.quotas.check(quotas, claim.namespace, pods=after, claims=alone)

    def _is_in_force(self, claim: ElasticGPUClaim, held: ClaimAllocation) -> bool:
        """Return whether no program that uses the claim may use, or uses, more than its `cards`."""
        said = self._pods.said_of(held.node, held.container)
        users = self._view.cache.claim_users(claim.key)
        return all(resizing.is_in_force(held.container, user, said) for user in users)

    async def _settle(self, claim: ElasticGPUClaim, held: ClaimAllocation) -> None:
        """Free what was given back, once this is written and not before: a successor must not find less."""
        await self._writer.check()
        settled = ClaimAllocation(node=held.node, container=resizing.settled(held.container))
        await self._writer.patch_allocation(claim, settled)
        log.info("claim resize complete", claim=claim.key, revision=held.container.revision)

    async def _tell_settled(self, claim: ElasticGPUClaim) -> None:
        assert claim.status.allocation is not None
        container = claim.status.allocation.container
        if not container.revision and not any(one.type == RESIZED for one in claim.status.conditions):
            return  # never resized
        waits = "" if not container.held else "; the rest counts until its program has given it back"
        reason = "InForce" if not container.held else "Shrinking"
        await self._tell(claim, reason, f"has {resizing.size_text(container)}{waits}", fulfilled=True)

    async def _tell(self, claim: ElasticGPUClaim, reason: str, message: str, *, fulfilled: bool = False) -> None:
        """Set the claim's condition, and record an event if the claim does not get its size."""
        said = Condition(type=RESIZED, status="True" if fulfilled else "False", reason=reason, message=message)
        conditions = with_condition(claim.status.conditions, said, now=rfc3339(time.time()))
        if conditions is None:
            return
        await self._writer.patch_conditions(claim, conditions)
        if not fulfilled:
            await self._events.warn(claim, reason, f"not resized: {message}")
