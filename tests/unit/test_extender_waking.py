"""Pods that kube-scheduler put aside because of cards are told when there is room: those that fit, and no others."""

import asyncio
from typing import Any
from unittest import mock

import pytest
from test_extender_binding import args, card, claim, cluster, extender, gpu_class, pod
from test_extender_gangs import ask, member, shown

from egpu.api import names
from egpu.apps.extender import Extender, placing, waker
from egpu.core import waking
from egpu_base.api.kubernetes import Pod
from support.fake_api import FakeAPI, Json
from support.waiting import until


def woken(api: FakeAPI, name: str) -> bool:
    """Whether the pod was changed so that the scheduler looks at it again."""
    annotations = api.get("pods", name, "ns")["metadata"].get("annotations") or {}
    return annotations.get(names.FENCE, "").startswith("room-")


async def settled(one: Extender) -> None:
    """Whoever is to be woken by what happened so far has been."""
    for _ in range(3):
        await asyncio.sleep(0.1)
    await one.waker.look()


async def full(api: FakeAPI, one: Extender, *names_of_pods: str) -> list[Json]:
    """Pods of 60 percent, one a card, bound."""
    bound: list[Json] = []
    for name in names_of_pods:
        obj = api.put("pods", pod(name))
        fits, _ = await ask(one, name)
        await one.binder.bind(args(obj, fits[0]))
        bound.append(obj)
    await shown(one, api)
    return bound


async def test_one_card_gets_free_and_one_pod_is_told():
    api = cluster(nodes=1, cards=2)
    async with extender(api) as one:
        await full(api, one, "a", "b")
        for name in ("w1", "w2", "w3"):
            api.put("pods", pod(name))
            assert (await ask(one, name))[0] == []
        api.remove("pods", "a", "ns")
        await until(lambda: any(woken(api, name) for name in ("w1", "w2", "w3")))
        await settled(one)
        assert sum(woken(api, name) for name in ("w1", "w2", "w3")) == 1
        assert one.view.cache.ledger.overcommits() == []


async def test_a_pod_that_is_refused_again_is_told_again():
    api = cluster(nodes=1, cards=1)
    async with extender(api) as one:
        await full(api, one, "a")
        api.put("pods", pod("w"))
        await ask(one, "w")
        api.remove("pods", "a", "ns")
        await until(lambda: woken(api, "w"))
        await full(api, one, "quicker")
        assert (await ask(one, "w"))[0] == []
        before = api.get("pods", "w", "ns")["metadata"]["annotations"][names.FENCE]
        api.remove("pods", "quicker", "ns")
        await until(lambda: api.get("pods", "w", "ns")["metadata"]["annotations"][names.FENCE] != before)


async def test_the_most_important_first():
    api = cluster(nodes=1, cards=1)
    async with extender(api) as one:
        await full(api, one, "a")
        important = pod("z")
        important["spec"]["priority"] = 10
        api.put("pods", pod("first"))
        api.put("pods", important)
        for name in ("first", "z"):
            await ask(one, name)
        api.remove("pods", "a", "ns")
        await until(lambda: woken(api, "z"))
        await settled(one)
        assert not woken(api, "first")


async def test_whom_nobody_refused_is_left_alone():
    api = cluster(nodes=1, cards=1)
    async with extender(api) as one:
        await full(api, one, "a")
        api.put("pods", pod("not-asked-about"))
        api.put("pods", pod("asked-about"))
        await ask(one, "asked-about")
        api.remove("pods", "a", "ns")
        await until(lambda: woken(api, "asked-about"))
        assert not woken(api, "not-asked-about")


async def test_a_card_that_gets_well():
    api = cluster(nodes=1, cards=1)
    sick = card("n0", 0)
    sick["status"] = {"healthy": False}
    api.put("elasticgpus", sick)
    async with extender(api) as one:
        api.put("pods", pod("w"))
        assert (await ask(one, "w"))[0] == []
        api.put("elasticgpus", card("n0", 0))
        await until(lambda: woken(api, "w"))


async def test_a_claim_that_gets_bound_or_free():
    api = cluster(nodes=1, cards=1)
    api.put("elasticgpuclasses", gpu_class("immediate", "Immediate"))
    async with extender(api) as one:
        user = pod("w", annotations={names.CLAIM_PREFIXES[0] + "app": "c"})
        api.put("pods", user)
        assert (await ask(one, "w"))[0] == []
        api.put("elasticgpuclaims", claim("c", "immediate"))
        await until(lambda: woken(api, "w"))


async def test_a_gang_is_told_when_all_of_it_fits():
    api = cluster(nodes=1, cards=2)
    async with extender(api) as one:
        await full(api, one, "a", "b")
        for name in ("g1", "g2"):
            api.put("pods", member(name, size=2))
            await shown(one, api)
            await ask(one, name)
        api.remove("pods", "a", "ns")
        await settled(one)
        assert not woken(api, "g1")
        assert not woken(api, "g2")
        api.remove("pods", "b", "ns")
        await until(lambda: woken(api, "g1") and woken(api, "g2"))


async def test_where_cpu_is_short_nobody_is_told():
    api = cluster(nodes=1, cards=1)
    node: dict[str, Any] = api.get("nodes", "n0")
    node["status"] = {"allocatable": {"cpu": "1", "memory": "1Gi"}}
    api.put("nodes", node)
    async with extender(api) as one:
        await full(api, one, "a")
        greedy = pod("greedy")
        greedy["spec"]["containers"][0].setdefault("resources", {}).setdefault("requests", {})["cpu"] = "2"
        api.put("pods", greedy)
        api.put("pods", pod("modest"))
        for name in ("greedy", "modest"):
            await ask(one, name)
        api.remove("pods", "a", "ns")
        await until(lambda: woken(api, "modest"))
        assert not woken(api, "greedy")


