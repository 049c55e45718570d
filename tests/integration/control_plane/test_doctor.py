"""`egpu doctor` on clusters that lack something: it says what, and how to fix it."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from egpu.adapters.installation import installation, source
from egpu.adapters.kubernetes import node_conditions
from egpu.adapters.values import parse
from egpu.api import names
from egpu.api.crds import definitions
from egpu.api.objects import ElasticGPU
from egpu.cli.doctor import CHECKS, examine
from egpu.cli.findings import Finding, State
from egpu.core.node_condition import Standing
from egpu.core.schedulers import OWN_SCHEDULER
from egpu_base.api.kubernetes import CustomResourceDefinition, Node, Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes import Client
from egpu_sim.cluster import apiserver
from support.control_plane import SYSTEM, ControlPlane, admission, control_plane, extender


async def examined(client: Client, *, later: timedelta = timedelta()) -> Mapping[str, Finding]:
    found = await examine(client, SYSTEM, now=datetime.now(UTC) + later)
    assert list(found) == list(CHECKS)
    assert all(one.found for one in found.values())
    assert all(bool(one.mend) == (one.state is State.WRONG) for one in found.values())
    assert all(one.see == (CHECKS[name][1].link if one.mend else "") for name, one in found.items())
    return found


def wrong(findings: Mapping[str, Finding]) -> list[str]:
    return [name for name, one in findings.items() if one.state is State.WRONG]


def a_pod(name: str, *, namespace: str = "default", image: str = "x", **more: Any) -> dict[str, Any]:
    """`more`: labels, annotations, nodeName, command, volumes."""
    container = {"name": "app", "image": image, **({"command": more["command"]} if "command" in more else {})}
    spec = {"containers": [container], **({"nodeName": more["node"]} if "node" in more else {})}
    spec |= {"volumes": more["volumes"]} if "volumes" in more else {}
    metadata = {"name": name, "namespace": namespace}
    metadata |= {key: more[key] for key in ("labels", "annotations") if key in more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


READY = {"conditions": [{"type": "Ready", "status": "True"}]}


async def becomes(client: Client, name: str, status: Mapping[str, Any]) -> None:
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{name}/status"
    pod = await client.raw("GET", path.removesuffix("/status"))
    await client.raw("PUT", path, body={**pod, "status": {**pod["status"], **status}})


async def offers(client: Client, node: str, slots: str) -> None:
    await client.patch(Node, node, {"status": {"allocatable": {names.SLOT: slots}}}, subresource="status")


async def injects(client: Client, node: str, words: str | None) -> None:
    await client.patch(Node, node, {"metadata": {"annotations": {names.INJECTION: words}}})


@asynccontextmanager
async def healthy(folder: Path) -> AsyncGenerator[ControlPlane]:
    """The control plane and two nodes with a card each."""
    async with control_plane(folder) as w, admission(w), extender(w):
        for node in ("n0", "n1"):
            await w.node(node)
            await offers(w.client, node, "48")
            await injects(w.client, node, "CDI: kubelet v1.36.2, containerd 2.1.4")
        yield w


async def test_a_cluster_without_anything(tmp_path: Path) -> None:
    async with (
        apiserver.serve(apiserver.Config(directory=tmp_path)) as server,
        Client.from_kubeconfig(server.kubeconfig) as client,
    ):
        findings = await examined(client)
    assert findings["API server"].state is State.OK
    assert "is missing" in findings["definitions"].found
    assert findings["definitions"].mend == "egpu install"
    assert {"definitions", "webhook", "admission", "extender"} <= set(wrong(findings))
    assert findings["cards"].state is State.UNSEEN, "there is no such resource to read"


async def test_a_whole_installation_has_nothing_wrong(tmp_path: Path) -> None:
    async with healthy(tmp_path) as w:
        findings = await examined(w.client)
        assert wrong(findings) == []
        assert findings["admission"].found == "a GPU pod gets its demand"
        unseen = [name for name, one in findings.items() if one.state is State.UNSEEN]
        assert unseen == ["controller", "kube-scheduler", "components"]
        assert findings["cards"].found == "2 cards are healthy"
        later = await examined(w.client, later=timedelta(minutes=5))
        assert wrong(later) == ["extender"]
        assert "no leader" in later["extender"].found


async def test_the_dry_run_leaves_nothing(tmp_path: Path) -> None:
    async with healthy(tmp_path) as w:
        await examined(w.client)
        assert (await w.client.raw("GET", "/api/v1/pods"))["items"] == []


async def test_definitions_of_another_version(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as w:
        (claims,) = (one for one in definitions() if one["spec"]["names"]["kind"] == "ElasticGPUClaim")
        for version in claims["spec"]["versions"]:  # which share what they say
            version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"].pop("usedBy", None)
        name = claims["metadata"]["name"]
        await w.client.patch(CustomResourceDefinition, name, {"spec": {"versions": claims["spec"]["versions"]}})
        found = (await examined(w.client))["definitions"]
    assert found.state is State.WRONG
    assert "v1alpha1.status.usedBy" in found.found
    assert "elasticgpus.elasticgpu.io" not in found.found


async def test_a_webhook_that_does_not_answer(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as w:
        async with admission(w):
            pass
        findings = await examined(w.client)
    assert findings["webhook"].state is State.OK
    assert findings["admission"].state is State.WRONG
    assert "does not reach the webhook" in findings["admission"].found
    assert "elastic-gpu-webhook" in findings["admission"].mend


SCHEDULER: dict[str, Any] = {"namespace": "kube-system", "labels": {"component": "kube-scheduler"}}
PLUGIN: dict[str, Any] = {
    "namespace": "kube-system",
    "labels": {"name": "nvidia-device-plugin-ds"},
    "volumes": [{"name": "v", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}],
}
OURS: dict[str, Any] = {"namespace": SYSTEM, "labels": {"app.kubernetes.io/part-of": "elastic-gpu"}}


@pytest.mark.parametrize(
    ("pods", "check", "said"),
    [
        ([a_pod("s", **SCHEDULER, command=["kube-scheduler", "--v=2"])], "kube-scheduler", "without a configuration"),
        ([a_pod("p", node="n0", annotations={names.DEMAND: "{}"})], "kube-scheduler", "default/p"),
        ([a_pod("d", **PLUGIN, node="n0")], "agents", "our agent would both give out the cards of n0"),
        ([a_pod("c", **OURS), a_pod("e", **OURS)], "components", "1 of 2 pods are not ready: e on no node"),
        ([a_pod("c", **OURS, image="a:1"), a_pod("c2", **OURS, image="a:2")], "components", "a:1, a:2"),
    ],
    ids=["no configuration", "no extender", "another plugin", "not ready", "two images"],
)
async def test_pods_that_tell_of_something_wrong(
    pods: Sequence[dict[str, Any]], check: str, said: str, tmp_path: Path
) -> None:
    async with control_plane(tmp_path) as w:
        await w.node("n0")
        await offers(w.client, "n0", "48")
        for pod in pods:
            await w.create(pod)
            if pod["metadata"]["name"].startswith("c"):
                await becomes(w.client, pod["metadata"]["name"], READY)
        found = (await examined(w.client))[check]
    assert found.state is State.WRONG
    assert said in found.found


@pytest.mark.parametrize("selector", [{"example.com/gpu": "true"}, None], ids=["a site's selector", "discovery"])
async def test_a_node_that_should_have_an_agent_and_offers_nothing(
    selector: dict[str, str] | None, tmp_path: Path
) -> None:
    async with control_plane(tmp_path) as w:
        labels = selector or {"cloud.google.com/gke-accelerator": "nvidia-l4"}
        await w.client.create(Node, Node(metadata=ObjectMeta(name="late", labels=labels)))
        await w.client.create(Node, Node(metadata=ObjectMeta(name="other", labels={"elasticgpu.io/node": "true"})))
        if selector is not None:
            for document in installation(source(), parse(yaml.safe_dump({"agent": {"nodeSelector": selector}}))):
                if (document["kind"], document["metadata"]["name"]) == ("DaemonSet", "elastic-gpu-agent"):
                    document["metadata"]["namespace"] = SYSTEM
                    await w.client.raw("POST", f"/apis/apps/v1/namespaces/{SYSTEM}/daemonsets", body=document)
        found = (await examined(w.client))["agents"]
        silent = "1 of 1 nodes offer no slots: late" if selector else "2 of 2 nodes offer no slots: late, other"
        assert found.found == silent
        await node_conditions.write(w.client, "late", Standing("NoDriver", "Install NVIDIA's driver"))
        found = (await examined(w.client))["agents"]
        assert found.state is State.WRONG
        assert found.found == "late offers nothing, NoDriver: Install NVIDIA's driver"


async def test_pods_that_tell_that_all_is_well(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as w:
        await w.create(a_pod("s", **SCHEDULER, command=["kube-scheduler", "--config=/etc/k.yaml"]))
        await w.create(a_pod("p", annotations={names.DEMAND: "{}"}))
        bound = await w.client.get(Pod, "p", namespace="default")
        given = {names.ALLOCATION: "{}"}
        await w.client.bind("p", "n0", namespace="default", uid=bound.uid, annotations=given)
        await w.create(a_pod("c", **OURS, image="a:1"))
        await becomes(w.client, "c", READY)
        await w.create(a_pod("evicted", **OURS))
        await becomes(w.client, "evicted", {"phase": "Failed", "reason": "Evicted"})
        findings = await examined(w.client)
    assert findings["kube-scheduler"] == Finding(State.OK, "the extender bound each of 1 GPU pods")
    assert findings["components"] == Finding(State.OK, "1 pods are ready, with image a:1")


async def test_our_own_scheduler_needs_nothing_of_the_clusters(tmp_path: Path) -> None:
    """Its pods have another image beside ours, and the cluster's kube-scheduler has no configuration."""
    labels = {**OURS["labels"], "app.kubernetes.io/name": OWN_SCHEDULER}
    own = a_pod("c", namespace=SYSTEM, labels=labels, image="a:1")
    own["spec"]["containers"].append({"name": "kube-scheduler", "image": "registry.k8s.io/kube-scheduler:v1.36.2"})
    async with control_plane(tmp_path) as w:
        await w.create(a_pod("s", **SCHEDULER, command=["kube-scheduler", "--v=2"]))
        await w.create(own)
        await becomes(w.client, "c", READY)
        findings = await examined(w.client)
        assert findings["components"] == Finding(State.OK, "1 pods are ready, with image a:1")
        assert findings["kube-scheduler"] == Finding(State.UNSEEN, "no GPU pod is bound yet")
        await w.create(a_pod("p", node="n0", annotations={names.DEMAND: "{}"}))
        found = (await examined(w.client))["kube-scheduler"]
    assert found.state is State.WRONG
    assert "the webhook names elastic-gpu-scheduler in new ones" in found.mend


