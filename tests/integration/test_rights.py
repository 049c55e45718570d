"""What somebody with rights of his own tries, against the roles and admission rules of deploy/: an agent whose node was
taken over, a tenant who may do everything in his namespace. Everybody has exactly the rights that a real cluster gives.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.installation import Document, Site, installation, source
from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUSpec, ObjectMeta
from egpu.api.vocabularies import OPTIONAL
from egpu.apps.agent.cards.publisher import COUNT_LABEL, node_capacity
from egpu.apps.extender.fence import touch
from egpu.core.admission import FIXED_ANNOTATIONS
from egpu.embedded.apiserver import User, builtin, node_user, service_account
from egpu.embedded.apiserver.admission import reviewed
from egpu.embedded.apiserver.calls import Call, Write
from egpu.embedded.apiserver.names import ANNOTATIONS_LIMIT
from egpu.embedded.apiserver.policies import Policies
from egpu.embedded.apiserver.resources import Registry, Rules
from egpu.errors import Refused, RequestRefused
from support.control_plane import SYSTEM, ControlPlane, control_plane, everything_in
from support.objects import card


@dataclass
class Everybody:
    plane: ControlPlane
    admin: Client
    agent: Client
    """Of node-1."""
    nameless: Client
    """An agent's account, with a token that names no node."""
    kubelet: Client
    tenant: Client
    extender: Client
    controller: Client


@pytest.fixture
async def all_of(tmp_path: Path) -> AsyncGenerator[Everybody]:
    users = {
        "agent": service_account(SYSTEM, "elastic-gpu-agent", node="node-1"),
        "nameless": service_account(SYSTEM, "elastic-gpu-agent"),
        "kubelet": node_user("node-1"),
        "tenant": User("tenant"),
        "extender": service_account(SYSTEM, "elastic-gpu-extender"),
        "controller": service_account(SYSTEM, "elastic-gpu-controller"),
    }
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(control_plane(tmp_path))
        kubeconfigs = {name: plane.server.add_user(name, user) for name, user in users.items()}
        clients = {
            name: await stack.enter_async_context(Client.from_kubeconfig(path)) for name, path in kubeconfigs.items()
        }
        for node in ("node-1", "node-2"):
            taints = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
            body: dict[str, Any] = {"metadata": {"name": node, "labels": {"role": "x"}}, "spec": {"taints": taints}}
            body["status"] = {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
            await plane.client.raw("POST", "/api/v1/nodes", body=body)
            await plane.client.create(ElasticGPU, card(node, 0))
        await everything_in(plane.client, "default", "tenant")
        yield Everybody(plane=plane, admin=plane.client, **clients)


def pod(name: str, *, annotations: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    containers = [{"name": "app", "image": "x", **container}]
    volumes = [{"name": "v", "emptyDir": {}}]
    spec = {"containers": containers, "volumes": volumes}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}


PODS = "/api/v1/namespaces/default/pods"
GIVEN = {names.ALLOCATION: '{"version":1,"node":"node-1","containers":{}}'}

# --- an agent's account ---------------------------------------------------------------------------------------------


async def test_an_agents_account_can_change_no_pod(all_of: Everybody) -> None:
    system = "/api/v1/namespaces/kube-system/pods"
    await all_of.admin.raw("POST", system, body={**pod("proxy"), "metadata": {"name": "proxy"}})
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
    for subresource in (None, "status"):
        with pytest.raises(Refused, match="cannot patch"):
            await all_of.agent.patch_json(Pod, "proxy", image, namespace="kube-system", subresource=subresource)
    assert (await all_of.agent.get(Pod, "proxy", namespace="kube-system")).containers[0].image == "x"


async def test_an_agents_account_says_what_its_own_node_offers(all_of: Everybody) -> None:
    capacity = node_capacity((), 48)
    assert capacity
    patch = {
        "metadata": {"labels": {COUNT_LABEL: "2"}, "annotations": {names.POOL_ADDRESS: "10.0.0.1:7434"}},
        "status": {"capacity": capacity, "allocatable": capacity},
    }
    found: Node = await all_of.agent.patch(Node, "node-1", patch, subresource="status")
    assert (found.status.capacity or {}).keys() == {"cpu", *capacity}
    away = {"metadata": {"annotations": {names.POOL_ADDRESS: None}}, "status": {"capacity": {names.GPU: None}}}
    found = await all_of.agent.patch(Node, "node-1", away, subresource="status")
    assert names.GPU not in (found.status.capacity or {})


NODE_ATTACKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "another node": ("node-2", {"status": {"capacity": {names.GPU: "9"}}}, "own node"),
    "a label of its own": ("node-1", {"metadata": {"labels": {"role": "control-plane"}}}, "labels"),
    "a label away": ("node-1", {"metadata": {"labels": {"role": None}}}, "labels"),
    "an annotation": ("node-1", {"metadata": {"annotations": {"note": "x"}}}, "annotations"),
    "a finalizer": ("node-1", {"metadata": {"finalizers": ["x.y/z"]}}, "finalizers"),
    "cpu": ("node-1", {"status": {"capacity": {"cpu": "400"}}}, "no other resource"),
    "cpu away": ("node-1", {"status": {"capacity": {"cpu": None}}}, "no other resource"),
    "another's resource": ("node-1", {"status": {"allocatable": {"example.com/fpga": "1"}}}, "no other resource"),
    "conditions": ("node-1", {"status": {"conditions": []}}, "nothing of a node's status"),
    "addresses": ("node-1", {"status": {"addresses": [{"type": "InternalIP", "address": "1.2.3.4"}]}}, "nothing of"),
}


