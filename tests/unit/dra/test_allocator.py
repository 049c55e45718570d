"""The change between the device plugin and the DRA driver of a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUSpec, PhysicalGPU
from egpu.apps.agent.cards.publisher import card_object
from egpu.apps.agent.dra import allocator as module
from egpu.apps.agent.dra.allocator import Allocator
from egpu.core.placement.published import BY_CLAIMS, card_of
from egpu_base.api.kubernetes import Node
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI
from support.local_node import NODE, card
from support.waiting import until

PLUGIN, DRA, PRICED = names.DEVICE_PLUGIN, names.DRA, names.PRICED


class Way:
    """A way to give out cards; a test says who has some."""

    def __init__(self) -> None:
        self.registered = False
        self.withdrawn = False
        self.may_withdraw = True
        self.runs = 0
        self.has: list[str] = []

    async def run(self) -> None:
        self.registered, self.withdrawn = True, False
        self.runs += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.registered = False

    async def withdraw(self) -> bool:
        self.withdrawn = self.may_withdraw
        return self.may_withdraw

    async def users(self) -> list[str]:
        return self.has


class World:
    def __init__(self, root: Path) -> None:
        self.file = root / "allocator"
        self.api = FakeAPI()
        self.plugin, self.dra = Way(), Way()
        self.allocator = self.start()

    def start(self) -> Allocator:
        events = EventRecorder(self.api.client(), component="test")
        self.allocator = Allocator(self.file, {PLUGIN: self.plugin, DRA: self.dra}, events=events)
        return self.allocator

    def label(self, value: str | None) -> None:
        labels = None if value is None else {names.ALLOCATOR: value}
        self.allocator.learn(Node(metadata=ObjectMeta(name=NODE, uid="uid-node", labels=labels)))


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.05)
    found = World(tmp_path)
    task = asyncio.create_task(found.allocator.run())
    await until(lambda: found.plugin.registered)
    yield found
    task.cancel()


async def test_a_label_changes_the_way_once_the_present_one_was_withdrawn(world: World) -> None:
    world.label(DRA)
    assert world.allocator.keeps_extender_off  # from the first moment
    assert not world.allocator.by_claims
    await until(lambda: world.dra.registered)
    assert world.plugin.withdrawn
    assert not world.plugin.registered
    assert world.allocator.by_claims
    assert world.start().in_force == DRA  # after a restart


async def test_a_label_taken_away_changes_it_back(world: World) -> None:
    world.label(DRA)
    await until(lambda: world.dra.registered)
    world.label(None)
    assert not world.allocator.by_claims  # no more slices
    assert world.allocator.keeps_extender_off
    await until(lambda: world.plugin.registered)
    assert world.dra.withdrawn
    assert not world.allocator.keeps_extender_off


async def test_the_way_stays_while_something_has_cards_and_the_node_says_so(world: World) -> None:
    world.plugin.has = [f"pod default/{number}" for number in range(7)]
    world.label(DRA)
    await until(lambda: bool(world.api.all("events")))
    (event,) = world.api.all("events")
    assert event["reason"] == "AllocatorNotChanged"
    assert "stays with device-plugin until nothing has its cards: pod default/0, " in event["message"]
    assert " and 2 more" in event["message"]
    assert event["involvedObject"]["name"] == NODE
    await asyncio.sleep(0.1)
    assert len(world.api.all("events")) == 1
    assert world.plugin.registered  # running containers may start again
    world.plugin.has = []
    await until(lambda: world.dra.registered)


async def test_it_does_not_change_before_the_extender_knows(world: World) -> None:
    world.plugin.may_withdraw = False
    world.label(DRA)
    await asyncio.sleep(0.2)
    assert world.allocator.in_force == PLUGIN
    world.plugin.may_withdraw = True
    await until(lambda: world.dra.registered)


async def test_an_unknown_value_changes_nothing(world: World) -> None:
    world.label("kai")
    await asyncio.sleep(0.05)
    assert (world.allocator.in_force, world.allocator.wanted) == (PLUGIN, PLUGIN)


def test_the_extender_sees_no_card_that_claims_give_out() -> None:
    kept = card_object(NODE, card(0), "uid-node", allocator=DRA)
    assert (card_of(kept).healthy, card_of(kept).why_not) == (False, BY_CLAIMS)
    free = ElasticGPU(spec=ElasticGPUSpec(node_name=NODE, physical_gpu=PhysicalGPU(uuid="u", index=0, minor=0)))
    assert card_of(free).healthy


async def test_pods_go_on_while_the_extender_begins_and_ends_to_serve_claims(world: World) -> None:
    world.plugin.has = ["pod default/a"]
    world.label(PRICED)
    assert (world.allocator.by_claims, world.allocator.of_cards) == (False, "")  # the driver first
    await until(lambda: world.dra.registered)
    assert (world.allocator.by_claims, world.allocator.of_cards) == (True, PRICED)
    assert world.allocator.registered
    assert not world.allocator.keeps_extender_off
    assert world.plugin.runs == 1
    assert world.start().in_force == PRICED  # after a restart


async def test_claims_of_the_extender_go_before_their_driver_does(world: World) -> None:
    world.label(PRICED)
    await until(lambda: world.dra.registered)
    world.plugin.has, world.dra.has = ["pod default/a"], ["claim default/b"]
    world.label(None)
    assert (world.allocator.by_claims, world.allocator.of_cards) == (False, "")  # no more claims from now on
    assert world.allocator.priced  # but some may have cards
    await until(lambda: bool(world.api.all("events")))
    (event,) = world.api.all("events")
    assert "stays with priced until nothing has its cards: claim default/b;" in event["message"]
    world.dra.has = []
    await until(lambda: not world.dra.registered)
    assert (world.plugin.runs, world.plugin.withdrawn) == (1, False)


@pytest.mark.parametrize(("first", "then"), [(PRICED, DRA), (DRA, PRICED)])
async def test_between_the_extender_and_kube_scheduler_nothing_has_cards(world: World, first: str, then: str) -> None:
    world.label(first)
    await until(lambda: world.allocator.in_force == first and world.dra.registered)
    world.dra.has = ["claim default/b"]
    world.label(then)
    assert world.allocator.of_cards == DRA  # nobody gives any
    assert not world.allocator.by_claims
    await asyncio.sleep(0.2)
    assert world.allocator.in_force == first
    world.dra.has = []
    await until(lambda: world.allocator.in_force == then and world.dra.registered)
    assert world.dra.runs == 2
    assert world.plugin.registered == (then == PRICED)
