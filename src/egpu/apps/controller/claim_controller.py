"""Carries out the decisions of `egpu.core.claims` about claims, cards and slices, one key at a time.

This module only decides how to read: an object that a cache may lack is requested before it counts as gone."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from egpu.adapters.kubernetes.followed import FollowedView
from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.apps.controller.device_classes import DeviceClasses
from egpu.apps.controller.own_claims import OwnClaims
from egpu.apps.controller.remade_pods import RemadePods
from egpu.core.claims import actions
from egpu.core.claims.absence import Absences, missing_from, sick_cards, users_of_card, why_sick
from egpu.core.claims.conditions import with_condition
from egpu.core.claims.lifecycle import check_class, claim_users, reconcile_claim, reconcile_gpu, slice_names
from egpu.core.demand.pods import claims_by_container
from egpu.core.kept_claims import CUT
from egpu.core.kept_pods import kept, kept_of_large
from egpu.core.view import ClusterView
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import Object
from egpu_base.api.wire import rfc3339
from egpu_base.errors import AlreadyExists, Conflict, InvalidDemand, NotFound
from egpu_base.kubernetes import Change, Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.index import Index
from egpu_base.runtime.reconcile import DONE, Loop, Result

SWEEP_SECONDS = 60.0
"""Time between two looks at every claim and slice even if nothing happened: this finds what a lost event left behind.
"""
SWEEP_STEPS = 60
"""Parts of such a sweep, so that events do not wait behind it."""

log = structlog.get_logger(__name__)


class ClaimController:
    """Three loops: claims by key, ElasticGPUs and classes by name."""

    def __init__(self, client: Client, events: EventRecorder, *, namespace: str) -> None:
        self._client = client
        self._events = events
        self._followed = followed = FollowedView(client)
        self.caches = followed.caches
        self._classes, self._gpus, self._claims = followed.classes, followed.gpus, followed.claims
        self.pods, self.nodes = followed.pods, followed.nodes
        self.own_claims = OwnClaims(client, events, pods=followed.pods, claims=followed.claims)
        self.device_classes = DeviceClasses(client, events, classes=followed.classes)
        self.remade_pods = RemadePods(client, events, pods=followed.pods, namespace=namespace)
        self._on_node = Index(followed.gpus, lambda gpu: gpu.spec.node_name)
        self._of_claim = Index(followed.gpus, lambda gpu: gpu.spec.claim_ref.uid if gpu.spec.claim_ref else None)
        self._users: dict[str, dict[str, Pod]] = {}
        """Pods by the key of the claim that they name."""
        self._absences = Absences()
        self._was_healthy: dict[str, bool] = {}
        """Cards by name, as their users know them."""
        self.claims: Loop[tuple[str, str]] = Loop("claims", self.reconcile_claim)
        self.gpus: Loop[str] = Loop("gpus", self.reconcile_gpu)
        self.classes: Loop[str] = Loop("classes", self.check_class, workers=1)
        self._claims.on_change(lambda change: self._claim(change.subject))
        self._gpus.on_change(self._gpu)
        self.pods.on_change(self._pod)
        self._classes.on_change(self._class)
        self.nodes.on_change(self._node)

    async def listed(self) -> None:
        """Return when all objects are listed."""
        await self._followed.listed()

    def not_ready(self) -> str | None:
        """Return why it does not work yet, or None."""
        return self._followed.not_ready()

    def view(self) -> ClusterView | None:
        """Return the cluster by the newest objects; None before all were listed."""
        return None if self.not_ready() is not None else self._followed.view()

    # ------------------------------------------------------------------ what to look at

    def _claim(self, claim: ElasticGPUClaim) -> None:
        self.claims.queue.add((claim.namespace, claim.name))
        for name in self._of_claim.names(claim.uid):
            self.gpus.queue.add(name)

    def _gpu(self, change: Change[ElasticGPU]) -> None:
        gpu = change.subject
        if change.new is None:
            self._was_healthy.pop(gpu.name, None)
        else:
            self._was_healthy.setdefault(gpu.name, gpu.healthy)
        self.gpus.queue.add(gpu.name)
        if gpu.spec.claim_ref is not None:
            self.claims.queue.add((gpu.spec.claim_ref.namespace, gpu.spec.claim_ref.name))
        elif self._matters(change):
            for claim in self._claims:  # they are lost or back, or report the card's health
                if claim.status.allocation is not None and claim.status.allocation.node == gpu.spec.node_name:
                    self.claims.queue.add((claim.namespace, claim.name))

    def _matters(self, change: Change[ElasticGPU]) -> bool:
        """Return whether claims on the node must follow: a card came, is gone, or changed its health. While all objects
        are listed for the first time, no card counts as new."""
        if change.old is None or change.new is None:
            return change.old is not None or self.not_ready() is None
        return change.old.healthy != change.new.healthy

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
        for name in self._on_node.names(change.subject.name):
            self.gpus.queue.add(name)

    async def sweep(self) -> None:
        """Queue everything from time to time, a part at a time."""
        while True:
            claims, gpus = [(claim.namespace, claim.name) for claim in self._claims], list(self._gpus.all_keys())
            for step in range(SWEEP_STEPS):
                await asyncio.sleep(SWEEP_SECONDS / SWEEP_STEPS)
                for key in claims[step::SWEEP_STEPS]:
                    self.claims.queue.add(key)
                for name in gpus[step::SWEEP_STEPS]:
                    self.gpus.queue.add(name)

    # ------------------------------------------------------------------ what to do

    async def check_class(self, name: str) -> Result:
        klass = self._classes.get(name)
        return DONE if klass is None else await self._do(klass, check_class(klass))

    async def reconcile_claim(self, key: tuple[str, str]) -> Result:
        namespace, name = key
        claim = self._claims.get(name, namespace)
        if claim is None:
            return DONE
        klass = self._classes.get(claim.spec.class_name)
        slices = await self._known_slices(claim)
        users = await self._known_users(claim)
        absence = self._absences.look(claim.uid, self._missing(claim), now=time.monotonic())
        lost = claim.status.phase == "Lost" and not users
        idle = self._absences.look(f"users of {claim.uid}", "no pod uses it" if lost else None, now=time.monotonic())
        held = claim.status.allocation
        sick = sick_cards(claim, self._followed.cards(held.node)) if held is not None else ""
        return await self._do(claim, reconcile_claim(claim, klass, slices, users, absence, idle=idle, sick=sick))

    async def reconcile_gpu(self, name: str) -> Result:
        gpu = self._gpus.get(name)
        if gpu is None:
            return DONE
        await self._tell_users(gpu)
        claim = await self._claim_of(gpu)
        # This also waits for a node that registers late.
        node = self.nodes.get(gpu.spec.node_name) or await self._client.find(Node, gpu.spec.node_name)
        missing = f"node {gpu.spec.node_name} is gone" if node is None else None
        absence = self._absences.look(gpu.uid, missing, now=time.monotonic())
        return await self._do(gpu, reconcile_gpu(gpu, claim, absence))

    async def _tell_users(self, gpu: ElasticGPU) -> None:
        """Tell pods with a part of a card that it became unhealthy, or healthy again."""
        if self._was_healthy.get(gpu.name) == gpu.healthy:
            return
        self._was_healthy[gpu.name] = gpu.healthy
        for pod in users_of_card(gpu, self.pods):
            if sick := why_sick(gpu):
                await self._events.warn(pod, "CardUnhealthy", sick)
            else:
                await self._events.note(pod, "CardsHealthy", "its card takes new work again")

    async def _known_slices(self, claim: ElasticGPUClaim) -> list[ElasticGPU]:
        """Return the claim's slices. Slices that the cache lacks are requested: they may be too new, and a claim
        without its slice is lost for good."""
        slices = self._of_claim.get(claim.uid)
        if claim.status.phase == "Bound":
            present = {gpu.name for gpu in slices}
            for name in slice_names(claim):
                if name not in present and (found := await self._client.find(ElasticGPU, name)):
                    slices.append(found)
        return slices

    async def _known_users(self, claim: ElasticGPUClaim) -> list[str]:
        """Return the users of the claim. The API server is asked before the claim goes or gives up its share: the cache
        may lack a pod just placed."""
        users = claim_users(claim, self._users.get(claim.key, {}).values())
        goes = claim.metadata.deletion_timestamp or (claim.status.phase == "Lost" and claim.status.allocation)
        if not users and goes:
            return claim_users(
                claim, await self._client.list(Pod, namespace=claim.namespace, transform=kept, large=kept_of_large)
            )
        return users

    def _missing(self, claim: ElasticGPUClaim) -> str | None:
        held = claim.status.allocation
        if held is None:
            return None
        cards = [gpu.spec.physical_gpu for gpu in self._followed.cards(held.node)]
        published = {card.uuid for card in cards if card is not None}
        return missing_from(claim, node_known=self.nodes.get(held.node) is not None, published=published)

    async def _claim_of(self, gpu: ElasticGPU) -> ElasticGPUClaim | None:
        """Return the claim of a slice; requested directly before it counts as gone."""
        reference = gpu.spec.claim_ref
        if reference is None:
            return None
        cached = self._claims.by_uid(reference.uid)
        if cached is not None:
            return cached
        live = await self._client.find(ElasticGPUClaim, reference.name, namespace=reference.namespace)
        return live if live is not None and live.uid == reference.uid else None

    # ------------------------------------------------------------------ how to do it

    async def _do(self, about: Object, todo: Iterable[actions.Action]) -> Result:
        """Carry out the actions in order. Each carries the version of its decision: a changed object raises Conflict
        and is retried."""
        result = DONE
        for action in todo:
            log.info("acting", action=type(action).__name__, object=about.key)
            match action:
                case actions.SetProtection(claim, protected):
                    whole = await self._whole(claim)
                    others = [one for one in whole.metadata.finalizers or [] if one != names.CLAIM_FINALIZER]
                    finalizers = [*others, names.CLAIM_FINALIZER] if protected else others
                    await self._patch(claim, {"metadata": {"finalizers": finalizers}})
                case actions.PatchClaimStatus(claim) | actions.GiveUpShare(claim):
                    await self._patch(claim, action.merge_patch(), subresource="status")
                case actions.SetCondition(claim, condition):
                    now = rfc3339(time.time())
                    conditions = with_condition(claim.status.conditions, condition, now=now)
                    if conditions is not None:
                        await self._patch(claim, {"status": {"conditions": conditions}}, subresource="status")
                case actions.CreateSlice(gpu):
                    try:
                        await self._client.create(ElasticGPU, gpu)
                    except AlreadyExists:
                        await self._own_slice(gpu)
                case actions.DeleteSlice(gpu):
                    await self._client.delete(ElasticGPU, gpu.name, uid=gpu.uid)
                case actions.ResizeSlice(gpu):
                    await self._patch_slice(gpu, action.merge_patch())
                case actions.SetSlicePhase(gpu, phase):
                    await self._patch_slice(gpu, {"status": {"phase": phase}}, subresource="status")
                case actions.Tell(subject, reason, message, warning):
                    event = self._events.warn if warning else self._events.note
                    await event(subject, reason, message)
                case actions.LookAgain(seconds):
                    result = Result(again_after_seconds=seconds)
        return result

    async def _own_slice(self, wanted: ElasticGPU) -> None:
        """Check a slice that already exists: created by us earlier, or in the way. Raises Conflict: the cache will show
        it."""
        found = await self._client.find(ElasticGPU, wanted.name)
        if found is None or found.spec.slice != wanted.spec.slice:
            raise Conflict(f"slice {wanted.name} exists and is different")

    async def _whole(self, claim: ElasticGPUClaim) -> ElasticGPUClaim:
        """Return the claim with all of its finalizers. Raises Conflict if it has changed meanwhile, NotFound."""
        if CUT not in claim.annotations:
            return claim
        found = await self._client.get(ElasticGPUClaim, claim.name, namespace=claim.namespace)
        if _at(found) != _at(claim):
            raise Conflict(f"claim {claim.key} has changed meanwhile")
        return found

    async def _patch(self, claim: ElasticGPUClaim, patch: Mapping[str, Any], subresource: str | None = None) -> None:
        body = {**patch, "metadata": {**_at(claim), **patch.get("metadata", {})}}
        try:
            answer = await self._client.patch(
                ElasticGPUClaim, claim.name, body, namespace=claim.namespace, subresource=subresource
            )
        except NotFound:
            return  # gone: nothing left to do
        self._claims.absorb(answer)

    async def _patch_slice(self, gpu: ElasticGPU, patch: Mapping[str, Any], subresource: str | None = None) -> None:
        body = {"metadata": _at(gpu), **patch}
        try:
            self._gpus.absorb(await self._client.patch(ElasticGPU, gpu.name, body, subresource=subresource))
        except NotFound as error:
            raise Conflict(f"slice {gpu.name} is gone") from error


def _at(obj: ElasticGPUClaim | ElasticGPU) -> dict[str, str]:
    return {"uid": obj.uid, "resourceVersion": obj.metadata.resource_version}