@pytest.mark.parametrize("what", NODE_ATTACKS)
async def test_an_agents_account_changes_nothing_else_of_nodes(all_of: Everybody, what: str) -> None:
    node, patch, words = NODE_ATTACKS[what]
    before = await all_of.admin.raw("GET", f"/api/v1/nodes/{node}")
    with pytest.raises(Refused, match=words):
        await all_of.agent.patch(Node, node, patch, subresource="status")
    assert await all_of.admin.raw("GET", f"/api/v1/nodes/{node}") == before


async def test_an_agents_account_cannot_take_taints_away(all_of: Everybody) -> None:
    untainted = {"spec": {"taints": None}}
    for node in ("node-1", "node-2"):
        with pytest.raises(Refused, match='cannot patch resource "nodes"'):
            await all_of.agent.patch(Node, node, untainted)
    await all_of.agent.patch(Node, "node-1", untainted, subresource="status")
    assert (await all_of.admin.get(Node, "node-1")).spec.taints


async def test_an_agents_account_touches_cards_of_its_own_node_only(all_of: Everybody) -> None:
    agent, broken = all_of.agent, {"status": {"phase": "Failed", "healthy": False}}
    assert await agent.create(ElasticGPU, card("node-1", 1))
    assert await agent.patch(ElasticGPU, "node-1-card0", broken, subresource="status")
    slice_ = ElasticGPU(metadata=ObjectMeta(name="s"), spec=ElasticGPUSpec(node_name="node-1"))
    moved = {"spec": {"nodeName": "node-1", "physicalGPU": {"uuid": "GPU-mine"}}}
    for attack in (
        agent.create(ElasticGPU, card("node-2", 1)),
        agent.create(ElasticGPU, slice_),
        agent.patch(ElasticGPU, "node-2-card0", broken, subresource="status"),
        agent.patch(ElasticGPU, "node-2-card0", moved),
        agent.patch(ElasticGPU, "node-1-card0", {"spec": {"nodeName": "node-2"}}),
    ):
        with pytest.raises(Refused, match="own node"):
            await attack
    with pytest.raises(Refused, match="cannot delete"):
        await agent.delete(ElasticGPU, "node-2-card0")


async def test_a_token_that_names_no_node_changes_nothing(all_of: Everybody) -> None:
    with pytest.raises(Refused, match="must name its node"):
        await all_of.nameless.patch(Node, "node-1", {"metadata": {"labels": {COUNT_LABEL: "2"}}}, subresource="status")
    with pytest.raises(Refused, match="must name its node"):
        await all_of.nameless.create(ElasticGPU, card("node-1", 1))


# --- a tenant who may do everything in his namespace ----------------------------------------------------------------


async def test_a_tenant_cannot_free_a_card_that_is_in_use(all_of: Everybody) -> None:
    """By the annotation, through whatever subresource; by saying that the pod has ended; by binding it himself."""
    tenant = all_of.tenant
    await tenant.raw("POST", PODS, body=pod("p"))
    uid = (await tenant.get(Pod, "p", namespace="default")).uid
    await all_of.extender.bind("p", "node-1", namespace="default", uid=uid, annotations=GIVEN)
    running = {"status": {"phase": "Running"}}
    await all_of.kubelet.patch(Pod, "p", running, namespace="default", subresource="status")
    for value in ('{"version":1,"node":"node-1"}', None):
        patch = {"metadata": {"annotations": {names.ALLOCATION: value}}}
        for subresource in ("status", None):
            with pytest.raises(Refused, match="cannot be changed once the pod is made"):
                await tenant.patch(Pod, "p", patch, namespace="default", subresource=subresource)
    for phase in ("Succeeded", "Failed"):
        ended = {"status": {"phase": phase}}
        with pytest.raises(Refused, match="for its node to say"):
            await tenant.patch(Pod, "p", ended, namespace="default", subresource="status")
    note = {"metadata": {"annotations": {"note": "x"}}}
    assert await tenant.patch(Pod, "p", note, namespace="default"), "the rest of the pod is his"
    assert await all_of.kubelet.patch(
        Pod, "p", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status"
    )
    with pytest.raises(Refused, match="for its node to say"):
        await tenant.patch(Pod, "p", running, namespace="default", subresource="status")


