"""`egpu doctor`: faults of an installation on Kubernetes, and how to fix them.

The checks read only from the API server and change nothing. They judge kube-scheduler's configuration, for example, by
the flags of its pods, if these are visible, and by the pods that it bound. The webhook check creates a pod as a dry
run.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from egpu.adapters.kubernetes.announced_usage import given_or_announced
from egpu.api import names
from egpu.api.crds import definitions
from egpu.api.objects import ElasticGPU
from egpu.api.symptoms import Symptom
from egpu.api.webhooks import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from egpu.apps.controller import webhooks
from egpu.cli.components import NAMESPACE, Kubeconfig
from egpu.cli.doctor_cluster import Cluster
from egpu.cli.doctor_pod import doctor_pod
from egpu.cli.findings import Finding, State, show_findings
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, Format, fail
from egpu.cli.usage_options import TokenFile, Usage
from egpu.core.demand.selection import selects
from egpu.core.gpu_nodes import LABEL_ONE
from egpu.core.kept_pods import kept, kept_of_large
from egpu.core.node_condition import not_offering
from egpu.core.provisioners.mps import READY
from egpu.core.rivals import by_rival, rival, rivals_by_node
from egpu.core.schedulers import OWN_SCHEDULER
from egpu.core.thrashing import thrashing_cards
from egpu_base.api.kubernetes import CustomResourceDefinition, Lease, Node, Pod
from egpu_base.errors import InvalidInput, NotFound, OutcomeUnknown, Refused, Unavailable
from egpu_base.kubernetes import Client

T = TypeVar("T")

OLDEST_KUBERNETES: Final = (1, 30)
"""The first version with admission policies and with node names in pods' tokens, which one of our policies needs."""
STALE_AFTER: Final = timedelta(seconds=60)
"""Leases are renewed every few seconds; the rest allows for different clocks."""
MAX_NAMED: Final = 5
PART_OF: Final = ("app.kubernetes.io/part-of", "elastic-gpu")
INSTALL: Final = "egpu install"


def doctor(
    pod: Annotated[
        str,
        typer.Argument(
            metavar="[POD]",
            help="Follow this pod (or NAMESPACE/POD) from its creation to its CUDA calls. For the calls, give --usage.",
        ),
    ] = "",
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            help=f"Namespace of the pod (default: the kubeconfig's), or of the installation (default: {NAMESPACE}).",
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a report for maintainers, without secrets, as a .tar.gz file."),
    ] = None,
    usage: Usage = None,
    token_file: TokenFile = None,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Check an installation on Kubernetes, or follow one pod, and say how to fix faults. Exit code 1 for a fault."""
    if pod and bundle is not None:
        fail("POD and --bundle exclude each other: the bundle has all GPU pods. Use one of them", code=EXIT_USAGE)
    try:
        if pod:
            sources = given_or_announced(usage or (), token_file, kubeconfig)
            is_well = doctor_pod(kubeconfig, namespace, pod, sources=sources, output=output)
        else:
            is_well = show_findings(asyncio.run(_examine_at(kubeconfig, namespace or NAMESPACE, bundle)), output)
    except InvalidInput as error:
        raise Unavailable(f"{' '.join(str(error).split())}. Name a cluster with --kubeconfig") from error
    if not is_well:
        raise typer.Exit(EXIT_FAILED)


async def _examine_at(kubeconfig: Path | None, namespace: str, bundle: Path | None) -> Mapping[str, Finding]:
    async with Client.from_kubeconfig(kubeconfig) as client:
        findings = await examine(client, namespace, now=datetime.now(UTC))
        if bundle is not None:
            from egpu.cli.bundle import write_bundle  # slow to load, and only --bundle needs it

            await write_bundle(client, namespace, bundle, findings=findings)
        return findings


async def examine(client: Client, namespace: str, *, now: datetime) -> Mapping[str, Finding]:
    """Run all checks and return findings by name, in order of dependency. A check that this user may not make is
    unseen. Raises Unavailable."""
    listed = client.list(Pod, transform=_examined, large=kept_of_large)
    nodes, pods = await asyncio.gather(_if_allowed(client.list(Node)), _if_allowed(listed))
    cluster = Cluster(client, namespace, nodes, pods, now)
    findings: dict[str, Finding] = {}
    for name, (check, symptom) in CHECKS.items():
        try:
            found = await check(cluster)
        except (NotFound, Refused) as error:
            found = Finding(State.UNSEEN, str(error))
        findings[name] = replace(found, see=symptom.link) if found.state is State.WRONG else found
    return findings


def _examined(pod: Pod) -> Pod:
    """Return the part of a pod that the checks look at: of schedulers and of our components their commands, too, and of
    other device plugins their mounts."""
    labels = pod.metadata.labels or {}
    whole = labels.get("component") == "kube-scheduler" or labels.get("app.kubernetes.io/part-of") == "elastic-gpu"
    return pod if whole or rival(pod) is not None else kept(pod)


async def _if_allowed(asked: Awaitable[T]) -> T | Refused:
    try:
        return await asked
    except Refused as error:
        return error


async def _api_server(cluster: Cluster) -> Finding:
    said = str((await cluster.client.raw("GET", "/version"))["gitVersion"])
    version = re.match(r"v(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) >= OLDEST_KUBERNETES:
        return Finding(State.OK, f"Kubernetes {said}")
    oldest = ".".join(map(str, OLDEST_KUBERNETES))
    return Finding(State.WRONG, f"Kubernetes {said} has no admission policies", f"upgrade to {oldest} or newer")


async def _definitions(cluster: Cluster) -> Finding:
    faults: list[str] = []
    for wanted in definitions():
        name = wanted["metadata"]["name"]
        found = await cluster.client.find(CustomResourceDefinition, name)
        if found is None:
            faults.append(f"{name} is missing")
        elif lacking := sorted(set(_fields(wanted["spec"])) - set(_fields(found.spec))):
            faults.append(f"{name} is of another version, without {_some(lacking)}")
    if faults:
        return Finding(State.WRONG, "; ".join(faults), INSTALL)
    return Finding(State.OK, f"{len(definitions())}, with all fields of this egpu")


def _fields(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of each served version. The API server drops fields that a definition does not name."""
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
        return Finding(State.WRONG, "not configured", "apply deploy/ again")
    if any(
        not one.client_config.ca_bundle for configuration in found if configuration for one in configuration.webhooks
    ):
        return Finding(State.WRONG, "configured without a certificate", cluster.logs("controller"))
    return Finding(State.OK, "configured, with a certificate")


