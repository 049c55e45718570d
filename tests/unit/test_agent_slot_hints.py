"""What slots tell kubelet's topology manager: the NUMA nodes that have cards, and nothing that may be wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from egpu.apps.agent import AgentConfig
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.slots.plugin import SlotPlugin
from egpu_base.kubelet.deviceplugin import PluginClient, serve_plugin
from support.local_node import Cards


async def slot_plugin(numa: list[int | None], *, pool_pki: Path | None = None) -> SlotPlugin:
    """Of a node whose cards are on these NUMA nodes."""
    cards = Cards(len(numa))
    cards.cards = tuple(replace(one, numa=node) for one, node in zip(cards.cards, numa, strict=True))
    inventory = Inventory(cards, interval_seconds=60.0)
    await inventory.refresh()
    config = AgentConfig(node="n", slots_per_card=2, pool_pki=pool_pki)
    nobody = cast("Any", None)
    return SlotPlugin(
        config,
        inventory=inventory,
        devices=nobody,
        owners=nobody,
        preparer=nobody,
        metrics=nobody,
        specs=nobody,
        injection=nobody,
    )


async def hints(numa: list[int | None], *, pool_pki: Path | None = None) -> set[tuple[int, ...]]:
    slots = await anext((await slot_plugin(numa, pool_pki=pool_pki)).watch())
    assert len(slots) == 2 * len(numa)
    return {one.numa for one in slots}


@pytest.mark.parametrize(
    ("numa", "told"), [([0, 0], (0,)), ([1, 0, 1], (0, 1)), ([0, None], ()), ([None, None], ()), ([3], (3,))]
)
async def test_a_slot_may_be_wherever_there_are_cards(numa: list[int | None], told: tuple[int, ...]) -> None:
    assert await hints(numa) == {told}


async def test_a_node_of_the_pool_says_nothing() -> None:
    assert await hints([0, 0], pool_pki=Path("/nowhere")) == {()}


@pytest.mark.parametrize("numa", [[], [0], [0, 2]])
async def test_the_hint_reaches_kubelet(numa: list[int | None], tmp_path: Path) -> None:
    plugin = await slot_plugin(numa or [None])
    server = await serve_plugin(plugin, tmp_path / "s")
    kubelet = PluginClient(tmp_path / "s")
    try:
        slots = await anext(kubelet.watch())
        assert {one.numa for one in slots} == {tuple(numa)}
    finally:
        await kubelet.close()
        await server.stop(None)