async def test_a_tenant_cannot_give_himself_cards(all_of: Everybody) -> None:
    await all_of.tenant.raw("POST", PODS, body=pod("p"))
    target = {"kind": "Node", "name": "node-1"}
    binding = {"metadata": {"name": "p", "annotations": GIVEN}, "target": target}
    for path in (f"{PODS}/p/binding", "/api/v1/namespaces/default/bindings"):
        with pytest.raises(Refused, match="extender alone"):
            await all_of.tenant.raw("POST", path, body=binding)


async def test_who_took_a_node_over_cannot_give_himself_cards_by_a_mirror_pod(all_of: Everybody) -> None:
    """In the namespaces that no webhook is asked about; a kubelet may make pods that are bound to its node."""
    for namespace in ("kube-system", "kube-public", "kube-node-lease"):
        path = f"/api/v1/namespaces/{namespace}/pods"
        for given in (GIVEN, {names.cards_annotation("app"): "GPU-1"}):
            mirror = pod("mirror", annotations={"kubernetes.io/config.mirror": "x", **given})
            mirror["spec"]["nodeName"] = "node-1"
            for whoever in (all_of.kubelet, all_of.admin):
                with pytest.raises(Refused, match="given out by the scheduler's extender alone"):
                    await whoever.raw("POST", path, body=mirror)


async def test_a_tenant_reserves_no_cards(all_of: Everybody) -> None:
    reserved = {names.RESERVATION: '{"allocation":{"node":"n","containers":{}},"until":9999999999}'}
    with pytest.raises(Refused, match="given out by the scheduler's extender alone"):
        await all_of.tenant.raw("POST", PODS, body=pod("q", annotations=reserved))
    await all_of.tenant.raw("POST", PODS, body=pod("q"))
    change = {"metadata": {"annotations": reserved}}
    with pytest.raises(Refused, match="reserved by the scheduler's extender alone"):
        await all_of.tenant.patch(Pod, "q", change, namespace="default")
    assert await all_of.extender.patch(Pod, "q", change, namespace="default")
    kept = {"metadata": {"annotations": {"other": "changes"}}}
    assert await all_of.tenant.patch(Pod, "q", kept, namespace="default")


async def test_a_tenant_leaves_no_pod_or_claim_that_the_extender_cannot_touch(all_of: Everybody) -> None:
    """With as many annotations as there may be: an extender that leads anew touches what waits, and all claims."""
    claims = "/apis/elasticgpu.io/v1alpha1/namespaces/default/elasticgpuclaims"
    full = {"stuffing": "x" * (ANNOTATIONS_LIMIT - len("stuffing"))}
    spec = {"elasticGPUClassName": "c", "resources": {"requests": {names.GPU_CORE: "10"}}}
    await all_of.tenant.raw("POST", PODS, body=pod("full", annotations=full))
    await all_of.tenant.raw("POST", claims, body={"metadata": {"name": "full", "annotations": full}, "spec": spec})
    for kind in (Pod, ElasticGPUClaim):
        before = await all_of.extender.get(kind, "full", namespace="default")
        after = await touch(all_of.extender, before, "lead")
        assert after.metadata.resource_version != before.metadata.resource_version


async def test_a_tenant_cannot_make_ten_percent_a_whole_card(all_of: Everybody) -> None:
    claims = "/apis/elasticgpu.io/v1alpha1/namespaces/default/elasticgpuclaims"
    spec = {"elasticGPUClassName": "c", "resources": {"requests": {names.GPU_CORE: "10"}}}
    await all_of.tenant.raw("POST", claims, body={"metadata": {"name": "c"}, "spec": spec})
    card = {"uuid": "GPU-1", "index": 0, "minor": 0, "core": 100, "memoryMiB": 1024}
    container = {"provisioner": names.VCUDA, "mode": "exclusive", "cards": [card]}
    bound = {"status": {"phase": "Bound", "allocation": {"node": "node-1", "container": container}}}
    with pytest.raises(Refused, match="extender and the controller alone"):
        await all_of.tenant.patch(ElasticGPUClaim, "c", bound, namespace="default", subresource="status")
    phase = {"status": {"phase": "Pending"}}
    for ours in (all_of.extender, all_of.controller):
        assert await ours.patch(ElasticGPUClaim, "c", phase, namespace="default", subresource="status")


