"""`egpu doctor`: what an installation on Kubernetes lacks, and how to mend it.

Everything is read from the API server, so what it does not show stays unseen: kube-scheduler's configuration, say, is
judged by its flags where its pods show them, and by the pods that it bound. Nothing is changed; the webhook is tried
with a pod whose creation is a dry run.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.crds import definitions
from egpu.api.kubernetes import CustomResourceDefinition, Lease, Node, Pod
from egpu.api.objects import ElasticGPU
from egpu.api.webhooks import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from egpu.apps.controller import webhooks
from egpu.cli.components import NAMESPACE, Kubeconfig
from egpu.cli.findings import Finding, State, show_findings
from egpu.cli.output import EXIT_FAILED, Format
from egpu.errors import InvalidInput, NotFound, OutcomeUnknown, Refused, Unavailable

OLDEST_KUBERNETES: Final = (1, 30)
"""The first with admission policies, and with the node in the tokens of its pods, which one of ours asks for."""
STALE_AFTER: Final = timedelta(seconds=60)
"""Leases are renewed every few seconds; the rest is room for clocks that disagree."""
MAX_NAMED: Final = 5
NODE_LABEL: Final = f"{names.GROUP}/node"
PART_OF: Final = ("app.kubernetes.io/part-of", "elastic-gpu")
WITHOUT_PLUGIN: Final = "nvidia.com/gpu.deploy.device-plugin=false"
"""Keeps the device plugin of NVIDIA's GPU Operator, and no other part of it, away from a node."""
NVIDIA_PLUGINS: Final = frozenset({"nvidia-device-plugin", "nvidia-device-plugin-ds"})
INSTALL: Final = "egpu manifests | kubectl apply -f -"


@dataclass(frozen=True)
class Cluster:
    """The cluster as the checks see it."""

    client: Client
    namespace: str
    nodes: Sequence[Node]
    pods: Sequence[Pod]
    now: datetime

    def logs(self, component: str) -> str:
        return f"kubectl -n {self.namespace} logs --prefix -l app.kubernetes.io/name=elastic-gpu-{component}"


