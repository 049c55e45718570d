"""Programs that compute for as long as they are let, in each way of having a card, and whether one was interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from egpu.adapters import native
from egpu.adapters.slices.pages import UsageReader
from egpu.api import names
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from egpu_sim.cluster.cluster import Cluster

SPIN: Final = [str(native.path("samples/egpu-sample-spin")), "--us=1000", "--seconds=100000"]
WITH_GPUS: Final = {"elasticgpu.io/gpu-count": "2"}
WITHOUT_GPUS: Final = {"elasticgpu.io/gpu-count": "0"}


def pod(name: str, command: list[str], *, pool: bool = False, **spec: Any) -> dict[str, Any]:
    """A bare pod with a tenth of a card: of its node's own, or of the pool's."""
    limits = {names.POOL_CORE: 10, names.POOL_MEMORY: 256} if pool else {names.GPU_CORE: 10, names.GPU_MEMORY: 256}
    container = {"name": "main", "image": "any", "command": command, "resources": {"limits": limits}}
    settings = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 1, **spec, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": settings}


def steady() -> list[dict[str, Any]]:
    """One with the card in its container, one with an executor beside it, one with an executor on another node."""
    return [
        pod("direct", SPIN),
        pod("beside", SPIN, pool=True, nodeSelector=WITH_GPUS),
        pod("remote", SPIN, pool=True, nodeSelector=WITHOUT_GPUS),
    ]


def _slices(running: Cluster[Any]) -> Iterator[Path]:
    for node in running.node_names:
        for folder in ("slots", "executors", "served"):
            yield from (running.node_dir(node) / "agent" / folder).glob("[!.]*/usage")


def gpu_seconds(running: Cluster[Any]) -> dict[Path, float]:
    """GPU time that each slice of the cluster has used, by its usage file."""
    return {file: sum(one.gpu_ns for one in UsageReader(file).read_totals().devices) / 1e9 for file in _slices(running)}


def computing(running: Cluster[Any]) -> int:
    """How many slices have computed."""
    return sum(used > 0 for used in gpu_seconds(running).values())


def progress(before: dict[Path, float], now: dict[Path, float]) -> int:
    """How many of the slices that had computed by then have computed more since."""
    return sum(now.get(file, 0.0) > used for file, used in before.items() if used > 0)


async def interrupted(client: Client) -> list[str]:
    """What of the steady programs has ended, and so was started again or not."""
    found: list[str] = []
    for name in ("direct", "beside", "remote"):
        one = await client.get(Pod, name, namespace="default")
        for status in one.status.container_statuses or []:
            if status.restart_count or status.state is None or status.state.running is None:
                found.append(f"{name}: {one.status.phase}, {status.restart_count} restarts, {status.state}")
    return found


async def succeeded(client: Client, names: Sequence[str]) -> bool:
    """Whether all of these pods have ended well. None of them may have failed."""
    pods = [await client.get(Pod, name, namespace="default") for name in names]
    failed = [f"{pod.name}: {pod.status.reason} {pod.status.message}" for pod in pods if pod.status.phase == "Failed"]
    assert not failed, failed
    return all(pod.status.phase == "Succeeded" for pod in pods)