def sees(**variable: Any) -> dict[str, Any]:
    return {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", **variable}]}


async def test_a_plain_pod_cannot_name_cards(all_of: Everybody) -> None:
    reference = {"fieldRef": {"fieldPath": "metadata.annotations['elasticgpu.io/cards-app']"}}
    forbidden = [sees(value="all"), sees(value="GPU-1"), sees(value="$(X)"), sees(valueFrom=reference)]
    forbidden += [sees(valueFrom={"configMapKeyRef": {"name": "c", "key": "k"}})]
    for path in ("/var/run/nvidia-container-devices/all", "var/run//nvidia-container-devices/all"):
        forbidden += [{"volumeMounts": [{"name": "v", "mountPath": path}]}]
    for what in forbidden:
        with pytest.raises(Refused, match="did not ask for"):
            await all_of.tenant.raw("POST", PODS, body=pod("p", **what))
        initial = pod("p")
        initial["spec"]["initContainers"] = [{"name": "i", "image": "x", **what}]
        with pytest.raises(Refused, match="did not ask for"):
            await all_of.tenant.raw("POST", PODS, body=initial)
    for number, value in enumerate(("void", "none", "")):
        await all_of.tenant.raw("POST", PODS, body=pod(f"p{number}", **sees(value=value)))


async def test_namespaces_whose_pods_may_see_all_cards_are_a_setting(all_of: Everybody) -> None:
    allowed = {"metadata": {"name": "monitoring", "labels": {"elasticgpu.io/all-devices": "true"}}}
    await all_of.admin.raw("POST", "/api/v1/namespaces", body=allowed)
    for namespace in ("monitoring", "kube-system", SYSTEM):
        path = f"/api/v1/namespaces/{namespace}/pods"
        assert await all_of.admin.raw("POST", path, body=pod("p", **sees(value="all")))


async def test_a_container_that_is_added_later_cannot_name_cards_either(all_of: Everybody) -> None:
    """The embedded API server serves no ephemeral containers; its policies judge them all the same."""
    server = all_of.plane.server
    registry = Registry()
    builtin.register(registry, Rules())
    pods = registry.get("", "v1", "pods")
    assert pods is not None
    call = Call("update", pods, User("tenant"), "default", "p", "ephemeralcontainers")
    old = await all_of.tenant.raw("POST", PODS, body=pod("p"))
    hidden = {"envFrom": [{"configMapRef": {"name": "says-all"}}]}
    for variables, denied in (
        (sees(value="all"), True), (sees(value="void"), False),
        (hidden, True), ({**hidden, **sees(value="void")}, False),
    ):  # fmt: skip
        new = {**old, "spec": {**old["spec"], "ephemeralContainers": [{"name": "e", **variables}]}}
        write = Write(call, "UPDATE", new, old, {})
        with pytest.raises(RequestRefused, match="it did not ask for") if denied else nullcontext():
            Policies(server.store, server.authorizer).validate(write, reviewed(write, new))


# --- what the policies say of our names -----------------------------------------------------------------------------


def listed(policy: str, variable: str) -> set[str]:
    """The texts of a variable that is a list."""
    named: list[Document] = [one for one in installation(source(), Site()) if one["metadata"]["name"] == policy]
    (found,) = (one for one in named[0]["spec"]["variables"] if one["name"] == variable)
    return set(re.findall(r'"([^"]+)"', found["expression"]))


def test_the_policies_know_every_annotation_that_is_fixed_and_every_resource_that_nodes_offer() -> None:
    assert listed("elastic-gpu-allocations", "fixed") == set(FIXED_ANNOTATIONS)
    assert listed("elastic-gpu-own-node", "ours") == set(node_capacity((), 48, OPTIONAL))


def test_only_extender_and_controller_may_write_allocations() -> None:
    roles = [one for one in installation(source(), Site()) if one["kind"] in ("ClusterRole", "Role")]
    trusted = [one["metadata"]["name"] for one in roles for rule in one["rules"] if "allocations" in str(rule)]
    assert trusted == ["elastic-gpu-controller", "elastic-gpu-extender"]
