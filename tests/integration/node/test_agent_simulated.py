"""Agent and kubelet on a simulated machine: real NVML calls, real CUDA programs, real limits."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from egpu.adapters import native
from egpu.adapters.slices.pages import read_policy
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu_sim.machines.machine import Machine, create_machine, destroy
from support.local_node import NODE, LocalNode, local_node, restarts, shell
from support.long import or_long
from support.waiting import until

MIB = 1024 * 1024
PODS = or_long(12, 24)
GPU = {"limits": {names.SLOT: "1"}}


@pytest_asyncio.fixture
async def simulated(request: pytest.FixtureRequest) -> AsyncGenerator[tuple[LocalNode, Machine]]:
    with tempfile.TemporaryDirectory(prefix="egn-") as directory:
        machine = create_machine(Path(directory) / "m", "T4", 2, NODE)
        try:
            async with local_node(Path(directory), machine=machine, cdi=getattr(request, "param", "auto")) as here:
                yield here, machine
        finally:
            destroy(machine)


def given(machine: Machine, index: int, provisioner: str, *, core: int, memory_mib: int) -> ContainerAllocation:
    card = machine.cards[index]
    share = CardShare(uuid=card.uuid, index=index, minor=card.minor, core=core, memory_mib=memory_mib)
    mode = "exclusive" if provisioner == names.PHYSICAL else "shared"
    return ContainerAllocation(provisioner=provisioner, mode=mode, cards=(share,))


async def test_a_sample_computes_the_right_answer_by_image_alone(simulated: tuple[LocalNode, Machine]) -> None:
    node, machine = simulated
    one = {"name": "main", "image": "k8s.gcr.io/cuda-vector-add:v0.1", "resources": GPU}
    whole = given(machine, 1, names.PHYSICAL, core=100, memory_mib=15360)
    await node.create("adds", [one], {"main": whole})
    pod = await node.phase("adds", "Succeeded")
    assert "0 wrong: ok" in node.log(pod, "main")


@pytest.mark.parametrize("provisioner", [names.PHYSICAL, names.VCUDA, names.QGPU])
async def test_volumes_hide_no_card(simulated: tuple[LocalNode, Machine], provisioner: str) -> None:
    """Those of the usual charts. The machine's directory is below /tmp, and its state in /dev/shm."""
    node, machine = simulated
    mounts = [{"name": name, "mountPath": path} for name, path in (("s", "/dev/shm"), ("t", "/tmp"), ("d", "/dev"))]
    image = {"image": "k8s.gcr.io/cuda-vector-add:v0.1", "resources": GPU}
    named = {"name": "named", **image, "command": ["nvidia-smi"], "volumeMounts": mounts}
    one = {"name": "main", **image, "volumeMounts": mounts}
    slice_ = given(machine, 1, provisioner, core=100, memory_mib=15360)
    volumes = [{"name": name, "emptyDir": {"medium": "Memory"}} for name in "std"]
    await node.create("covers", [one], {"main": slice_}, volumes=volumes)
    pod = await node.phase("covers", "Succeeded", "Failed")
    assert "0 wrong: ok" in node.log(pod, "main"), node.log(pod, "main")
    await node.create("names", [named], {"named": slice_}, volumes=volumes)
    pod = await node.phase("names", "Succeeded", "Failed")
    assert "T4" in node.log(pod, "named"), node.log(pod, "named")


async def test_a_container_sees_only_its_slice_of_its_card(simulated: tuple[LocalNode, Machine]) -> None:
    """Also with its environment cleared, and in a child of a child."""
    node, machine = simulated
    info = native.path("samples/egpu-sample-info")
    slice_ = given(machine, 1, names.VCUDA, core=30, memory_mib=2048)
    pod = await node.create("looks", [shell("main", f"{info}; env -i sh -c {info}")], {"main": slice_})
    pod = await node.phase("looks", "Succeeded")
    log = node.log(pod, "main")
    assert log.count(machine.cards[1].uuid.removeprefix("GPU-")) >= 2, log
    assert machine.cards[0].uuid.removeprefix("GPU-") not in log
    assert "2048" in log or str(2048 * MIB) in log, log


