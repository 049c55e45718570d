"""Tests that share a cluster leave nothing of theirs in it."""

from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.waiting import until


async def clear(client: Client) -> None:
    """Removes every pod and claim of the namespace `default`, and every class; returns when no slice is left either."""
    for kind in (Pod, ElasticGPUClaim):
        for each in await client.list(kind, namespace="default"):
            await client.delete(kind, each.name, namespace="default", grace_period_seconds=0)
    for each in await client.list(ElasticGPUClass):
        await client.delete(ElasticGPUClass, each.name)

    async def gone() -> bool:
        left = [gpu for gpu in await client.list(ElasticGPU) if gpu.spec.slice]
        claims = await client.list(ElasticGPUClaim, namespace="default")
        return not (left or claims or await client.list(Pod, namespace="default"))

    await until(gone, seconds=60)
