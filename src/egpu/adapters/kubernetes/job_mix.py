"""The job mix of an extender, which its prices follow, in an annotation of its own Lease."""

from egpu.api import names
from egpu.core.policies.learning import LearnedMix
from egpu_base.api.kubernetes import Lease
from egpu_base.kubernetes.client import Client

ANNOTATION = f"{names.GROUP}/job-mix"


async def kept_mix(client: Client, *, lease: str, namespace: str) -> LearnedMix | None:
    """Return the mix that an extender with this Lease has kept, or None. Raises CorruptData."""
    found = await client.find(Lease, lease, namespace=namespace)
    text = (found.metadata.annotations or {}).get(ANNOTATION) if found is not None else None
    return LearnedMix.load(text) if text else None
