"""A node's ResourceSlices in the API server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.cards.mig import MigReading
from egpu.api import names
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.dra import slices as module
from egpu.apps.agent.dra.slices import Slices
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu_base.errors import NotSupported
from support.fake_api import FakeAPI
from support.local_node import NODE, Cards, card, share, vcuda


class Published:
    """The slices of a node with cards that a test changes."""

    def __init__(self, root: Path, api: FakeAPI) -> None:
        self.api, self.root = api, root
        self.source = Cards(3)
        self.slots = Slots(root)
        self.inventory = Inventory(self.source, interval_seconds=60)
        self.cordoned: set[str] = set()
        self.giving = True
        self.priced = self.contested = False
        self.slices = Slices(
            api.client(), NODE, inventory=self.inventory, slots=self.slots, node_uid=lambda: "uid-node",
            cordoned=lambda: self.cordoned, giving=lambda: self.giving, priced=lambda: self.priced,
            contested=lambda: self.contested,
        )  # fmt: skip

    async def step(self) -> int:
        """Look once; return how many writes that took."""
        await self.inventory.refresh()
        before = len(self.api.log)
        await self.slices.step()
        return sum(method != "GET" for method, _ in self.api.log[before:])

    @property
    def specs(self) -> list[dict[str, Any]]:
        return [one["spec"] for one in self.api.all("resourceslices")]

    @property
    def order(self) -> list[int]:
        return [int(one["name"].split("-")[1], 16) for spec in self.specs for one in spec["devices"]]


def a_slot(number: int) -> SlotRecord:
    return SlotRecord(
        slot_id="uid-c.gpu", namespace="default", pod="p", pod_uid="uid-p", container="app", generation=1, boot_id="",
        allocation=vcuda(share(number)), minors={},
    )  # fmt: skip


@pytest.fixture
async def node(tmp_path: Path) -> Published:
    return Published(tmp_path, FakeAPI())


async def test_cards_are_published_once_until_they_change(node: Published) -> None:
    assert await node.step() == 1
    (spec,) = node.specs
    assert (spec["driver"], spec["nodeName"]) == (names.DRIVER, NODE)
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert await node.step() == 0
    assert await Published(node.root, node.api).step() == 0  # after an agent's restart


async def test_health_and_cordons_change_the_generation(node: Published) -> None:
    await node.step()
    node.source.cards = (replace(card(0), healthy=False, reason="XID 79"), *node.source.cards[1:])
    node.cordoned = {card(1).uuid}
    assert await node.step() == 1
    (spec,) = node.specs
    assert spec["pool"]["generation"] == 2
    taints = [[taint["key"] for taint in one.get("taints", [])] for one in spec["devices"]]
    assert taints == [[f"{names.DRIVER}/unhealthy"], [f"{names.DRIVER}/cordoned"], []]


async def test_times_of_the_server_are_no_change(node: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)
    node.cordoned = {card(1).uuid}
    await node.step()
    (found,) = node.api.all("resourceslices")
    found["spec"]["devices"][1]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    node.api.put("resourceslices", found)
    assert await node.step() == 0


async def test_the_fullest_card_comes_first(node: Published) -> None:
    await node.step()
    assert node.order == [0, 1, 2]
    node.slots.replace(a_slot(2), lambda _: None)
    assert await node.step() == 1
    assert node.order == [2, 0, 1]


class WithoutTaints(FakeAPI):
    """An API server whose feature gate DRADeviceTaints is off."""

    def put(self, plural: str, obj: dict[str, Any]) -> dict[str, Any]:
        for device in obj["spec"]["devices"] if plural == "resourceslices" else ():
            device.pop("taints", None)
        return super().put(plural, obj)


async def test_priced_cards_are_not_published_without_their_taint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Published(tmp_path, WithoutTaints())
    node.priced = True
    with pytest.raises(NotSupported, match="DRADeviceTaints"):
        await node.step()
    assert not node.specs
    assert await node.step() == 0, "it waits before it tries again"
    node.priced = False
    await node.step()
    assert node.specs, "cards that kube-scheduler gives out need no taint"
    node.priced = True
    monkeypatch.setattr(module, "UNTAINTED_SECONDS", 0.0)
    with pytest.raises(NotSupported, match="DRADeviceTaints"):
        await node.step()
    assert not node.specs


async def test_priced_cards_have_a_taint_and_no_order(node: Published) -> None:
    node.priced = True
    node.source.cards = (replace(card(0), healthy=False, reason="XID 79"), *node.source.cards[1:])
    await node.step()
    (spec,) = node.specs
    taints = [[(taint["key"], taint["effect"]) for taint in one["taints"]] for one in spec["devices"]]
    priced = (names.PRICED_TAINT, "NoSchedule")
    assert taints == [[priced, (f"{names.DRIVER}/unhealthy", "NoSchedule")], [priced], [priced]]
    node.slots.replace(a_slot(2), lambda _: None)
    assert await node.step() == 0


async def test_deleted_slices_come_back(node: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.step()
    (found,) = node.api.all("resourceslices")
    node.api.remove("resourceslices", found["metadata"]["name"])  # kubelet does that after losing a driver for a while
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)
    assert await node.step() == 1
    assert node.order == [0, 1, 2]


async def test_many_cards_are_several_slices_of_one_generation(node: Published) -> None:
    node.source.cards = tuple(card(number) for number in range(130))
    assert await node.step() == 3
    assert [len(spec["devices"]) for spec in node.specs] == [64, 64, 2]
    node.source.cards = node.source.cards[:64]
    assert await node.step() == 3  # one changed, two deleted
    assert [(spec["pool"]["generation"], spec["pool"]["resourceSliceCount"]) for spec in node.specs] == [(2, 1)]


async def test_only_own_slices_are_withdrawn(node: Published) -> None:
    await node.step()
    (own,) = node.api.all("resourceslices")
    for name, changes in (("theirs", {"nodeName": "node-b"}), ("others", {"driver": "other.example"})):
        spec = {**own["spec"], **changes}
        node.api.put("resourceslices", {"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
    await node.slices.withdraw()
    assert {one["metadata"]["name"] for one in node.api.all("resourceslices")} == {"theirs", "others"}
    node.giving = False
    assert await node.step() == 0


async def test_slices_go_while_another_program_gives_out_the_cards(node: Published) -> None:
    await node.step()
    node.contested = True
    assert await node.step() == 1
    assert node.specs == []
    assert await node.step() == 0, "once is enough"
    node.contested = False
    assert await node.step() == 1
    assert node.order == [0, 1, 2]


async def test_cards_in_mig_mode_are_left_out(node: Published) -> None:
    await node.inventory.refresh()
    assert [one.index for one in node.slices.cards()] == [0, 1, 2]
    node.inventory.cards[card(0).uuid] = replace(card(0), mig=MigReading(profiles=(), instances=()))
    assert [one.index for one in node.slices.cards()] == [1, 2]
