"""What an agent whose node was taken over may do to devices, against the roles and admission rules of deploy/."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUSpec, PhysicalGPU, card_name
from egpu.core.dra.devices import PublishedCard, device_name, slices
from egpu_base.api.devices import ResourceClaim, ResourceSlice
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import Refused
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import User, service_account
from support.control_plane import SYSTEM, control_plane, everything_in

CARD = PublishedCard("GPU-0000aaaa-0000-4000-8000-000000000000", 0, "m", 16384, compute_capability="8.0")
DEVICE = device_name(CARD.uuid)


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncGenerator[dict[str, Client]]:
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(control_plane(tmp_path))
        found = {"admin": plane.client}
        for node in ("node-1", "node-2", "node-3", ""):
            user = service_account(SYSTEM, "elastic-gpu-agent", **({"node": node} if node else {}))
            path = plane.server.add_user(f"agent-{node}", user)
            found[node] = await stack.enter_async_context(Client.from_kubeconfig(path))
        await everything_in(plane.client, "default", "tenant")
        for name in ("tenant", "system:kube-scheduler"):
            path = plane.server.add_user(name, User(name))
            found[name] = await stack.enter_async_context(Client.from_kubeconfig(path))
        yield found


def a_slice(node: str, *, pool: str = "", driver: str = names.DRIVER, name: str = "") -> dict[str, Any]:
    (made,) = slices(node, "", [CARD], generation=1)
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
    }
    return {"kind": "ResourceSlice", "metadata": {"name": name or made.name}, "spec": {**spec, "devices": []}}


SLICES = "/apis/resource.k8s.io/v1/resourceslices"


async def test_an_agent_publishes_its_own_nodes_devices_only(clients: dict[str, Client]) -> None:
    (made,) = slices("node-1", "", [CARD], generation=1)
    agent, other = clients["node-1"], clients["node-2"]
    found = await agent.create(ResourceSlice, made)
    assert found.spec.devices == made.spec.devices  # the server changes nothing that we compare
    again = {"spec": {"pool": {"generation": 2}}}
    assert (await agent.patch(ResourceSlice, made.name, again)).spec.pool.generation == 2
    for attack in (
        agent.raw("POST", SLICES, body=a_slice("node-2")),
        agent.raw("POST", SLICES, body=a_slice("node-1", pool="node-2", name="x")),
        agent.raw("POST", SLICES, body=a_slice("node-1", driver="other.example", name="y")),
        other.patch(ResourceSlice, made.name, again),
        other.delete(ResourceSlice, made.name),
    ):
        with pytest.raises(Refused, match="own node"):
            await attack
    for name in ("node-2-gpu.elasticgpu.io-0", "node-1-2-gpu.elasticgpu.io-0", "node-1-gpu.elasticgpu.io-0x", "x"):
        with pytest.raises(Refused, match="the name of a slice begins with the agent's own node"):
            await agent.raw("POST", SLICES, body=a_slice("node-1", name=name))
    with pytest.raises(Refused, match="must name its node"):
        await clients[""].raw("POST", SLICES, body=a_slice("node-1", name="z"))
    await agent.delete(ResourceSlice, made.name)


async def test_an_agent_takes_no_name_of_another_nodes_card(clients: dict[str, Client]) -> None:
    """Nor that of a slice of a claim. Who is first has the name: the other could not publish its card."""
    body = msgspec.to_builtins(
        ElasticGPU(
            metadata=ObjectMeta(name=card_name("node-1", CARD.uuid)),
            spec=ElasticGPUSpec(
                node_name="node-1", physical_gpu=PhysicalGPU(uuid=CARD.uuid, index=0, minor=0, memory_mib=1)
            ),
        )
    )
    path = "/apis/elasticgpu.io/v1alpha1/elasticgpus"
    for name in (
        card_name("node-2", CARD.uuid),
        card_name("node-1-2", CARD.uuid),
        "default-claim-1",
        "node-1-0000aaaag",
    ):
        with pytest.raises(Refused, match="the name of a card begins with the agent's own node"):
            await clients["node-1"].raw("POST", path, body=body | {"metadata": {"name": name}})
    await clients["node-1"].raw("POST", path, body=body)


RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def ask_for_no_more_rights(admin: Client, user: str) -> None:
    """Let a user have what Kubernetes 1.36 asks for beside the right to write the status of claims, as if it did not
    ask."""
    verbs = [f"{where}{verb}" for where in ("", "arbitrary-node:") for verb in ("patch", "update")]
    resources = ["resourceclaims/binding", "resourceclaims/driver"]
    rules = [{"apiGroups": ["resource.k8s.io"], "resources": resources, "verbs": verbs}]
    await admin.raw("POST", f"{RBAC}/clusterroles", body={"metadata": {"name": "as-in-1.35"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "as-in-1.35"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    bound = {"metadata": {"name": "as-in-1.35"}, "roleRef": reference, "subjects": [subject]}
    await admin.raw("POST", f"{RBAC}/clusterrolebindings", body=bound)


@pytest.mark.parametrize("older", [False, True])
async def test_an_agent_reports_on_its_own_devices_and_changes_nothing_else(
    clients: dict[str, Client], older: bool
) -> None:
    """`older`: Kubernetes before 1.36 asks for no further right, so the policy alone refuses."""
    admin, agent, other = clients["admin"], clients["node-1"], clients["node-2"]
    if older:
        await ask_for_no_more_rights(admin, f"system:serviceaccount:{SYSTEM}:elastic-gpu-agent")
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "k"}}]
    await admin.raw("POST", claims, body={"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
    result = {"request": "gpu", "driver": names.DRIVER, "pool": "node-1", "device": DEVICE}
    fields = [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]
    elsewhere = result | {"request": "gpu", "pool": "node-2"}
    allocation = {
        "devices": {"results": [result, elsewhere]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }

    async def write(client: Client, **status: Any) -> ResourceClaim:
        return await client.patch(ResourceClaim, "c", {"status": status}, namespace="default", subresource="status")

    await write(admin, allocation=allocation)
    mine = {key: result[key] for key in ("driver", "pool", "device")} | {"data": {"cores": 30}}
    found = await write(agent, devices=[mine])
    assert found.status.devices == [mine]
    user = {"resource": "pods", "name": "p", "uid": "u"}
    for attack, words in (
        (write(agent, reservedFor=[user]), "nothing else|kube-scheduler alone"),
        (write(agent, allocation=None), "nothing else|kube-scheduler alone"),
        (write(other, devices=[{**mine, "data": {"cores": 100}}]), "report on devices of its own node only"),
        (write(other, devices=[]), "remove reports on devices of its own node only"),
        (write(clients["node-3"], devices=[mine]), "claims with devices of its own node only"),
        (write(agent, devices=[mine, mine | {"pool": "node-2"}]), "report on devices of its own node only"),
    ):
        with pytest.raises(Refused, match=words if older else f"{words}|permission"):
            await attack
    label = {"metadata": {"labels": {"x": "y"}}}
    with pytest.raises(Refused, match="cannot patch"):
        await agent.patch(ResourceClaim, "c", label, namespace="default")


async def test_a_tenant_gives_itself_no_card_by_the_status_of_its_claim(clients: dict[str, Client]) -> None:
    """With every right in its namespace. kubelet and agent believe the status: the card may be another claim's.

    Kubernetes 1.36 asks for `resourceclaims/binding` of the whole cluster. The tenant has it, as if it did not ask.
    """
    admin, tenant, scheduler = clients["admin"], clients["tenant"], clients["system:kube-scheduler"]
    await ask_for_no_more_rights(admin, "tenant")
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "k"}}]
    await tenant.raw("POST", claims, body={"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
    result = {"request": "gpu", "driver": names.DRIVER, "pool": "node-1", "device": DEVICE}
    allocation = {"devices": {"results": [result]}}
    other = {"devices": {"results": [result | {"driver": "other.example"}]}}
    user = {"resource": "pods", "name": "p", "uid": "u"}

    async def write(client: Client, **status: Any) -> ResourceClaim:
        return await client.patch(ResourceClaim, "c", {"status": status}, namespace="default", subresource="status")

    for attack in (
        write(tenant, allocation=allocation),
        write(tenant, allocation=allocation, reservedFor=[user]),
    ):
        with pytest.raises(Refused, match="kube-scheduler alone"):
            await attack
    await write(tenant, allocation=other)
    await write(tenant, allocation=None)
    await write(scheduler, allocation=allocation)
    for attack in (write(tenant, reservedFor=[user]), write(tenant, allocation=None)):
        with pytest.raises(Refused, match="kube-scheduler alone"):
            await attack
    label = {"metadata": {"labels": {"x": "y"}}}
    assert (await tenant.patch(ResourceClaim, "c", label, namespace="default")).metadata.labels == {"x": "y"}
    await write(scheduler, reservedFor=[user])
