"""The job mix beside the server: what new prices made void is made anew before the next pods ask."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from egpu.apps.extender.job_mix import JobMix
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.learning import FIRST_PRICES_AT, LearnedMix
from egpu.core.policies.prices import compute_prices
from egpu.core.policies.registry import Policies
from egpu.core.policies.shapes import Mix
from egpu_base.runtime import worker_process
from support.objects import cluster, slice_pod

DEADLINE_SECONDS = 10.0


class Priced:
    """A ranking that has scores of so many kinds of pods."""

    def __init__(self, kinds: int) -> None:
        self.learned = LearnedMix()
        self.background: Any = None
        self.void = 0
        self.done = asyncio.Event()
        self._kinds = kinds

    def use_prices(self, prices: object) -> None:
        self.void = self._kinds

    def catch_up(self) -> bool:
        if not self.void:
            self.done.set()
            return False
        self.void -= 1
        return True


async def test_scores_follow_new_prices_for_every_kind_of_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    ranking = Priced(kinds=5)
    prices = SimpleNamespace(mix=SimpleNamespace(weights={}))
    monkeypatch.setattr(worker_process, "call", lambda *_: prices)
    mix = JobMix(cast("Any", None), cast("Any", ranking), lease="lease", namespace="ns")
    running = asyncio.create_task(mix.run())
    try:
        ranking.background(None, None)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await ranking.done.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert ranking.void == 0


def test_prices_are_computed_anew_when_other_pods_come_and_not_for_more_of_the_same() -> None:
    """Each time costs as much as the placing of hundreds of pods."""
    cache, asked = cluster(cards=8), list[Mix]()
    ranking = cache.ranking

    def compute(mix: Mix, fleet: Fleet) -> None:
        asked.append(mix)
        ranking.use_prices(compute_prices(mix, fleet))

    ranking.background = compute
    ranking.prepare(Policies.named("price", "price"))
    for number in range(10 * FIRST_PRICES_AT):
        ranking.see(f"alike-{number}", cache.request(slice_pod("alike", core=10)))
    assert [mix.total for mix in asked] == [FIRST_PRICES_AT]
    for number in range(10 * FIRST_PRICES_AT):
        ranking.see(f"other-{number}", cache.request(slice_pod("other", core=20)))
    assert len(asked) > 1
    assert len(asked[1].weights) == 2


def test_prices_that_never_came_are_asked_for_again() -> None:
    """What computes them is another process, which may be killed."""
    cache, asked = cluster(cards=8), list[Mix]()
    cache.ranking.background = lambda mix, fleet: asked.append(mix)
    cache.ranking.prepare(Policies.named("price", "price"))
    for number in range(10 * FIRST_PRICES_AT):
        cache.ranking.see(f"alike-{number}", cache.request(slice_pod("alike", core=10)))
    assert len(asked) > 1