async def _admission(cluster: Cluster) -> Finding:
    """Check that the dry run of a GPU pod returns the pod with its demand."""
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
    return Finding(State.WRONG, "the API server does not call the webhook for a GPU pod", cluster.logs("controller"))


def _leader(component: str, *, always: bool) -> Callable[[Cluster], Awaitable[Finding]]:
    """Return a check of a component's leader. `always`: it holds its Lease even without --leader-elect."""

    async def check(cluster: Cluster) -> Finding:
        lease = await cluster.client.find(Lease, f"elastic-gpu-{component}", namespace=cluster.namespace)
        if lease is None or not lease.spec.renew_time:
            if not always:
                return Finding(State.UNSEEN, "no Lease: it runs without --leader-elect, or not at all")
            return Finding(State.WRONG, "has never run here", cluster.logs(component))
        age = cluster.now - datetime.fromisoformat(lease.spec.renew_time)
        if not lease.spec.holder_identity or age > STALE_AFTER:
            seconds = round(age.total_seconds())
            return Finding(State.WRONG, f"no leader for {seconds} s", cluster.logs(component))
        return Finding(State.OK, f"the leader is {lease.spec.holder_identity}")

    return check


async def _scheduler(cluster: Cluster) -> Finding:
    """Check that GPU pods go through the extender. With a scheduler of our own, the cluster's needs no change."""
    own = any((pod.metadata.labels or {}).get("app.kubernetes.io/name") == OWN_SCHEDULER for pod in cluster.pods)
    mend = "start kube-scheduler with --config and deploy/scheduler/kube-scheduler-config.yaml"
    if own:
        mend = f"delete these pods; the webhook names {OWN_SCHEDULER} in new ones"
    bound = [pod for pod in cluster.pods if names.DEMAND in pod.annotations and pod.spec.node_name]
    passed_by = [pod.key for pod in bound if names.ALLOCATION not in pod.annotations]
    if passed_by:
        return Finding(State.WRONG, f"GPU pods were bound without the extender: {_some(passed_by)}", mend)
    schedulers = [pod for pod in cluster.pods if (pod.metadata.labels or {}).get("component") == "kube-scheduler"]
    plain = [pod.key for pod in schedulers if not any("--config" in text for text in _command(pod))]
    if plain and not own:
        return Finding(State.WRONG, f"runs without a configuration: {_some(plain)}", mend)
    if bound:
        return Finding(State.OK, f"the extender bound each of {len(bound)} GPU pods")
    return Finding(State.UNSEEN, "no GPU pod is bound yet")


def _command(pod: Pod) -> Iterator[str]:
    for container in pod.containers:
        yield from container.command or ()
        yield from container.args or ()


async def _components(cluster: Cluster) -> Finding:
    """Check that the components' pods are ready and run one image. A simulated cluster has no such pods."""
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
    images = sorted({one.image for pod in ours for one in pod.containers if one.name != "kube-scheduler"})
    if len(images) > 1:
        return Finding(State.WRONG, f"they run different images: {_some(images)}", INSTALL)
    return Finding(State.OK, f"{len(ours)} pods are ready, with image {images[0]}")


def _ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or [])


