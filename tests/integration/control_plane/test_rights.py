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
from msgspec.structs import replace

from egpu.adapters.installation import Document, installation, source
from egpu.adapters.kubernetes import node_conditions
from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUSpec
from egpu.api.vocabularies import OPTIONAL
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.apps.agent.cards.publisher import COUNT_LABEL
from egpu.apps.agent.startup_taint import StartupTaint
from egpu.apps.extender.fence import touch
from egpu.core.admission import FIXED_ANNOTATIONS
from egpu.core.node_condition import Standing, condition_of
from egpu_base.api.kubernetes import Namespace, Node, Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import Refused, RequestRefused
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import User, node_user, service_account
from egpu_sim.cluster.apiserver.admission.policies import Policies
from egpu_sim.cluster.apiserver.admission.webhooks import reviewed
from egpu_sim.cluster.apiserver.calls import Call, Write
from egpu_sim.cluster.apiserver.kinds import builtin
from egpu_sim.cluster.apiserver.kinds.names import ANNOTATIONS_LIMIT
from egpu_sim.cluster.apiserver.kinds.resources import Registry, Rules
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
            metadata = {"name": node, "labels": {"role": "x"}, "annotations": {"note": "y"}}
            body: dict[str, Any] = {"metadata": metadata, "spec": {"taints": taints}}
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
    "an annotation away": ("node-1", {"metadata": {"annotations": {"note": None}}}, "remove the annotations"),
    "a finalizer": ("node-1", {"metadata": {"finalizers": ["x.y/z"]}}, "finalizers"),
    "cpu": ("node-1", {"status": {"capacity": {"cpu": "400"}}}, "no other resource"),
    "cpu away": ("node-1", {"status": {"capacity": {"cpu": None}}}, "no other resource"),
    "another's resource": ("node-1", {"status": {"allocatable": {"example.com/fpga": "1"}}}, "no other resource"),
    "conditions": ("node-1", {"status": {"conditions": []}}, "remove the condition ElasticGPUReady"),
    "readiness": (
        "node-1",
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        "add or change a node's",
    ),
    "a condition": (
        "node-1",
        {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Bad", "status": "True"}]}},
        "add or change a node's",
    ),
    "addresses": ("node-1", {"status": {"addresses": [{"type": "InternalIP", "address": "1.2.3.4"}]}}, "nothing of"),
}


@pytest.mark.parametrize("what", NODE_ATTACKS)
async def test_an_agents_account_changes_nothing_else_of_nodes(all_of: Everybody, what: str) -> None:
    node, patch, words = NODE_ATTACKS[what]
    before = await all_of.admin.raw("GET", f"/api/v1/nodes/{node}")
    with pytest.raises(Refused, match=words):
        await all_of.agent.patch(Node, node, patch, subresource="status")
    assert await all_of.admin.raw("GET", f"/api/v1/nodes/{node}") == before


async def test_an_agents_account_writes_and_removes_its_condition(all_of: Everybody) -> None:
    for standing in (Standing("NoDriver", "no driver"), Standing("Ready", "all is well")):
        await node_conditions.write(all_of.agent, "node-1", standing)
        node = await all_of.admin.get(Node, "node-1")
        found = condition_of(node)
        assert found is not None
        assert (found.reason, found.message) == (standing.reason, standing.message)
        assert [one.type for one in node.status.conditions or []] == ["Ready", found.type]
    await node_conditions.remove(all_of.agent, await all_of.agent.get(Node, "node-1"))
    assert [one.type for one in (await all_of.admin.get(Node, "node-1")).status.conditions or []] == ["Ready"]
    with pytest.raises(Refused, match="own node"):
        await node_conditions.write(all_of.agent, "node-2", standing)


OTHERS = {"key": "k", "value": "v", "effect": "NoSchedule"}
OURS = {"key": names.AGENT_NOT_READY, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"taints": None}, "remove the taint elasticgpu.io/agent-not-ready of its node only"),
        ({"taints": [OURS]}, "remove the taint elasticgpu.io/agent-not-ready of its node only"),
        ({"taints": [OTHERS | {"value": "w"}]}, "add or change"),
        ({"taints": [OTHERS, OURS, {"key": "new", "effect": "NoExecute"}]}, "add or change"),
        ({"unschedulable": True}, "nothing of a node's spec"),
        ({"taints": [OTHERS], "podCIDR": "10.0.0.0/24"}, "nothing of a node's spec"),
    ],
)
async def test_an_agents_account_changes_no_taint_but_its_own(
    all_of: Everybody, spec: dict[str, Any], words: str
) -> None:
    """Through the node itself. By the status, the API server changes no taint."""
    await all_of.admin.patch(Node, "node-1", {"spec": {"taints": [OTHERS, OURS]}})
    before = await all_of.admin.raw("GET", "/api/v1/nodes/node-1")
    with pytest.raises(Refused, match=words):
        await all_of.agent.patch(Node, "node-1", {"spec": spec})
    with pytest.raises(Refused, match="own node"):
        await all_of.agent.patch(Node, "node-2", {"spec": spec})
    await all_of.agent.patch(Node, "node-1", {"spec": {"taints": None}}, subresource="status")
    assert (await all_of.admin.raw("GET", "/api/v1/nodes/node-1"))["spec"] == before["spec"]


