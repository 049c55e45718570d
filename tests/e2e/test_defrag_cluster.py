"""`egpu defrag` and `egpu export-trace` against a cluster that runs: they propose and write, and move nothing."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.traces import read_nodes, read_pods
from egpu.api import names
from egpu.laptop import manifests
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from support.commands import Place, up
from support.waiting import until


def a_pod(name: str, limits: dict[str, int], **spec: Any) -> dict[str, Any]:
    container = {
        "name": "app",
        "image": "any",
        "command": ["sleep", "1000"],
        "resources": {"limits": limits, "requests": {"cpu": "1"}},
    }
    whole = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


HALF = {names.GPU_CORE: 50, names.GPU_MEMORY: 8192}


async def fill(kubeconfig: Path) -> None:
    async with Client.from_kubeconfig(kubeconfig) as client:
        for at in range(4):  # one by one: a scheduler chooses a node before the pod before is bound to its own
            await manifests.create(client, [a_pod(f"half-{at}", HALF)])

            async def placed() -> bool:
                return all(pod.spec.node_name for pod in await client.list(Pod, namespace="default"))

            await until(placed, seconds=90)
        await manifests.create(client, [a_pod("big", {names.NVIDIA_GPU: 2})])


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Place, str]]:
    """Two nodes of two cards, spread policies: a half on each card, and a pod that waits for two whole cards."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as root:
        place = Place(Path(root))
        spread = ("--node-policy", "spread", "--card-policy", "spread")
        with up(place, "--nodes", "2", "--gpus", "2", *spread) as (_, facts):
            asyncio.run(fill(Path(facts["kubeconfig"])))
            yield place, facts["kubeconfig"]


def run(cluster: tuple[Place, str], *arguments: str, code: int = 0) -> tuple[str, str]:
    place, kubeconfig = cluster
    done = place.run(*arguments, KUBECONFIG=kubeconfig)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


async def places(kubeconfig: str) -> dict[str, tuple[str, str]]:
    async with Client.from_kubeconfig(kubeconfig) as client:
        pods = await client.list(Pod, namespace="default")
        return {pod.name: (pod.uid, pod.spec.node_name) for pod in pods}


def test_two_moves_would_let_the_waiting_pod_in_and_none_is_made(cluster: tuple[Place, str]):
    before = asyncio.run(places(cluster[1]))
    assert before["big"][1] == ""
    found = json.loads(run(cluster, "defrag", "big", "-o", "json")[0])
    moved = {move["pod"]: (move["from"], move["to"]) for move in found["moves"]}
    assert len(moved) == 2
    node = found["then"]["fitsOn"]
    assert all(origin == node != target for origin, target in moved.values())
    assert {origin for origin, _ in moved.values()} == {node}
    out, err = run(cluster, "defrag", "default/big")
    assert out.splitlines()[0].split() == ["POD", "FROM", "CARDS", "TO", "GPU"]
    assert len(out.splitlines()) == 3
    assert f"after these moves the pod fits on {node}. No pod was moved" in err
    assert asyncio.run(places(cluster[1])) == before


def test_moves_that_raise_what_can_be_given_out(cluster: tuple[Place, str]):
    before = asyncio.run(places(cluster[1]))
    found = json.loads(run(cluster, "defrag", "--raise-share", "-o", "json")[0])
    share = found["allocatablePercent"]
    assert [len(step["moves"]) for step in found["steps"]] == [2]
    assert share["then"] == found["steps"][-1]["allocatablePercent"] > share["now"]
    out, err = run(cluster, "defrag", "--raise-share")
    assert out.splitlines()[0].split()[-2:] == ["GAIN", "ALLOCATABLE"]
    assert "No pod was moved" in err
    assert asyncio.run(places(cluster[1])) == before


def test_impossible_plans_are_errors(cluster: tuple[Place, str]):
    for arguments, said in (
        (("defrag", "half-0"), "Name a pending pod"),
        (("defrag",), "name a pending pod"),
        (("defrag", "big", "--max-moves", "1"), "found no way to make room with at most 1 moves"),
    ):
        assert said in run(cluster, *arguments, code=1)[1]


def test_an_exported_trace_can_be_simulated(cluster: tuple[Place, str]):
    place = cluster[0]
    nodes, pods, out = (place.root / name for name in ("nodes.csv", "pods.csv", "out.json"))
    said = run(cluster, "export-trace", "--nodes", str(nodes), "--pods", str(pods))[1]
    assert "2 nodes to" in said
    assert "5 pods to" in said
    machines, shapes = read_nodes(nodes), read_pods(pods)
    assert [(machine.cards, machine.model) for machine in machines] == [(2, "NVIDIA A100-SXM4-80GB")] * 2
    assert sorted((shape.cards, shape.core_milli, shape.card_memory_mib) for shape in shapes) == [
        *[(1, 500, 8192)] * 4,
        (2, 1000, 0),
    ]
    assert all(shape.cpu_milli == 1000 for shape in shapes)
    trace = ("--nodes", str(nodes), "--pods", str(pods))
    run(
        cluster, "simulate", *trace, "--policy", "default,best-fit", "--seed", "1,2", "--load", "1.0", "--out", str(out)
    )
    runs = json.loads(out.read_text())
    assert {(one["policy"], one["seed"]) for one in runs} == {(p, s) for p in ("default", "best-fit") for s in (1, 2)}
    assert all(50 <= one["alloc"]["100"] <= 100 for one in runs)
