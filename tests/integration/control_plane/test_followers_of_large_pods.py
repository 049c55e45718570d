"""Pods as large as an API server takes cost a follower of all pods little memory, whatever makes them large."""

import pytest

from support.large_pods import KINDS, measured

PODS = 80
"""110 MB of JSON, in one page of a list as we ask for it."""
MOST_MIB = 160
"""A follower has 70 to 80 MiB before it lists anything. Such pods took more than 600."""


@pytest.mark.parametrize("kind", ["variables", "labels"])
async def test_large_pods_cost_a_follower_little_memory(kind: str) -> None:
    found = await measured([kind], PODS)
    assert found["pods"] == PODS
    assert found["mib"] < MOST_MIB


async def test_pods_that_are_large_in_all_ways_cost_a_follower_little_memory() -> None:
    found = await measured(list(KINDS), PODS)
    assert found["pods"] == PODS
    assert found["mib"] < MOST_MIB
