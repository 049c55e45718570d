"""Whatever is wrong is refused when it is made, by field and reason, and changes nothing: no object, no card."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.placement.cache import rebuild
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import AlreadyExists, NotFound, Refused
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver.access.identities import service_account
from egpu_sim.cluster.apiserver.calls import User
from support.control_plane import asking
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CORE, MEMORY = names.GPU_CORE, names.GPU_MEMORY
CLAIM = names.CLAIM_PREFIXES[0]
LIMITS = "spec.containers[app].resources.limits"
MEBIBYTES_OF_A_CARD = 80 * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    """One cluster for all of this file, with a class and a claim that are good, here and in another namespace."""
    async with cluster(ClusterConfig(nodes=1, cards_per_node=2)) as one:
        async with one.client() as client:
            await manifests.create(client, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}])
            await manifests.create(client, [a_class("shared"), a_claim("mine"), a_claim("theirs", namespace="other")])
        yield one
        restarted = {name: child.restarts for name, child in one.fleet.children.items() if child.restarts}
        assert not restarted, f"bad input crashed {restarted}"


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster) -> AsyncIterator[Client]:
    """Sees to it that the test leaves everything as it was."""
    async with running.client() as one:
        before = await state_of(one)
        yield one
        assert await state_of(one) == before


async def state_of(client: Client) -> dict[str, Any]:
    """Objects of ours and what is free on every card."""
    gpus, pods = await client.list(ElasticGPU), await client.list(Pod)
    claims, classes = await client.list(ElasticGPUClaim), await client.list(ElasticGPUClass)
    cache = rebuild(gpus, pods, claims, classes)
    return {
        "free": cache.ledger.snapshot(),
        "pods": {pod.key: pod.annotations for pod in pods},
        "claims": sorted(claim.key for claim in claims),
        "classes": sorted(one.name for one in classes),
        "gpus": sorted(gpu.name for gpu in gpus),
    }


def a_class(name: str, **fields: Any) -> dict[str, Any]:
    document = {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClass",
        "metadata": {"name": name},
        "provisioner": names.VCUDA,
        "reclaimPolicy": "Delete",
        "eGPUBindingMode": "WaitForFirstConsumer",
    }
    return document | fields


def a_claim(
    name: str, requests: dict[str, Any] | None = None, *, egpu_class: str = "shared", namespace: str = "default"
) -> dict[str, Any]:
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"elasticGPUClassName": egpu_class, "resources": {"requests": requests or {CORE: 10, MEMORY: "1Gi"}}},
    }


def a_pod(
    limits: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "app", "image": "any", "command": ["sleep", "1"]}
    if limits is not None:
        container["resources"] = {"limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bad", "annotations": annotations or {}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


BAD_PODS: dict[str, tuple[dict[str, Any], str, str]] = {
    # what is wrong: the pod, the field, words of the reason
    "unknown claim": (a_pod(annotations={CLAIM + "app": "nowhere"}), f"annotations[{CLAIM}app]", "nowhere"),
    "claim of another namespace": (a_pod(annotations={CLAIM + "app": "other/theirs"}), f"[{CLAIM}app]", "namespace"),
    "claim that exists only elsewhere": (a_pod(annotations={CLAIM + "app": "theirs"}), f"[{CLAIM}app]", "theirs"),
    "annotation for a missing container": (a_pod(annotations={CLAIM + "ap": "mine"}), f"[{CLAIM}ap]", "container"),
    "claim and resources at once": (a_pod({CORE: 10, MEMORY: 10}, {CLAIM + "app": "mine"}), "app", "claim"),
    "negative": (a_pod({CORE: -10, MEMORY: 1024}), "", "-10"),
    "fractional": (a_pod({CORE: "0.5", MEMORY: 1024}), f"{LIMITS}[{CORE}]", "fraction"),
    "fractional in thousandths": (a_pod({CORE: "500m", MEMORY: 1024}), "", "500m"),
    "fractional cards": (a_pod({names.NVIDIA_GPU: "1.5"}), f"{LIMITS}[{names.NVIDIA_GPU}]", "fraction"),
    "no number": (a_pod({CORE: "lots", MEMORY: 1024}), "", "quantities must match the regular expression"),
    "over-large": (a_pod({CORE: 10, MEMORY: "9223372036854775807"}), f"{LIMITS}[{MEMORY}]", "9223372036854775807"),
    "larger than any integer": (a_pod({CORE: 10, MEMORY: "1" * 40}), "", "1" * 18),
    "more cards than a node can have": (a_pod({names.NVIDIA_GPU: 100000}), f"{LIMITS}[{names.NVIDIA_GPU}]", "100000"),
    "core above 100": (a_pod({CORE: 150}), f"{LIMITS}[{CORE}]", "multiple of 100"),
    "core above 100, other vocabulary": (
        a_pod({names.TENCENT_VCUDA_CORE: 250}),
        f"{LIMITS}[{names.TENCENT_VCUDA_CORE}]",
        "multiple of 100",
    ),
    "memory above any card": (
        a_pod({CORE: 10, MEMORY: MEBIBYTES_OF_A_CARD + 1}),
        f"{LIMITS}[{MEMORY}]",
        str(MEBIBYTES_OF_A_CARD),
    ),
    "two vocabularies": (a_pod({CORE: 10, MEMORY: 1024, names.ALIYUN_GPU_MEM: 2}), "spec.containers[app]", "one"),
    "a name for nodes only": (a_pod({names.ALIYUN_GPU_COUNT: 1}), names.ALIYUN_GPU_COUNT, "node"),
    "an allocation of its own": (
        a_pod({CORE: 10, MEMORY: 1024}, {names.ALLOCATION: "{}"}),
        f"annotations[{names.ALLOCATION}]",
        "scheduler",
    ),
    "an allocation without a demand": (a_pod(None, {names.ALLOCATION: "{}"}), names.ALLOCATION, "scheduler"),
    "cards of its own": (
        a_pod({CORE: 10, MEMORY: 1024}, {names.CARDS_PREFIX + "app": "GPU-1"}),
        f"annotations[{names.CARDS_PREFIX}app]",
        "scheduler",
    ),
    "a demand of its own": (
        a_pod({CORE: 10, MEMORY: 1024}, {names.DEMAND: '{"version":1,"containers":{}}'}),
        f"annotations[{names.DEMAND}]",
        "webhook",
    ),
    "a slot by hand": (a_pod({names.SLOT: 1}), f"{LIMITS}[{names.SLOT}]", "webhook"),
    "several slots": (a_pod({CORE: 10, MEMORY: 1024, names.SLOT: 3}), f"{LIMITS}[{names.SLOT}]", "3"),
    "a node by hand": (a_pod({CORE: 10, MEMORY: 1024}, nodeName="node-1"), "spec.nodeName", "nodeSelector"),
}


@pytest.mark.parametrize("what", BAD_PODS)
async def test_a_bad_pod_is_refused(client: Client, what: str) -> None:
    pod, field, reason = BAD_PODS[what]
    with pytest.raises(Refused) as refusal:
        await manifests.create(client, [pod])
    assert field in str(refusal.value)
    assert reason in str(refusal.value)
    with pytest.raises(NotFound):
        await client.get(Pod, "bad", namespace="default")


BAD_CLAIMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown class": (a_claim("bad", egpu_class="nowhere"), "lass", "nowhere"),
    "no class": (a_claim("bad", egpu_class=""), "lass", ""),
    "nothing asked": (a_claim("bad") | {"spec": {"elasticGPUClassName": "shared"}}, "resources", ""),
    "zero": (a_claim("bad", {CORE: 0, MEMORY: 0}), "spec.resources.requests", "0"),
    "negative": (a_claim("bad", {CORE: -1, MEMORY: "1Gi"}), CORE, "-1"),
    "fractional": (a_claim("bad", {CORE: "10.5", MEMORY: "1Gi"}), CORE, "10.5"),
    "over-large": (a_claim("bad", {CORE: 10, MEMORY: "7Ei"}), MEMORY, "no card has more"),
    "no number": (a_claim("bad", {CORE: "lots", MEMORY: "1Gi"}), CORE, "lots"),
    "core above 100": (a_claim("bad", {CORE: 150}), CORE, "multiple of 100"),
    "memory above any card": (a_claim("bad", {CORE: 10, MEMORY: "81Gi"}), MEMORY, str(MEBIBYTES_OF_A_CARD)),
    "two vocabularies": (a_claim("bad", {CORE: 10, MEMORY: "1Gi", names.ALIYUN_GPU_MEM: 2}), "requests", ""),
    "a name that is nobody's": (a_claim("bad", {"example.com/gpu": 1}), "example.com/gpu", ""),
}


@pytest.mark.parametrize("what", BAD_CLAIMS)
async def test_a_bad_claim_is_refused(client: Client, what: str) -> None:
    claim, field, reason = BAD_CLAIMS[what]
    with pytest.raises(Refused) as refusal:
        await manifests.create(client, [claim])
    assert field in str(refusal.value)
    assert reason in str(refusal.value)


BAD_CLASSES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown provisioner": (a_class("bad", provisioner="example.com/other"), "example.com/other"),
    "unknown reclaim policy": (a_class("bad", reclaimPolicy="Recycle"), "reclaimPolicy"),
    "unknown binding mode": (a_class("bad", eGPUBindingMode="Sometimes"), "BindingMode"),
}


@pytest.mark.parametrize("what", BAD_CLASSES)
async def test_a_bad_class_is_refused(client: Client, what: str) -> None:
    document, words = BAD_CLASSES[what]
    with pytest.raises(Refused) as refusal:
        await manifests.create(client, [document])
    assert words in str(refusal.value)


async def placed(client: Client, name: str) -> Pod:
    """A good pod, bound and running until it is deleted."""
    pod = a_pod({CORE: 10, MEMORY: 1024}, terminationGracePeriodSeconds=0)
    pod["metadata"]["name"], pod["spec"]["containers"][0]["command"] = name, ["sleep", "1000"]
    await manifests.create(client, [pod])

    async def running() -> Pod | None:
        one = await client.get(Pod, name, namespace="default")
        return one if one.status.phase == "Running" else None

    return await until(running)


async def removed(client: Client, name: str) -> None:
    await client.delete(Pod, name, namespace="default")

    async def gone() -> bool:
        return await client.find(Pod, name, namespace="default") is None

    await until(gone)


@pytest.mark.parametrize("key", [names.ALLOCATION, names.DEMAND, names.CARDS_PREFIX + "app", CLAIM + "app"])
async def test_annotations_of_a_pod_cannot_be_changed(client: Client, key: str) -> None:
    before = await placed(client, "steady")
    for value in ("{}", None):
        if value is None and key not in before.annotations:
            continue
        with pytest.raises(Refused) as refusal:
            await client.patch(Pod, "steady", {"metadata": {"annotations": {key: value}}}, namespace="default")
        assert "cannot change after the pod is created" in str(refusal.value)
    assert (await client.get(Pod, "steady", namespace="default")).annotations == before.annotations
    await removed(client, "steady")


def a_binding(**annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "waiting", "annotations": annotations},
        "target": {"kind": "Node", "name": "node-1"},
    }


FORGED = {names.ALLOCATION: '{"version":1,"node":"node-1","containers":{}}'}


async def may_bind_pods(client: Client, group: str) -> None:
    """Gives a group the right to bind pods, however often it is asked."""
    api = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["bindings", "pods/binding"], "verbs": ["create"]}]
    reference = {"apiGroup": api, "kind": "ClusterRole", "name": "binder"}
    subject = {"apiGroup": api, "kind": "Group", "name": group}
    with contextlib.suppress(AlreadyExists):
        await client.raw("POST", f"/apis/{api}/v1/clusterroles", body={"metadata": {"name": "binder"}, "rules": rules})
        binding = {"metadata": {"name": "binder"}, "roleRef": reference, "subjects": [subject]}
        await client.raw("POST", f"/apis/{api}/v1/clusterrolebindings", body=binding)


async def test_cards_are_given_out_by_the_scheduler_alone(running: Cluster, client: Client) -> None:
    """Neither a developer who may bind pods nor kube-scheduler itself can write an allocation; the extender can."""
    pod = a_pod({CORE: 10, MEMORY: 1024}, schedulingGates=[{"name": "example.com/wait"}])
    pod["metadata"]["name"] = "waiting"
    await manifests.create(client, [pod])
    path = "/api/v1/namespaces/default/pods/waiting/binding"
    older = "/api/v1/namespaces/default/bindings"
    await may_bind_pods(client, "system:authenticated")
    for number, user in enumerate(
        (
            User("jane", ("system:authenticated",)),
            User("system:kube-scheduler", ("system:authenticated",)),
            service_account("default", "elastic-gpu-extender"),
        )
    ):
        kubeconfig = running.server.add_user(f"user-{number}", user)
        async with Client.from_kubeconfig(kubeconfig) as other:
            for url in (path, older):
                with pytest.raises(Refused) as refusal:
                    await other.raw("POST", url, body=a_binding(**FORGED))
                assert "cards are allocated by the scheduler's extender alone" in str(refusal.value)
    found = await client.get(Pod, "waiting", namespace="default")
    assert not found.spec.node_name
    assert names.ALLOCATION not in found.annotations
    await removed(client, "waiting")


async def test_a_scheduler_that_asks_no_extender_is_refused(client: Client) -> None:
    """Volcano's examples name it. No card would ever be chosen, without a word."""
    with pytest.raises(Refused, match=r"spec.schedulerName: is 'volcano', which does not ask .* remove the field"):
        await manifests.create(client, [a_pod({CORE: 10, MEMORY: 1024}, schedulerName="volcano")])


