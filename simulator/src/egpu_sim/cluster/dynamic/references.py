"""The claims of a pod, and the pods of a claim."""

from dataclasses import dataclass

from egpu_base.api.kubernetes import Pod
from egpu_base.errors import NotFound, Unavailable
from egpu_sim.cluster.dynamic.kinds import ResourceClaim
from egpu_sim.cluster.trees import Json


@dataclass(frozen=True)
class PodClaim:
    """A claim of a pod. `name`: in the pod. `template` is empty for a claim that people made."""

    name: str
    claim: str
    template: str


def pod_claims(pod: Pod) -> list[PodClaim]:
    """Return the pod's claims. A generated claim has no name until it is made."""
    statuses = pod.status.resource_claim_statuses or ()
    made = {str(one.get("name")): str(one.get("resourceClaimName") or "") for one in statuses}
    found: list[PodClaim] = []
    for one in pod.spec.resource_claims or ():
        name, template = str(one.get("name")), str(one.get("resourceClaimTemplateName") or "")
        found.append(PodClaim(name, made.get(name, "") if template else str(one.get("resourceClaimName")), template))
    return found


def check_owner(pod: Pod, claim: ResourceClaim) -> None:
    """Raise Unavailable for a generated claim of another pod."""
    if owner(claim) != pod.uid:
        raise Unavailable(f"ResourceClaim {claim.key} was not created for pod {pod.key} (pod is not owner)")


def owner(claim: ResourceClaim) -> str:
    """Return the UID of the pod that a claim was generated for; empty for none."""
    references = claim.metadata.owner_references or []
    return next((one.uid for one in references if one.controller and one.kind == "Pod"), "")


def missing(pod: Pod, one: PodClaim) -> NotFound:
    """Return the error for a claim that does not exist."""
    if not one.claim:
        return NotFound(f'waiting for the claim of the template "{one.template}" for "{one.name}" in pod {pod.key}')
    return NotFound(f'resourceclaim "{one.claim}" not found')


def consumer(pod: Pod) -> Json:
    """Return the pod as an entry of `reservedFor`."""
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    return any(one.get("uid") == pod.uid for one in claim.reserved_for)