async def test_an_agents_account_takes_its_start_up_taint_away(all_of: Everybody) -> None:
    slots = {"spec": {"taints": [OTHERS, OURS, OURS | {"effect": "NoExecute"}]}}
    await all_of.admin.patch(Node, "node-1", slots)
    await all_of.admin.patch(Node, "node-1", {"status": {"allocatable": {names.SLOT: "4"}}}, subresource="status")
    assert await StartupTaint(all_of.agent, "node-1", lambda: None).removed()
    assert (await all_of.admin.raw("GET", "/api/v1/nodes/node-1"))["spec"]["taints"] == [OTHERS]


async def test_an_agents_account_touches_cards_of_its_own_node_only(all_of: Everybody) -> None:
    agent, broken = all_of.agent, {"status": {"phase": "Failed", "healthy": False}}
    own = card("node-1", 1)
    assert await agent.create(ElasticGPU, replace(own, metadata=replace(own.metadata, name="node-1-00000001")))
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
            with pytest.raises(Refused, match="cannot change after the pod is created"):
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


@pytest.mark.parametrize("kind", ["initContainerStatuses", "containerStatuses"])
async def test_a_tenant_does_not_say_which_container_of_a_pod_with_cards_has_ended(
    all_of: Everybody, kind: str
) -> None:
    """The agent would prepare another container's slot with the cards of this one, or of another pod."""
    ended = {"terminated": {"exitCode": 0, "containerID": "x"}}
    one = {"name": "app", "state": ended, "image": "", "imageID": "", "ready": False, "restartCount": 0}
    said = {"status": {kind: [one]}}
    await all_of.tenant.raw("POST", PODS, body=pod("waits", annotations={names.DEMAND: "{}"}))
    with pytest.raises(Refused, match="do is for its node to say"):
        await all_of.tenant.patch(Pod, "waits", said, namespace="default", subresource="status")
    made = await all_of.tenant.raw("POST", PODS, body=pod("runs"))
    await all_of.extender.bind("runs", "node-1", namespace="default", uid=made["metadata"]["uid"], annotations=GIVEN)
    with pytest.raises(Refused, match="do is for its node to say"):
        await all_of.tenant.patch(Pod, "runs", said, namespace="default", subresource="status")
    assert await all_of.kubelet.patch(Pod, "runs", said, namespace="default", subresource="status")
    note = {"metadata": {"labels": {"note": "x"}}}
    assert await all_of.tenant.patch(Pod, "runs", note, namespace="default"), "the rest of the pod is his"
    await all_of.tenant.raw("POST", PODS, body=pod("plain"))
    assert await all_of.tenant.patch(Pod, "plain", said, namespace="default", subresource="status")


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
                with pytest.raises(Refused, match="allocated by the scheduler's extender alone"):
                    await whoever.raw("POST", path, body=mirror)


async def test_a_tenant_reserves_no_cards(all_of: Everybody) -> None:
    reserved = {names.RESERVATION: '{"allocation":{"node":"n","containers":{}},"until":9999999999}'}
    with pytest.raises(Refused, match="allocated by the scheduler's extender alone"):
        await all_of.tenant.raw("POST", PODS, body=pod("q", annotations=reserved))
    await all_of.tenant.raw("POST", PODS, body=pod("q"))
    change = {"metadata": {"annotations": reserved}}
    with pytest.raises(Refused, match="reserved by the scheduler's extender alone"):
        await all_of.tenant.patch(Pod, "q", change, namespace="default")
    assert await all_of.extender.patch(Pod, "q", change, namespace="default")
    kept = {"metadata": {"annotations": {"other": "changes"}}}
    assert await all_of.tenant.patch(Pod, "q", kept, namespace="default")