async def test_a_pod_that_is_bound_makes_no_room_and_one_that_ends_does():
    api = cluster(nodes=1, cards=1)
    async with extender(api) as one:
        told: list[str] = []
        one.view.on_room(lambda: told.append("room"))
        obj = api.put("pods", pod("a"))
        fits, _ = await ask(one, "a")
        assert [found.name for found in one.view.waiting.values()] == ["a"]
        await one.binder.bind(args(obj, fits[0]))
        await shown(one, api)
        assert (told, one.view.waiting) == ([], {})
        api.remove("pods", "a", "ns")
        await until(lambda: told == ["room"])


async def test_a_pod_whose_binding_is_on_its_way_is_left_alone():
    """A touch would make the API server refuse the binding, and have it sent again."""
    api = cluster(nodes=1, cards=2)
    async with extender(api) as one:
        obj = api.put("pods", pod("w", 100))
        await shown(one, api)
        one.waker.answered(obj["metadata"]["uid"], room=False)
        found = one.view.pods.get("w", "ns")
        assert found is not None
        cache = one.view.cache
        given = cache.ranking.choose(cache.request(found), "n0", one.policies)
        cache.assume_pod(found, given)
        await one.waker.look()
        assert not woken(api, "w")
        cache.forget_pod(found.uid)
        one.waker.answered(found.uid, room=False)
        await one.waker.look()
        assert woken(api, "w")


async def test_who_was_woken_is_bound_at_the_first_attempt_though_the_watch_is_late():
    api = cluster(nodes=1, cards=1)
    async with extender(api) as one:
        await full(api, one, "a")
        obj = api.put("pods", pod("w"))
        assert (await ask(one, "w"))[0] == []
        api.remove("pods", "a", "ns")
        await until(lambda: one.view.pods.get("a", "ns") is None)
        api.hold_watches = True
        await until(lambda: woken(api, "w"))
        await settled(one)
        await one.binder.bind(args(obj))
        assert sum(line[1].endswith("/w/binding") for line in api.log) == 1


async def test_the_next_pod_of_a_claim_is_told_when_the_first_cannot_lose_its_cards_any_more():
    api = cluster(nodes=1, cards=1)
    api.put("elasticgpuclasses", gpu_class("together", "WaitForFirstConsumer") | {"parameters": {"shareable": "true"}})
    api.put("elasticgpuclaims", claim("c", "together"))
    users = {name: pod(name, annotations={f"{names.CLAIM_PREFIXES[0]}app": "c"}) for name in ("first", "next")}
    async with extender(api) as one:
        first = api.put("pods", users["first"])
        assert (await ask(one, "first"))[0] == ["n0"]
        await one.binder.bind(args(first, "n0"))
        api.put("pods", users["next"])
        assert (await ask(one, "next"))[0] == []
        await settled(one)
        assert not woken(api, "next")
        bound = api.get("elasticgpuclaims", "c", "ns")
        api.put("elasticgpuclaims", bound | {"status": bound["status"] | {"phase": "Bound"}})
        await until(lambda: woken(api, "next"))
        assert (await ask(one, "next"))[0] == ["n0"]


async def test_after_a_long_look_at_a_gang_in_vain_its_namespace_rests_and_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever keeps cards changing beside a large gang that does not fit had each question worked out again."""
    api, seconds = cluster(nodes=1, cards=2), iter([0.0, 10.0])
    async with extender(api) as one:
        await full(api, one, "a")
        for name in ("m1", "m2"):
            api.put("pods", member(name, size=2))
        await shown(one, api)
        now = 1000.0
        monkeypatch.setattr(one.placing.rests, "_clock", lambda: now)
        await ask(one, "m1")
        now += 100.0  # that look is paid for
        monkeypatch.setattr(one.placing.rests, "_work", lambda: next(seconds, 10.0))
        assert "1 fit at once" in (await ask(one, "m2"))[1]
        places = mock.Mock(side_effect=AssertionError("worked out again"))
        with monkeypatch.context() as busy:
            busy.setattr(placing, "place_gang", places)
            busy.setattr(waking, "place_gang", places)
            for name in ("m1", "m2", "m1"):
                assert "the next one is in 90 s" in (await ask(one, name))[1]
            api.remove("pods", "a", "ns")
            await shown(one, api)
            await settled(one)
        assert not woken(api, "m1")
        now += 91.0
        one.waker.rested()
        await until(lambda: woken(api, "m1") and woken(api, "m2"))


async def test_gangs_that_a_look_left_out_are_looked_at_when_their_namespace_has_rested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest began with that look, so nobody else knew of it."""
    api = cluster(nodes=1, cards=2)
    async with extender(api) as one:
        await full(api, one, "a")
        for name in ("m1", "m2"):
            api.put("pods", member(name, size=2))
        await shown(one, api)
        for name in ("m1", "m2"):
            await ask(one, name)
        rests, now = one.placing.rests, 1000.0
        monkeypatch.setattr(rests, "_clock", lambda: now)

        def left_out(*_: object) -> list[Pod]:
            rests._until["ns"], rests.left_out = now + 0.1, {"ns": "g"}
            return []

        with monkeypatch.context() as busy:
            busy.setattr(waker, "would_fit", left_out)
            api.remove("pods", "a", "ns")
            await shown(one, api)
            await settled(one)
        assert not woken(api, "m1")
        now += 1.0
        await until(lambda: woken(api, "m1") and woken(api, "m2"))
