"""Uninstall in an order in which nothing hangs, whether our processes run or not. Every step can be repeated.

1  claims, while a controller can still give their slices back and remove their finalizers
2  agents and shims, so that no node publishes anything again
3  what agents published on nodes. Until here the webhook is in force: a pod that asks for a GPU meets kubelet,
   which has no slots any more and refuses it. From here on no node has the names that such pods ask for
4  the webhook's configurations, so that no request waits for a webhook that is gone
5  finalizers that no controller removed; before step 4 the API server might refuse this
6  everything else, then the definitions with all cards and slices, then the namespace
7  what agents and controller published for claims of resource.k8s.io. Kubernetes would do that, but later
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from egpu.adapters.installation import Document
from egpu.api import names
from egpu.api.objects import ElasticGPUClaim
from egpu.apps.install.nodes import clean_nodes, labelled
from egpu.apps.install.objects import Kind, Objects, kind_of, path_of, shown
from egpu.apps.install.plan import outdated, some
from egpu.apps.install.readiness import PODS, Deadline, Progress, still_there, until_none
from egpu_base.api.devices import DeviceClass, ResourceSlice
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import Object
from egpu_base.errors import NotFound, Refused
from egpu_base.kubernetes import Client

T = TypeVar("T", bound=Object)

IDLE_SECONDS: Final = 10.0
"""A controller that removes no finalizer for this long is taken to be gone."""
WEBHOOKS: Final = frozenset({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})
LAST: Final = frozenset({"CustomResourceDefinition", "Namespace"})
CLAIMS: Final = Kind(names.API_VERSION, "elasticgpuclaims", 6)


@dataclass
class Removal:
    """How to uninstall, and what was done. `idle_seconds`: as IDLE_SECONDS."""

    namespace: str
    documents: Sequence[Document]
    keep_claims: bool = False
    force: bool = False
    idle_seconds: float = IDLE_SECONDS
    removed: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


async def users(client: Client) -> list[str]:
    """Return the pods that have cards now."""
    pods = await client.list(Pod)
    return [pod.key for pod in pods if names.ALLOCATION in pod.annotations and pod.spec.node_name and not pod.finished]


async def uninstall(client: Client, wanted: Removal, *, deadline: Deadline, progress: Progress) -> None:
    """Remove everything. `wanted.removed` and `wanted.notes` say what was done, also after an error.

    Raises Refused while pods have cards, unless forced; Unavailable at the deadline; and the API server's errors.
    """
    objects = Objects(client)
    running = await users(client)
    if running and not wanted.force:
        raise Refused(
            f"{len(running)} pods have cards: {some(running)}. Delete them first, or use --force: programs with the "
            "library in their process run on until their container ends, programs with an executor end"
        )
    if running:
        wanted.notes.append(f"left alone: {some(running)}. Their containers do not start again on a GPU")
    claims_left = await _claims(client, wanted, deadline, progress)
    await _remove(objects, wanted, [one for one in wanted.documents if one["kind"] == "DaemonSet"], progress)
    progress("waiting for the agents to end")
    await until_none(partial(_agents, client, wanted.namespace), deadline, what="agents still run")
    progress("cleaning the nodes")
    wanted.removed += [f"what agents wrote on Node {name}" for name in await clean_nodes(client)]
    await _remove(objects, wanted, [one for one in wanted.documents if one["kind"] in WEBHOOKS], progress)
    if claims_left:
        await _take_finalizers(client, wanted)
    rest = [one for one in wanted.documents if one["kind"] not in WEBHOOKS | LAST | {"DaemonSet"}]
    await _remove(objects, wanted, sorted(rest, key=lambda one: -kind_of(one).stage), progress)
    await _last(client, wanted, deadline, progress)
    await _devices(client, wanted)
    wanted.removed += [f"what agents wrote on Node {name}" for name in await clean_nodes(client)]
    if left := await labelled(client):
        wanted.notes.append(f"your label elasticgpu.io/node stays on {some(left)}")


async def _claims(client: Client, wanted: Removal, deadline: Deadline, progress: Progress) -> bool:
    """Delete all claims, and wait while their number falls. Return whether any is left."""
    if wanted.keep_claims or not (found := await _served(client, ElasticGPUClaim)):
        return False
    progress(f"deleting {len(found)} claims")
    for claim in found:
        await client.delete(ElasticGPUClaim, claim.name, namespace=claim.namespace)
    count, since = len(found), time.monotonic()
    seconds = wanted.idle_seconds if await _controller_runs(client, wanted.namespace) else 0.0

    async def waiting() -> list[str]:
        nonlocal count, since
        left = await _served(client, ElasticGPUClaim)
        if len(left) < count:
            count, since = len(left), time.monotonic()
        idle = time.monotonic() - since >= seconds
        return [] if idle else [f"claim {one.key}" for one in left]

    await until_none(waiting, deadline, what="claims are still there")
    wanted.removed += [f"ElasticGPUClaim {claim.key}" for claim in found]
    return bool(await _served(client, ElasticGPUClaim))


async def _controller_runs(client: Client, namespace: str) -> bool:
    """Return whether anything may still remove finalizers: a controller's pod, or a process that has its lease."""
    objects = Objects(client)
    pods = await objects.all(PODS, labels="app.kubernetes.io/name=elastic-gpu-controller", namespace=namespace)
    return any(pod.get("status", {}).get("phase") == "Running" for pod in pods)


