"""The part of an ElasticGPUClaim that our components keep, which is limited in size.

Who may create claims can write a megabyte of labels or finalizers into each, which takes ten times as much as objects.
"""

from typing import Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ElasticGPUClaim, ElasticGPUClaimStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.api.wire import packed_bytes

MOST_BYTES: Final = 32 * 1024
"""The size of a claim's metadata, and of its status, packed, beyond which parts are cut. Usual ones have 1 KiB."""
MOST_CHARACTERS: Final = 1024
"""Of an annotation. Valid ones of ours are short; a longer one stays invalid."""
MOST_CONDITIONS: Final = 16
MOST_NAMES: Final = 256
CUT: Final = f"{names.GROUP}/cut"
"""An annotation of our copy only: it has no finalizers of others and no owners. Read the claim again to write them."""


def kept_gpu_claim(claim: ElasticGPUClaim) -> ElasticGPUClaim:
    """Return a claim without annotations of others, a large one without labels (a team's bill is by label), and of one
    that is still large the least."""
    ours = {key: text[:MOST_CHARACTERS] for key, text in claim.annotations.items() if key.startswith(f"{names.GROUP}/")}
    metadata = replace(claim.metadata, annotations=ours or None)
    if packed_bytes(metadata) > MOST_BYTES:
        metadata = replace(metadata, labels=None)
    if packed_bytes(metadata) > MOST_BYTES:
        metadata = _least(metadata)
    status = claim.status if packed_bytes(claim.status) <= MOST_BYTES else _short(claim.status)
    return replace(claim, metadata=metadata, status=status)


def _least(metadata: ObjectMeta) -> ObjectMeta:
    own = [one for one in (names.CLAIM_FINALIZER,) if one in (metadata.finalizers or ())]
    annotations = {CUT: ""} | dict(list((metadata.annotations or {}).items())[:MOST_CONDITIONS])
    return replace(metadata, annotations=annotations, finalizers=own or None, owner_references=None)


def _short(status: ElasticGPUClaimStatus) -> ElasticGPUClaimStatus:
    """Return a status that its author wrote, not we. The controller writes another one."""
    return replace(
        status,
        bound_gpus=status.bound_gpus[:MOST_NAMES],
        used_by=status.used_by[:MOST_NAMES],
        capacity={},
        conditions=status.conditions[:MOST_CONDITIONS],
    )
