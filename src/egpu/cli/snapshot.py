"""What a cluster looks like now, read once: the objects, and the same ledger that the extender keeps."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.kubernetes import Client
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.core.feed import Feed, rebuild
from egpu.errors import InvalidInput, NotFound, Unavailable


@dataclass(frozen=True)
class Snapshot:
    """`feed` holds the ledger that follows from the objects."""

    nodes: Sequence[Node]
    gpus: Sequence[ElasticGPU]
    classes: Sequence[ElasticGPUClass]
    claims: Sequence[ElasticGPUClaim]
    pods: Sequence[Pod]
    feed: Feed


async def load(client: Client) -> Snapshot:
    """Read everything. Raises Unavailable, Refused, or NotFound where our objects are not installed."""
    nodes, gpus, classes, claims, pods = await asyncio.gather(
        client.list(Node),
        client.list(ElasticGPU),
        client.list(ElasticGPUClass),
        client.list(ElasticGPUClaim),
        client.list(Pod),
    )
    return Snapshot(
        nodes=sorted(nodes, key=lambda node: node.name),
        gpus=gpus,
        classes=classes,
        claims=sorted(claims, key=lambda claim: claim.key),
        pods=sorted(pods, key=lambda pod: pod.key),
        feed=rebuild(gpus, pods, claims, classes, nodes),
    )


def load_from(kubeconfig: Path | None) -> Snapshot:
    """`load` with a client of its own, for a command. Raises Unavailable or NotFound with what to do about it."""

    async def work() -> Snapshot:
        async with Client.from_kubeconfig(kubeconfig) as client:
            return await load(client)

    try:
        return asyncio.run(work())
    except InvalidInput as error:
        # A parser's complaint comes in several lines.
        reason = " ".join(str(error).split())
        raise Unavailable(f"{reason}; name a cluster with --kubeconfig, or start one: egpu up") from error
    except Unavailable as error:
        raise Unavailable(f"{error}; is the cluster of this kubeconfig still up?") from error
    except NotFound as error:
        raise NotFound(f"{error}; this cluster has no Elastic GPU installed: kubectl apply -k deploy") from error
