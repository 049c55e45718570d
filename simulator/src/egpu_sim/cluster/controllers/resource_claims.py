"""ResourceClaims: made from the templates that pods name, freed when their pods end, and removed with their pods."""

from egpu_base.api.kubernetes import TERMINAL_PHASES, Pod
from egpu_base.errors import ElasticGPUError, NotFound
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.kubernetes.paths import path_of
from egpu_base.runtime.reconcile import DONE, Result
from egpu_sim.cluster.dynamic import references
from egpu_sim.cluster.dynamic.kinds import (
    FINALIZER,
    POD_CLAIM,
    RESERVED_LIMIT,
    ResourceClaim,
    ResourceClaimTemplate,
)
from egpu_sim.cluster.dynamic.references import PodClaim
from egpu_sim.cluster.trees import Json, as_list, as_object, metadata

RETRY_SECONDS = 1.0
_BASE_CHARACTERS = 57
"""Length of a generated name without its random end."""


class PodClaims:
    """Makes the claims of one pod, and reserves them for it if kube-scheduler bound it and then took that back: its
    binding may be written without an answer."""

    def __init__(self, client: Client, events: EventRecorder) -> None:
        self._client = client
        self._events = events

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        pod = await self._client.find(Pod, name, namespace=namespace)
        if pod is None or pod.metadata.deletion_timestamp is not None or is_done(pod):
            return DONE
        wanted = [one for one in references.pod_claims(pod) if one.template]
        if all(one.claim for one in wanted):
            if pod.spec.node_name:
                await self._reserve(pod)
            return DONE
        mine = [one for one in await self._client.list(ResourceClaim, namespace=namespace)
                if references.owner(one) == pod.uid]  # fmt: skip
        known = {one.annotations.get(POD_CLAIM): one.name for one in mine}
        made = {one.name: one.claim for one in wanted if one.claim}
        for one in (each for each in wanted if not each.claim):
            try:
                made[one.name] = known.get(one.name) or await self._make(pod, one)
            except ElasticGPUError as error:
                await self._events.warn(pod, "FailedResourceClaimCreation", f"PodResourceClaim {one.name}: {error}")
                return Result(again_after_seconds=RETRY_SECONDS)
        statuses = [{"name": name, "resourceClaimName": claim} for name, claim in sorted(made.items())]
        patch = {"metadata": {"uid": pod.uid}, "status": {"resourceClaimStatuses": statuses}}
        await self._client.patch(Pod, pod.name, patch, namespace=namespace, subresource="status")
        return DONE

    async def _reserve(self, pod: Pod) -> None:
        for one in references.pod_claims(pod):
            claim = await self._client.find(ResourceClaim, one.claim, namespace=pod.namespace)
            if claim is None or claim.allocation is None or references.is_reserved_for(claim, pod):
                continue
            if one.template:
                references.check_owner(pod, claim)
            if len(claim.reserved_for) < RESERVED_LIMIT and claim.metadata.deletion_timestamp is None:
                version = {"uid": claim.uid, "resourceVersion": claim.metadata.resource_version}
                patch = {
                    "metadata": version,
                    "status": {"reservedFor": [*claim.reserved_for, references.consumer(pod)]},
                }
                await self._client.patch(
                    ResourceClaim, claim.name, patch, namespace=pod.namespace, subresource="status"
                )

    async def _make(self, pod: Pod, one: PodClaim) -> str:
        template = await self._client.find(ResourceClaimTemplate, one.template, namespace=pod.namespace)
        if template is None:
            raise NotFound(f'resource claim template "{one.template}": not found')
        given = as_object(template.spec.get("metadata"))
        meta: Json = {
            "generateName": generated_base(pod.name, one.name),
            "labels": as_object(given.get("labels")),
            "annotations": {**as_object(given.get("annotations")), POD_CLAIM: one.name},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
            ],
        }
        body = {"apiVersion": ResourceClaim.resource.api_version, "kind": "ResourceClaim", "metadata": meta}
        path = path_of(ResourceClaim, pod.namespace)
        made = await self._client.raw("POST", path, body={**body, "spec": as_object(template.spec.get("spec"))})
        return str(metadata(made)["name"])


class ResourceClaims:
    """Takes ended pods out of one claim's `reservedFor`, and with the last one its allocation."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def reconcile(self, key: str) -> Result:
        namespace, _, name = key.partition("/")
        claim = await self._client.find(ResourceClaim, name, namespace=namespace)
        if claim is None:
            return DONE
        left = [one for one in claim.reserved_for if await self._uses(claim, one)]
        freed = len(left) < len(claim.reserved_for)
        protected = FINALIZER in (claim.metadata.finalizers or [])
        if freed or (protected and not left and claim.metadata.deletion_timestamp is not None):
            await self._free(claim, left, protected=protected)
        if not left:
            await self._remove_with_pod(claim)
        return DONE

    async def _uses(self, claim: ResourceClaim, consumer: Json) -> bool:
        if consumer.get("resource") != "pods" or consumer.get("apiGroup"):
            return True
        pod = await self._client.find(Pod, str(consumer.get("name")), namespace=claim.namespace)
        return pod is not None and pod.uid == consumer.get("uid") and not is_done(pod)

    async def _free(self, claim: ResourceClaim, left: list[Json], *, protected: bool) -> None:
        """Write what is left of the reservations. Without any, the allocation and the finalizer go, too."""
        path = path_of(ResourceClaim, claim.namespace, claim.name)
        body = {"metadata": {"uid": claim.uid, "resourceVersion": claim.metadata.resource_version}}
        ends = protected and not left
        status = {"reservedFor": left or None, **({"allocation": None} if ends else {})}
        written = await self._client.patch(
            ResourceClaim, claim.name, {**body, "status": status}, namespace=claim.namespace, subresource="status"
        )
        if ends:
            whole = await self._client.raw("GET", path)
            if metadata(whole)["resourceVersion"] == written.metadata.resource_version:
                finalizers = [one for one in as_list(metadata(whole).get("finalizers")) if one != FINALIZER]
                await self._client.raw(
                    "PUT", path, body={**whole, "metadata": {**metadata(whole), "finalizers": finalizers}}
                )

    async def _remove_with_pod(self, claim: ResourceClaim) -> None:
        """Delete a generated claim whose pod has ended. The claim of a pod that is gone is garbage."""
        reference = next((one for one in claim.metadata.owner_references or [] if one.controller), None)
        if reference is None or reference.kind != "Pod" or claim.metadata.deletion_timestamp is not None:
            return
        pod = await self._client.find(Pod, reference.name, namespace=claim.namespace)
        if pod is not None and (pod.uid != reference.uid or is_done(pod)):
            await self._client.delete(ResourceClaim, claim.name, namespace=claim.namespace, uid=claim.uid)


def is_done(pod: Pod) -> bool:
    """Return whether nothing of a pod will run again: it ended, or is deleted and has no node."""
    ended = pod.status.phase in TERMINAL_PHASES
    return ended or (pod.metadata.deletion_timestamp is not None and not pod.spec.node_name)


def generated_base(pod: str, name: str) -> str:
    """Return the base of a claim's name, both parts cut to fit."""
    base = f"{pod}-{name}-"
    if len(base) <= _BASE_CHARACTERS:
        return base
    parts = (part[: len(part) * _BASE_CHARACTERS // len(base)] for part in (pod, name))
    return "-".join(parts)
