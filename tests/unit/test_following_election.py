"""An extender leads while the kube-scheduler beside it does, and never two of them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest

from egpu.apps.extender import Extender, ExtenderConfig
from egpu_base.errors import ElasticGPUError, LeadershipLost
from egpu_base.kubernetes import FollowingElection
from support.fake_api import FakeAPI, Json
from support.waiting import until
from unit.test_extender_binding import args, card, given_out, pod, seen

SYSTEM = "elastic-gpu-system"
OWN, FOLLOWED = "elastic-gpu-extender", "elastic-gpu-scheduler"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_SECONDS", "RENEW_SECONDS"):
        monkeypatch.setattr(f"egpu_base.kubernetes.election.{name}", 0.01)


def lead(api: FakeAPI, holder: str) -> Json:
    """What the election of kube-schedulers writes."""
    return api.put("leases", {"metadata": {"name": FOLLOWED, "namespace": SYSTEM}, "spec": {"holderIdentity": holder}})


def candidate(api: FakeAPI, host: str, identity: str = "") -> FollowingElection:
    return FollowingElection(
        api.client(), name=OWN, namespace=SYSTEM, identity=identity or f"{host}-1", followed=FOLLOWED, host=host
    )


def holder(api: FakeAPI) -> str:
    return api.get("leases", OWN, SYSTEM)["spec"]["holderIdentity"]


async def waits(one: FollowingElection) -> bool:
    try:
        await asyncio.wait_for(one.acquire(wait=True), 0.1)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("led_by", ["", "pod-b_0c6e", "pod-a-b_0c6e", "pod_0c6e"])
async def test_only_the_extender_of_the_leading_host_takes_the_lease(led_by: str) -> None:
    api = FakeAPI()
    assert await waits(candidate(api, "pod-a")), "there is no kube-scheduler yet"
    lead(api, led_by)
    assert await waits(candidate(api, "pod-a"))
    assert ("leases", SYSTEM, OWN) not in api.objects
    lead(api, "pod-a_93f1")
    await asyncio.wait_for(candidate(api, "pod-a").acquire(wait=True), 5)
    assert holder(api) == "pod-a-1"


async def test_it_waits_for_no_lease_that_has_to_run_out() -> None:
    """The old leader's host may be gone: kube-schedulers have waited for it already."""
    api = FakeAPI()
    lead(api, "pod-a_1")
    old, new = candidate(api, "pod-a"), candidate(api, "pod-b")
    await old.acquire(wait=True)
    lead(api, "pod-b_2")
    with pytest.raises(LeadershipLost, match=r"elastic-gpu-scheduler is held by pod-b_2, not by a process of pod-a"):
        await old.verify()
    await asyncio.wait_for(new.acquire(wait=True), 5)
    await new.verify()
    assert holder(api) == "pod-b-1"
    with pytest.raises(LeadershipLost):
        await old.verify()


async def test_a_scheduler_that_ended_cleanly_or_started_again_keeps_its_extender() -> None:
    api = FakeAPI()
    lead(api, "pod-a_1")
    one = candidate(api, "pod-a")
    await one.acquire(wait=True)
    for led_by in ("", "pod-a_2"):
        lead(api, led_by)
        await one.verify()


async def test_two_processes_of_one_host_are_told_apart() -> None:
    """A container that is started again may meet requests of the process that was killed."""
    api = FakeAPI()
    lead(api, "pod-a_1")
    killed, again = candidate(api, "pod-a", "first"), candidate(api, "pod-a", "second")
    await killed.acquire(wait=True)
    await again.acquire(wait=True)
    await again.verify()
    with pytest.raises(LeadershipLost, match="held by second, not by first"):
        await killed.verify()


async def test_a_candidate_that_was_overtaken_while_it_asked_takes_nothing() -> None:
    """Its turn ends between its question and its write: the write is refused, and then it waits."""
    api = FakeAPI()
    lead(api, "pod-a_1")
    await candidate(api, "pod-a").acquire(wait=True)

    def fault(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if not request.url.path.endswith(FOLLOWED):
            return None
        api.fault = None
        answer = httpx2.Response(200, json=api.get("leases", FOLLOWED, SYSTEM))
        lead(api, "pod-b_2")
        api.put("leases", api.get("leases", OWN, SYSTEM) | {"spec": {"holderIdentity": "pod-b-1"}})
        return answer

    api.fault = fault
    assert await waits(candidate(api, "pod-a", "late"))
    assert holder(api) == "pod-b-1"


@asynccontextmanager
async def standing(api: FakeAPI, host: str) -> AsyncGenerator[tuple[Extender, asyncio.Task[None]]]:
    config = ExtenderConfig(node_policy="best-fit", card_policy="best-fit", follow=FOLLOWED, host=host)
    one = Extender(config, api.client())
    task = asyncio.create_task(one.lead())
    try:
        yield one, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_other_schedulers_extender_takes_over_and_no_card_is_given_out_twice() -> None:
    api = FakeAPI()
    api.put("nodes", {"kind": "Node", "metadata": {"name": "n0"}})
    api.put("elasticgpus", card("n0", 0))
    lead(api, "pod-a_1")
    async with standing(api, "pod-a") as (first, ended), standing(api, "pod-b") as (second, _):
        await until(lambda: first.not_ready() is None)
        assert second.not_ready() is not None
        assert second.unhealthy() is None, "a replica that stands by is in order"
        one, two = api.put("pods", pod("one", core=60)), api.put("pods", pod("two", core=60))
        await seen(first, one)
        await seen(first, two)
        await first.binder.bind(args(one))
        lead(api, "pod-b_2")
        with pytest.raises(ElasticGPUError):
            await first.binder.bind(args(two))
        await until(lambda: second.not_ready() is None)
        await until(ended.done)
        with pytest.raises(ElasticGPUError):
            await second.binder.bind(args(two))
        assert given_out(api) == {"GPU-n0-00000000": 60}