def doctor(
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[str, typer.Option(help="Where the components are installed.")] = NAMESPACE,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Say what an installation on Kubernetes lacks and how to mend it; exit code 1 if anything is wrong."""
    findings = asyncio.run(_examine_at(kubeconfig, namespace))
    if not show_findings(findings, output):
        raise typer.Exit(EXIT_FAILED)


async def _examine_at(kubeconfig: Path | None, namespace: str) -> Mapping[str, Finding]:
    try:
        async with Client.from_kubeconfig(kubeconfig) as client:
            return await examine(client, namespace, now=datetime.now(UTC))
    except InvalidInput as error:
        raise Unavailable(f"{' '.join(str(error).split())}; name a cluster with --kubeconfig") from error


async def examine(client: Client, namespace: str, *, now: datetime) -> Mapping[str, Finding]:
    """Every check by name, in the order in which things build on each other. Raises Unavailable, or Refused where not
    even nodes and pods may be read."""
    nodes, pods = await asyncio.gather(client.list(Node), client.list(Pod))
    cluster = Cluster(client, namespace, nodes, pods, now)
    findings: dict[str, Finding] = {}
    for name, check in CHECKS.items():
        try:
            findings[name] = await check(cluster)
        except (NotFound, Refused) as error:
            findings[name] = Finding(State.UNSEEN, str(error))
    return findings


async def _api_server(cluster: Cluster) -> Finding:
    said = str((await cluster.client.raw("GET", "/version"))["gitVersion"])
    version = re.match(r"v(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) >= OLDEST_KUBERNETES:
        return Finding(State.OK, f"Kubernetes {said}")
    oldest = ".".join(map(str, OLDEST_KUBERNETES))
    return Finding(State.WRONG, f"Kubernetes {said} knows no admission policies", f"upgrade to {oldest} or newer")


async def _definitions(cluster: Cluster) -> Finding:
    faults: list[str] = []
    for wanted in definitions():
        name = wanted["metadata"]["name"]
        found = await cluster.client.find(CustomResourceDefinition, name)
        if found is None:
            faults.append(f"{name} is missing")
        elif lacking := sorted(set(_fields(wanted["spec"])) - set(_fields(found.spec))):
            faults.append(f"{name} is of another version: it lacks {_some(lacking)}")
    if faults:
        return Finding(State.WRONG, "; ".join(faults), INSTALL)
    return Finding(State.OK, f"{len(definitions())}, as this egpu has them")


def _fields(spec: Mapping[str, Any]) -> Iterator[str]:
    """Every field of each served version. What a definition does not name, the API server drops."""
    for version in spec["versions"]:
        if version["served"]:
            yield from _properties(version["schema"]["openAPIV3Schema"], version["name"])


def _properties(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _properties(child, f"{path}.{name}")
    if "items" in schema:
        yield from _properties(schema["items"], f"{path}[]")


async def _webhook(cluster: Cluster) -> Finding:
    found = [
        await cluster.client.find(MutatingWebhookConfiguration, webhooks.NAME),
        await cluster.client.find(ValidatingWebhookConfiguration, webhooks.NAME),
    ]
    if None in found:
        return Finding(State.WRONG, "it is not configured", "apply deploy/ anew")
    if any(
        not one.client_config.ca_bundle for configuration in found if configuration for one in configuration.webhooks
    ):
        return Finding(State.WRONG, "it is configured without a certificate", cluster.logs("controller"))
    return Finding(State.OK, "configured, with a certificate")


async def _admission(cluster: Cluster) -> Finding:
    """A pod that asks for a GPU, created as a dry run, comes back with its demand."""
    container = {"name": "asks", "image": "none", "resources": {"limits": {names.GPU_CORE: "1", names.GPU_MEMORY: "1"}}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "egpu-doctor-"},
        "spec": {"containers": [container]},
    }
    try:
        pod = await cluster.client.raw("POST", "/api/v1/namespaces/default/pods", body=body, params={"dryRun": "All"})
    except (Unavailable, OutcomeUnknown) as error:
        return Finding(State.WRONG, f"the API server does not reach the webhook: {error}", cluster.logs("webhook"))
    if names.DEMAND in pod["metadata"].get("annotations", {}):
        return Finding(State.OK, "a GPU pod gets its demand")
    return Finding(State.WRONG, "a GPU pod passes without the webhook", cluster.logs("controller"))


def _leader(component: str, *, always: bool) -> Callable[[Cluster], Awaitable[Finding]]:
    """`always`: it holds its lease whatever it is told; otherwise one that runs alone may have none."""

    async def check(cluster: Cluster) -> Finding:
        lease = await cluster.client.find(Lease, f"elastic-gpu-{component}", namespace=cluster.namespace)
        if lease is None or not lease.spec.renew_time:
            if not always:
                return Finding(State.UNSEEN, "no lease: it runs alone, or not at all")
            return Finding(State.WRONG, "has never run here", cluster.logs(component))
        age = cluster.now - datetime.fromisoformat(lease.spec.renew_time)
        if not lease.spec.holder_identity or age > STALE_AFTER:
            seconds = round(age.total_seconds())
            return Finding(State.WRONG, f"nobody leads since {seconds} s", cluster.logs(component))
        return Finding(State.OK, f"{lease.spec.holder_identity} leads")

    return check


async def _scheduler(cluster: Cluster) -> Finding:
    mend = "give kube-scheduler deploy/scheduler/kube-scheduler-config.yaml (--config)"
    bound = [pod for pod in cluster.pods if names.DEMAND in pod.annotations and pod.spec.node_name]
    passed_by = [pod.key for pod in bound if names.ALLOCATION not in pod.annotations]
    if passed_by:
        return Finding(State.WRONG, f"GPU pods were bound without the extender: {_some(passed_by)}", mend)
    schedulers = [pod for pod in cluster.pods if (pod.metadata.labels or {}).get("component") == "kube-scheduler"]
    plain = [pod.key for pod in schedulers if not any("--config" in text for text in _command(pod))]
    if plain:
        return Finding(State.WRONG, f"runs without a configuration: {_some(plain)}", mend)
    if bound:
        return Finding(State.OK, f"the extender bound each of {len(bound)} GPU pods")
    return Finding(State.UNSEEN, "no GPU pod was bound yet")


def _command(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        yield from container.command or ()
        yield from container.args or ()


async def _components(cluster: Cluster) -> Finding:
    """Their pods are ready and run one image. Without pods, as in an embedded cluster, there is nothing to see."""
    label, value = PART_OF
    ours = [
        pod
        for pod in cluster.pods
        if pod.namespace == cluster.namespace and (pod.metadata.labels or {}).get(label) == value and not pod.finished
    ]
    if not ours:
        return Finding(State.UNSEEN, f"no pods in {cluster.namespace}")
    waiting = [f"{pod.name} on {pod.spec.node_name or 'no node'}" for pod in ours if not _ready(pod)]
    if waiting:
        mend = f"kubectl -n {cluster.namespace} describe pod NAME"
        return Finding(State.WRONG, f"{len(waiting)} of {len(ours)} pods are not ready: {_some(waiting)}", mend)
    images = sorted({container.image for pod in ours for container in pod.containers})
    if len(images) > 1:
        return Finding(State.WRONG, f"they run different images: {_some(images)}", INSTALL)
    return Finding(State.OK, f"{len(ours)} pods are ready, of {images[0]}")


def _ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or [])


async def _agents(cluster: Cluster) -> Finding:
    """Every GPU node offers slots: its agent runs, and kubelet knows it."""
    cards = {card.spec.node_name for card in await cluster.client.list(ElasticGPU) if card.spec.physical_gpu}
    wanted = [node for node in cluster.nodes if NODE_LABEL in (node.metadata.labels or {}) or node.name in cards]
    if not wanted:
        return Finding(State.WRONG, "no node is labelled", f"kubectl label node NODE {NODE_LABEL}=true")
    rivals = {
        pod.spec.node_name
        for pod in cluster.pods
        if NVIDIA_PLUGINS & {(pod.metadata.labels or {}).get(label, "") for label in ("name", "app.kubernetes.io/name")}
    }
    if both := sorted({node.name for node in wanted} & rivals):
        mend = f"kubectl label node NODE {WITHOUT_PLUGIN} where GPU Operator runs it, else keep it away by its selector"
        return Finding(State.WRONG, f"two answer for nvidia.com/gpu on {_some(both)}", mend)
    silent = [node.name for node in wanted if str((node.status.allocatable or {}).get(names.SLOT, 0)) == "0"]
    if silent:
        found = f"{len(silent)} of {len(wanted)} nodes offer no slots: {_some(silent)}"
        return Finding(State.WRONG, found, cluster.logs("agent"))
    return Finding(State.OK, f"{len(wanted)} nodes offer slots")


async def _injection(cluster: Cluster) -> Finding:
    """What agents say of how slots reach containers: by CDI, or as paths, which is why."""
    said = {
        node.name: node.annotations[names.INJECTION] for node in cluster.nodes if names.INJECTION in node.annotations
    }
    if not said:
        return Finding(State.UNSEEN, "no agent has said how slots reach containers")
    by_paths = [
        f"{node} ({words.removeprefix('paths: ')})" for node, words in said.items() if words.startswith("paths")
    ]
    by_cdi = len(said) - len(by_paths)
    if not by_paths:
        return Finding(State.OK, f"by CDI on {by_cdi} nodes")
    return Finding(
        State.OK, f"by CDI on {by_cdi} nodes, as paths on {_some(by_paths)}: NVIDIA's runtime is needed there"
    )


async def _cards(cluster: Cluster) -> Finding:
    """As the agents' drivers report them."""
    cards = [card for card in await cluster.client.list(ElasticGPU) if card.spec.physical_gpu]
    unhealthy = [f"{card.name} ({card.status.message or 'no reason given'})" for card in cards if not card.healthy]
    if unhealthy:
        mend = "look at the driver of the node: nvidia-smi"
        return Finding(State.WRONG, f"{len(unhealthy)} of {len(cards)} are not healthy: {_some(unhealthy)}", mend)
    if not cards:
        return Finding(State.WRONG, "no agent has published any", cluster.logs("agent"))
    return Finding(State.OK, f"{len(cards)} are healthy")


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more


CHECKS: Final[Mapping[str, Callable[[Cluster], Awaitable[Finding]]]] = {
    "API server": _api_server,
    "definitions": _definitions,
    "webhook": _webhook,
    "admission": _admission,
    "controller": _leader("controller", always=False),
    "extender": _leader("extender", always=True),
    "kube-scheduler": _scheduler,
    "components": _components,
    "agents": _agents,
    "injection": _injection,
    "cards": _cards,
}
