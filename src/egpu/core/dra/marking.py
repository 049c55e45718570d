"""The mark of a ResourceClaim that an extender may allocate.

An extender allocates no claim without two things. Kubernetes' finalizer keeps a deleted claim until its pods have
ended. The annotation FENCE lets a new leader find the claim (`egpu.apps.extender.fence`). The webhook adds both to new
claims of our classes, which saves the extender a write. The extender adds them to all others.
"""

from collections.abc import Callable
from typing import Any, Final

from egpu.api import names
from egpu.api.admission import JSONPatch
from egpu.api.objects import ElasticGPUClass
from egpu.core.json_patch import add, annotations
from egpu_base.api.devices import ResourceClaim

AT_CREATION: Final = "create"
"""The annotation's value by the webhook. Each later one has a time in it."""


def is_marked(claim: ResourceClaim) -> bool:
    """Return whether a new leader touches the claim at its present version."""
    return names.FENCE in claim.annotations or names.FENCE in (claim.metadata.labels or {})


def may_be_allocated(claim: ResourceClaim) -> bool:
    """Return whether the claim has all that it needs before an extender allocates it."""
    return is_marked(claim) and names.DELETE_PROTECTION in (claim.metadata.finalizers or ())


def mark(claim: ResourceClaim, value: str) -> dict[str, Any]:
    """Return the metadata that an existing claim needs, for a merge patch."""
    others = [one for one in claim.metadata.finalizers or () if one != names.DELETE_PROTECTION]
    return {"finalizers": [*others, names.DELETE_PROTECTION], "annotations": {names.FENCE: value}}


def mark_new(claim: ResourceClaim, class_of: Callable[[str], ElasticGPUClass | None]) -> JSONPatch:
    """Return the patch that adds the mark to a new claim; empty for one that asks for none of our classes, which
    `class_of` finds by name."""
    asked = (one.exactly.device_class_name for one in claim.spec.devices.requests or () if one.exactly is not None)
    if not any(_serves_claims(class_of(name)) for name in asked):
        return []
    patch = annotations(claim.metadata.annotations, {**claim.annotations, names.FENCE: AT_CREATION})
    finalizers = claim.metadata.finalizers
    if finalizers is None:
        patch.append(add([names.DELETE_PROTECTION], "metadata", "finalizers"))
    elif names.DELETE_PROTECTION not in finalizers:
        patch.append(add(names.DELETE_PROTECTION, "metadata", "finalizers", "-"))
    return patch


def _serves_claims(klass: ElasticGPUClass | None) -> bool:
    return klass is not None and klass.provisioner in names.CLAIM_TECHNOLOGIES.values()