@pytest.mark.parametrize("simulated", ["always", "never"], indirect=True)
async def test_a_container_without_a_card_has_no_control_device_either(simulated: tuple[LocalNode, Machine]) -> None:
    node, machine = simulated
    (machine.device_dir / "nvidiactl").write_text("the control device")
    if node.cdi == "never":  # then kubelet gives it, once the agent has seen it
        await until(lambda: "/dev/nvidiactl" in node.offered_devices(), "an offer with it")
    script = "cat /dev/nvidiactl /dev/nvidia0; true"
    for name, technology in {"without": names.QGPU, "with": names.VCUDA}.items():
        slice_ = given(machine, 0, technology, core=30, memory_mib=512)
        await node.create(name, [shell("main", script)], {"main": slice_})
    shown = {name: node.log(await node.phase(name, "Succeeded"), "main") for name in ("without", "with")}
    assert "the control device" in shown["with"], shown
    assert machine.cards[0].uuid in shown["with"], shown
    assert "the control device" not in shown["without"], shown
    assert machine.cards[0].uuid not in shown["without"], shown


async def test_over_its_limit_and_no_further(simulated: tuple[LocalNode, Machine]) -> None:
    node, machine = simulated
    memory = native.path("samples/egpu-sample-memory")
    slice_ = given(machine, 0, names.VCUDA, core=30, memory_mib=512)
    pod = await node.create("greedy", [shell("main", f"{memory}; true")], {"main": slice_})
    pod = await node.phase("greedy", "Succeeded")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in node.log(pod, "main"), node.log(pod, "main")


