"""Kubernetes' end-to-end cases of dynamic resource allocation that apply to a driver (docs/internals/dra-cases.md).

They run on a node whose cards kube-scheduler gives to claims, and on one whose cards the extender gives out.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from egpu.api import names
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Client
from support.claims import a_class
from support.storm import MIB, script
from support.waiting import until

ALLOCATORS: Final = (names.DRA, names.PRICED)
GROUP: Final = "/apis/resource.k8s.io/v1/namespaces/default"
SECONDS: Final = 120.0
MEMORY_MIB: Final = 2048


def _devices(klass: str = "slice", cores: int = 20) -> dict[str, Any]:
    amounts = {"cores": str(cores), "memory": f"{MEMORY_MIB}Mi"}
    exactly = {"deviceClassName": klass, "capacity": {"requests": amounts}}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


async def _claim(client: Client, name: str, **devices: Any) -> None:
    await client.raw("POST", f"{GROUP}/resourceclaims", body={"metadata": {"name": name}, "spec": _devices(**devices)})


def _container(name: str, *claims: str, command: Sequence[str] = ("sh", "-c", script(0.2))) -> dict[str, Any]:
    claimed = {"claims": [{"name": one} for one in claims]}
    return {"name": name, "image": "any", "command": list(command), **({"resources": claimed} if claims else {})}


def _pod(name: str, allocator: str, claims: dict[str, Any], *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    listed = [{"name": key, **value} for key, value in claims.items()]
    whole = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {names.ALLOCATOR: allocator},
        "containers": list(containers),
        "resourceClaims": listed,
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


GENERATED: Final = {"gpu": {"resourceClaimTemplateName": "slice"}}


def _named(claim: str) -> dict[str, Any]:
    return {"gpu": {"resourceClaimName": claim}}


async def _phase(client: Client, name: str, *wanted: str) -> Pod:
    found: list[Pod] = []

    async def reached() -> bool:
        found[:] = [await client.get(Pod, name, namespace="default")]
        return found[0].status.phase in wanted

    await until(reached, lambda: f"{name} is {wanted}: {found[0].status if found else ''}", seconds=SECONDS)
    return found[0]


async def _sees_its_slice(client: Client, pod: str, *containers: str) -> None:
    for name in containers:

        async def said(name: str = name) -> list[str]:
            log = await client.text(f"/api/v1/namespaces/default/pods/{pod}/log", params={"container": name})
            return [line for line in log.splitlines() if line.startswith("{")]

        # One that has just started again may not have said it yet.
        (info,) = [json.loads(line) for line in await until(said, f"{pod}/{name} says what it sees", seconds=SECONDS)]
        assert [one["total"] for one in info["devices"]] == [MEMORY_MIB * MIB], f"{pod}/{name}: {info}"


async def _ended(client: Client, pod: dict[str, Any], *containers: str) -> Pod:
    """Run a pod to its end; each of these containers sees its slice, and no more."""
    name = pod["metadata"]["name"]
    await manifests.create(client, [pod])
    found = await _phase(client, name, "Succeeded", "Failed")
    assert found.status.phase == "Succeeded", found.status
    await _sees_its_slice(client, name, *containers)
    return found


async def _free(client: Client, claim: str) -> None:
    async def unused() -> bool:
        found = await client.find(ResourceClaim, claim, namespace="default")
        return found is None or found.status.allocation is None

    await until(unused, f"claim {claim} is deallocated after its use", seconds=SECONDS)


# --- the cases --------------------------------------------------------------------------------------------------------


async def init_containers_and_external_claims(client: Client, by: str) -> None:
    await _claim(client, f"{by}-external")
    init = [_container("init", "gpu")]
    pod = _pod(f"{by}-init", by, _named(f"{by}-external"), _container("app", "gpu"), initContainers=init)
    await _ended(client, pod, "init", "app")
    await _free(client, f"{by}-external")


async def one_claim_in_several_containers_of_several_pods(client: Client, by: str) -> None:
    await _claim(client, f"{by}-shared")
    both = [_container("one", "gpu"), _container("other", "gpu")]
    pods = [_pod(f"{by}-shares{number}", by, _named(f"{by}-shared"), *both) for number in range(2)]
    await manifests.create(client, pods)
    for pod in pods:
        name = pod["metadata"]["name"]
        assert (await _phase(client, name, "Succeeded", "Failed")).status.phase == "Succeeded"
        await _sees_its_slice(client, name, "one", "other")
    await _free(client, f"{by}-shared")


async def a_claim_that_no_container_uses_is_prepared(client: Client, by: str) -> None:
    await manifests.create(client, [_pod(f"{by}-unused", by, GENERATED, _container("app", command=("sleep", "600")))])
    pod = await _phase(client, f"{by}-unused", "Running")
    mine = [one for one in await client.list(ResourceClaim) if _is_of(one, pod)]
    assert [bool(one.status.devices) for one in mine] == [True]  # our driver reports what it prepared
    await client.delete(Pod, pod.name, namespace="default", grace_period_seconds=0)
    await _free(client, mine[0].name)


async def a_pod_waits_for_its_claim_and_class(client: Client, by: str) -> None:
    pod = _pod(f"{by}-early", by, _named(f"{by}-late"), _container("app", "gpu"))
    await manifests.create(client, [pod])
    await _claim(client, f"{by}-late", klass=f"{by}-class")
    assert (await client.get(Pod, f"{by}-early", namespace="default")).status.phase == "Pending"
    await manifests.create(client, [a_class(f"{by}-class", names.VCUDA, "WaitForFirstConsumer")])
    assert (await _phase(client, f"{by}-early", "Succeeded", "Failed")).status.phase == "Succeeded"
    await _sees_its_slice(client, f"{by}-early", "app")


async def a_restarting_pod_keeps_its_claim(client: Client, by: str) -> None:
    fails = _container("app", "gpu", command=("sh", "-c", f"{script(0)}; exit 1"))
    await manifests.create(client, [_pod(f"{by}-again", by, GENERATED, fails, restartPolicy="OnFailure")])
    claims: set[str] = set()

    async def twice() -> bool:
        pod = await client.get(Pod, f"{by}-again", namespace="default")
        claims.update(one.uid for one in await client.list(ResourceClaim) if _is_of(one, pod))
        return any(one.restart_count >= 2 for one in pod.status.container_statuses or ())

    await until(twice, "the container started three times", seconds=SECONDS)
    assert len(claims) == 1
    await _sees_its_slice(client, f"{by}-again", "app")
    await client.delete(Pod, f"{by}-again", namespace="default", grace_period_seconds=0)


async def an_allocated_and_a_new_claim_meet_on_one_node(client: Client, by: str) -> None:
    await _claim(client, f"{by}-first")
    holds = _pod(f"{by}-holds", by, _named(f"{by}-first"), _container("app", "gpu", command=("sleep", "600")))
    await manifests.create(client, [holds])
    await _phase(client, f"{by}-holds", "Running")
    two = {**_named(f"{by}-first"), "new": {"resourceClaimTemplateName": "slice"}}
    await _ended(client, _pod(f"{by}-two", by, two, _container("old", "gpu"), _container("new", "new")), "old", "new")
    await client.delete(Pod, f"{by}-holds", namespace="default", grace_period_seconds=0)
    await _free(client, f"{by}-first")


async def a_force_deleted_pod_leaves_nothing(running: Cluster, client: Client, by: str) -> None:
    forced = _pod(f"{by}-forced", by, GENERATED, _container("app", "gpu", command=("sleep", "600")))
    await manifests.create(client, [forced])
    pod = await _phase(client, f"{by}-forced", "Running")
    (claim,) = [one for one in await client.list(ResourceClaim) if _is_of(one, pod)]
    slots = running.node_dir(pod.spec.node_name) / "agent" / "slots"
    assert list(slots.glob(f"{claim.uid}.*"))
    await client.delete(Pod, pod.name, namespace="default", grace_period_seconds=0)
    await until(lambda: not list(slots.glob(f"{claim.uid}.*")), "the slot is removed", seconds=SECONDS)


def _is_of(claim: ResourceClaim, pod: Pod) -> bool:
    return any(owner.uid == pod.uid for owner in claim.metadata.owner_references or ())


async def _prepare(running: Cluster, client: Client) -> None:
    await manifests.create(client, [a_class("slice", names.VCUDA, "WaitForFirstConsumer")])
    for node, allocator in zip(sorted(running.node_names), ALLOCATORS, strict=True):
        await client.patch(Node, node, {"metadata": {"labels": {names.ALLOCATOR: allocator}}})
        running.fleet.children[f"agent-{node}"].kill()  # a starting agent reads it at once
    body = {"metadata": {"name": "slice"}, "spec": {"spec": _devices()}}
    await client.raw("POST", f"{GROUP}/resourceclaimtemplates", body=body)
    await until(lambda: client.find(DeviceClass, "slice"))

    async def published() -> bool:
        return len(await client.list(ResourceSlice)) == len(ALLOCATORS)

    await until(published, "both nodes publish devices", seconds=SECONDS)


async def test_the_cases_hold_with_both_allocators() -> None:
    async with cluster(ClusterConfig(nodes=2, cards_per_node=2)) as running, running.client() as client:
        await _prepare(running, client)
        for by in ALLOCATORS:
            await init_containers_and_external_claims(client, by)
            await one_claim_in_several_containers_of_several_pods(client, by)
            await a_claim_that_no_container_uses_is_prepared(client, by)
            await a_pod_waits_for_its_claim_and_class(client, by)
            await an_allocated_and_a_new_claim_meet_on_one_node(client, by)
            await a_force_deleted_pod_leaves_nothing(running, client, by)
            await a_restarting_pod_keeps_its_claim(client, by)