async def _take_finalizers(client: Client, wanted: Removal) -> None:
    """Take our finalizer off the claims that are being deleted."""
    objects = Objects(client)
    for claim in await _served(client, ElasticGPUClaim):
        others = [one for one in claim.metadata.finalizers or [] if one != names.CLAIM_FINALIZER]
        if claim.metadata.deletion_timestamp:
            await objects.merge(CLAIMS.path(claim.namespace, claim.name), {"metadata": {"finalizers": others or None}})
            wanted.notes.append(f"no controller ran: claim {claim.key} was released by this command")


async def _agents(client: Client, namespace: str) -> list[str]:
    """Return the agents' pods on nodes that answer. kubelet of another node cannot end them, and they write nothing."""
    silent = {node.name for node in await client.list(Node) if not _ready(node)}
    pods = await client.list(Pod, namespace=namespace, labels="app.kubernetes.io/name=elastic-gpu-agent")
    return [f"pod {pod.name}" for pod in pods if pod.spec.node_name and pod.spec.node_name not in silent]


def _ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or [])


async def _devices(client: Client, wanted: Removal) -> None:
    """Remove our driver's ResourceSlices, and the DeviceClasses of our classes unless these stay."""
    for one in await _served(client, ResourceSlice):
        if one.spec.driver == names.DRIVER:
            await client.delete(ResourceSlice, one.name)
            wanted.removed.append(f"ResourceSlice {one.name}")
    for one in () if wanted.keep_claims else await _served(client, DeviceClass):
        if any(owner.api_version == names.API_VERSION for owner in one.metadata.owner_references or ()):
            await client.delete(DeviceClass, one.name)
            wanted.removed.append(f"DeviceClass {one.name}")


async def _served(client: Client, kind: type[T]) -> Sequence[T]:
    """Return all objects of a kind; none if this API server does not know it."""
    try:
        return await client.list(kind)
    except NotFound:
        return ()


async def _remove(objects: Objects, wanted: Removal, documents: Sequence[Document], progress: Progress) -> None:
    for document in documents:
        progress(f"removing {shown(document)}")
        if await objects.delete(path_of(document)):
            wanted.removed.append(shown(document))


async def _last(client: Client, wanted: Removal, deadline: Deadline, progress: Progress) -> None:
    """Remove definitions with all their objects, and the namespace with all that is in it; and wait for both."""
    objects = Objects(client)
    last = [one for one in wanted.documents if one["kind"] in LAST]
    if wanted.keep_claims:
        kept = [one for one in last if one["kind"] == "CustomResourceDefinition"]
        wanted.notes.append("definitions, claims, classes and cards stay: egpu install takes them over")
        last = [one for one in last if one not in kept]
    last.sort(key=lambda one: one["kind"] == "Namespace")
    await _remove(objects, wanted, last, progress)
    progress("waiting for the definitions and the namespace to go")

    async def there() -> list[str]:
        if not wanted.keep_claims:
            await _take_finalizers(client, wanted)
        return await still_there(client, last)

    await until_none(there, deadline, what="not everything is gone")
    for document in await outdated(objects, []):
        if not (wanted.keep_claims and document["kind"] == "CustomResourceDefinition"):
            await _remove(objects, wanted, [document], progress)
