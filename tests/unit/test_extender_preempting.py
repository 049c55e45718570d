"""A pod that is more important than others gets their cards, whatever is killed, refused or late in between."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest
from test_extender_binding import args, cluster, extender, pod
from test_extender_gangs import ask, shown
from test_extender_waking import woken

from egpu.api import names
from egpu.apps.extender import Extender
from egpu.apps.extender.preemptor import AGAIN_SECONDS, RESERVED_SECONDS
from egpu.core.placement.ledger import Holder
from egpu.core.preemption.scene import InVain, Plan
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import LeadershipLost
from support.fake_api import FakeAPI, Json, status
from support.waiting import until

UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]


def ranked(name: str, priority: int, *, core: int = 60, memory: int = 8) -> Json:
    made = pod(name, core, memory)
    made["spec"]["priority"] = priority
    return made


def ready_cluster(cards: int = 1) -> FakeAPI:
    api = cluster(cards=cards)
    offered = {"docker.com/vcuda-core": "1000", "docker.com/vcuda-memory": "1000", "pods": "100"}
    ready = [{"type": "Ready", "status": "True"}]
    api.put("nodes", api.get("nodes", "n0") | {"status": {"allocatable": offered, "conditions": ready}})
    return api


@asynccontextmanager
async def slow_extender(api: FakeAPI) -> AsyncGenerator[tuple[Extender, list[float]]]:
    """An extender whose preemptor has a clock of its own: seconds to be added to."""
    async with extender(api) as one:
        now = [1_000_000.0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(one.preemptor, "_clock", lambda: now[0])
            yield one, now


async def full(api: FakeAPI, one: Extender, *pods: Json) -> None:
    for each in pods:
        made = api.put("pods", each)
        fits, _ = await ask(one, each["metadata"]["name"])
        await one.binder.bind(args(made, fits[0]))
    await shown(one, api)


async def waiting(api: FakeAPI, one: Extender, each: Json) -> None:
    """The pod was asked about, and found no place."""
    api.put("pods", each | {"status": {"conditions": UNSCHEDULABLE}})
    assert (await ask(one, each["metadata"]["name"]))[0] == []
    await shown(one, api)


def going(api: FakeAPI, name: str) -> bool:
    return "deletionTimestamp" in api.get("pods", name, "ns")["metadata"]


def reserved(api: FakeAPI, name: str) -> str:
    return (api.get("pods", name, "ns")["metadata"].get("annotations") or {}).get(names.RESERVATION, "")


async def evicted(api: FakeAPI, one: Extender, *victims: str) -> None:
    await until(lambda: all(going(api, name) for name in victims))
    await shown(one, api)


async def test_the_least_important_goes_and_its_card_is_kept_for_the_pod():
    api = ready_cluster(cards=2)
    async with extender(api) as one:
        await full(api, one, ranked("a", 5), ranked("b", 0))
        await waiting(api, one, ranked("w", 10))
        await evicted(api, one, "b")
        assert not going(api, "a")
        assert api.get("pods", "w", "ns")["status"]["nominatedNodeName"] == "n0"
        said = {each["reason"]: each["message"] for each in api.all("events")}
        card = json.loads(reserved(api, "w"))["allocation"]["containers"]["app"]["cards"][0]["uuid"]
        assert said["Preempted"] == f"Preempted by ns/w (priority 10) on card {card} of node n0"
        assert said["Preempting"] == f"evicts ns/b (priority 0) for card {card} of node n0"
        for name, priority in (("equal", 10), ("lesser", 5)):
            await waiting(api, one, ranked(name, priority))
        api.remove("pods", "b", "ns")
        await until(lambda: woken(api, "w"))
        for name in ("equal", "lesser"):
            assert (await ask(one, name))[0] == [], "nobody takes it in between"
        await one.binder.bind(args(api.get("pods", "w", "ns")))
        await shown(one, api)
        assert list(one.view.cache.reservations) == []
        assert one.view.cache.ledger.overcommits() == []


async def test_who_is_still_more_important_takes_what_is_kept():
    api = ready_cluster()
    async with extender(api) as one:
        await full(api, one, ranked("a", 0))
        await waiting(api, one, ranked("w", 5))
        await evicted(api, one, "a")
        api.remove("pods", "a", "ns")
        urgent = api.put("pods", ranked("urgent", 10))
        await until(lambda: not one.view.pods.get("a", "ns"))
        assert (await ask(one, "urgent"))[0] == ["n0"]
        await one.binder.bind(args(urgent))
        await shown(one, api)
        assert (await ask(one, "w"))[0] == []
        assert one.view.cache.ledger.overcommits() == []


async def test_whoever_takes_over_finds_the_reservation_and_goes_on():
    api = ready_cluster()

    def killed_before_it_evicts(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(503) if request.url.path.endswith("/eviction") else None

    async with extender(api) as one:
        await full(api, one, ranked("a", 0))
        api.fault = killed_before_it_evicts
        await waiting(api, one, ranked("w", 5))
        await until(lambda: reserved(api, "w") != "")
    assert not going(api, "a")
    api.fault = None
    api.put("pods", api.get("pods", "w", "ns") | {"status": {}})  # nobody plans anew for it
    async with extender(api) as one:
        await evicted(api, one, "a")
        uid = api.get("pods", "w", "ns")["metadata"]["uid"]
        assert one.view.cache.ledger.holding(Holder("reservation", uid)) is not None
        api.remove("pods", "a", "ns")
        await until(lambda: not one.view.pods.get("a", "ns"))
        api.put("pods", ranked("thief", 0))
        assert (await ask(one, "thief"))[0] == []
        assert (await ask(one, "w"))[0] == ["n0"]


async def test_what_nobody_takes_is_given_back_with_its_time():
    api = ready_cluster()
    async with slow_extender(api) as (one, now):
        await full(api, one, ranked("a", 0))
        await waiting(api, one, ranked("w", 5))
        await evicted(api, one, "a")
        api.remove("pods", "a", "ns")
        api.put("pods", ranked("other", 0))
        assert (await ask(one, "other"))[0] == []
        now[0] += RESERVED_SECONDS + 1
        await until(lambda: reserved(api, "w") == "")
        await shown(one, api)
        assert (await ask(one, "other"))[0] == ["n0"]
        assert not api.get("pods", "w", "ns")["status"].get("nominatedNodeName")


async def test_a_pod_that_goes_leaves_nothing_kept():
    api = ready_cluster()
    async with extender(api) as one:
        await full(api, one, ranked("a", 0))
        await waiting(api, one, ranked("w", 5))
        await evicted(api, one, "a")
        for name in ("a", "w"):
            api.remove("pods", name, "ns")
        await until(lambda: not one.view.pods.get("w", "ns"))
        api.put("pods", ranked("other", 0))
        assert (await ask(one, "other"))[0] == ["n0"]


async def test_where_the_eviction_api_refuses_one_nobody_goes_until_it_is_asked_again():
    api = ready_cluster()
    refuses = True
    asked: list[str] = []

    def spent(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if not request.url.path.endswith("/eviction"):
            return None
        asked.append(request.url.path)
        if refuses and "/b/" in request.url.path:
            cause = {"reason": "DisruptionBudget", "message": "The disruption budget x needs 1"}
            return httpx2.Response(429, json={"message": "Cannot evict pod", "details": {"causes": [cause]}})
        return None

    async with slow_extender(api) as (one, now):
        await full(api, one, ranked("a", 0, core=50), ranked("b", 0, core=50))
        api.fault = spent
        await waiting(api, one, ranked("w", 5, core=100, memory=64))
        await until(lambda: "PreemptionEnded" in {each["reason"] for each in api.all("events")})
        before = len(asked)
        assert not going(api, "a")
        assert not going(api, "b")
        await until(lambda: reserved(api, "w") == "")
        await one.preemptor.look()
        assert len(asked) == before, "not asked again at once"
        refuses = False
        now[0] += AGAIN_SECONDS + 1
        await evicted(api, one, "a", "b")


async def test_nobody_goes_while_the_lease_is_anothers():
    api = ready_cluster()
    async with extender(api) as one:
        await full(api, one, ranked("a", 0))
        lease = api.get("leases", "elastic-gpu-extender", one.config.namespace)
        api.put("leases", lease | {"spec": lease["spec"] | {"holderIdentity": "another"}})
        api.put("pods", ranked("w", 5) | {"status": {"conditions": UNSCHEDULABLE}})
        await shown(one, api)
        with pytest.raises(LeadershipLost):
            await one.preemptor.look()
    assert not going(api, "a")
    assert reserved(api, "w") == ""


async def test_when_the_card_falls_sick_before_its_victims_went_nobody_goes():
    api = ready_cluster()

    def held_up(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(503) if request.url.path.endswith("/eviction") else None

    async with slow_extender(api) as (one, now):
        await full(api, one, ranked("a", 0))
        api.fault = held_up
        await waiting(api, one, ranked("w", 5))
        await until(lambda: reserved(api, "w") != "")
        (gpu,) = api.all("elasticgpus")
        api.put("elasticgpus", gpu | {"status": {"healthy": False, "message": "XID 79"}})
        await until(lambda: reserved(api, "w") == "")
        api.fault = None
        now[0] += 2 * AGAIN_SECONDS
        await one.preemptor.look()
        assert not going(api, "a")
        assert list(one.view.cache.reservations) == []
        (said,) = (each["message"] for each in api.all("events") if each["reason"] == "PreemptionEnded")
        assert "is unhealthy" in said


async def test_while_a_plan_is_made_the_scheduler_is_answered():
    api = ready_cluster(cards=2)
    async with extender(api) as one:
        await full(api, one, *(ranked(f"p{number}", number % 3, core=20, memory=2) for number in range(10)))
        plan, answers, during = one.preemptor._plan, 0, 0

        async def watched(each: Pod) -> Plan | InVain:
            nonlocal during
            before = answers
            found = await plan(each)
            during += answers - before
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("egpu.apps.extender.preemptor.SLICE_SECONDS", 0.0)
            patch.setattr(one.preemptor, "_plan", watched)
            await waiting(api, one, ranked("w", 10))
            while not reserved(api, "w"):
                assert (await ask(one, "w"))[0] == [], "nobody is gone yet"
                answers += 1
                await asyncio.sleep(0)
        assert during > 0
        await until(lambda: sum(going(api, f"p{number}") for number in range(10)) == 3)
