"""Each component runs with exactly the rights that deploy/ gives it: enough for all that it does, and none to spare.

The API server is asked whose requests it let through and whose not, while claims, pods of several technologies, a gang,
reclaim, metrics and restarts go through it.
"""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import yaml

from egpu.adapters.installation import installation, source
from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.api.webhooks import MutatingWebhookConfiguration
from egpu.core.neighbours.table import NEIGHBOURS
from egpu.core.schedulers import OWN_SCHEDULER
from egpu.laptop import manifests
from egpu.laptop.cluster import NAMESPACE, Cluster, ClusterConfig, cluster
from egpu.laptop.dashboard import start_dashboard
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from egpu_sim.cluster.apiserver import User
from egpu_sim.cluster.apiserver.access.authorization import Wanted, covers
from support.waiting import until

COMPONENTS = ("agent", "controller", "dashboard", "extender", "webhook")
SECONDS = 90.0

Used = Counter[tuple[str, Wanted]]

UNUSED = {
    **{
        ("elastic-gpu-webhook", f"get {one.plural}"): "groups of projects that are not installed here"
        for one in NEIGHBOURS
    },
    ("elastic-gpu-agent", "create events"): "a container that stayed over its memory",
    ("elastic-gpu-agent", "list pods"): "whose slots may be swept, every 15 s",
    ("elastic-gpu-agent", "patch elasticgpus"): "a card that is another than it was",
    ("elastic-gpu-agent", "patch nodes"): "a node that registers with a start-up taint",
    ("elastic-gpu-agent", "get daemonsets"): "the end of an agent whose DaemonSet is removed",
    ("elastic-gpu-controller", "patch nodes/status"): "a node whose agent is gone",
    ("elastic-gpu-agent", "list resourceclaims"): "a node that is to leave kube-scheduler",
    **{
        ("elastic-gpu-agent", what): "a node of kube-scheduler"
        for what in (
            *(f"{verb} resourceslices" for verb in ("get", "list", "create", "patch", "delete")),
            "get resourceclaims",
            "patch resourceclaims/status",
            "associated-node:patch resourceclaims/driver",
        )
    },
    **{
        ("elastic-gpu-extender", what): "a node whose cards the extender gives to claims, too"
        for what in (
            "get resourceclaims",
            "patch resourceclaims",
            "patch resourceclaims/status",
            "patch resourceclaims/binding",
        )
    },
    ("elastic-gpu-controller", "create deviceclasses"): "an API server with resource.k8s.io",
    ("elastic-gpu-controller", "patch deviceclasses"): "a DeviceClass of an earlier version",
    ("elastic-gpu-controller", "create elasticgpuclaims"): "a pod with the template of a claim",
    ("elastic-gpu-controller", "delete elasticgpuclaims"): "such a pod that has finished",
    ("elastic-gpu-controller", "create leases"): "several replicas, one of which leads",
    ("elastic-gpu-controller", "get leases"): "likewise",
    ("elastic-gpu-controller", "patch leases"): "likewise",
    ("elastic-gpu-controller", "get elasticgpuclaims"): "a slice whose claim the cache lacks",
    ("elastic-gpu-controller", "get elasticgpus"): "a claim of which the cache lacks a slice",
    ("elastic-gpu-controller", "get nodes"): "a slice whose node the cache lacks",
    ("elastic-gpu-controller", "patch elasticgpus"): "a claim that gets another size",
    ("elastic-gpu-controller", "patch secrets"): "a certificate that comes to its end",
    ("elastic-gpu-extender", "create events"): "an immediate claim that fits nowhere",
    ("elastic-gpu-extender", "delete pods"): "a gang that is bound in part and cannot be completed",
    ("elastic-gpu-extender", "get elasticgpuclaims"): "a claim that changed while it was being bound",
    ("elastic-gpu-extender", "get pods"): "a pod that changed while it was being bound",
    ("elastic-gpu-extender", "list resourcequotas"): "a slice that is to grow",
    ("elastic-gpu-extender", "patch elasticgpuclaims"): "what waits, when another extender takes over",
    ("elastic-gpu-extender", "patch pods"): "likewise",
    ("elastic-gpu-metrics", "get /metrics"): "for Prometheus",
    ("elastic-gpu-scheduler", "update leases"): "the election of a real kube-scheduler; the simulated one patches",
    ("elastic-gpu-scheduler-authentication", "get configmaps"): "the readers of a real kube-scheduler's metrics",
    ("elastic-gpu-scheduler-authentication", "list configmaps"): "likewise",
    ("elastic-gpu-scheduler-authentication", "watch configmaps"): "likewise",
    ("elastic-gpu-webhook", "get elasticgpuclaims"): "a claim that came just before its pod",
    ("elastic-gpu-webhook", "get elasticgpuclasses"): "likewise, a class",
    ("elastic-gpu-webhook", "list pods"): "a pod that names a gang",
}
"""Rights that the flow below does not always need, and what needs them."""
FOR_PEOPLE = ("elastic-gpu-explain", "elastic-gpu-viewer")
"""Roles that no component has."""


