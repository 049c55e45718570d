"""What `kubectl get egpu` shows of cards: written by the extender that leads, few at a time, and only what differs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation
from egpu.api.objects import ClaimAllocation, ElasticGPUStatus
from egpu.apps.extender.card_status import MOST_WRITES, CardStatusWriter, card_status
from egpu.apps.extender.view import View
from egpu.core.placement.cache import rebuild
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from support.fake_api import FakeAPI, Json, status
from support.objects import card, claim, placed, slice_pod

GIVEN = {names.GPU_CORE: "0", names.GPU_MEMORY: "0"}


def given(core: int, memory_mib: int) -> dict[str, str]:
    return {names.GPU_CORE: str(core), names.GPU_MEMORY: str(memory_mib)}


def share(core: int, memory_mib: int, *, index: int = 0, claim_name: str = "") -> ContainerAllocation:
    one = CardShare(uuid=f"GPU-n0-{index}", index=index, minor=index, core=core, memory_mib=memory_mib)
    return ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(one,), claim=claim_name)


def holding(core: int, memory_mib: int, *, name: str = "p", index: int = 0) -> Pod:
    return placed(slice_pod(name), PodAllocation(node="n0", containers={"app": share(core, memory_mib, index=index)}))


def test_a_card_says_how_much_is_given_and_to_whom() -> None:
    first = card("n0", 0)
    cache = rebuild([first, card("n0", 1)], [holding(20, 1024), holding(30, 2048, name="q")], [])
    status = card_status(first, cache)
    assert (status.given, status.phase) == (given(50, 3072), "Bound")
    assert status.held_by == "pod default/p, pod default/q"
    free = card_status(card("n0", 1), cache)
    assert (free.given, free.held_by, free.phase) == (GIVEN, "", "Available")


def test_many_holders_are_counted_and_not_named() -> None:
    cache = rebuild([card("n0", 0)], [holding(1, 1, name=f"p{number}") for number in range(5)], [])
    assert card_status(card("n0", 0), cache).held_by == "pod default/p0, pod default/p1, pod default/p2, 2 more"


def test_a_claim_holds_under_its_own_name() -> None:
    cache = rebuild([card("n0", 0)], [], [])
    wanted = claim("c")
    cache.claim_changed(wanted)
    cache.assume_claim(wanted.uid, ClaimAllocation(node="n0", container=share(10, 512, claim_name="c")))
    assert card_status(card("n0", 0), cache).held_by == "claim default/c"


def test_an_unhealthy_card_keeps_the_phase_that_its_agent_gave_it() -> None:
    sick = replace(card("n0", 0), status=ElasticGPUStatus(phase="Failed", healthy=False, reason="XID"))
    status = card_status(sick, rebuild([sick], [holding(20, 1024)], []))
    assert (status.phase, status.reason, status.given) == ("Failed", "XID", given(20, 1024))


@asynccontextmanager
async def writer(api: FakeAPI) -> AsyncGenerator[tuple[CardStatusWriter, View]]:
    """A writer with its caches in order; rounds are the test's."""
    view = View(api.client())
    task = asyncio.create_task(view.caches.run())
    try:
        await view.caches.synced()
        yield CardStatusWriter(api.client(), view), view
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def cards(count: int, *, nodes: int = 1) -> FakeAPI:
    api = FakeAPI()
    for node in range(nodes):
        for index in range(count):
            api.put("elasticgpus", msgspec.to_builtins(card(f"n{node}", index)))
    return api


def told(api: FakeAPI) -> list[Json]:
    return [one["status"] for one in api.all("elasticgpus")]


async def test_only_what_differs_is_written_and_nothing_twice() -> None:
    api = cards(3)
    async with writer(api) as (one, view):
        assert await one.write_some() == 3, "what nobody has said yet"
        assert [(each["given"], each["phase"]) for each in told(api)] == [(GIVEN, "Available")] * 3
        assert await one.write_some() == 0
        view.cache.pod_changed(holding(20, 1024))
        assert await one.write_some() == 1
        assert told(api)[0] | {"given": given(20, 1024), "phase": "Bound", "heldBy": "pod default/p"} == told(api)[0]
        view.cache.pod_deleted("uid-p")
        assert await one.write_some() == 1
        assert (told(api)[0]["given"], told(api)[0]["heldBy"], told(api)[0]["phase"]) == (GIVEN, "", "Available")
        assert await one.write_some() == 0


async def test_a_round_writes_a_few_and_the_next_goes_on() -> None:
    api = cards(2, nodes=MOST_WRITES)
    async with writer(api) as (one, _):
        assert [await one.write_some() for _ in range(3)] == [MOST_WRITES, MOST_WRITES, 0]
        assert all("given" in each for each in told(api))


async def test_a_write_that_fails_is_made_in_a_later_round() -> None:
    api = cards(1)
    async with writer(api) as (one, _):
        api.fault = lambda _, request: status(403, "Forbidden") if request.method == "PATCH" else None
        with pytest.raises(ElasticGPUError):
            await one.write_some()
        api.fault = None
        assert await one.write_some() == 1


async def test_a_card_that_is_gone_meanwhile_is_nobodys_failure() -> None:
    api = cards(1)
    async with writer(api) as (one, _):

        def gone(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
            return status(404, "NotFound") if request.method == "PATCH" else None

        api.fault = gone
        assert await one.write_some() == 1
        assert await one.write_some() == 0


async def test_what_is_told_of_a_card_wakes_no_claim() -> None:
    """Claims that wait are tried again when a card comes, changes, gets well or goes, and not when we write."""
    api = cards(1)
    async with writer(api) as (_, view):
        woken: list[int] = []
        view.on_room(lambda: woken.append(1))
        (known,) = view.gpus

        def absorbed(**changed: object) -> int:
            woken.clear()
            nonlocal known
            version = str(int(known.metadata.resource_version) + 1)
            meta = replace(known.metadata, resource_version=version)
            known = replace(known, metadata=meta, status=replace(known.status, **changed))
            view.gpus.absorb(known)
            return len(woken)

        assert absorbed(phase="Bound", given=given(1, 1), held_by="pod a/b") == 0
        assert absorbed(healthy=False) == 1
        assert absorbed(healthy=True) == 1
