"""Where an extender keeps the job mix that its prices follow: in an annotation of its own Lease."""

from egpu.adapters.kubernetes.client import Client
from egpu.api import names
from egpu.api.kubernetes import Lease
from egpu.core.policies.learning import LearnedMix

ANNOTATION = f"{names.GROUP}/job-mix"


async def kept_mix(client: Client, *, lease: str, namespace: str) -> LearnedMix | None:
    """The mix that an extender with this Lease has kept, or None where it kept none. Raises CorruptData."""
    found = await client.find(Lease, lease, namespace=namespace)
    text = (found.metadata.annotations or {}).get(ANNOTATION) if found is not None else None
    return LearnedMix.load(text) if text else None
