"""Carries out what the core says about claims and slices, one key at a time."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog

from egpu.adapters.kubernetes import Caches, Change, Client
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.api import names
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.admission import validate_class
from egpu.core.claims.lifecycle import (
    Action,
    AddFinalizer,
    CreateSlice,
    DeleteSlice,
    PatchClaimStatus,
    RemoveFinalizer,
    SetSlicePhase,
    claim_slices,
    claim_users,
    reclaim_policy,
    reconcile_claim,
    reconcile_slice,
)
from egpu.core.demand.pods import claims_by_container
from egpu.core.provisioners import provisioner
from egpu.errors import AlreadyExists, Conflict, InvalidDemand, NotFound
from egpu.runtime.reconcile import DONE, Loop, Result

SWEEP_SECONDS = 60.0
"""Every claim and slice is looked at this often even if nothing happened: what a lost event left behind is found."""
MISSING_SECONDS = 30.0
"""How long a node or a card may be missing before what it held is given up."""

log = structlog.get_logger(__name__)


class ClaimController:
    """Three loops: claims by key, ElasticGPUs and classes by name."""

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._events = events
        self.caches = Caches(client)
        self._classes = self.caches.add(ElasticGPUClass)
        self._gpus = self.caches.add(ElasticGPU)
        self._claims = self.caches.add(ElasticGPUClaim)
        self._pods = self.caches.add(Pod)
        self._nodes = self.caches.add(Node)
        self._users: dict[str, dict[str, Pod]] = {}
        """Pods by the key of the claim that they name."""
        self._missing: dict[str, float] = {}
        """Since when (monotonic seconds) an object's node or card is missing, by the object's uid."""
        self.claims: Loop[tuple[str, str]] = Loop("claims", self.reconcile_claim)
        self.gpus: Loop[str] = Loop("gpus", self.reconcile_gpu)
        self.classes: Loop[str] = Loop("classes", self.check_class, workers=1)
        self._claims.on_change(lambda change: self._claim(change.subject))
        self._gpus.on_change(self._gpu)
        self._pods.on_change(self._pod)
        self._classes.on_change(self._class)
        self._nodes.on_change(self._node)

    # ------------------------------------------------------------------ what to look at

    def _claim(self, claim: ElasticGPUClaim) -> None:
        self.claims.queue.add((claim.namespace, claim.name))
        for gpu in self._slices(claim.uid):
            self.gpus.queue.add(gpu.name)

    def _gpu(self, change: Change[ElasticGPU]) -> None:
        gpu = change.subject
        self.gpus.queue.add(gpu.name)
        if gpu.spec.claim_ref is not None:
            self.claims.queue.add((gpu.spec.claim_ref.namespace, gpu.spec.claim_ref.name))
        elif change.old is not None and change.new is None:
            for claim in self._claims:  # a card is gone: its claims are lost
                if claim.status.allocation is not None and claim.status.allocation.node == gpu.spec.node_name:
                    self.claims.queue.add((claim.namespace, claim.name))

    def _pod(self, change: Change[Pod]) -> None:
        pod = change.subject
        try:
            named = set(claims_by_container(pod).values())
        except InvalidDemand:
            return
        for name in named:
            users = self._users.setdefault(f"{pod.namespace}/{name}", {})
            if change.new is None:
                users.pop(pod.uid, None)
            else:
                users[pod.uid] = pod
            if not users:
                del self._users[f"{pod.namespace}/{name}"]
            self.claims.queue.add((pod.namespace, name))

    def _class(self, change: Change[ElasticGPUClass]) -> None:
        self.classes.queue.add(change.subject.name)
        for claim in self._claims:
            if claim.spec.class_name == change.subject.name:
                self.claims.queue.add((claim.namespace, claim.name))

    def _node(self, change: Change[Node]) -> None:
        if change.new is not None and change.old is not None:
            return  # heartbeats
        for gpu in self._gpus:
            if gpu.spec.node_name == change.subject.name:
                self.gpus.queue.add(gpu.name)

    async def sweep(self) -> None:
        """Once in a while everything is looked at once more."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for claim in self._claims:
                self.claims.queue.add((claim.namespace, claim.name))
            for gpu in self._gpus:
                self.gpus.queue.add(gpu.name)

    async def check_class(self, name: str) -> Result:
        """A class has no status to write into; what is wrong with it is an event."""
        klass = self._classes.get(name)
        if klass is None:
            return DONE
        if found := validate_class(klass, None):
            await self._events.warn(klass, "Invalid", "; ".join(map(str, found)))
        elif missing := provisioner(klass.provisioner).missing:
            await self._events.warn(klass, "NotAvailable", f"{klass.provisioner} {missing}: claims will wait")
        return DONE

    # ------------------------------------------------------------------ what to do

    async def reconcile_claim(self, key: tuple[str, str]) -> Result:
        namespace, name = key
        claim = self._claims.get(name, namespace)
        if claim is None:
            return DONE
        klass = self._classes.get(claim.spec.class_name)
        slices = await self._known_slices(claim, klass)
        users = await self._known_users(claim)
        for stale in self._stale(claim, slices, klass):
            await self._do(DeleteSlice(stale), claim)
        if klass is None and claim.status.allocation is None and not claim.metadata.deletion_timestamp:
            await self._events.warn(claim, "ClassNotFound", f"there is no class {claim.spec.class_name!r}")
        for action in reconcile_claim(claim, klass, slices, users):
            await self._do(action, claim)
        return await self._look_for_cards(claim, slices)

    async def _known_slices(self, claim: ElasticGPUClaim, klass: ElasticGPUClass | None) -> list[ElasticGPU]:
        """The claim's slices. One that the cache lacks is asked for: it may be too new, and a claim whose slice is gone
        is lost for good."""
        slices = self._slices(claim.uid)
        if claim.status.phase == "Bound":
            present = {gpu.name for gpu in slices}
            for wanted in claim_slices(claim, reclaim_policy(klass, slices)):
                if wanted.name not in present and (found := await self._client.find(ElasticGPU, wanted.name)):
                    slices.append(found)
        return slices

    async def _known_users(self, claim: ElasticGPUClaim) -> list[str]:
        """Who uses the claim. Before it goes the API server is asked: the cache may lack a pod just placed."""
        users = claim_users(claim, self._users.get(claim.key, {}).values())
        if not users and claim.metadata.deletion_timestamp:
            return claim_users(claim, await self._client.list(Pod, namespace=claim.namespace))
        return users

    def _stale(
        self, claim: ElasticGPUClaim, slices: list[ElasticGPU], klass: ElasticGPUClass | None
    ) -> list[ElasticGPU]:
        """Slices of an allocation that was taken back before the claim was bound: they would hold its cards."""
        if claim.metadata.deletion_timestamp or claim.status.phase in ("Bound", "Lost") or claim.status.bound_gpus:
            return []
        wanted = {gpu.name: gpu.spec.slice for gpu in claim_slices(claim, reclaim_policy(klass, slices))}
        return [gpu for gpu in slices if gpu.spec.slice != wanted.get(gpu.name)]

    def _gone(self, claim: ElasticGPUClaim) -> str | None:
        """What the claim holds and is no more: its node, or a card that its node does not publish any longer."""
        held = claim.status.allocation
        assert held is not None
        if self._nodes.get(held.node) is None:
            return f"node {held.node} is gone"
        published = {
            gpu.spec.physical_gpu.uuid
            for gpu in self._gpus
            if gpu.spec.node_name == held.node and gpu.spec.physical_gpu is not None
        }
        missing = [share.uuid for share in held.container.cards if share.uuid not in published]
        return f"card {', '.join(missing)} of node {held.node} is gone" if missing else None

    async def _look_for_cards(self, claim: ElasticGPUClaim, slices: list[ElasticGPU]) -> Result:
        """A bound claim whose node or card stays away loses its slices; the core's rules then make it Lost."""
        if claim.status.allocation is None or claim.status.phase != "Bound" or claim.metadata.deletion_timestamp:
            return DONE
        gone = self._gone(claim)
        if (wait := self._patience(claim.uid, gone is not None)) is not None:
            return Result(again_after_seconds=wait)
        if gone is not None:
            await self._events.warn(claim, "Lost", f"{gone}; delete the claim and make it again")
            for gpu in slices:
                await self._do(DeleteSlice(gpu), claim)
        return DONE

    def _patience(self, uid: str, missing: bool) -> float | None:
        """Seconds to wait before something missing is believed to be gone; None when there is no more to wait."""
        if not missing:
            self._missing.pop(uid, None)
            return None
        left = MISSING_SECONDS - (time.monotonic() - self._missing.setdefault(uid, time.monotonic()))
        if left > 0:
            return left
        self._missing.pop(uid, None)
        return None

    async def reconcile_gpu(self, name: str) -> Result:
        gpu = self._gpus.get(name)
        if gpu is None:
            return DONE
        if gpu.spec.slice is not None and gpu.spec.claim_ref is not None:
            claim = await self._claim_of(gpu)
            if claim is not None:
                return DONE
            for action in reconcile_slice(gpu, claim):
                await self._do(action, gpu)
        return await self._look_for_node(gpu)

    async def _claim_of(self, gpu: ElasticGPU) -> ElasticGPUClaim | None:
        """The claim of the slice; asked for directly before anybody believes that it is gone."""
        reference = gpu.spec.claim_ref
        assert reference is not None
        cached = self._claims.by_uid(reference.uid)
        if cached is not None:
            return cached
        live = await self._client.find(ElasticGPUClaim, reference.name, namespace=reference.namespace)
        return live if live is not None and live.uid == reference.uid else None

    async def _look_for_node(self, gpu: ElasticGPU) -> Result:
        """A card, or a retained slice, whose node stays away is gone too; a node that registers late is waited for."""
        node = self._nodes.get(gpu.spec.node_name) or await self._client.find(Node, gpu.spec.node_name)
        if (wait := self._patience(gpu.uid, node is None)) is not None:
            return Result(again_after_seconds=wait)
        if node is None:
            await self._do(DeleteSlice(gpu), gpu)
        return DONE

    # ------------------------------------------------------------------ how to do it

    async def _do(self, action: Action, subject: ElasticGPUClaim | ElasticGPU) -> None:
        """One action. Each carries the version it was decided on: a changed object raises Conflict and comes again."""
        log.info("acting", action=type(action).__name__, object=subject.key)
        match action:
            case AddFinalizer(claim):
                finalizers = [*(claim.metadata.finalizers or []), names.CLAIM_FINALIZER]
                await self._patch(claim, {"metadata": {"finalizers": finalizers}})
            case RemoveFinalizer(claim):
                finalizers = [one for one in claim.metadata.finalizers or [] if one != names.CLAIM_FINALIZER]
                await self._patch(claim, {"metadata": {"finalizers": finalizers}})
            case PatchClaimStatus(claim, phase):
                await self._patch_status(claim, action.merge_patch())
                if phase == "Bound" and claim.status.phase != "Bound":
                    await self._events.note(claim, "Bound", f"bound to {', '.join(action.bound_gpus)}")
                if phase == "Lost" and claim.status.phase != "Lost":
                    await self._events.warn(claim, "Lost", "a slice of it is gone; delete the claim and make it again")
            case CreateSlice(gpu):
                try:
                    await self._client.create(ElasticGPU, gpu)
                except AlreadyExists:
                    await self._own_slice(gpu)
            case DeleteSlice(gpu):
                await self._client.delete(ElasticGPU, gpu.name, uid=gpu.uid)
            case SetSlicePhase(gpu, phase):
                patch = {"metadata": _at(gpu), "status": {"phase": phase}}
                try:
                    self._gpus.absorb(await self._client.patch(ElasticGPU, gpu.name, patch, subresource="status"))
                except NotFound as error:
                    raise Conflict(f"slice {gpu.name} is gone") from error

    async def _own_slice(self, wanted: ElasticGPU) -> None:
        """The slice is there already: ours from before, or in the way. Raises Conflict: the cache will show it."""
        found = await self._client.find(ElasticGPU, wanted.name)
        if found is None or found.spec.slice != wanted.spec.slice:
            raise Conflict(f"slice {wanted.name} is there and different")

    async def _patch(self, claim: ElasticGPUClaim, patch: Mapping[str, Any], subresource: str | None = None) -> None:
        body = {**patch, "metadata": {**_at(claim), **patch.get("metadata", {})}}
        try:
            answer = await self._client.patch(
                ElasticGPUClaim, claim.name, body, namespace=claim.namespace, subresource=subresource
            )
        except NotFound:
            return  # gone: nothing left to do for it
        self._claims.absorb(answer)

    async def _patch_status(self, claim: ElasticGPUClaim, patch: Mapping[str, Any]) -> None:
        await self._patch(claim, patch, subresource="status")

    def _slices(self, claim_uid: str) -> list[ElasticGPU]:
        return sorted(
            (gpu for gpu in self._gpus if gpu.spec.claim_ref is not None and gpu.spec.claim_ref.uid == claim_uid),
            key=lambda gpu: gpu.name,
        )


def _at(obj: ElasticGPUClaim | ElasticGPU) -> dict[str, str]:
    return {"uid": obj.uid, "resourceVersion": obj.metadata.resource_version}
