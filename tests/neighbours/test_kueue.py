"""Kueue with its own controller: quotas in percent and MiB of cards, beside our placement."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.kubernetes import Client
from support.lost_answers import removed
from support.neighbour_programs import Json, Neighbour, of_page
from support.pod_groups import given, gone, pods_of, run, waits
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
KUEUE = Neighbour(
    "kueue",
    "config.kueue.x-k8s.io/v1beta1",
    {
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
        # Our webhook adds it to pods, and it counts no part of a card.
        "resources": {"excludeResourcePrefixes": [names.SLOT]},
    },
)
API = "/apis/kueue.x-k8s.io/v1beta1"
QUEUES = f"{API}/namespaces/default/localqueues"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
HOSTNAME = "kubernetes.io/hostname"


async def set_up(
    client: Client,
    quotas: dict[str, str],
    *,
    of_queue: Mapping[str, Any] | None = None,
    of_flavor: Mapping[str, Any] | None = None,
) -> None:
    """The documentation's queues, with quotas of card resources beside CPU and memory."""
    flavor, cluster_queue, queue = KUEUE.example("single-clusterqueue-setup.yaml")
    flavor["spec"] = dict(of_flavor or {})
    (group,) = cluster_queue["spec"]["resourceGroups"]
    group["coveredResources"] += list(quotas)
    group["flavors"][0]["resources"] += [{"name": name, "nominalQuota": amount} for name, amount in quotas.items()]
    cluster_queue["spec"] |= {"preemption": {"withinClusterQueue": "LowerPriority"}, **(of_queue or {})}
    await client.raw("POST", f"{API}/resourceflavors", body=flavor)
    await client.raw("POST", f"{API}/clusterqueues", body=cluster_queue)
    await client.raw("POST", QUEUES, body=queue)


async def take_down(client: Client) -> None:
    paths = (f"{QUEUES}/user-queue", f"{API}/clusterqueues/cluster-queue", f"{API}/resourceflavors/default-flavor")
    for path in paths:  # a finalizer of the controller holds some
        await removed(client, path)