async def test_pods_without_a_gpu_are_bound_by_anybody_who_may(running: Cluster, client: Client) -> None:
    pod = a_pod(None, schedulerName="nobody")
    pod["metadata"]["name"] = "waiting"
    await manifests.create(client, [pod])
    kubeconfig = running.server.add_user("binder", User("system:kube-scheduler", ("system:authenticated",)))
    async with Client.from_kubeconfig(kubeconfig) as other:
        await other.raw("POST", "/api/v1/namespaces/default/pods/waiting/binding", body=a_binding(note="fine"))
    assert (await client.get(Pod, "waiting", namespace="default")).spec.node_name == "node-1"
    await removed(client, "waiting")


BIND = {"PodName": "no-such-pod", "PodNamespace": "default", "PodUID": "u", "Node": "node-1"}

MALFORMED: dict[str, tuple[str, bytes, str]] = {
    # what is wrong: the verb, the body, words of the answer
    "no JSON": ("filter", b"{", "not"),
    "nothing": ("filter", b"", "not"),
    "a list": ("filter", b"[]", "array"),
    "no pod": ("filter", b'{"NodeNames":["node-1"]}', "Pod"),
    "a pod that is a number": ("filter", b'{"Pod":7,"NodeNames":["node-1"]}', "Pod"),
    "names that are numbers": ("filter", b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":[1]}', "NodeNames"),
    "no text at all": ("prioritize", b"\xff\xfe\x00", "not"),
    "deeply nested": ("filter", b'{"Pod":' * 5000 + b"1" + b"}" * 5000, ""),
    "an empty binding": ("bind", b"{}", "PodName"),
    "a binding with wrong types": ("bind", json.dumps(BIND | {"Node": 5}).encode(), "Node"),
    "a preemption without a pod": ("preempt", b"{}", "Pod"),
    "preemption victims that are a list": (
        "preempt",
        b'{"Pod":{},"NodeNameToMetaVictims":[]}',
        "NodeNameToMetaVictims",
    ),
    "the old path": ("scheduler/predicates", b"nonsense", "not"),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_extender_requests_are_answered_with_400(running: Cluster, client: Client, what: str) -> None:
    verb, body, words = MALFORMED[what]
    async with asking(running.components.extender_url, running.components.credentials) as http:
        answer = await http.post(f"/{verb}", content=body)
        assert (answer.status_code, words in answer.json()["Error"]) == (400, True), answer.text
    await ready(running)


async def ready(running: Cluster) -> None:
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        assert (await http.get(running.ready_urls["extender"])).status_code == 200


async def test_a_huge_body_is_cut_off(running: Cluster, client: Client) -> None:
    """A binding has four names; nobody needs sixteen kilobytes for them."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield b" " * (1024 * 1024)

    async with asking(running.components.extender_url, running.components.credentials) as http:
        try:
            answer = await http.post("/bind", content=endless())
        except httpx2.HTTPError:
            answer = None  # the server answered and hung up while we were still sending
        assert answer is None or (answer.status_code, "larger" in answer.text) == (413, True)
    await ready(running)


async def test_binding_what_does_not_exist_is_an_error(running: Cluster, client: Client) -> None:
    await placed(client, "steady")
    pod = await client.get(Pod, "steady", namespace="default")
    known = {"PodName": "steady", "PodNamespace": "default", "PodUID": pod.uid, "Node": "node-1"}
    async with asking(running.components.extender_url, running.components.credentials) as http:
        for uid in (pod.uid, "another"):
            asked = {"Pod": {"metadata": {"name": "steady", "uid": uid}}, "NodeNames": ["node-1", "node-99"]}
            await http.post("/filter", json=asked)
        for change, words in (
            ({"PodName": "no-such-pod"}, "no-such-pod"),
            ({"PodUID": "another"}, "another"),
            ({"PodNamespace": "../../nodes"}, ""),
            ({"Node": "node-99"}, ""),
        ):
            answer = await http.post("/bind", json=known | change)
            error = answer.json()["Error"]
            assert error, change
            assert words in error
    assert (await client.get(Pod, "steady", namespace="default")).spec.node_name == "node-1"
    await removed(client, "steady")
