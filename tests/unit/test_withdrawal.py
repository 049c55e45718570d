"""Amounts of nodes: who publishes them when, and who takes them back when nobody serves the node."""

from typing import Any

import pytest

from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.cards.publisher import Publisher
from egpu.apps.controller.withdrawal import Withdrawal
from egpu.core.offered import OFFERED, is_offered, orphaned, withdrawn
from egpu_base.api.kubernetes import Node
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI
from support.local_node import Cards

AMOUNTS = {"cpu": "8", "elasticgpu.io/gpu-core": "100", "nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "7"}


def node(api: FakeAPI, name: str = "n0", **status: Any) -> None:
    amounts = AMOUNTS | {f"elasticgpu.io/{key}": value for key, value in status.items()}
    body = {"kind": "Node", "metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts}}
    api.put("nodes", body)


async def look(api: FakeAPI, *moments: float) -> None:
    client = api.client()
    nodes = await client.list(Node)
    one = Withdrawal(client, EventRecorder(client, component="test"), nodes=lambda: nodes, grace_seconds=60)
    for now in moments:
        await one.look(now)


async def test_a_node_without_slots_loses_its_amounts_after_a_while() -> None:
    api = FakeAPI()
    node(api, slot="0")
    await look(api, 0.0, 59.0)
    assert api.get("nodes", "n0")["status"]["capacity"] == AMOUNTS | {"elasticgpu.io/slot": "0"}, "a shim restarts"
    await look(api, 0.0, 61.0)
    for field in ("capacity", "allocatable"):
        assert api.get("nodes", "n0")["status"][field] == {"cpu": "8", "elasticgpu.io/slot": "0"}
    (event,) = api.all("events")
    assert "no agent serves this node" in event["message"]
    (condition,) = api.get("nodes", "n0")["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("ElasticGPUReady", "False", "AgentGone")


@pytest.mark.parametrize("status", [{"slot": "48"}, {"gpu-core": "0", "slot": "0"}], ids=["served", "taken back"])
async def test_no_other_node_is_touched(status: dict[str, str]) -> None:
    api = FakeAPI()
    node(api, **status)
    before = api.get("nodes", "n0")
    await look(api, 0.0, 1000.0)
    assert api.get("nodes", "n0") == before


@pytest.mark.parametrize(
    "path", ["/var/lib/kubelet/device-plugins", ""], ids=["a plugin", "a tenant's pod with its label"]
)
async def test_only_a_pod_that_reaches_kubelet_keeps_names_for_itself(path: str) -> None:
    api = FakeAPI()
    node(api, slot="0")
    volumes = [{"name": "v", "hostPath": {"path": path}} if path else {"name": "v", "emptyDir": {}}]
    metadata = {"name": "p", "namespace": "tenant", "labels": {"app": "nvidia-device-plugin"}}
    spec = {"nodeName": "n0", "containers": [{"name": "c"}], "volumes": volumes}
    api.put("pods", {"kind": "Pod", "metadata": metadata, "spec": spec})
    await look(api, 0.0, 61.0)
    assert ("nvidia.com/gpu" in api.get("nodes", "n0")["status"]["capacity"]) == bool(path)


async def test_a_node_that_was_served_meanwhile_keeps_its_amounts() -> None:
    api = FakeAPI()
    node(api, slot="0")
    client = api.client()
    known = await client.list(Node)
    one = Withdrawal(client, EventRecorder(client, component="test"), nodes=lambda: known, grace_seconds=1)
    await one.look(0.0)
    node(api, slot="48")
    await one.look(100.0)
    assert api.get("nodes", "n0")["status"]["capacity"]["elasticgpu.io/gpu-core"] == "100"


def test_names_of_nvidia_alone_are_nobodys_fault() -> None:
    assert not orphaned({"nvidia.com/gpu": "8"})
    assert orphaned({"elasticgpu.io/gpu-core": "100"})
    assert withdrawn(AMOUNTS, others=True) == {"elasticgpu.io/gpu-core": None}
    assert withdrawn(AMOUNTS).keys() == AMOUNTS.keys() - {"cpu"}
    assert is_offered("nvidia.com/mig-3g.20gb")
    assert "elasticgpu.io/slot" not in OFFERED


async def test_an_agent_publishes_no_amounts_before_kubelet_gives_out_slots() -> None:
    api = FakeAPI()
    api.put("nodes", {"kind": "Node", "metadata": {"name": "n0"}, "status": {"allocatable": {"cpu": "8"}}})
    client, cards = api.client(), Cards(1)
    publisher = Publisher(
        client,
        "n0",
        Inventory(cards, interval_seconds=1),
        events=EventRecorder(client, component="test"),
        interval_seconds=60,
        learn=lambda _: "",
        slots_first=True,
    )
    await publisher.publish(cards.read())
    found = api.get("nodes", "n0")
    assert found["status"] == {"allocatable": {"cpu": "8"}}
    assert found["metadata"]["labels"]["elasticgpu.io/gpu-count"] == "1"
    api.put("nodes", found | {"status": {"allocatable": {"cpu": "8", "elasticgpu.io/slot": "48"}}})
    await publisher.publish(cards.read())
    assert api.get("nodes", "n0")["status"]["capacity"]["elasticgpu.io/gpu-core"] == "100"
