"""The claims of a pod, and the nodes of a claim."""

from typing import Any

from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Pod


def claim_names(pod: Pod) -> list[str]:
    """Return the names of the pod's ResourceClaims, each once; "" for one that is not made yet."""
    made = {str(one.get("name")): one.get("resourceClaimName") for one in pod.status.resource_claim_statuses or ()}
    named = [
        one.get("resourceClaimName") if one.get("resourceClaimName") else made.get(str(one.get("name")), "")
        for one in pod.spec.resource_claims or ()
    ]
    # A template's claim that is not needed has a status without a name.
    return list(dict.fromkeys(str(one) for one in named if one is not None))


def is_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether the pod may use the claim: one that was made for a pod belongs to it alone."""
    owners = [one.uid for one in claim.metadata.owner_references or () if one.controller and one.kind == "Pod"]
    return not owners or owners == [pod.uid]


def single_node(claim: ResourceClaim) -> str:
    """Return the only node that can use the claim's devices; "" if it is not allocated, or several can."""
    allocation = claim.status.allocation
    terms: list[dict[str, Any]] = (allocation.node_selector or {}).get("nodeSelectorTerms") or [] if allocation else []
    if len(terms) != 1:
        return ""
    fields: list[dict[str, Any]] = terms[0].get("matchFields") or []
    named = [one for one in fields if (one.get("key"), one.get("operator")) == ("metadata.name", "In")]
    values: list[str] = (named[0].get("values") or []) if len(named) == 1 else []
    return values[0] if len(values) == 1 else ""
