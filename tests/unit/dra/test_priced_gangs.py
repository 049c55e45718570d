"""Gangs of pods with ResourceClaims on priced nodes: all members get cards, or none does."""

from unittest import mock

import httpx2
import pytest

from egpu.api import names
from egpu.apps.extender import device_claims
from egpu.apps.extender.gang_controller import GangController
from egpu.core.dra.together import choose_together
from egpu_base.kubernetes.events import EventRecorder
from support.extenders import extender
from support.fake_api import FakeAPI, Json, status
from support.priced import a_claim, a_pod, allocated, allocation, cluster, free, given_out, places, put, warnings
from support.waiting import until


def member(name: str, *claims: str, size: int = 3, cpu: int = 0) -> Json:
    made = a_pod(name, *claims, cpu=cpu)
    made["metadata"]["annotations"] = {names.GANG: "g", names.GANG_SIZE: str(size)}
    return made


def put_gang(api: FakeAPI, size: int = 3, *, cores: int = 60, cpu: int = 0) -> list[str]:
    claims = [f"c{number}" for number in range(size)]
    for number, claim in enumerate(claims):
        put(api, member(f"m{number}", claim, size=size, cpu=cpu), a_claim(claim, cores=cores, mib=64))
    return claims


async def test_a_gang_gets_its_cards_all_at_once() -> None:
    api = cluster(nodes=2, cards=2)
    put(api, a_pod("other", "x"), a_claim("x", cores=60, mib=64))
    put(api, a_pod("one-more", "y"), a_claim("y", cores=60, mib=64))
    async with extender(api) as one:
        await allocated(api, "x", "y")
        claims = put_gang(api)
        await until(lambda: warnings(api, "DoesNotFit"))
        (said,) = {message.partition(";")[0] for message in warnings(api, "DoesNotFit")}
        assert said == "gang g: all 3 members exist, 2 fit at once"
        assert not any(allocation(api, claim) for claim in claims)
        assert not any("elasticgpu.io/fence" in (one["metadata"].get("annotations") or {})
                       for one in api.all("resourceclaims") if one["metadata"]["name"] in claims)  # fmt: skip
        free(api, "other")
        await allocated(api, *claims)
        assert sum(core for core, _ in given_out(api).values()) == 240
        assert not one.view.cache.problems()


async def test_a_gang_waits_for_its_last_member() -> None:
    api = cluster(nodes=2, cards=2)
    for number in range(2):
        put(api, member(f"m{number}", f"c{number}"), a_claim(f"c{number}", cores=60, mib=64))
    async with extender(api):
        await until(lambda: warnings(api, "DoesNotFit"))
        assert "gang g: 2 of 3 members exist" in warnings(api, "DoesNotFit")
        assert allocation(api, "c0") is None
        put(api, member("m2", "c2"), a_claim("c2", cores=60, mib=64))
        await allocated(api, "c0", "c1", "c2")


async def test_members_count_each_others_cpu() -> None:
    api = cluster(nodes=2, cards=2)
    claims = put_gang(api, cores=20, cpu=40)
    async with extender(api):
        await until(lambda: warnings(api, "DoesNotFit"))
        assert "2 fit at once; m2 has no room beside these: n0: its CPU" in warnings(api, "DoesNotFit")[0]
        assert not any(allocation(api, claim) for claim in claims)


async def test_members_may_share_a_claim() -> None:
    api = cluster(nodes=2, cards=2)
    put(api, member("m0", "shared", size=2), a_claim("shared", cores=20, mib=64))
    put(api, member("m1", "shared", "own", size=2), a_claim("own", cores=20, mib=64))
    async with extender(api):
        await allocated(api, "shared", "own")
        assert places(api, "shared")[0][0] == places(api, "own")[0][0]


async def test_a_gang_that_asks_in_two_ways_says_so() -> None:
    api = cluster()
    named = member("m0", size=2)
    named["metadata"]["annotations"][names.DEMAND] = '{"containers": {}}'
    api.put("pods", named)
    put(api, member("m1", "c", size=2), a_claim("c", cores=20, mib=64))
    async with extender(api):
        await until(lambda: warnings(api, "DoesNotFit"))
        words = "gang g: pod m0 asks for cards by resource names, others by ResourceClaims"
        assert warnings(api, "DoesNotFit") == [words]


async def test_a_gang_of_which_a_write_failed_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_claims, "RETRY_SECONDS", 0.2)
    api = cluster(nodes=2, cards=2)
    refused: list[str] = []

    def refuses_once(server: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "PATCH" and request.url.path.endswith("/c1/status") and not refused:
            refused.append(request.url.path)
            return status(422, "Invalid", "no")
        return None

    api.fault = refuses_once
    claims = put_gang(api)
    async with extender(api) as one:
        await until(lambda: refused)
        await allocated(api, *claims)
        assert sum(core for core, _ in given_out(api).values()) == 180
        assert not one.view.cache.problems()


async def test_a_gang_that_runs_in_part_is_undone_after_its_time() -> None:
    api = cluster(nodes=1, cards=1)
    put(api, a_pod("other", "x"), a_claim("x", cores=60, mib=64))
    now = 0.0
    async with extender(api) as one:
        await allocated(api, "x")
        bound = member("m0", "c0", size=2)
        bound["spec"]["nodeName"] = "n0"
        put(api, bound, a_claim("c0", cores=60, mib=64))
        put(api, member("m1", "c1", size=2), a_claim("c1", cores=60, mib=64))
        await until(lambda: warnings(api, "DoesNotFit"))
        events = EventRecorder(api.client(), component="test")
        controller = GangController(api.client(), one.view, one.fence, events, clock=lambda: now)
        await controller.look()
        now = 61.0
        await controller.look()
        assert sorted(pod["metadata"]["name"] for pod in api.all("pods")) == ["m1", "other"]


async def test_one_look_counts_for_all_members_of_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at a large gang takes seconds. One for each member stopped the extender for all tenants."""
    api = cluster(nodes=2, cards=2)
    looks = mock.Mock(side_effect=choose_together)
    monkeypatch.setattr(device_claims, "choose_together", looks)
    put_gang(api, 8)
    async with extender(api):
        await until(lambda: len(api.all("events")) >= 8)
        assert {each.partition(";")[0] for each in warnings(api, "DoesNotFit")} == {
            "gang g: all 8 members exist, 4 fit at once"
        }
    assert looks.call_count <= 2, "the last member may have appeared after the first look"


async def test_a_gang_of_thousands_of_requests_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_claims, "choose_together", mock.Mock(side_effect=AssertionError("chosen")))
    api = cluster(nodes=2, cards=2)
    for number in range(9):
        claims = [a_claim(f"c{number}-{at}", cores=1, mib=1) for at in range(4)]
        for one in claims:
            requests = one["spec"]["devices"]["requests"]
            requests += [{**requests[0], "name": f"r{at}"} for at in range(31)]
        put(api, member(f"m{number}", *(one["metadata"]["name"] for one in claims), size=9), *claims)
    async with extender(api):
        await until(lambda: warnings(api, "ClaimNotServed"))
    assert warnings(api, "ClaimNotServed")[0] == "gang g: its claims have over 1024 requests; use smaller gangs"
