"""A card has one bookkeeper: agent and kubelet beside another device plugin, and without a driver. Real sockets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egpu.adapters.cards.nvml import CardReading
from egpu.api import names
from egpu.api.objects import ElasticGPU
from egpu.core.node_condition import TYPE, condition_of
from egpu.core.placement.published import card_of
from egpu_base.api.kubernetes import Event, Node
from egpu_base.errors import NativeMissing
from egpu_sim.machines.machine import create_machine, destroy
from support.foreign_plugin import foreign_plugin
from support.local_node import NODE, LocalNode, local_node, restarts, share, shell, vcuda
from support.waiting import until

SECONDS = 20.0


@pytest.fixture
async def idle() -> AsyncGenerator[LocalNode]:
    """A node whose agent a test starts."""
    with tempfile.TemporaryDirectory(prefix="egn-") as directory:
        async with local_node(Path(directory), agent=False) as here:
            await until(lambda: registered(here), "the node's first status")
            yield here


async def registered(here: LocalNode) -> bool:
    node = await here.client.find(Node, NODE)
    return node is not None and bool(node.status.conditions)


async def the_node(here: LocalNode) -> Node:
    return await here.client.get(Node, NODE)


async def becomes(here: LocalNode, reason: str) -> str:
    """Wait for the node's condition to have this reason; return its message."""

    async def look() -> str | None:
        found = condition_of(await the_node(here))
        if found is None or found.reason != reason:
            return None
        assert found.status == str(reason == "Ready")
        return found.message

    return await until(look, f"{TYPE} with {reason}", seconds=SECONDS)


def amounts(node: Node) -> dict[str, Any]:
    """What a node offers of cards, without the slots."""
    there = node.status.allocatable or {}
    return {name: str(amount) for name, amount in there.items()
            if ("gpu" in name or "nvidia" in name) and name != names.SLOT and str(amount) != "0"}  # fmt: skip


async def offers(here: LocalNode, name: str, amount: str) -> bool:
    return str(((await the_node(here)).status.allocatable or {}).get(name, "0")) == amount


async def test_beside_another_plugin_no_card_is_given_out_until_it_is_gone(idle: LocalNode) -> None:
    async with foreign_plugin(idle.kubelet_dir):
        await until(lambda: offers(idle, "nvidia.com/gpu", "2"), "kubelet's amounts of the other plugin")
        agent = idle.begin_agent()
        message = await becomes(idle, "OtherPlugin")
        assert "a device plugin that offers nvidia.com/gpu and our agent would both give out the cards" in message
        assert f"kubectl label node {NODE} elasticgpu.io/node=false" in message
        await asyncio.sleep(1)  # time for a mistake
        node = await the_node(idle)
        assert amounts(node) == {"nvidia.com/gpu": "2"}, "those of the other plugin"
        assert str((node.status.capacity or {}).get(names.SLOT, "0")) == "0", "kubelet refuses pods that ask for a slot"
        assert await idle.client.list(ElasticGPU) == []
        assert agent.standing.stuck() is None, "an upgrade of the agents does not wait for this node"
    assert await becomes(idle, "Ready") == "the agent offers this node's cards"
    await until(lambda: offers(idle, "elasticgpu.io/gpu-core", "200"), "our amounts")
    assert len(await idle.client.list(ElasticGPU)) == 2
    assert await offers(idle, "nvidia.com/gpu", "0"), "kubelet still counts the devices of the plugin that has gone"


class LateDriver:
    """Cards without a driver at first."""

    def __init__(self, here: LocalNode) -> None:
        self._read = here.cards.read
        self.there = False

    def read(self) -> tuple[CardReading, ...]:
        if not self.there:
            raise NativeMissing("libnvidia-ml.so.1 cannot be loaded")
        return self._read()