async def test_nodes_and_cards(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as w:
        assert "label node" in (await examined(w.client))["agents"].mend
        for number in range(7):
            await w.node(f"n{number}")
        found = (await examined(w.client))["agents"]
        assert found.found == "7 of 7 nodes offer no slots: n0, n1, n2, n3, n4 and 2 more"
        for number in range(7):
            await offers(w.client, f"n{number}", "0" if number == 3 else "2k")
        assert (await examined(w.client))["agents"].found == "1 of 7 nodes offer no slots: n3"
        unhealthy = {"status": {"healthy": False, "message": "the driver does not answer"}}
        await w.client.patch(ElasticGPU, "n2-card0", unhealthy, subresource="status")
        found = (await examined(w.client))["cards"]
        assert (found.state, found.found) == (
            State.WRONG,
            "1 of 7 cards are not healthy: n2-card0 (the driver does not answer)",
        )


async def test_cards_without_mps_are_told_with_the_reason(tmp_path: Path) -> None:
    async with healthy(tmp_path) as w:
        for card, mps in (("n0-card0", "ready"), ("n1-card0", "its program is missing")):
            await w.client.patch(ElasticGPU, card, {"spec": {"physicalGPU": {"mps": mps}}})
        found = (await examined(w.client))["cards"]
        assert found == Finding(State.OK, "2 cards are healthy; no MPS slices on 1: its program is missing")


async def test_cards_that_thrash_are_named(tmp_path: Path) -> None:
    async with healthy(tmp_path) as w:
        assert (await examined(w.client))["shared room"] == Finding(State.OK, "no card thrashes")
        await w.client.patch(Node, "n1", {"metadata": {"annotations": {names.THRASHING_CARDS: "GPU-n1-0,GPU-gone"}}})
        found = (await examined(w.client))["shared room"]
        assert found.state is State.WRONG
        assert found.found == "on n1-card0, slices that share room wait for each other most of the time"


async def test_how_slots_reach_containers_is_said_by_node(tmp_path: Path) -> None:
    async with healthy(tmp_path) as w:
        assert (await examined(w.client))["injection"] == Finding(State.OK, "by CDI on 2 nodes")
        await injects(w.client, "n1", "paths: --cdi never")
        found = (await examined(w.client))["injection"]
        assert found.state is State.OK
        assert found.found == "by CDI on 1 nodes, as paths on n1 (--cdi never): these nodes need NVIDIA's runtime"
        for node in ("n0", "n1"):
            await injects(w.client, node, None)
        assert (await examined(w.client))["injection"].state is State.UNSEEN