async def _agents(cluster: Cluster) -> Finding:
    """Check that every GPU node offers slots, so that its agent runs and is registered with kubelet."""
    cards = {card.spec.node_name for card in await cluster.client.list(ElasticGPU) if card.spec.physical_gpu}
    agents = await cluster.agents()
    wanted = [node for node in cluster.nodes if selects(agents, node) or node.name in cards]
    if not wanted:
        found = "no node gets an agent: none has a label of NVIDIA's cards, or of the agents' own node selector"
        return Finding(State.WRONG, found, LABEL_ONE)
    named = {node.name for node in wanted}
    rivals = {node: one for node, one in rivals_by_node(cluster.pods).items() if node in named}
    for one, nodes in by_rival(rivals).items():
        return Finding(State.WRONG, one.conflict(_some(nodes)), one.mend)
    if waiting := [(node.name, said) for node in wanted if (said := not_offering(node)) is not None]:
        name, (reason, message) = waiting[0]
        others = f" (and {len(waiting) - 1} more nodes wait)" if waiting[1:] else ""
        return Finding(State.WRONG, f"{name} offers nothing, {reason}: {message}{others}", cluster.logs("agent"))
    silent = [node.name for node in wanted if str((node.status.allocatable or {}).get(names.SLOT, 0)) == "0"]
    if silent:
        found = f"{len(silent)} of {len(wanted)} nodes offer no slots: {_some(silent)}"
        return Finding(State.WRONG, found, cluster.logs("agent"))
    return Finding(State.OK, f"{len(wanted)} nodes offer slots")


async def _injection(cluster: Cluster) -> Finding:
    """Report how slots reach containers, as the agents say: by CDI, or as paths, with the reason."""
    said = {
        node.name: node.annotations[names.INJECTION] for node in cluster.nodes if names.INJECTION in node.annotations
    }
    if not said:
        return Finding(State.UNSEEN, "no agent has reported how slots reach containers")
    by_paths = [
        f"{node} ({words.removeprefix('paths: ')})" for node, words in said.items() if words.startswith("paths")
    ]
    by_cdi = len(said) - len(by_paths)
    if not by_paths:
        return Finding(State.OK, f"by CDI on {by_cdi} nodes")
    return Finding(
        State.OK, f"by CDI on {by_cdi} nodes, as paths on {_some(by_paths)}: these nodes need NVIDIA's runtime"
    )


async def _cards(cluster: Cluster) -> Finding:
    """Check that the drivers of the agents report healthy cards."""
    cards = [card for card in await cluster.client.list(ElasticGPU) if card.spec.physical_gpu]
    unhealthy = [f"{card.name} ({card.status.message or 'no reason given'})" for card in cards if not card.healthy]
    if unhealthy:
        mend = "check the driver on the node: nvidia-smi"
        return Finding(State.WRONG, f"{len(unhealthy)} of {len(cards)} cards are not healthy: {_some(unhealthy)}", mend)
    if not cards:
        return Finding(State.WRONG, "no agent has published cards", cluster.logs("agent"))
    return Finding(State.OK, f"{len(cards)} cards are healthy{_without_mps(cards)}")


async def _shared_room(cluster: Cluster) -> Finding:
    """Check that slices that share room (parkingResident) do not wait for each other most of the time."""
    thrashing = {uuid for node in cluster.nodes for uuid in thrashing_cards(node)}
    cards = await cluster.client.list(ElasticGPU)
    found = [card.name for card in cards if (one := card.spec.physical_gpu) and one.uuid in thrashing]
    if found:
        mend = "use fewer slices of classes with parkingResident on a card, or cards with more memory"
        said = f"on {_some(found)}, slices that share room wait for each other most of the time"
        return Finding(State.WRONG, said, mend)
    return Finding(State.OK, "no card thrashes")


def _without_mps(cards: Sequence[ElasticGPU]) -> str:
    """Return how many cards can have no MPS server, and why; empty if all can. Nothing is wrong with such cards."""
    reasons = [one.mps for card in cards if (one := card.spec.physical_gpu) and one.mps and one.mps != READY]
    return f"; no MPS slices on {len(reasons)}: {_some(sorted(set(reasons)))}" if reasons else ""


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more


CHECKS: Final[Mapping[str, tuple[Callable[[Cluster], Awaitable[Finding]], Symptom]]] = {
    "API server": (_api_server, Symptom.CLUSTER),
    "definitions": (_definitions, Symptom.CLUSTER),
    "webhook": (_webhook, Symptom.REFUSED),
    "admission": (_admission, Symptom.REFUSED),
    "controller": (_leader("controller", always=False), Symptom.CLAIM),
    "extender": (_leader("extender", always=True), Symptom.PENDING),
    "kube-scheduler": (_scheduler, Symptom.PENDING),
    "components": (_components, Symptom.CLUSTER),
    "agents": (_agents, Symptom.CLUSTER),
    "injection": (_injection, Symptom.NOT_STARTED),
    "cards": (_cards, Symptom.CARD),
    "shared room": (_shared_room, Symptom.SLOW),
}
"""The checks, and where a person reads on about a fault that they find."""