async def test_without_a_driver_the_agent_waits_and_starts_when_it_comes(
    idle: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = LateDriver(idle)
    monkeypatch.setattr(idle.cards, "read", driver.read)
    agent = idle.begin_agent()
    message = await becomes(idle, "NoDriver")
    assert "libnvidia-ml.so.1 cannot be loaded. Install NVIDIA's driver on this node" in message
    assert amounts(await the_node(idle)) == {}
    assert agent.standing.stuck() is None
    driver.there = True
    await becomes(idle, "Ready")
    assert agent.not_ready() is None
    await until(lambda: offers(idle, "elasticgpu.io/gpu-core", "200"), "our amounts")
    pod = await idle.create("one", [shell("main", "cat /dev/nvidia1")], {"main": vcuda(share(1))})
    pod = await idle.phase("one", "Succeeded", "Failed")
    assert "EGPUSIM1" in idle.log(pod, "main")


async def test_a_simulated_driver_comes_later_without_a_restart() -> None:
    with tempfile.TemporaryDirectory(prefix="egn-") as directory:
        machine = create_machine(Path(directory) / "m", "T4", 2, NODE)
        library = machine.driver_dir / "libnvidia-ml.so.1"
        hidden = library.rename(library.with_suffix(".hidden"))
        try:
            async with local_node(Path(directory), machine=machine) as here:
                await becomes(here, "NoDriver")
                assert here.agent_process is not None
                process = here.agent_process.pid
                hidden.rename(library)
                await becomes(here, "Ready")
                assert here.agent_process.returncode is None
                assert here.agent_process.pid == process
                assert len(await here.client.list(ElasticGPU)) == 2
        finally:
            destroy(machine)


async def test_a_plugin_that_comes_later_interrupts_no_program_and_ends_the_offer(idle: LocalNode) -> None:
    await idle.start_agent()
    await becomes(idle, "Ready")
    await until(lambda: offers(idle, "elasticgpu.io/gpu-core", "200"), "our amounts")
    container = shell("main", "while sleep 0.1; do cat /dev/nvidia0; done")
    container["resources"] = {"limits": {names.SLOT: "1", names.GPU_CORE: "30", names.GPU_MEMORY: "1024"}}
    pod = await idle.create("runs", [container], {"main": vcuda(share(0, core=30))})
    await idle.phase("runs", "Running")
    async with foreign_plugin(idle.kubelet_dir):
        message = await becomes(idle, "OtherPlugin")
        assert "no more than its 1 GPU pods have, and they go on" in message
        await until(lambda: offers(idle, "elasticgpu.io/gpu-core", "30"), "the amounts in use alone")
        assert amounts(await the_node(idle)) == {
            "nvidia.com/gpu": "2", "elasticgpu.io/gpu-core": "30", "elasticgpu.io/gpu-memory": "1024",
        }  # fmt: skip
        cards = await idle.client.list(ElasticGPU)
        assert len(cards) == 2
        assert all("given out by another program" in card_of(one).why_not for one in cards)
        assert {(card_of(one).kept_off, card_of(one).works) for one in cards} == {("contested", True)}
        (event,) = [one for one in await idle.client.list(Event) if one.reason == "OtherPlugin"]
        assert event.type == "Warning"
        assert event.involved_object.name == NODE
        await idle.stop_agent()
        await idle.start_agent()  # an agent that starts again serves the pod that is there
        await until(lambda: idle.slot_of(pod, "main") is not None, "the pod's slot")
        pod = await idle.read("runs")
        assert pod.status.phase == "Running"
        assert restarts(pod) == 0, "nothing was interrupted"
        await idle.client.delete(type(pod), "runs", namespace="default")
        await idle.gone("runs")
        await until(lambda: offers(idle, "elasticgpu.io/gpu-core", "0"), "no amounts")
    await becomes(idle, "Ready")
    await until(lambda: offers(idle, "elasticgpu.io/gpu-core", "200"), "all amounts again")
    cards = await idle.client.list(ElasticGPU)
    assert not any(card_of(one).why_not for one in cards)


async def test_slices_of_nvidias_dra_driver_are_seen(idle: LocalNode) -> None:
    pool = {"name": "nvidia", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": [{"name": "gpu-0"}]}
    body = {"metadata": {"name": "nvidia"}, "spec": spec}
    await idle.client.raw("POST", "/apis/resource.k8s.io/v1/resourceslices", body=body)
    idle.begin_agent()
    message = await becomes(idle, "OtherPlugin")
    assert "NVIDIA's DRA driver and our agent would both give out the cards of this node" in message
    assert "resources.gpus.enabled=false" in message
    await asyncio.sleep(1)
    assert amounts(await the_node(idle)) == {}
    assert await idle.client.list(ElasticGPU) == []


async def test_conditions_of_others_stay(idle: LocalNode) -> None:
    path = f"/api/v1/nodes/{NODE}/status"
    mine = [{"op": "add", "path": "/status/conditions/-", "value": {"type": "KernelDeadlock", "status": "False"}}]
    await idle.client.patch_json(Node, NODE, mine, subresource="status")
    await idle.start_agent()
    await becomes(idle, "Ready")
    found = msgspec.convert(await idle.client.raw("GET", path.removesuffix("/status")), Node)
    kinds = [one.type for one in found.status.conditions or []]
    assert {"KernelDeadlock", "Ready", "MemoryPressure", TYPE} <= set(kinds)
    assert len(kinds) == len(set(kinds))