def job(name: str, limits: dict[str, str], *, priority: str = "", pods: int = 3) -> Json:
    """The documentation's Job of three pods, with a slice for each."""
    (body,) = KUEUE.example("sample-job.yaml")
    body["metadata"] = {"name": name, "labels": body["metadata"]["labels"]}
    body["spec"] |= {"parallelism": pods, "completions": pods}
    spec = body["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 0
    spec["containers"][0]["args"] = ["-c", "sleep 1000"]  # its minute is short on a busy machine
    if priority:
        spec["priorityClassName"] = priority
    spec["containers"][0]["resources"]["limits"] = limits
    return body


async def suspended(client: Client, name: str) -> bool:
    found: Any = await client.raw("GET", f"{JOBS}/{name}")
    return bool(found["spec"]["suspend"])


async def says(client: Client, text: str) -> bool:
    """Return whether Kueue says this of a workload."""
    found: Any = await client.raw("GET", f"{API}/namespaces/default/workloads")
    conditions = [one for item in found["items"] for one in item.get("status", {}).get("conditions") or ()]
    return any(text in one["message"] for one in conditions)


async def remove(client: Client, name: str) -> None:
    await client.raw("DELETE", f"{JOBS}/{name}", params={"propagationPolicy": "Background"})
    await gone(client, f"job-name={name}")


async def test_jobs_wait_for_quota_in_percent_and_mib(running: Cluster, client: Client, tmp_path: Path):
    """Two Jobs want 150 % and 12 GiB each; the quota is 200 % and 40 GiB. The second one starts when the first is gone,
    though there are four free cards."""
    async with KUEUE.running(running, client, tmp_path):
        await set_up(client, {names.GPU_CORE: "200", names.GPU_MEMORY: "40960"})
        limits = {names.GPU_CORE: "50", names.GPU_MEMORY: "4096"}
        await client.raw("POST", JOBS, body=job("first", limits))
        pods = await run(client, "job-name=first", 3)
        assert sum(given(pods).values()) == 150
        await client.raw("POST", JOBS, body=job("second", limits))
        await until(lambda: says(client, f"insufficient unused quota for {names.GPU_CORE}"), seconds=120)
        assert await suspended(client, "second")
        assert await pods_of(client, "job-name=second") == []
        await remove(client, "first")
        await run(client, "job-name=second", 3)
        await remove(client, "second")
        await take_down(client)


async def test_the_example_of_the_page_runs(running: Cluster, client: Client, tmp_path: Path):
    flavor, cluster_queue, queue, body = of_page("kueue")
    spec = body["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 0
    spec["containers"][0]["command"] = ["sleep", "1000"]  # simulated nodes have no images
    async with KUEUE.running(running, client, tmp_path):
        await client.raw("POST", f"{API}/resourceflavors", body=flavor)
        await client.raw("POST", f"{API}/clusterqueues", body=cluster_queue)
        await client.raw("POST", QUEUES, body=queue)
        await client.raw("POST", JOBS, body=body)
        pods = await run(client, "job-name=slices", 3)
        assert sum(given(pods).values()) == 150
        await remove(client, "slices")
        await removed(client, f"{QUEUES}/team")
        await removed(client, f"{API}/clusterqueues/team")
        await removed(client, f"{API}/resourceflavors/cards")


async def test_kueue_evicts_a_less_important_job_and_its_cards_are_used_again(
    running: Cluster, client: Client, tmp_path: Path
):
    """Kueue decides who gives quota back; it suspends the whole Job, and no pod is evicted by us."""
    async with KUEUE.running(running, client, tmp_path):
        await set_up(client, {names.GPU_CORE: "400"})
        urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
        await client.raw("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body={**urgent, "value": 1000})
        await client.raw("POST", JOBS, body=job("usual", {names.GPU_CORE: "100"}))
        await run(client, "job-name=usual", 3)
        await client.raw("POST", JOBS, body=job("rush", {names.GPU_CORE: "100"}, priority="urgent"))
        pods = await run(client, "job-name=rush", 3)
        assert list(given(pods).values()) == [100] * 3
        assert await suspended(client, "usual")
        events: Any = await client.raw("GET", "/api/v1/namespaces/default/events")
        assert not [
            one for one in events["items"] if one["reason"] in ("Preempting", "Preempted") and "card" in one["message"]
        ]
        for name in ("rush", "usual"):
            await remove(client, name)
        await client.raw("DELETE", "/apis/scheduling.k8s.io/v1/priorityclasses/urgent")
        await take_down(client)


async def test_a_queue_borrows_from_its_cohort_until_the_lender_asks(running: Cluster, client: Client, tmp_path: Path):
    """Each of two queues has two cards. One borrows a third, and Kueue suspends its Job when the other one needs it."""
    cohort = {"cohort": "team", "preemption": {"reclaimWithinCohort": "Any"}}
    lender = f"{API}/clusterqueues/lender", f"{QUEUES}/lender"
    async with KUEUE.running(running, client, tmp_path):
        await set_up(client, {names.GPU_CORE: "200"}, of_queue=cohort)
        queue: Any = await client.raw("GET", f"{API}/clusterqueues/cluster-queue")
        await client.raw("POST", f"{API}/clusterqueues", body={**queue, "metadata": {"name": "lender"}})
        local: Any = await client.raw("GET", f"{QUEUES}/user-queue")
        body = {**local, "metadata": {"name": "lender"}, "spec": {"clusterQueue": "lender"}}
        await client.raw("POST", QUEUES, body=body)
        await client.raw("POST", JOBS, body=job("borrower", {names.GPU_CORE: "100"}))
        await run(client, "job-name=borrower", 3)
        owner = job("owner", {names.GPU_CORE: "100"}, pods=2)
        owner["metadata"]["labels"] = {QUEUE_LABEL: "lender"}
        await client.raw("POST", JOBS, body=owner)
        assert list(given(await run(client, "job-name=owner", 2)).values()) == [100, 100]
        assert await suspended(client, "borrower")
        await remove(client, "owner")
        await run(client, "job-name=borrower", 3)
        await remove(client, "borrower")
        for path in reversed(lender):
            await removed(client, path)
        await take_down(client)


async def test_pods_get_cards_of_the_nodes_of_their_flavor(running: Cluster, client: Client, tmp_path: Path):
    """Kueue adds a node selector to the pods. The two cards of the node are enough for two pods, and not for three."""
    _, node = sorted(one.name for one in await client.list(Node))
    async with KUEUE.running(running, client, tmp_path):
        labels = {HOSTNAME: node}
        await set_up(client, {names.GPU_CORE: "200"}, of_flavor={"nodeLabels": labels})
        await client.raw("POST", JOBS, body=job("of-a-node", {names.GPU_CORE: "100"}, pods=2))
        pods = await run(client, "job-name=of-a-node", 2)
        assert [pod.spec.node_name for pod in pods] == [node] * 2
        assert list(given(pods).values()) == [100, 100]
        await remove(client, "of-a-node")
        await take_down(client)


async def test_a_job_gets_all_its_cards_in_one_domain_of_a_topology(running: Cluster, client: Client, tmp_path: Path):
    """The domain is a node, and has two cards. Two Jobs of two pods get a node each. A Job of three pods is never
    admitted, though four cards are free. Kueue adds up the percent of a node: a Job of three pods of 60 % is admitted,
    and one of them waits for a card."""
    async with _aware_of_nodes(running, client, tmp_path):
        nodes: list[str | None] = []
        for name in ("first", "second"):
            await client.raw("POST", JOBS, body=_on_one_node(job(name, {names.GPU_CORE: "100"}, pods=2)))
            pods = await run(client, f"job-name={name}", 2)
            assert list(given(pods).values()) == [100, 100]
            assert len({pod.spec.node_name for pod in pods}) == 1
            nodes.append(pods[0].spec.node_name)
        assert len(set(nodes)) == 2
        for name in ("first", "second"):
            await remove(client, name)
        await client.raw("POST", JOBS, body=_on_one_node(job("wide", {names.GPU_CORE: "100"})))
        await until(lambda: says(client, "allows to fit only 2 out of 3 pod(s)"), seconds=120)
        assert await suspended(client, "wide")
        await remove(client, "wide")
        await client.raw("POST", JOBS, body=_on_one_node(job("narrow", {names.GPU_CORE: "60"})))
        await waits(client, "job-name=narrow", "0 of 2 cards can take it")
        assert list(given(await pods_of(client, "job-name=narrow")).values()) == [60, 60]
        await remove(client, "narrow")


@contextlib.asynccontextmanager
async def _aware_of_nodes(running: Cluster, client: Client, directory: Path) -> AsyncGenerator[None]:
    """Run Kueue with a queue of four cards, whose topology has one level: nodes."""
    gates = {**KUEUE.settings["featureGates"], "TopologyAwareScheduling": True}
    aware = replace(KUEUE, settings={**KUEUE.settings, "featureGates": gates})
    topology, *_ = KUEUE.example("sample-queues.yaml")
    topology["spec"]["levels"] = [{"nodeLabel": HOSTNAME}]
    topologies, name = f"{API.replace('v1beta1', 'v1alpha1')}/topologies", topology["metadata"]["name"]
    async with aware.running(running, client, directory):
        await client.raw("POST", topologies, body=topology)
        of_flavor = {"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": name}
        await set_up(client, {names.GPU_CORE: "400"}, of_flavor=of_flavor)
        yield
        await take_down(client)
        await removed(client, f"{topologies}/{name}")


def _on_one_node(body: Json) -> Json:
    """Return a Job whose pods must be on one node."""
    annotations = {"kueue.x-k8s.io/podset-required-topology": HOSTNAME}
    body["spec"]["template"].setdefault("metadata", {})["annotations"] = annotations
    return body


async def test_a_group_of_gated_pods_starts_when_kueue_admits_all(running: Cluster, client: Client, tmp_path: Path):
    async with KUEUE.running(running, client, tmp_path):
        await set_up(client, {names.GPU_CORE: "150"})
        pods = KUEUE.example("kueue-pod-group.yaml")
        for at, pod in enumerate(pods):
            pod["metadata"] |= {"name": f"member-{at}", "generateName": ""}
            pod["metadata"]["labels"]["group"] = "gated"
            pod["spec"] |= {"terminationGracePeriodSeconds": 0}
            container = pod["spec"]["containers"][0]
            container |= {"command": ["sleep", "1000"], "resources": {"limits": {names.GPU_CORE: "60"}}}
        await client.raw("POST", "/api/v1/namespaces/default/pods", body=pods[0])

        async def gated() -> bool:
            (found,) = await pods_of(client, "group=gated")
            return bool(found.spec.scheduling_gates) and not found.spec.node_name

        await until(gated, seconds=120)
        await client.raw("POST", "/api/v1/namespaces/default/pods", body=pods[1])
        found = await run(client, "group=gated", 2)
        assert sum(given(found).values()) == 120
        for pod in found:
            await client.delete(Pod, pod.name, namespace="default", grace_period_seconds=0)
        # Kueue keeps pods of a group by a finalizer, until its Workload is gone.
        await client.raw("DELETE", f"{API}/namespaces/default/workloads/sample-group")
        await gone(client, "group=gated")
        await take_down(client)


async def test_kueue_counts_slots_of_pods_unless_told_not_to(running: Cluster, client: Client, tmp_path: Path):
    """The webhook adds `elasticgpu.io/slot` to pods. A queue admits no pod with a resource that it does not cover."""
    plain = replace(KUEUE, settings={key: value for key, value in KUEUE.settings.items() if key != "resources"})
    async with plain.running(running, client, tmp_path):
        await set_up(client, {names.GPU_CORE: "150"})
        (pod,) = KUEUE.example("kueue-pod.yaml")
        pod["metadata"] |= {"name": "counted", "generateName": ""}
        pod["metadata"]["labels"]["group"] = "counted"
        pod["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_CORE: "60"}}
        await client.raw("POST", "/api/v1/namespaces/default/pods", body=pod)
        await until(lambda: says(client, f"resource {names.SLOT} unavailable"), seconds=120)
        await client.delete(Pod, "counted", namespace="default", grace_period_seconds=0)
        await gone(client, "group=counted")
        await take_down(client)
