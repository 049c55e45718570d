"""Gangs against a pretend API server: bound all or none, whatever is killed, refused or lost in between."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest
from test_extender_binding import args, claim, cluster, extender, given_out, gpu_class, on_binding, pod

from egpu.api import names
from egpu.apps.extender import Extender
from egpu.apps.extender.gang_controller import GangController
from egpu.core.placement.node_names import NodeNames, chosen
from egpu.core.placement.promises import PROMISE_SECONDS
from egpu_base.api.extender import in_words
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Conflict, DoesNotFit, ElasticGPUError, Unavailable
from support.fake_api import FakeAPI, Json, status
from support.waiting import until


def member(name: str, gang: str = "g", size: int = 3, uses: dict[str, str] | None = None) -> Json:
    """A pod of 60 percent; or one that uses the claim that an annotation of `uses` names."""
    obj = pod(name, annotations=uses)
    obj["metadata"]["annotations"] |= {names.GANG: gang, names.GANG_SIZE: str(size)}
    return obj


def bound(api: FakeAPI, *wanted: str) -> list[str]:
    return [name for name in wanted if api.get("pods", name, "ns")["spec"].get("nodeName")]


async def ask(one: Extender, name: str) -> tuple[list[str], str]:
    """As the scheduler asks a filter: the nodes that fit, and why others do not."""
    await until(lambda: one.view.pods.get(name, "ns") is not None)
    found: Pod | None = one.view.pods.get(name, "ns")
    assert found is not None
    nodes = sorted(one.view.cache.ledger.nodes())
    verdict = one.placing.filter(found, NodeNames(nodes))
    reasons = {in_words(refused.reason) for refused in verdict.refused}
    return list(chosen(nodes, verdict.ok)), "; ".join(sorted(reasons))


async def schedule(one: Extender, api: FakeAPI, *pods: str) -> str:
    """Filter, then bind, one pod after the other, as a scheduler does; the last refusal."""
    said = ""
    for name in pods:
        fits, refusal = await ask(one, name)
        if fits:
            await one.binder.bind(args(api.get("pods", name, "ns"), fits[0]))
        else:
            said = refusal
    return said


async def shown(one: Extender, api: FakeAPI) -> None:
    """The watch has shown everything."""

    def all_there() -> bool:
        found = [one.view.pods.by_uid(obj["metadata"]["uid"]) for obj in api.all("pods")]
        return [p and p.metadata.resource_version for p in found] == [
            obj["metadata"]["resourceVersion"] for obj in api.all("pods")
        ]

    await until(all_there)


@asynccontextmanager
async def half_asked(cards: int) -> AsyncGenerator[tuple[FakeAPI, Extender]]:
    """A node, and a gang of two, a and b; the scheduler has asked about a."""
    api = cluster(nodes=1, cards=cards)
    async with extender(api) as one:
        for name in ("a", "b"):
            api.put("pods", member(name, size=2))
        await shown(one, api)
        await ask(one, "a")
        yield api, one


async def test_the_last_member_to_be_asked_about_binds_them_all(monkeypatch: pytest.MonkeyPatch):
    api = cluster(nodes=2, cards=2)
    async with extender(api) as one:
        # Waking a member changes it, and then its binding is sent twice.
        monkeypatch.setattr(one.waker, "answered", lambda *_, **__: None)
        for name in ("a", "b"):
            api.put("pods", member(name))
        assert await schedule(one, api, "a", "b") == "gang g: 2 of 3 members exist"
        api.put("pods", member("c"))
        assert await schedule(one, api, "c") == ""
        assert bound(api, "a", "b", "c") == ["a", "b", "c"]
        assert sorted(given_out(api).values()) == [60, 60, 60]
        assert sorted(api.bindings) == ["a", "b", "c"]
        # The scheduler may be asking about another one right now: it hears where that one is.
        assert await schedule(one, api, "a", "b") == ""
        assert sorted(api.bindings) == ["a", "b", "c"]


async def test_a_gang_without_room_for_all_holds_nothing_and_one_that_fits_goes_first():
    """Two gangs that each fit alone, and come pod by pod in turn: one runs whole, the other waits whole."""
    api = cluster(nodes=1, cards=4)
    async with extender(api) as one:
        for number in range(3):
            for gang in ("g", "h"):
                api.put("pods", member(f"{gang}{number}", gang))
                await schedule(one, api, f"{gang}{number}")
        assert bound(api, "g0", "g1", "g2") == ["g0", "g1", "g2"]
        said = await schedule(one, api, "h0", "h1", "h2")
        assert said.startswith("gang h: all 3 members exist, 1 fit at once; h1 has no room with 1 of the others placed")
        assert "card 0 has 40 percent of compute free, 60 percent needed" in said
        assert bound(api, "h0", "h1", "h2") == []
        assert len(one.view.cache.ledger.holders()) == 3
        for name in ("g0", "g1"):
            api.remove("pods", name, "ns")
        await until(lambda: len(one.view.cache.ledger.holders()) == 1)
        await schedule(one, api, "h0")
        assert bound(api, "h0", "h1", "h2") == ["h0", "h1", "h2"]


async def test_members_bound_at_the_same_time_are_bound_once_each():
    api = cluster(nodes=1, cards=3)
    async with extender(api) as one:
        for name in ("a", "b", "c"):
            api.put("pods", member(name))
        await shown(one, api)
        for name in ("a", "b", "c"):
            await ask(one, name)
        await asyncio.gather(*(one.binder.bind(args(api.get("pods", name, "ns"))) for name in ("c", "a", "b", "a")))
        assert sorted(api.bindings) == ["a", "b", "c"]
        assert bound(api, "a", "b", "c") == ["a", "b", "c"]


async def test_a_member_that_the_scheduler_changed_meanwhile_is_bound_all_the_same():
    async with half_asked(cards=2) as (api, one):
        api.hold_watches = True
        api.put("pods", {**api.get("pods", "a", "ns"), "status": {"phase": "Pending"}})
        await schedule(one, api, "b")
        assert bound(api, "a", "b") == ["a", "b"]


async def test_when_the_first_binding_is_refused_none_is_sent():
    api = cluster(nodes=1, cards=3)
    async with extender(api) as one:
        for name in ("a", "b", "c"):
            api.put("pods", member(name))
        await shown(one, api)
        await ask(one, "a")
        await ask(one, "b")
        api.fault = on_binding(lambda *_: status(422, "Invalid"))  # type: ignore[assignment]
        with pytest.raises(ElasticGPUError):
            await schedule(one, api, "c")
        assert bound(api, "a", "b", "c") == []
        assert one.view.cache.ledger.holders() == {}
        await schedule(one, api, "c")
        assert bound(api, "a", "b", "c") == ["a", "b", "c"]


async def test_when_a_claim_of_one_member_cannot_be_written_no_member_is_bound():
    api = cluster(nodes=1, cards=2)
    api.put("elasticgpuclasses", gpu_class("later", "WaitForFirstConsumer"))
    for name in ("c1", "c2"):
        api.put("elasticgpuclaims", claim(name, "later"))

    def no_second_claim(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(422, "Invalid") if request.url.path.endswith("c1/status") else None

    async with extender(api) as one:
        for number in (1, 2):
            api.put("pods", member(f"p{number}", size=2, uses={names.CLAIM_PREFIXES[0] + "app": f"c{number}"}))
        await shown(one, api)
        await ask(one, "p1")
        api.fault = no_second_claim
        with pytest.raises(ElasticGPUError):
            await schedule(one, api, "p2")
        assert bound(api, "p1", "p2") == []
        assert given_out(api) == {}
        assert one.view.cache.ledger.holders() == {}
        api.fault = None
        await schedule(one, api, "p2")
        assert bound(api, "p1", "p2") == ["p1", "p2"]
        assert given_out(api) == {"GPU-n0-00000000": 60, "GPU-n0-00000001": 60}


class Killed(BaseException):
    """The process ends here."""


async def killed_between_bindings(api: FakeAPI, *pods: str) -> None:
    """An extender binds the gang and is killed after the first binding."""
    sent: list[bool] = []

    def kill(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.url.path.endswith("/binding"):
            sent.append(True)
            if len(sent) > 1:
                raise Killed
        return None

    async with extender(api) as old:
        await shown(old, api)
        for name in pods[:-1]:
            await ask(old, name)
        api.fault = kill
        with pytest.raises(Killed):
            await schedule(old, api, pods[-1])
    api.fault = None


async def test_an_extender_killed_between_the_bindings_is_followed_by_one_that_completes_the_gang():
    api = cluster(nodes=1, cards=3)
    for name in ("a", "b", "c"):
        api.put("pods", member(name))
    await killed_between_bindings(api, "a", "b", "c")
    assert bound(api, "a", "b", "c") == ["c"]
    async with extender(api) as new:
        await shown(new, api)
        # Both that wait were touched by the take-over, so the scheduler asks again.
        assert all(api.get("pods", name, "ns")["metadata"]["annotations"]["elasticgpu.io/fence"] for name in ("a", "b"))
        assert await schedule(new, api, "a") == "gang g: the scheduler has not asked about pod b yet"
        await schedule(new, api, "b")
        assert bound(api, "a", "b", "c") == ["a", "b", "c"]
        assert sorted(given_out(api).values()) == [60, 60, 60]


async def test_a_gang_that_cannot_be_completed_within_its_limit_is_undone_and_then_runs_whole():
    """After the crash somebody takes the room of the rest. The bound member goes; made again, the gang waits whole."""
    api = cluster(nodes=1, cards=3)
    for name in ("a", "b", "c"):
        api.put("pods", member(name))
    await killed_between_bindings(api, "a", "b", "c")
    thief = api.put("pods", pod("thief"))
    now = 0.0
    async with extender(api) as new:
        controller = GangController(api.client(), new.view, new.fence, new.gangs._events, clock=lambda: now)
        await shown(new, api)
        await new.binder.bind(args(thief))
        await ask(new, "a")
        _, said = await ask(new, "b")
        assert said.startswith("gang g: all 3 members exist, 2 fit at once")
        await controller.look()
        now = 59.0
        await controller.look()
        assert bound(api, "c") == ["c"], "within the limit nothing is taken away"
        touched = api.get("pods", "a", "ns")["metadata"]["annotations"]["elasticgpu.io/fence"]
        assert touched.startswith("gang-"), "but the scheduler is made to ask again"
        now = 61.0
        await controller.look()
        assert ("pods", "ns", "c") not in api.objects
        (event,) = [event for event in api.all("events") if event["reason"] == "GangUndone"]
        assert "2 of 3 members found no room within 60 s" in event["message"]
        await until(lambda: len(new.view.cache.ledger.holders()) == 1)
        await controller.look()
        api.put("pods", member("c"))
        await schedule(new, api, "a", "b", "c")
        assert bound(api, "a", "b", "c") == []
        api.remove("pods", "thief", "ns")
        await until(lambda: not new.view.cache.ledger.holders())
        await schedule(new, api, "a")
        assert bound(api, "a", "b", "c") == ["a", "b", "c"]


async def test_a_whole_gang_is_left_alone_and_so_is_one_whose_rest_nobody_made_again():
    api = cluster(nodes=1, cards=3)
    now = 0.0
    async with extender(api) as one:
        controller = GangController(api.client(), one.view, one.fence, one.gangs._events, clock=lambda: now)
        for name in ("a", "b", "c"):
            api.put("pods", member(name))
        await shown(one, api)
        await schedule(one, api, "a", "b", "c")
        for step in range(3):
            now = 1000.0 * step
            await shown(one, api)
            await controller.look()
            if step == 0:
                api.remove("pods", "a", "ns")
        assert bound(api, "b", "c") == ["b", "c"]


async def test_a_gang_that_grew_while_the_lease_was_asked_for_is_decided_again():
    async with half_asked(cards=3) as (api, one):
        await ask(one, "b")
        api.remove("pods", "b", "ns")

        async def meanwhile() -> None:
            api.put("pods", member("b2", size=2))
            await until(lambda: one.view.pods.get("b2", "ns") is not None)
            await ask(one, "b2")

        one.fence.check = meanwhile  # type: ignore[method-assign]
        with pytest.raises((Conflict, DoesNotFit, Unavailable)):
            await one.binder.bind(args(api.get("pods", "a", "ns")))
        assert bound(api, "a", "b2") == []
        assert one.view.cache.ledger.holders() == {}


def open_member(name: str, size: int = 2) -> Json:
    """A member as the webhook reads it from a PodGroup."""
    obj = member(name, "pod-group.g", size)
    obj["metadata"]["annotations"] |= {names.GANG_SIZE: f"{size}+", names.GANG_TIMEOUT: names.GANG_NEVER}
    return obj


async def test_an_open_gang_is_placed_in_its_size_and_the_others_follow_alone():
    api = cluster(nodes=1, cards=3)
    async with extender(api) as one:
        for name in ("a", "b", "c", "d"):
            api.put("pods", open_member(name))
        await shown(one, api)
        assert await schedule(one, api, "a", "b") == "gang pod-group.g: the scheduler has not asked about pod b yet"
        assert bound(api, "a", "b", "c", "d") == ["a", "b"]
        said = await schedule(one, api, "c", "d")
        assert bound(api, "a", "b", "c", "d") == ["a", "b", "c"]
        assert said.startswith("gang pod-group.g: all 2 members exist, 3 fit at once; d has no room even alone")


async def test_a_group_of_a_neighbour_that_lost_a_member_is_not_undone():
    """Its controller decides which pods end."""
    api = cluster(nodes=1, cards=1)
    now = [0.0]
    async with extender(api) as one:
        gangs = GangController(api.client(), one.view, one.fence, one.gangs._events, clock=lambda: now[0])
        api.put("pods", {**open_member("a"), "spec": {**open_member("a")["spec"], "nodeName": "n0"}})
        api.put("pods", open_member("b"))
        await shown(one, api)
        assert [gang.key for gang in one.view.cache.gangs.partial()] == ["ns/pod-group.g"]
        for now[0] in (0.0, 1e9):
            await gangs.look()
        assert len(api.all("pods")) == 2


def native_member(name: str, size: int = 2, spec: Json | None = None) -> Json:
    """A member of a PodGroup of scheduling.k8s.io."""
    obj = open_member(name, size)
    obj["metadata"]["annotations"][names.GANG] = "podgroup.g"
    obj["spec"] |= {"schedulingGroup": {"podGroupName": "g"}, **(spec or {})}
    return obj


async def test_a_scheduler_that_knows_no_groups_binds_a_native_group_with_its_first_member():
    """It asks about one member and binds it; equal members may go where this one may."""
    api = cluster(nodes=1, cards=3)
    async with extender(api) as one:
        for name in ("a", "b", "c"):
            api.put("pods", native_member(name, 3))
        await shown(one, api)
        assert await schedule(one, api, "a") == ""
        assert bound(api, "a", "b", "c") == ["a", "b", "c"]
        assert len(one.view.cache.promises) == 0


@pytest.mark.parametrize("spec", [{"nodeSelector": {"disk": "ssd"}}, {"schedulingGates": [{"name": "queue"}]}])
async def test_a_member_under_other_rules_is_asked_about_itself(spec: Json):
    api = cluster(nodes=1, cards=2)
    async with extender(api) as one:
        api.put("pods", native_member("a"))
        api.put("pods", native_member("b", spec=spec))
        await shown(one, api)
        assert await schedule(one, api, "a") == "gang podgroup.g: the scheduler has not asked about pod b yet"


def basic_member(name: str) -> Json:
    """A member of a PodGroup with the policy basic: kube-scheduler binds those that fit."""
    obj = native_member(name)
    obj["metadata"]["annotations"] = {names.DEMAND: obj["metadata"]["annotations"][names.DEMAND]}
    return obj


async def test_a_binding_gives_the_next_one_time():
    api = cluster(nodes=1, cards=3)
    async with extender(api) as one:
        now = 0.0
        one.placing.clock = one.binder.clock = lambda: now
        for name in ("a", "b", "c"):
            api.put("pods", basic_member(name))
        api.put("pods", pod("stranger"))
        await shown(one, api)
        for name in ("a", "b", "c"):
            assert (await ask(one, name))[0] == ["n0"]
        for name in ("a", "b", "c"):
            now += PROMISE_SECONDS - 0.1
            assert not one.view.cache.promises.expire(now)
            assert (await ask(one, "stranger"))[0] == []
            await one.binder.bind(args(api.get("pods", name, "ns"), "n0"))


async def test_a_member_whose_binding_failed_is_tried_again_beside_the_bindings_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    api = cluster(nodes=1, cards=2)
    async with extender(api) as one:
        one.placing.clock = lambda: 0.0
        for name in ("a", "b"):
            api.put("pods", basic_member(name))
        api.put("pods", pod("stranger"))
        await shown(one, api)
        for name in ("a", "b"):
            assert (await ask(one, name))[0] == ["n0"]

        async def lost() -> None:
            raise Unavailable("the API server is away")

        with monkeypatch.context() as patched:
            patched.setattr(one.binder._claims, "resolve_doubts", lost)
            with pytest.raises(Unavailable):
                await one.binder.bind(args(api.get("pods", "a", "ns"), "n0"))
        assert (await ask(one, "a"))[0] == ["n0"]
        assert (await ask(one, "stranger"))[0] == []
        for name in ("b", "a"):
            await one.binder.bind(args(api.get("pods", name, "ns"), "n0"))


async def test_promised_cards_come_back_with_time_and_wake_waiting_pods():
    api = cluster(nodes=1, cards=1)
    async with extender(api) as one:
        now = 0.0
        one.placing.clock = lambda: now
        api.put("pods", basic_member("a"))
        api.put("pods", pod("waits"))
        await shown(one, api)
        assert (await ask(one, "a"))[0] == ["n0"]
        assert (await ask(one, "waits"))[0] == []
        assert api.get("elasticgpus", "n0-0").get("status", {}).get("heldBy", "") == "", "it is no news for users"
        rooms: list[bool] = []
        one.view.on_room(lambda: rooms.append(True))
        now = time.monotonic() - PROMISE_SECONDS - 1
        await ask(one, "a")
        await one.gangs.look()
        assert rooms == [True]
        assert (await ask(one, "waits"))[0] == ["n0"]
