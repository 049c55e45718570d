"""One reading of a cluster: its objects, and the same ledger as the extender's."""

import asyncio
import gc
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.cli.output import note
from egpu.core.dra.kept import kept_claim
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu_base.api.devices import DeviceClass, ResourceClaim
from egpu_base.api.disruption import PodDisruptionBudget
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import Object
from egpu_base.errors import CorruptData, InvalidInput, NotAllowed, NotFound, Refused, Unavailable
from egpu_base.kubernetes import Client

T = TypeVar("T", bound=Object)


@dataclass(frozen=True)
class Snapshot:
    """The objects of a cluster. `cache` has the ledger that follows from them."""

    nodes: Sequence[Node]
    gpus: Sequence[ElasticGPU]
    classes: Sequence[ElasticGPUClass]
    claims: Sequence[ElasticGPUClaim]
    pods: Sequence[Pod]
    cache: SchedulerCache
    budgets: Sequence[PodDisruptionBudget] = ()
    resource_claims: Sequence[ResourceClaim] = ()
    """Those of resource.k8s.io that have cards; they hold these in the ledger."""
    all_resource_claims: Sequence[ResourceClaim] = ()
    """All of resource.k8s.io, where nodes give out cards to them."""
    device_classes: Sequence[DeviceClass] = ()
    missing: Sequence[str] = ()
    """The kinds that this user may not list in the whole cluster."""
    namespace: str = ""
    """The namespace whose claims and pods these are, if those of the whole cluster may not be listed."""

    home: str = "default"
    """The namespace of the kubeconfig's context."""

    @property
    def lack(self) -> str:
        """Return what this user does not see in a sentence; "" if it is the whole cluster."""
        if not self.missing:
            return ""
        instead = f"; these are the claims and pods of namespace {self.namespace}" if self.namespace else ""
        return f"you may not list {', '.join(self.missing)} of the whole cluster{instead}"


async def load(client: Client) -> Snapshot:
    """Read all objects. Raises Unavailable, Refused, or NotFound without our custom resources."""
    nodes, gpus, classes, claims, pods = await asyncio.gather(
        client.list(Node),
        client.list(ElasticGPU),
        client.list(ElasticGPUClass),
        client.list(ElasticGPUClaim),
        client.list(Pod),
    )
    return await _with_resource_claims(client, snapshot_of(nodes, gpus, classes, claims, pods))


async def _with_resource_claims(client: Client, snapshot: Snapshot) -> Snapshot:
    """Count the cards of ResourceClaims, where nodes give out cards to those. Print a note if they cannot be read."""
    if not any(gpu.spec.physical_gpu is not None and gpu.spec.physical_gpu.allocator for gpu in snapshot.gpus):
        return snapshot
    try:
        claims = await client.list(ResourceClaim, transform=kept_claim)
    except (Refused, NotFound) as error:
        note(f"cards of ResourceClaims seem free: {error}")
        return snapshot
    for claim in claims:
        snapshot.cache.device_claims.claim_changed(claim)
    try:
        kinds = await client.list(DeviceClass)
    except (Refused, NotFound):
        kinds = ()  # only needed to explain pods, which then says that nothing waits for the extender
    holding = snapshot.cache.device_claims.holding()
    return replace(snapshot, resource_claims=holding, all_resource_claims=claims, device_classes=kinds)


async def load_allowed(client: Client, namespace: str | None) -> Snapshot:
    """Read what this user may list. Where claims or pods of the whole cluster are forbidden, read those of `namespace`,
    by default the kubeconfig's. Raises NotAllowed if these are forbidden, too; otherwise as `load`."""
    where = namespace or client.namespace
    missing = list[str]()

    async def listed(kind: type[T]) -> Sequence[T]:
        try:
            return await client.list(kind)
        except NotAllowed:
            missing.append(kind.resource.plural)
        return await client.list(kind, namespace=where) if kind.resource.namespaced else ()

    found = await asyncio.gather(
        listed(Node), listed(ElasticGPU), listed(ElasticGPUClass), listed(ElasticGPUClaim), listed(Pod)
    )
    namespaced = {ElasticGPUClaim.resource.plural, Pod.resource.plural} & set(missing)
    snapshot = replace(
        snapshot_of(*found), missing=sorted(missing), namespace=where if namespaced else "", home=client.namespace
    )
    return await _with_resource_claims(client, snapshot)


