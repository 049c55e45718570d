"""Makes the claims of pods with templates, and deletes them once their pod has finished.

The API server deletes the claim of a deleted pod: the pod is its owner.
"""

from collections.abc import Iterable
from typing import Final

import structlog

from egpu.api import names
from egpu.api.objects import ElasticGPUClaim
from egpu.core.demand.templates import own_claims
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import AlreadyExists, InvalidDemand, NotFound, Refused
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.runtime.reconcile import DONE, Loop, Result

RETRY_SECONDS: Final = 10.0
"""Pause after a claim was refused (a quota, say), or its name was taken."""

log = structlog.get_logger(__name__)


class OwnClaims:
    """One loop, over pods by namespace and name."""

    def __init__(
        self, client: Client, events: EventRecorder, *, pods: Reflector[Pod], claims: Reflector[ElasticGPUClaim]
    ) -> None:
        self._client = client
        self._events = events
        self._pods = pods
        self._claims = claims
        self.loop: Loop[tuple[str, str]] = Loop("own claims", self.reconcile)
        pods.on_change(self._pod)
        claims.on_change(self._claim)

    def _pod(self, change: Change[Pod]) -> None:
        pod = change.new
        if pod is not None and any(key.startswith(names.CLAIM_TEMPLATE_PREFIX) for key in pod.annotations):
            self.loop.queue.add((pod.namespace, pod.name))

    def _claim(self, change: Change[ElasticGPUClaim]) -> None:
        for owner in change.subject.metadata.owner_references or ():
            if change.new is None and owner.kind == "Pod":
                self.loop.queue.add((change.subject.namespace, owner.name))

    async def reconcile(self, key: tuple[str, str]) -> Result:
        namespace, name = key
        pod = self._pods.get(name, namespace)
        if pod is None or pod.metadata.deletion_timestamp:
            return DONE
        try:
            wanted = own_claims(pod)
        except InvalidDemand:
            return DONE  # admission refuses such a pod
        if pod.finished:
            return await self._delete(pod, wanted)
        result = DONE
        for claim in wanted if not pod.spec.node_name else ():
            if (problem := await self._make(pod, claim)) is not None:
                await self._events.warn(pod, "ClaimNotMade", problem)
                result = Result(again_after_seconds=RETRY_SECONDS)
        return result

    async def _make(self, pod: Pod, claim: ElasticGPUClaim) -> str | None:
        """Make a claim unless it is there. Return the problem, if any."""
        found = self._claims.get(claim.name, claim.namespace)
        if found is None:
            try:
                await self._client.create(ElasticGPUClaim, claim)
            except AlreadyExists:
                found = await self._client.find(ElasticGPUClaim, claim.name, namespace=claim.namespace)
            except Refused as error:
                return f"claim {claim.name}: {error}"
            else:
                log.info("claim made for a pod", pod=pod.key, claim=claim.name)
                return None
        if found is None or _owned(found, pod):
            return None
        return f"claim {claim.name} exists and belongs to something else; delete it, or create the pod anew"

    async def _delete(self, pod: Pod, claims: Iterable[ElasticGPUClaim]) -> Result:
        for claim in claims:
            found = self._claims.get(claim.name, claim.namespace)
            if found is not None and _owned(found, pod) and not found.metadata.deletion_timestamp:
                try:
                    await self._client.delete(ElasticGPUClaim, found.name, namespace=found.namespace, uid=found.uid)
                except NotFound:
                    continue
        return DONE


def _owned(claim: ElasticGPUClaim, pod: Pod) -> bool:
    return any(owner.uid == pod.uid for owner in claim.metadata.owner_references or ())