@pytest.mark.parametrize(
    "key",
    [names.ISOLATION, f"{names.RESIZED_PREFIX}app", names.resized_annotation("a-container-with-a-name-of-" + 30 * "a")],
)
async def test_a_tenant_writes_nothing_that_pods_are_told(all_of: Everybody, key: str) -> None:
    said, other = {key: "none needed"}, {"metadata": {"annotations": {key: "all is well"}}}
    with pytest.raises(Refused, match="has been told nothing of its slice"):
        await all_of.tenant.raw("POST", PODS, body=pod("q", annotations=said))
    await all_of.tenant.raw("POST", PODS, body=pod("q"))
    with pytest.raises(Refused, match="written by the scheduler's extender alone"):
        await all_of.tenant.patch(Pod, "q", other, namespace="default")
    assert await all_of.extender.patch(Pod, "q", {"metadata": {"annotations": said}}, namespace="default")
    with pytest.raises(Refused, match="written by the scheduler's extender alone"):
        await all_of.tenant.patch(Pod, "q", other, namespace="default")
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
    forbidden += [{"env": [{"name": name, "value": "12"}]} for name in ("CUDA_VERSION", "NVIDIA_REQUIRE_CUDA")]
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
        early = sees(value=value)
        early["env"].append({"name": "CUDA_VERSION", "value": "12"})
        await all_of.tenant.raw("POST", PODS, body=pod(f"p{number}", **early))


async def test_namespaces_whose_pods_may_see_all_cards_are_a_setting(all_of: Everybody) -> None:
    allowed = {"metadata": {"name": "monitoring", "labels": {"elasticgpu.io/all-devices": "true"}}}
    await all_of.admin.raw("POST", "/api/v1/namespaces", body=allowed)
    for namespace in ("monitoring", "kube-system", SYSTEM):
        path = f"/api/v1/namespaces/{namespace}/pods"
        assert await all_of.admin.raw("POST", path, body=pod("p", **sees(value="all")))


async def test_variables_from_elsewhere_wait_for_the_webhook_in_guarded_namespaces(all_of: Everybody) -> None:
    """No webhook answers here, as in a flood of it: without the label such a pod passes, and NVIDIA's runtime reads the
    variable that the policies cannot see."""
    guarded = {"metadata": {"name": "guarded", "labels": {"elasticgpu.io/guard-devices": "true"}}}
    await all_of.admin.raw("POST", "/api/v1/namespaces", body=guarded)
    path = "/api/v1/namespaces/guarded/pods"
    hidden: dict[str, Any] = {"envFrom": [{"configMapRef": {"name": "says-all"}}]}
    await all_of.admin.raw("POST", PODS, body=pod("passes", **hidden))
    with pytest.raises(Refused, match="did not answer"):
        await all_of.admin.raw("POST", path, body=pod("p", **hidden))
    initial = pod("p")
    initial["spec"]["initContainers"] = [{"name": "i", "image": "x", **hidden}]
    with pytest.raises(Refused, match="did not answer"):
        await all_of.admin.raw("POST", path, body=initial)
    await all_of.admin.raw("POST", path, body=pod("plain"))
    await all_of.admin.raw("POST", path, body=pod("void", **hidden, **sees(value="void")))


async def test_a_container_that_is_added_later_cannot_name_cards_either(all_of: Everybody) -> None:
    """The simulated API server serves no ephemeral containers; its policies judge them all the same."""
    server = all_of.plane.server
    registry = Registry()
    builtin.register(registry, Rules())
    pods = registry.get("", "v1", "pods")
    assert pods is not None
    call = Call("update", pods, User("tenant"), "default", "p", "ephemeralcontainers")
    old = await all_of.tenant.raw("POST", PODS, body=pod("p"))
    hidden: dict[str, Any] = {"envFrom": [{"configMapRef": {"name": "says-all"}}]}
    for variables, denied in (
        (sees(value="all"), True), (sees(value="void"), False),
        (hidden, True), ({**hidden, **sees(value="void")}, False),
        ({"env": [{"name": "CUDA_VERSION", "value": "12"}]}, True),
    ):  # fmt: skip
        new = {**old, "spec": {**old["spec"], "ephemeralContainers": [{"name": "e", **variables}]}}
        write = Write(call, "UPDATE", new, old, {})
        with pytest.raises(RequestRefused, match="it did not ask for") if denied else nullcontext():
            Policies(server.store, server.authorizer).validate(write, reviewed(write, new))


