"""Installation, upgrade and uninstallation, at an API server without any process of ours."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.adapters.installation import installation, source
from egpu.adapters.kubernetes import node_conditions
from egpu.adapters.values import AS_DEPLOYED
from egpu.apps.install import REMOVING, Deadline, install, label_nodes, plan, survey, waiting_nodes
from egpu.apps.install.objects import OWNER_LABEL, path_of
from egpu.core.node_condition import Standing, standing
from egpu_base.errors import Conflict, InvalidInput, Refused, Unavailable
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver.calls import User
from support.installing import NAMESPACE, STATUS, Bare, bare, documents, playing
from support.waiting import until

OURS = "/apis/elasticgpu.io/v1alpha1"
AMOUNTS = {
    "elasticgpu.io/gpu-core": "100",
    "nvidia.com/gpu": "1",
    "nvidia.com/mig-1g.10gb": "7",
    "elasticgpu.io/slot": "48",
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncGenerator[Bare]:
    async with bare(tmp_path) as one:
        await one.node("node-1", labels={"elasticgpu.io/node": "true"})
        await one.node("node-2")
        yield one


async def offer(one: Bare, node: str = "node-1") -> None:
    """What an agent writes on its node."""
    path = f"/api/v1/nodes/{node}"
    notes = {"elasticgpu.io/injection": "cdi", "elasticgpu.io/pool-address": "10.0.0.1:7434"}
    labels = {"elasticgpu.io/gpu-count": "1", "elasticgpu.io/gpu-product": "T4"}
    await one.client.raw("PATCH", path, body={"metadata": {"annotations": notes, "labels": labels}}, of=STATUS)
    status = {"status": {"capacity": AMOUNTS, "allocatable": AMOUNTS}}
    await one.client.raw("PATCH", f"{path}/status", body=status, of=STATUS)
    await node_conditions.write(one.client, node, Standing("Ready", "all is well"))


async def claim(one: Bare, name: str = "kept") -> None:
    """A claim with the finalizer that only a controller takes off, made before any webhook is in force."""
    for document in documents():
        if document["kind"] == "CustomResourceDefinition":
            await one.objects.apply(document)
    metadata = {"name": name, "finalizers": ["elasticgpu.io/claim-protection"]}
    body = {"apiVersion": "elasticgpu.io/v1alpha1", "kind": "ElasticGPUClaim", "metadata": metadata}
    spec = {"resources": {"requests": {"elasticgpu.io/gpu-core": 10}}, "elasticGPUClassName": "any"}
    await until(lambda: one.put(f"{OURS}/namespaces/default/elasticgpuclaims", {**body, "spec": spec}))


async def card(one: Bare) -> None:
    body: dict[str, Any] = {"apiVersion": "elasticgpu.io/v1alpha1", "kind": "ElasticGPU", "metadata": {"name": "card"}}
    await one.put(f"{OURS}/elasticgpus", {**body, "spec": {"nodeName": "node-1", "capacity": {}}})


async def test_nothing_is_left_of_an_installation_even_if_all_components_are_dead(cluster: Bare) -> None:
    before = cluster.everything()
    await claim(cluster)
    await card(cluster)
    await cluster.install()
    await offer(cluster)
    assert cluster.everything() != before
    removal = await cluster.uninstall()
    assert cluster.everything() == before
    assert any("claim default/kept was released" in one for one in removal.notes)
    assert (await cluster.uninstall()).removed == [], "again, there is nothing to do"


async def test_each_stage_waits_for_the_one_before(cluster: Bare) -> None:
    await cluster.install()
    added = [one.removeprefix("ADDED ") for one in cluster.writes if one.startswith("ADDED")]
    trusted = cluster.writes.index("MODIFIED mutatingwebhookconfigurations elastic-gpu")
    agents = next(place for place, one in enumerate(cluster.writes) if "daemonsets" in one)
    assert agents > trusted, "a node offers cards only when the webhook sees who asks for them"
    order = [one.split(".")[0].split()[0] for one in added]
    for first, second in (
        ("namespaces", "serviceaccounts"),
        ("customresourcedefinitions", "serviceaccounts"),
        ("clusterrolebindings", "deployments"),
        ("validatingadmissionpolicybindings", "deployments"),
        ("deployments", "mutatingwebhookconfigurations"),
    ):
        assert max(at for at, one in enumerate(order) if one == first) < order.index(second), (first, second)


async def test_a_second_installation_changes_nothing(cluster: Bare) -> None:
    await cluster.install()
    found = await survey(cluster.client, NAMESPACE, documents())
    again = await plan(cluster.objects, documents(), found, doing="install")
    assert (again.of("create"), again.of("change"), again.of("remove")) == ([], [], [])
    before = cluster.everything()
    await cluster.install()
    assert cluster.everything() == before


async def test_a_plan_says_what_would_change_and_changes_nothing(cluster: Bare) -> None:
    before = cluster.everything()
    found = await survey(cluster.client, NAMESPACE, documents())
    first = await plan(cluster.objects, documents(), found, doing="install")
    assert len(first.of("create")) == len(documents())
    assert cluster.everything() == before
    await cluster.install()
    newer = documents(image="registry.example/elastic-gpu:2")
    changed = await plan(cluster.objects, newer, found, doing="upgrade")
    assert {one.split()[0] for one in changed.of("change")} == {"Deployment", "DaemonSet", "ConfigMap"}


async def test_an_upgrade_removes_what_the_new_version_has_no_more(cluster: Bare) -> None:
    await cluster.install()
    old: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "old", "namespace": NAMESPACE}}
    foreign = {**old, "metadata": {"name": "foreign", "namespace": NAMESPACE}}
    old["metadata"]["labels"] = {OWNER_LABEL: "egpu"}
    for one in (old, foreign):
        await cluster.put(f"/api/v1/namespaces/{NAMESPACE}/services", {**one, "spec": {"ports": [{"port": 1}]}})
    done = await cluster.install(image="registry.example/elastic-gpu:2")
    assert done.removed == ("Service old",)
    assert await cluster.objects.find(foreign) is not None


async def test_an_upgrade_is_refused_where_nothing_is_installed(cluster: Bare) -> None:
    found = await survey(cluster.client, NAMESPACE, documents())
    assert "nothing is installed" in " ".join((await plan(cluster.objects, [], found, doing="upgrade")).obstacles)
    assert (await plan(cluster.objects, [], found, doing="install")).obstacles == ()
    await cluster.install()
    found = await survey(cluster.client, NAMESPACE, documents())
    assert found.installer == "egpu"
    assert found.record is not None
    assert found.record.values == AS_DEPLOYED
    assert (await plan(cluster.objects, [], found, doing="upgrade")).obstacles == ()


async def pod(one: Bare, **metadata: Any) -> None:
    body = {
        "metadata": {"name": "trainer", **metadata},
        "spec": {"nodeName": "node-1", "containers": [{"name": "a", "image": "b"}]},
    }
    await one.put("/api/v1/namespaces/default/pods", body)


async def test_pods_with_cards_are_named_and_stay_by_force(cluster: Bare) -> None:
    await pod(cluster, annotations={"elasticgpu.io/allocation": "{}"})
    await cluster.install()
    with pytest.raises(Refused, match=r"1 pods have cards: default/trainer\. Delete them first, or use --force"):
        await cluster.uninstall()
    assert await cluster.objects.find(documents()[0]) is not None, "nothing was touched"
    removal = await cluster.uninstall(force=True)
    assert any("left alone: default/trainer" in one for one in removal.notes)
    assert await cluster.objects.get("/api/v1/namespaces/default/pods/trainer") is not None


async def test_kept_claims_are_there_for_the_next_installation(cluster: Bare) -> None:
    await claim(cluster)
    await cluster.install()
    await cluster.uninstall(keep_claims=True)
    kept = await cluster.objects.get(f"{OURS}/namespaces/default/elasticgpuclaims/kept")
    assert kept is not None
    assert "deletionTimestamp" not in kept["metadata"]
    assert await cluster.objects.find(documents()[0]) is None, "the namespace is gone"
    await cluster.install()
    await cluster.uninstall()


async def test_an_interrupted_removal_continues(cluster: Bare) -> None:
    before = cluster.everything()
    await claim(cluster)
    await cluster.install()
    await offer(cluster)
    for writes in (5, 15, 30):
        cluster.writes.clear()
        task = asyncio.create_task(cluster.uninstall())
        await until(lambda task=task, writes=writes: task.done() or len(cluster.writes) >= writes)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await cluster.uninstall()
    assert cluster.everything() == before


async def test_an_interrupted_installation_continues(cluster: Bare) -> None:
    async def reach(writes: int) -> None:
        task = asyncio.create_task(cluster.install())
        await until(lambda: task.done() or len(cluster.writes) >= writes)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for writes in (3, 30, 60):
        await reach(writes)
    await cluster.install()
    found = await survey(cluster.client, NAMESPACE, documents())
    assert (await plan(cluster.objects, documents(), found, doing="install")).of("create") == []


async def test_fields_of_kubectl_become_ours_and_those_of_others_are_named(cluster: Bare) -> None:
    for document in installation(source()):
        await cluster.client.raw(
            "POST",
            path_of(document).rpartition("/")[0],
            body=document,
            params={"fieldManager": "kubectl-client-side-apply"},
        )
    found = await survey(cluster.client, NAMESPACE, documents())
    assert found.installer == "kubectl"
    await cluster.install(image="registry.example/elastic-gpu:2")
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/elastic-gpu-controller"
    patch = {"spec": {"replicas": 5}}
    await cluster.client.raw("PATCH", path, body=patch, of=STATUS, params={"fieldManager": "argocd"})
    with pytest.raises(Conflict, match=r"Deployment elastic-gpu-controller was changed by another program: .*argocd"):
        await cluster.install(image="registry.example/elastic-gpu:2")


@pytest.mark.parametrize("force", ["false", "true"])
async def test_manifests_name_the_defaults_of_atomic_fields(cluster: Bare, force: str) -> None:
    """So that a server-side apply after a client-side one is no conflict, and a second apply changes nothing."""
    for document in installation(source()):
        await cluster.client.raw(
            "POST",
            path_of(document).rpartition("/")[0],
            body=document,
            params={"fieldManager": "kubectl-client-side-apply"},
        )
    before = cluster.everything()
    for document in installation(source()):
        params = {"fieldManager": "kubectl", "force": force}
        await cluster.client.raw(
            "PATCH", path_of(document), body=document, params=params, of="application/apply-patch+yaml"
        )
    assert cluster.everything() == before


async def test_what_is_not_ready_is_named_at_the_deadline(cluster: Bare) -> None:
    with pytest.raises(
        Unavailable, match=r"webhook is not ready after 0\.5 s: Deployment elastic-gpu-webhook has 0 of 2"
    ):
        await install(cluster.objects, documents(), deadline=Deadline(0.5), progress=lambda _: None, prune=True)


async def test_rights_are_known_before_anything_is_written(cluster: Bare) -> None:
    reader = cluster.server.add_user("reader", User("reader", ("system:masters",)))
    nobody = cluster.server.add_user("nobody", User("nobody"))
    rbac = "rbac.authorization.k8s.io"
    role = {"metadata": {"name": "see"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]}
    bound = {
        "metadata": {"name": "see"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "see"},
        "subjects": [{"kind": "User", "apiGroup": rbac, "name": "nobody"}],
    }
    for plural, body in (("clusterroles", role), ("clusterrolebindings", bound)):
        await cluster.put(f"/apis/rbac.authorization.k8s.io/v1/{plural}", body)
    async with Client.from_kubeconfig(reader) as client:
        assert (await survey(client, NAMESPACE, documents())).rights == ()
    async with Client.from_kubeconfig(nobody) as client:
        found = await survey(client, NAMESPACE, documents(), verbs=REMOVING)
        assert "delete deployments" in found.rights
        assert "list deployments" not in found.rights


async def test_the_page_of_a_platform_is_named(cluster: Bare) -> None:
    await cluster.node("n", labels={"node.openshift.io/os_id": "rhel"})
    found = await survey(cluster.client, NAMESPACE, documents())
    made = await plan(cluster.objects, documents(), found, doing="install")
    assert any("this is OpenShift: docs/operate/managed-clusters.md" in one for one in made.notes)


async def test_values_of_an_installation_are_remembered(cluster: Bare) -> None:
    chosen = replace(AS_DEPLOYED, vocabularies=("hami",))
    await cluster.install(chosen)
    found = await survey(cluster.client, NAMESPACE, documents())
    assert found.record is not None
    assert found.record.values == chosen


PLUGIN = {"labels": {"app": "nvidia-device-plugin-daemonset"}}
MOUNTED = [{"name": "v", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]


async def test_nodes_without_a_label_are_named_and_labelled_only_if_asked(cluster: Bare) -> None:
    gpus = {"status": {"capacity": {"nvidia.com/gpu": "8"}}}
    await cluster.client.raw("PATCH", "/api/v1/nodes/node-2/status", body=gpus, of=STATUS)
    await cluster.node("node-3", labels={"nvidia.com/gpu.present": "true"})
    found = await survey(cluster.client, NAMESPACE, documents())
    assert {one.name: one.served for one in found.gpu_nodes} == {"node-1": True, "node-2": False, "node-3": True}
    (note,) = (await plan(cluster.objects, documents(), found, doing="install")).notes
    assert note.startswith("no agent runs on node-2 (capacity nvidia.com/gpu): kubectl label node NODE")
    await node_conditions.write(cluster.client, "node-1", Standing("NoDriver", "Install it"))
    await node_conditions.write(cluster.client, "node-2", Standing("Ready", "all is well"))
    assert await waiting_nodes(cluster.client) == ["node-1 offers nothing, NoDriver: Install it"]
    await label_nodes(cluster.objects, found)
    found = await survey(cluster.client, NAMESPACE, documents())
    assert all(one.served for one in found.gpu_nodes)
    chosen = documents(replace(AS_DEPLOYED, agent=replace(AS_DEPLOYED.agent, node_selector={"a": "b"})))
    found = await survey(cluster.client, NAMESPACE, chosen)
    (note,) = (await plan(cluster.objects, chosen, found, doing="install")).notes
    assert "agent.nodeSelector or agent.affinity of your values leaves them out" in note
    with pytest.raises(InvalidInput, match="your values choose"):
        await label_nodes(cluster.objects, found)


async def test_a_conflict_is_named_in_the_words_of_the_nodes_condition(cluster: Bare) -> None:
    spec: dict[str, Any] = {"nodeName": "node-1", "containers": [{"name": "a", "image": "b"}]}
    plugin = {"metadata": {"name": "p", **PLUGIN}, "spec": {**spec, "volumes": MOUNTED}}
    await cluster.put("/api/v1/namespaces/default/pods", plugin)
    tenants = {"metadata": {"name": "q", **PLUGIN}, "spec": {**spec, "nodeName": "node-3"}}
    await cluster.put("/api/v1/namespaces/default/pods", tenants)
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    slices = {"driver": "gpu.nvidia.com", "nodeName": "node-2", "pool": pool, "devices": [{"name": "gpu-0"}]}
    await cluster.put("/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": "s"}, "spec": slices})
    await cluster.objects.merge("/api/v1/nodes/node-2", {"metadata": {"labels": {"elasticgpu.io/node": "true"}}})
    found = await survey(cluster.client, NAMESPACE, documents())
    said = (await plan(cluster.objects, documents(), found, doing="install")).notes
    for node, rival in found.contested.items():
        (note,) = (one for one in said if one.startswith(rival.conflict(node)))
        assert rival.mend in note
        assert rival.conflict("this node") in standing("n", rivals=[rival], driver=None, starting=None, users=0).message
    assert len(said) == len(found.contested) == 2
    assert found.rivals is not None
    assert "node-3" not in found.rivals, "a label alone makes no other program"


async def test_a_player_alone_is_no_installation(cluster: Bare) -> None:
    async with playing(cluster.client):
        assert (await survey(cluster.client, NAMESPACE, documents())).installer == ""