def snapshot_of(
    nodes: Iterable[Node],
    gpus: Iterable[ElasticGPU],
    classes: Iterable[ElasticGPUClass],
    claims: Iterable[ElasticGPUClaim],
    pods: Iterable[Pod],
) -> Snapshot:
    """Build the snapshot of these objects."""
    kept = tuple(gpus), tuple(classes)
    by_name = sorted(nodes, key=lambda node: node.name)
    by_key = sorted(claims, key=lambda claim: claim.key), sorted(pods, key=lambda pod: pod.key)
    cache = rebuild(kept[0], by_key[1], by_key[0], kept[1], by_name)
    return Snapshot(by_name, *kept, *by_key, cache)


async def use_kept_mix(client: Client, cache: SchedulerCache) -> None:
    """Use the extender's saved job mix for prices, as the extender does. Print a note if it cannot be read."""
    from egpu.adapters.kubernetes.job_mix import kept_mix  # slow to load, and only some commands need it
    from egpu.apps.extender.config import ExtenderConfig

    try:
        mix = await kept_mix(client, lease=ExtenderConfig.lease, namespace=ExtenderConfig.namespace)
    except (CorruptData, Refused) as error:
        note(f"places are priced without the extender's job mix: {error}")
        return
    if mix is not None:
        cache.ranking.use_mix(mix)


async def with_budgets(client: Client, snapshot: Snapshot) -> Snapshot:
    """Add the PodDisruptionBudgets that the extender respects. Print a note if they cannot be read."""
    try:
        return replace(snapshot, budgets=await client.list(PodDisruptionBudget))
    except Refused as error:
        note(f"preemption is planned without PodDisruptionBudgets: {error}")
        return snapshot


def load_from(kubeconfig: Path | None, *, as_extender: bool = False) -> Snapshot:
    """Load a snapshot with a client of its own. `as_extender`: with job mix and budgets, the other inputs of the
    extender. Raises Unavailable or NotFound with what to do about it."""
    with reading():
        return asyncio.run(_load_from(kubeconfig, as_extender=as_extender))


def load_allowed_from(kubeconfig: Path | None, namespace: str | None, *, as_extender: bool = False) -> Snapshot:
    """Load what this user may list, with a client of its own; see `load_allowed` and `load_from`."""
    with reading():
        return asyncio.run(_load_allowed_from(kubeconfig, namespace, as_extender=as_extender))


async def _load_allowed_from(kubeconfig: Path | None, namespace: str | None, *, as_extender: bool) -> Snapshot:
    async with Client.from_kubeconfig(kubeconfig) as client:
        snapshot = await load_allowed(client, namespace)
        return await _for_extender(client, snapshot) if as_extender and not snapshot.missing else snapshot


async def _load_from(kubeconfig: Path | None, *, as_extender: bool) -> Snapshot:
    async with Client.from_kubeconfig(kubeconfig) as client:
        snapshot = await load(client)
        return await _for_extender(client, snapshot) if as_extender else snapshot


async def _for_extender(client: Client, snapshot: Snapshot) -> Snapshot:
    await use_kept_mix(client, snapshot.cache)
    return await with_budgets(client, snapshot)


@contextmanager
def reading() -> Generator[None]:
    """Add what to do to the errors of reading a cluster. Keep the garbage collector off the objects that are read: they
    stay to the end."""
    gc.disable()
    try:
        yield
    except InvalidInput as error:
        # A parser's error has several lines.
        reason = " ".join(str(error).split())
        raise Unavailable(f"{reason}. Name a cluster with --kubeconfig, or start one with `egpu up`") from error
    except Unavailable as error:
        raise Unavailable(f"{error}. Check that the cluster of this kubeconfig still runs") from error
    except NotFound as error:
        raise NotFound(f"{error}. This cluster has no Elastic GPU installed: kubectl apply -k deploy") from error
    finally:
        gc.freeze()
        gc.enable()