@pytest.mark.parametrize("key", ["cdi.k8s.io/x", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.app"])
async def test_a_tenant_names_no_devices_in_annotations(all_of: Everybody, key: str) -> None:
    """NVIDIA's NRI plugin, or CRI-O with NVIDIA's runtime, would inject them: all cards, or another tenant's slot."""
    said = {"metadata": {"annotations": {key: "nvidia.com/gpu=all"}}}
    with pytest.raises(Refused, match="devices that it did not ask for"):
        await all_of.tenant.raw("POST", PODS, body=pod("p", annotations=said["metadata"]["annotations"]))
    await all_of.tenant.raw("POST", PODS, body=pod("p", annotations={"note": "x"}))
    for subresource in (None, "status"):
        with pytest.raises(Refused, match="devices that it did not ask for"):
            await all_of.tenant.patch(Pod, "p", said, namespace="default", subresource=subresource)
    binding = {"metadata": {"name": "p", **said["metadata"]}, "target": {"kind": "Node", "name": "node-1"}}
    for path, name in ((f"{PODS}/p/binding", "p"), ("/api/v1/namespaces/default/bindings", "p")):
        with pytest.raises(Refused, match="devices that it did not ask for"):
            await all_of.admin.raw("POST", path, body={**binding, "metadata": {**binding["metadata"], "name": name}})


async def test_a_pod_that_has_device_annotations_already_can_be_changed(all_of: Everybody) -> None:
    """It is older than the policy, or its namespace was one whose pods may see all cards."""
    allowed = {"metadata": {"name": "plugins", "labels": {"elasticgpu.io/all-devices": "true"}}}
    await all_of.admin.raw("POST", "/api/v1/namespaces", body=allowed)
    path, key = "/api/v1/namespaces/plugins/pods", "cdi.k8s.io/x"
    await all_of.admin.raw("POST", path, body=pod("p", annotations={key: "nvidia.com/gpu=all"}))
    labels = {"metadata": {"labels": {"elasticgpu.io/all-devices": None}}}
    await all_of.admin.patch(Namespace, "plugins", labels)
    changed = await all_of.admin.patch(Pod, "p", {"metadata": {"labels": {"a": "b"}}}, namespace="plugins")
    assert changed.annotations[key]
    with pytest.raises(Refused, match="devices that it did not ask for"):
        await all_of.admin.patch(Pod, "p", {"metadata": {"annotations": {key: "other"}}}, namespace="plugins")


# --- what the policies say of our names -----------------------------------------------------------------------------


def listed(policy: str, variable: str) -> set[str]:
    """The texts of a variable that is a list."""
    named: list[Document] = [one for one in installation(source()) if one["metadata"]["name"] == policy]
    (found,) = (one for one in named[0]["spec"]["variables"] if one["name"] == variable)
    return set(re.findall(r'"([^"]+)"', found["expression"]))


def test_the_policies_know_every_annotation_that_is_fixed_and_every_resource_that_nodes_offer() -> None:
    assert listed("elastic-gpu-allocations", "fixed") == set(FIXED_ANNOTATIONS)
    assert listed("elastic-gpu-allocations", "answers") == set(names.ANSWERS)
    assert listed("elastic-gpu-own-node", "ours") == set(node_capacity((), 48, OPTIONAL))


def test_no_annotation_that_a_policy_is_about_is_left_out_by_its_condition() -> None:
    policy, _ = (one for one in installation(source()) if one["metadata"]["name"] == "elastic-gpu-allocations")
    (condition,) = (one["expression"] for one in policy["spec"]["matchConditions"])
    of_new, of_old = condition.split('request.operation == "UPDATE"')
    about = {*FIXED_ANNOTATIONS, *names.ANSWERS, names.ALLOCATION, names.DEMAND, names.RESERVATION}
    for part in (of_new, of_old):
        inside, start = re.findall(r'contains\("([^"]+)"', part), re.findall(r'startsWith\("([^"]+)"', part)
        assert {
            key for key in about if not any(text in key for text in inside) and not key.startswith((*start,))
        } == set()


async def test_the_api_server_has_no_warning_about_the_policies(all_of: Everybody) -> None:
    """`kubectl describe` shows `status.typeChecking` to everybody who looks at a policy."""
    found = await all_of.admin.raw("GET", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")
    ours = {one["metadata"]["name"]: one["status"] for one in found["items"]}
    assert len(ours) >= 3
    assert set(map(str, ours.values())) == {"{'typeChecking': {}}"}


def test_only_extender_and_controller_may_write_allocations() -> None:
    roles = [one for one in installation(source()) if one["kind"] in ("ClusterRole", "Role")]
    trusted = [one["metadata"]["name"] for one in roles for rule in one["rules"] if "allocations" in str(rule)]
    assert trusted == ["elastic-gpu-controller", "elastic-gpu-extender"]