HOLD = """
import signal, time
from cuda.bindings import driver as d
signal.signal(signal.SIGTERM, signal.SIG_IGN)
d.cuInit(0)
_, context = d.cuDevicePrimaryCtxRetain(0)
d.cuCtxSetCurrent(context)
print(d.cuMemAlloc(12 << 30)[0].name, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("technology", [names.PHYSICAL, names.VCUDA, names.QGPU])
async def test_a_card_is_free_before_it_is_given_out_again(
    simulated: tuple[LocalNode, Machine], technology: str
) -> None:
    """Also after a forced deletion, which lets a program run that ignores SIGTERM."""
    node, machine = simulated
    program = node.directory / "hold.py"
    program.write_text(HOLD)
    whole = given(machine, 0, technology, core=100, memory_mib=15360)
    holds = shell("main", f"exec {sys.executable} {program}")
    old = await node.create("old", [holds], {"main": whole}, terminationGracePeriodSeconds=60)
    first = await until(lambda: node.log(old, "main"), "the first allocation")
    await node.client.delete(type(old), "old", namespace="default", grace_period_seconds=0)
    new = await node.create("new", [holds], {"main": whole})
    second = await until(lambda: node.log(new, "main"), "the second allocation")
    assert (first, second) == ("CUDA_SUCCESS\n", "CUDA_SUCCESS\n")


async def test_metrics_name_what_containers_may_use(simulated: tuple[LocalNode, Machine]) -> None:
    node, machine = simulated
    slice_ = given(machine, 0, names.VCUDA, core=30, memory_mib=512)
    await node.create("metered", [shell("main", "sleep 100")], {"main": slice_})
    await node.phase("metered", "Running")

    async def line() -> str:
        found = [x for x in (await node.agent_page("/metrics")).splitlines() if x.startswith(METRIC)]
        return found[0] if found else ""

    limit = await until(line, "metric")
    assert f'device_uuid="{machine.cards[0].uuid}"' in limit
    assert 'pod="metered"' in limit
    assert float(limit.rsplit(" ", 1)[1]) == 512 * MIB


METRIC = "elasticgpu_container_memory_limit_bytes{"


async def test_a_killed_agent_comes_back_to_the_same_slots(simulated: tuple[LocalNode, Machine]) -> None:
    node, machine = simulated
    slice_ = given(machine, 0, names.VCUDA, core=30, memory_mib=512)
    await node.create("before", [shell("main", "sleep 100")], {"main": slice_})
    await node.phase("before", "Running")
    await node.kill_agent()
    after = await node.create("after", [shell("main", "wc -c < /opt/egpu/policy")], {"main": slice_})
    await node.start_agent_process(machine)
    after = await node.phase("after", "Succeeded")
    assert node.log(after, "main") == "8192\n"
    assert restarts(await node.read("before")) == 0


def test_inventory_reads_the_simulated_nvml(tmp_path: Path) -> None:
    """In a process of its own: the Python package keeps the first library that it loads."""
    machine = create_machine(tmp_path / "m", ["T4", "A100-80G"], node_name="inventory")
    try:
        library = machine.driver_dir / "libnvidia-ml.so.1"
        output = subprocess.run([sys.executable, "-c", READ, library], check=True, capture_output=True, text=True)
        first, again = json.loads(output.stdout)
        assert [card["uuid"] for card in first] == [card.uuid for card in machine.cards]
        assert [card["memory_mib"] for card in first] == [card.memory_mib for card in machine.cards]
        assert (first[0]["model"], first[0]["compute_capability"]) == ("Tesla T4", "7.5")
        assert all(card["healthy"] and card["tflops"] for card in first)
        assert again == first
    finally:
        destroy(machine)


READ = """
import dataclasses, json, sys
from pathlib import Path
from typing import Any
from egpu.adapters.cards.nvml import NvmlInventory
inventory = NvmlInventory(Path(sys.argv[1]))
print(json.dumps([[dataclasses.asdict(card) for card in inventory.read()] for _ in range(2)]))
inventory.close()
"""


def test_a_card_in_mig_mode_is_not_given_out(tmp_path: Path) -> None:
    machine = create_machine(tmp_path / "m", "A100-80G", 2, node_name="cut")
    try:
        cut = "import pynvml as n; n.nvmlInit(); assert n.nvmlDeviceSetMigMode(n.nvmlDeviceGetHandleByIndex(1), 1) == 0"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(machine.driver_dir)}
        subprocess.run([sys.executable, "-c", cut], check=True, env=environment)
        library = machine.driver_dir / "libnvidia-ml.so.1"
        output = subprocess.run([sys.executable, "-c", READ, library], check=True, capture_output=True, text=True)
        whole, cut_up = json.loads(output.stdout)[0]
        assert (whole["healthy"], cut_up["healthy"]) == (True, False)
        assert cut_up["reason"].startswith("in MIG mode")
    finally:
        destroy(machine)


async def test_a_storm_with_agent_and_kubelet_killed(simulated: tuple[LocalNode, Machine]) -> None:
    """Every container keeps a copy of the policy page that it found: each must be what was written for it alone."""
    node, machine = simulated
    chance = random.Random(11)
    kept = node.directory / "kept"
    kept.mkdir()
    expected: dict[str, tuple[str, int, int]] = {}

    async def trouble() -> None:
        for _ in range(or_long(2, 3)):
            await asyncio.sleep(chance.uniform(0.3, 1.2))
            await node.kill_agent()
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            await node.kill_kubelet()
            await node.start_kubelet()
            await node.start_agent_process(machine)

    async def arrive() -> None:
        for number in range(PODS):
            allocation: dict[str, ContainerAllocation] = {}
            containers: list[dict[str, Any]] = []
            for name in ("a", "b", "c")[: chance.randint(1, 3)]:
                index, core, memory = chance.randrange(2), chance.randint(1, 90), chance.randint(1, 9000)
                allocation[name] = given(machine, index, names.VCUDA, core=core, memory_mib=memory)
                own = f"{number}-{name}"
                expected[own] = (machine.cards[index].uuid, core * 10_000, memory * MIB)
                script = f"echo x >> {kept}/{own}.runs; cp /opt/egpu/policy {kept}/{own}; sleep 0.2"
                containers.append(shell(name, script))
            await node.create(f"storm-{number}", containers, allocation)
            await asyncio.sleep(chance.uniform(0, 0.2))

    await asyncio.gather(arrive(), trouble())
    for number in range(PODS):
        pod = await node.phase(f"storm-{number}", "Succeeded", "Failed")
        assert pod.status.phase == "Succeeded", pod.status
    for own, wanted in expected.items():
        (device,) = read_policy(kept / own).devices
        assert (device.uuid, device.core_ppm, device.memory_limit_bytes) == wanted, own
        assert (kept / f"{own}.runs").read_text() == "x\n", f"{own} ran more than once"
    checkpoint = node.kubelet_dir / "device-plugins/kubelet_internal_checkpoint"
    await until(lambda: json.loads(checkpoint.read_bytes())["grants"] == [])  # every slot comes back