def a_class(name: str, provisioner: str, **more: str) -> dict[str, Any]:
    meta = {"apiVersion": "elasticgpu.io/v1alpha1", "kind": "ElasticGPUClass", "metadata": {"name": name}}
    return {**meta, "provisioner": provisioner, "reclaimPolicy": "Delete", **more}


def a_claim(name: str, class_name: str) -> dict[str, Any]:
    meta = {"apiVersion": "elasticgpu.io/v1alpha1", "kind": "ElasticGPUClaim", "metadata": {"name": name}}
    requests = {names.GPU_CORE: 10, names.GPU_MEMORY: "1Gi"}
    return {**meta, "spec": {"elasticGPUClassName": class_name, "resources": {"requests": requests}}}


def a_pod(name: str, limits: dict[str, str], *, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    container = {"name": "app", "image": "elasticgpu.io/shell", "command": ["sleep", "600"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"restartPolicy": "Never", "containers": [{**container, "resources": {"limits": limits}}]},
    }


FLOW = [
    a_class("now", names.VCUDA, eGPUBindingMode="Immediate"),
    a_class("later", names.QGPU, eGPUBindingMode="WaitForFirstConsumer"),
    a_claim("bound", "now"),
    a_claim("waiting", "later"),
    a_pod("whole", {names.NVIDIA_GPU: "1"}),
    a_pod("shared", {names.ALIYUN_GPU_MEM: "2"}),
    a_pod("vcuda", {names.DOCKER_VCUDA_CORE: "10", names.DOCKER_VCUDA_MEMORY: "4"}),
    a_pod("claims", {}, annotations={f"{names.CLAIM_PREFIXES[0]}app": "bound"}),
    a_pod("remote", {}, annotations={f"{names.CLAIM_PREFIXES[0]}app": "waiting"}),
    a_pod("pooled", {names.POOL_CORE: "10", names.POOL_MEMORY: "1024"}),
]


async def test_every_component_has_the_rights_that_it_needs_and_no_others() -> None:
    used: Used = Counter()
    denied: Used = Counter()

    def listen(user: User, wanted: Wanted, allowed: bool) -> None:
        account = user.name.removeprefix(f"system:serviceaccount:{NAMESPACE}:elastic-gpu-")
        if account in COMPONENTS:
            (used if allowed else denied)[account, wanted] += 1

    async with (
        cluster(ClusterConfig(nodes=2, cards_per_node=3, listener=listen)) as running,
        running.client() as client,
    ):
        await manifests.create(client, FLOW)
        await until(lambda: all_running(client), seconds=SECONDS)
        await until(lambda: phase_is(client, "bound", "Bound"), seconds=SECONDS)
        assert "elasticgpu" in await metrics_of(running, client)
        await look_at_the_dashboard(await start_dashboard(running))
        await one_is_refused_by_its_kubelet(running, client)
        await one_is_evicted_for_another(client)
        await everything_starts_again(running, client)
        for pod in await client.list(Pod, namespace="default"):
            await client.delete(Pod, pod.name, namespace="default", grace_period_seconds=0)
        for name in ("bound", "waiting"):
            await client.delete(ElasticGPUClaim, name, namespace="default")
        await until(lambda: given_back(client), seconds=SECONDS)
    assert not denied, "rights that are missing"
    nobodys = set(spare(used)) - UNUSED.keys()
    assert not nobodys, "rights that nobody needs"
    stale = UNUSED.keys() - set(spare(Counter()))
    assert not stale, "reasons for rights that nobody has"


async def all_running(client: Client) -> bool:
    pods = await client.list(Pod, namespace="default")
    assert {pod.spec.scheduler_name for pod in pods} <= {OWN_SCHEDULER}
    return len(pods) == 6 and all(pod.status.phase == "Running" for pod in pods)


async def phase_is(client: Client, claim: str, phase: str) -> bool:
    return (await client.get(ElasticGPUClaim, claim, namespace="default")).status.phase == phase


async def one_is_refused_by_its_kubelet(running: Cluster, client: Client) -> None:
    """As if another scheduler had given out the node's CPU. The pod is made again, and that one runs."""
    kubelets = [running.fleet.children[f"kubelet-{node}"].pid for node in running.node_names]
    for pid in kubelets:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    try:
        await manifests.create(
            client, [a_pod("refused", {names.DOCKER_VCUDA_CORE: "10", names.DOCKER_VCUDA_MEMORY: "4"})]
        )

        async def bound() -> bool:
            return bool((await client.get(Pod, "refused", namespace="default")).spec.node_name)

        await until(bound, seconds=SECONDS)
        old = await client.get(Pod, "refused", namespace="default")
        status = {"phase": "Failed", "reason": "OutOfcpu", "message": "no room"}
        async with Client.from_kubeconfig(running.state_dir / f"kubelet-{old.spec.node_name}.kubeconfig") as kubelet:
            await kubelet.patch(Pod, "refused", {"status": status}, namespace="default", subresource="status")

        async def made_again() -> bool:
            found = await client.find(Pod, "refused", namespace="default")
            return found is not None and found.uid != old.uid

        await until(made_again, seconds=SECONDS)
    finally:
        for pid in kubelets:
            if pid is not None:
                os.kill(pid, signal.SIGCONT)

    async def runs() -> bool:
        return (await client.get(Pod, "refused", namespace="default")).status.phase == "Running"

    await until(runs, seconds=SECONDS)
    await client.delete(Pod, "refused", namespace="default", grace_period_seconds=0)


async def one_is_evicted_for_another(client: Client) -> None:
    """Every card that is left is taken by unimportant pods, and one more important comes."""
    for name, value in (("unimportant", -10), ("important", 10)):
        body = {"metadata": {"name": name}, "value": value}
        await client.raw("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body=body)

    def whole_card(name: str, priority: str) -> dict[str, Any]:
        made = a_pod(name, {names.NVIDIA_GPU: "1"})
        made["spec"] |= {"priorityClassName": priority, "terminationGracePeriodSeconds": 0}
        return made

    fillers = [f"filler-{number}" for number in range(6)]
    await manifests.create(client, [whole_card(name, "unimportant") for name in fillers])

    async def full() -> bool:
        pods = [pod for pod in await client.list(Pod, namespace="default") if pod.name in fillers]
        waiting = [pod for pod in pods if any(one.reason == "Unschedulable" for one in pod.status.conditions or [])]
        return bool(waiting) and len(waiting) + sum(pod.status.phase == "Running" for pod in pods) == len(fillers)

    await until(full, seconds=SECONDS)
    await manifests.create(client, [whole_card("important", "important")])

    async def runs() -> bool:
        return (await client.get(Pod, "important", namespace="default")).status.phase == "Running"

    await until(runs, seconds=SECONDS)


async def metrics_of(running: Cluster, client: Client) -> str:
    """What the controller's metrics say to somebody who may read them, and health to anybody."""
    token = yaml.safe_load(running.kubeconfig.read_text())["users"][0]["user"]["token"]
    said = ""
    async with httpx2.AsyncClient(trust_env=False) as http:
        for name, url in running.ready_urls.items():
            metrics = url.rpartition("/")[0] + "/metrics"
            assert (await http.get(metrics)).status_code == 401, name
            said += (await http.get(metrics, headers={"Authorization": f"Bearer {token}"})).text
    return said


async def look_at_the_dashboard(address: str) -> None:
    """As whoever may see all."""
    url, _, token = address.partition("/login#token=")
    async with httpx2.AsyncClient(trust_env=False) as http:

        async def shown(page: str) -> bool:
            answer = await http.get(url + page, headers={"Authorization": f"Bearer {token}"})
            return answer.status_code == 200 and "node-1" in answer.text

        await until(lambda: shown("/"), seconds=SECONDS)


async def everything_starts_again(running: Cluster, client: Client) -> None:
    """All components are killed, and what they keep in order is put out of order meanwhile."""
    hook = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    await client.patch_json(MutatingWebhookConfiguration, "elastic-gpu", hook)
    before = {name: child.pid for name, child in running.fleet.children.items()}
    for name, child in running.fleet.children.items():
        if not name.startswith("kubelet"):
            child.kill()

    async def ready() -> bool:
        async with httpx2.AsyncClient(trust_env=False) as http:
            with contextlib.suppress(httpx2.HTTPError):
                answers = [(await http.get(url)).status_code for url in running.ready_urls.values()]
                return set(answers) == {200} and all(
                    child.pid != before[name]
                    for name, child in running.fleet.children.items()
                    if not name.startswith("kubelet")
                )
        return False

    await until(ready, seconds=SECONDS)


async def given_back(client: Client) -> bool:
    slices = [one for one in await client.list(ElasticGPU) if one.spec.physical_gpu is None]
    return not slices and not await client.list(ElasticGPUClaim) and not await client.list(Pod, namespace="default")


def spare(used: Used) -> Iterator[tuple[str, str]]:
    """(role, verb and resource) of what deploy/ gives and nobody who has the role used."""
    documents = installation(source())
    holders: dict[str, set[str]] = {}
    for document in documents:
        if document["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            accounts = {subject["name"].removeprefix("elastic-gpu-") for subject in document["subjects"]}
            holders.setdefault(document["roleRef"]["name"], set()).update(accounts)
    for document in documents:
        if document["kind"] not in ("ClusterRole", "Role"):
            continue
        role = document["metadata"]["name"]
        if role in FOR_PEOPLE:
            assert role not in holders
            continue
        for rule in document["rules"]:
            for verb, what, narrow in each(rule):
                for account in sorted(holders.get(role, {""})):
                    if not any(who == account and covers(narrow, wanted) for who, wanted in used):
                        yield role, f"{verb} {what}"


def each(rule: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A rule as rules of one verb on one resource, or one path."""
    for verb in rule["verbs"]:
        for path in rule.get("nonResourceURLs", []):
            yield verb, path, {"verbs": [verb], "nonResourceURLs": [path]}
        for resource in rule.get("resources", []):
            yield verb, resource, {**rule, "verbs": [verb], "resources": [resource]}
