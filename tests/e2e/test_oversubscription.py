"""A class with `memoryOversubscription`, from its YAML to what a program in a slice of it can allocate and sees."""

import asyncio
import json
from typing import Any

from egpu.adapters import native
from egpu.api.objects import ElasticGPUClaim
from egpu.laptop import manifests
from egpu.laptop.cluster import ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.commands import Place
from support.waiting import until

MIB = 1024 * 1024
SHARE, MOST = 1024 * MIB, 1536 * MIB
SAMPLE = [str(native.path("samples/egpu-sample-memory")), "--smallest", "512", "--json"]


async def ended(client: Client, name: str) -> Pod:
    async def finished() -> Pod | None:
        pod = await client.get(Pod, name, namespace="default")
        return pod if pod.finished else None

    return await until(finished)


def without(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same under another name, in a class that oversubscribes nothing."""
    text = json.dumps(documents).replace("roomy", "tight").replace('"memoryOversubscription": "1.5"', "")
    return json.loads(text)


async def test_memory_beyond_the_share_up_to_the_factor_and_not_one_byte_more(place: Place) -> None:
    roomy = manifests.read(manifests.examples() / "memory-oversubscription.yaml")
    async with cluster(ClusterConfig(nodes=1, cards_per_node=1)) as running, running.client() as client:
        for documents in (roomy, without(roomy)):
            name = documents[0]["metadata"]["name"]
            documents[-1]["spec"]["containers"][0]["command"] = SAMPLE
            await manifests.create(client, documents)
        said: dict[str, dict[str, Any]] = {}
        for name in ("roomy", "tight"):
            await ended(client, name)
            log = await client.text(f"/api/v1/namespaces/default/pods/{name}/log", params={"container": "greedy"})
            said[name] = json.loads(log.splitlines()[-1])
        claim = await client.get(ElasticGPUClaim, "roomy", namespace="default")
        table = await asyncio.to_thread(place.run, "get", "claims", KUBECONFIG=str(running.kubeconfig))
        explained = await asyncio.to_thread(place.run, "explain", "pod", "roomy", KUBECONFIG=str(running.kubeconfig))
    for name, most in (("roomy", MOST), ("tight", SHARE)):
        found = said[name]
        assert (found["given_bytes"], found["error"]) == (most, "CUDA_ERROR_OUT_OF_MEMORY"), "to the byte"
        assert (found["total"], found["free_before"], found["free_after"]) == (most, most, 0)
    assert claim.status.allocation is not None
    given = claim.status.allocation.container
    assert (given.cards[0].memory_mib, given.memory_limit_percent) == (1024, 150), "the scheduler counts the share"
    assert "1024 MiB (allocates up to 1536 MiB)" in table.stdout
    assert "1024 MiB (it may allocate 1536 MiB, the rest in managed memory)" in explained.stdout
