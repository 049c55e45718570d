"""The view that dashboard and controller follow, and how they find objects without looking at all of them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from egpu.adapters.kubernetes.followed import FollowedView
from egpu.api.objects import ElasticGPU
from egpu_base.kubernetes.index import Index
from support.fake_api import FakeAPI
from support.objects import card, cluster, place, placed, slice_pod
from support.waiting import until


@asynccontextmanager
async def following(api: FakeAPI) -> AsyncGenerator[tuple[FollowedView, Index[ElasticGPU]]]:
    """Listed, and the cards by their models."""
    followed = FollowedView(api.client())
    index = Index(followed.gpus, lambda gpu: gpu.spec.physical_gpu.model if gpu.spec.physical_gpu else None)
    task = asyncio.create_task(followed.caches.run())
    try:
        await followed.listed()
        yield followed, index
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_view_is_asked_for_when_all_was_listed_and_follows_what_comes() -> None:
    api = FakeAPI()
    api.put("elasticgpus", msgspec.to_builtins(card("n0", 0)))
    unlisted = FollowedView(api.client())
    assert (unlisted.not_ready() or "").startswith("not listed yet")
    async with following(api) as (followed, _):
        assert followed.not_ready() is None
        assert [(node.name, len(node.cards)) for node in followed.view().nodes] == [("n0", 1)]
        pod = slice_pod("runs", core=30)
        api.put("pods", msgspec.to_builtins(placed(pod, place(cluster(), pod))))
        await until(lambda: followed.view().totals.core_given == 30)
        (one,) = followed.view().slices()
        assert (one.name, one.pod_node) == ("runs", "n0")


async def test_an_index_finds_what_says_so_now() -> None:
    api = FakeAPI()
    for number, model in enumerate(("T4", "A10", "T4")):
        api.put("elasticgpus", msgspec.to_builtins(card("n0", number, model=model)))
    async with following(api) as (_, index):
        assert index.names("T4") == ["n0-card0", "n0-card2"]
        assert [gpu.name for gpu in index.get("A10")] == ["n0-card1"]
        other = card("n0", 2, model="A10")
        api.put("elasticgpus", msgspec.to_builtins(other))
        await until(lambda: index.names("A10") == ["n0-card1", "n0-card2"])
        assert index.names("T4") == ["n0-card0"]
        assert index.names("H100") == []
