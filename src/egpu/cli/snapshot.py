"""What a cluster looks like now, read once: the objects, and the same ledger that the extender keeps."""

import asyncio
import gc
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from egpu.adapters.kubernetes import Client
from egpu.api.disruption import PodDisruptionBudget
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.cli.output import note
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.errors import CorruptData, InvalidInput, NotFound, Refused, Unavailable


@dataclass(frozen=True)
class Snapshot:
    """`cache` holds the ledger that follows from the objects."""

    nodes: Sequence[Node]
    gpus: Sequence[ElasticGPU]
    classes: Sequence[ElasticGPUClass]
    claims: Sequence[ElasticGPUClaim]
    pods: Sequence[Pod]
    cache: SchedulerCache
    budgets: Sequence[PodDisruptionBudget] = ()


async def load(client: Client) -> Snapshot:
    """Read everything. Raises Unavailable, Refused, or NotFound where our objects are not installed."""
    nodes, gpus, classes, claims, pods = await asyncio.gather(
        client.list(Node),
        client.list(ElasticGPU),
        client.list(ElasticGPUClass),
        client.list(ElasticGPUClaim),
        client.list(Pod),
    )
    return snapshot_of(nodes, gpus, classes, claims, pods)


def snapshot_of(
    nodes: Iterable[Node],
    gpus: Iterable[ElasticGPU],
    classes: Iterable[ElasticGPUClass],
    claims: Iterable[ElasticGPUClaim],
    pods: Iterable[Pod],
) -> Snapshot:
    """What follows from these objects."""
    kept = tuple(gpus), tuple(classes)
    by_name = sorted(nodes, key=lambda node: node.name)
    by_key = sorted(claims, key=lambda claim: claim.key), sorted(pods, key=lambda pod: pod.key)
    cache = rebuild(kept[0], by_key[1], by_key[0], kept[1], by_name)
    return Snapshot(by_name, *kept, *by_key, cache)


async def use_kept_mix(client: Client, cache: SchedulerCache) -> None:
    """Price places by the job mix that the extender has kept, as it does; where that cannot be read, say so."""
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
    """With the PodDisruptionBudgets that the extender keeps to; where they cannot be read, say so."""
    try:
        return replace(snapshot, budgets=await client.list(PodDisruptionBudget))
    except Refused as error:
        note(f"preemption is planned without regard to PodDisruptionBudgets: {error}")
        return snapshot


def load_from(kubeconfig: Path | None, *, as_extender: bool = False) -> Snapshot:
    """`load` with a client of its own, for a command; `as_extender`: with what else the extender decides by. Raises
    Unavailable or NotFound with what to do about it."""
    with reading():
        return asyncio.run(_load_from(kubeconfig, as_extender=as_extender))


async def _load_from(kubeconfig: Path | None, *, as_extender: bool) -> Snapshot:
    async with Client.from_kubeconfig(kubeconfig) as client:
        snapshot = await load(client)
        if as_extender:
            await use_kept_mix(client, snapshot.cache)
            snapshot = await with_budgets(client, snapshot)
        return snapshot


@contextmanager
def reading() -> Generator[None]:
    """Reading a cluster. Its errors are raised again with what to do about them. What is read stays: the collector,
    which would look through it again and again, has a rest."""
    gc.disable()
    try:
        yield
    except InvalidInput as error:
        # A parser's complaint comes in several lines.
        reason = " ".join(str(error).split())
        raise Unavailable(f"{reason}; name a cluster with --kubeconfig, or start one: egpu up") from error
    except Unavailable as error:
        raise Unavailable(f"{error}; is the cluster of this kubeconfig still up?") from error
    except NotFound as error:
        raise NotFound(f"{error}; this cluster has no Elastic GPU installed: kubectl apply -k deploy") from error
    finally:
        gc.freeze()
        gc.enable()
