"""MIG on a cluster: claims and NVIDIA's names get instances beside slices of other cards, programs compute in them and
see nothing else, a killed agent goes on, and at the end everything is given back."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from egpu.adapters import native
from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.api.mig import Mig
from egpu.api.objects import ElasticGPU, card_name
from egpu.laptop import manifests
from egpu.laptop.cluster import Cluster, ClusterConfig, cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client
from egpu_sim.machines.machine import open_machine, profiles
from support.claims import a_class, using
from support.clearing import clear
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "A100-40G"
SEEN = """
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
for i in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):
    try: m = n.nvmlDeviceGetMigDeviceHandleByIndex(h, i)
    except n.NVMLError_NotFound: continue
    profile, total = n.nvmlDeviceGetName(m).rpartition(" ")[2], n.nvmlDeviceGetMemoryInfo(m).total
    print("sees", profile, total >> 20, "MiB of", n.nvmlDeviceGetCount())
"""
CUT = "import pynvml as n; n.nvmlInit(); assert n.nvmlDeviceSetMigMode(n.nvmlDeviceGetHandleByIndex(0), 1) == 0"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Cluster]:
    """Of its two cards the first is in MIG mode."""
    async with cluster(ClusterConfig(nodes=1, cards_per_node=2, profiles=(MODEL,))) as one:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(one.node_dir("node-1") / "machine" / "driver")}
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CUT], env=environment, check=True, timeout=60)
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Cluster) -> AsyncIterator[Client]:
    async with running.client() as one:
        await until(lambda: cut_card(running, one), "the card is published in MIG mode", seconds=60)
        yield one
        await clear(one)


async def cut_card(running: Cluster, client: Client) -> Mig | None:
    card = open_machine(running.node_dir("node-1") / "machine").cards[0]
    found = await client.get(ElasticGPU, card_name("node-1", card.uuid))
    assert found.spec.physical_gpu is not None
    return found.spec.physical_gpu.mig


def pod(name: str, asks: dict[str, int], command: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    app = {"name": "app", "image": "any", "command": ["sh", "-c", command], "resources": {"limits": asks}}
    spec = {"containers": [app], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    metadata = {"name": name, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def in_phase(client: Client, name: str, phase: str) -> Pod:
    async def there() -> Pod | None:
        found = await client.get(Pod, name, namespace="default")
        return found if found.status.phase == phase else None

    return await until(there, f"{name} is {phase}", seconds=120)


def place_of(found: Pod) -> tuple[int, str]:
    (share,) = decode_allocation(found.annotations[names.ALLOCATION]).containers["app"].cards
    return share.index, str(share.instance)


async def given_back(running: Cluster, client: Client) -> bool:
    card = open_machine(running.node_dir("node-1") / "machine").cards[0]
    found = await client.get(ElasticGPU, card_name("node-1", card.uuid))
    return found.status.phase == "Available" and not any(str(amount) != "0" for amount in found.status.given.values())


async def test_programs_compute_in_instances_and_see_nothing_else(running: Cluster, client: Client) -> None:
    memory = {each.name: each.memory_mib for each in profiles()[MODEL].mig}
    look = f"{native.path('samples/egpu-sample-vectoradd')} && {sys.executable} -c '{SEEN}' && nvidia-smi -L"
    claim = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "c"},
        "spec": {"elasticGPUClassName": "cut", "resources": {"requests": {"nvidia.com/mig-2g.10gb": 1}}},
    }
    pods = [
        pod("plain", {"nvidia.com/mig-1g.5gb": 1}, look),
        pod("claiming", {}, look, using("c")),
        pod("slice", {names.GPU_CORE: 30, names.GPU_MEMORY: 1024}, str(native.path("samples/egpu-sample-vectoradd"))),
    ]
    await manifests.create(client, [a_class("cut", names.MIG), claim, *pods])
    for name, profile in (("plain", "1g.5gb"), ("claiming", "2g.10gb")):
        done = await in_phase(client, name, "Succeeded")
        log = await client.text(f"/api/v1/namespaces/default/pods/{name}/log", params={"container": "app"})
        assert "0 wrong: ok" in log
        assert f"sees {profile} {memory[profile]} MiB of 1\n" in log
        assert log.count("sees ") == log.count("  MIG ") == 1, log
        index, where = place_of(done)
        assert (index, where.partition(" ")[0]) == (0, profile)
    assert place_of(await in_phase(client, "slice", "Succeeded"))[0] == 1


async def test_instances_give_way_once_they_are_given_back(running: Cluster, client: Client) -> None:
    """Also under an agent that is killed while the pods come."""
    await manifests.create(client, [pod(f"small-{n}", {"nvidia.com/mig-1g.5gb": 1}, "sleep 1000") for n in range(3)])
    running.fleet.children["agent-node-1"].kill()
    places = {place_of(await in_phase(client, f"small-{n}", "Running")) for n in range(3)}
    assert len(places) == 3
    await manifests.create(client, [pod("all", {"nvidia.com/mig-7g.40gb": 1}, "sleep 1000")])
    for n in range(3):
        await client.delete(Pod, f"small-{n}", namespace="default")
    assert place_of(await in_phase(client, "all", "Running")) == (0, "7g.40gb at 0")

    async def cut_anew() -> bool:
        mig = await cut_card(running, client)
        return mig is not None and [str(one) for one in mig.own] == ["7g.40gb at 0"] and not mig.others

    await until(cut_anew, "the card is one instance, the agent's own", seconds=60)
    await client.delete(Pod, "all", namespace="default")
    await until(lambda: given_back(running, client), "everything is given back", seconds=60)
