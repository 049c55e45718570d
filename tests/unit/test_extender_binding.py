"""Bind under every race we can think of, against a pretend API server: nothing over-committed, nothing left behind."""

import asyncio
import contextlib
import dataclasses
import json
from pathlib import Path

import httpx2
import pytest

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.apps.extender import Extender, ExtenderConfig
from egpu.core.placement.mirror import Mirror
from egpu.core.placement.node_names import NodeNames
from egpu.laptop.credentials import extender_credentials
from egpu_base.api.extender import ExtenderBindingArgs
from egpu_base.errors import Conflict, DoesNotFit, ElasticGPUError, LeadershipLost, Unavailable
from egpu_base.runtime.supervisor import Supervisor
from support.extenders import extender
from support.fake_api import FakeAPI, Fault, Json, status
from support.waiting import DEADLINE_SECONDS, until


def card(node: str, index: int, memory_mib: int = 16384) -> Json:
    uuid = f"GPU-{node}-{index:08x}"
    return {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPU",
        "metadata": {"name": f"{node}-{index}"},
        "spec": {
            "nodeName": node,
            "physicalGPU": {"uuid": uuid, "index": index, "minor": index, "memoryMiB": memory_mib, "model": "T4"},
        },
    }


def pod(name: str, core: int = 60, memory: int = 8, annotations: dict[str, str] | None = None) -> Json:
    limits = {} if annotations else {"docker.com/vcuda-core": str(core), "docker.com/vcuda-memory": str(memory)}
    demand = {names.DEMAND: '{"version":1,"containers":{}}'}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": {**demand, **(annotations or {})}},
        "spec": {"containers": [{"name": "app", "resources": {"limits": limits}}]},
    }


def gpu_class(name: str, mode: str) -> Json:
    return {"kind": "ElasticGPUClass", "metadata": {"name": name}, "provisioner": names.VCUDA, "eGPUBindingMode": mode}


def claim(name: str, gpu_class_name: str, core: int = 60) -> Json:
    requests = {names.GPU_CORE: core, names.GPU_MEMORY: 1024}
    spec = {"elasticGPUClassName": gpu_class_name, "resources": {"requests": requests}}
    return {"kind": "ElasticGPUClaim", "metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def cluster(*, nodes: int = 1, cards: int = 1) -> FakeAPI:
    api = FakeAPI()
    for number in range(nodes):
        node = f"n{number}"
        api.put("nodes", {"kind": "Node", "metadata": {"name": node}})
        for index in range(cards):
            api.put("elasticgpus", card(node, index))
    return api


def args(obj: Json, node: str = "n0") -> ExtenderBindingArgs:
    meta = obj["metadata"]
    return ExtenderBindingArgs(pod_name=meta["name"], pod_namespace=meta["namespace"], pod_uid=meta["uid"], node=node)


async def seen(one: Extender, obj: Json) -> None:
    await until(lambda: one.view.pods.by_uid(obj["metadata"]["uid"]) is not None)


def given_out(api: FakeAPI) -> dict[str, int]:
    """Percent given out of each card, by what the API server holds, claims counted once."""
    total: dict[str, int] = {}
    for obj in api.all("pods"):
        if text := (obj["metadata"].get("annotations") or {}).get(names.ALLOCATION):
            for container in decode_allocation(text).containers.values():
                for share in container.cards if not container.claim else ():
                    total[share.uuid] = total.get(share.uuid, 0) + share.core
    for obj in api.all("elasticgpuclaims"):
        for share in ((obj.get("status") or {}).get("allocation") or {}).get("container", {}).get("cards", ()):
            total[share["uuid"]] = total.get(share["uuid"], 0) + share["core"]
    return total


async def test_bind_sets_node_and_allocation_in_one_call():
    api = cluster()
    obj = api.put("pods", pod("a"))
    async with extender(api) as one:
        takeover = len(api.log)
        assert [path for method, path in api.log if method == "PATCH"] == ["/api/v1/namespaces/ns/pods/a"]
        await one.binder.bind(args(obj))
        about_pods = [line for line in api.log[takeover:] if "/pods/" in line[1]]
        assert about_pods == [("POST", "/api/v1/namespaces/ns/pods/a/binding")]
        bound = api.get("pods", "a", "ns")
        assert bound["spec"]["nodeName"] == "n0"
        allocation = decode_allocation(bound["metadata"]["annotations"][names.ALLOCATION])
        assert allocation.containers["app"].cards[0].core == 60
        assert bound["metadata"]["annotations"][names.CARDS_PREFIX + "app"] == "GPU-n0-00000000"
        await one.binder.bind(args(obj))  # asked again: harmless
        with pytest.raises(Conflict):
            await one.binder.bind(args(obj, "n1"))


async def test_what_a_bind_changed_is_taken_in_before_the_next_pod_is_asked_about(monkeypatch: pytest.MonkeyPatch):
    api = cluster(nodes=2)
    first, second = api.put("pods", pod("a")), api.put("pods", pod("b"))
    async with extender(api) as one:
        ranking = one.view.cache.ranking
        await seen(one, second)
        asked = one.view.cache.request(one.view.waiting[second["metadata"]["uid"]])
        assert ranking.rated(asked, ["n0", "n1"], one.policies).tolist()[0] > 0
        await one.binder.bind(args(first))
        monkeypatch.setattr(Mirror, "_copy", None)
        assert ranking.rated(asked, ["n0", "n1"], one.policies).tolist() == [0, 1]


async def test_the_same_pod_bound_twice_at_once_is_bound_once():
    api = cluster(cards=2)
    obj = api.put("pods", pod("a"))
    async with extender(api) as one:
        await asyncio.gather(*(one.binder.bind(args(obj)) for _ in range(5)))
        assert sum(line[1].endswith("/binding") for line in api.log) == 1
        assert sum(given_out(api).values()) == 60


@pytest.mark.parametrize("leads", [True, False])
async def test_while_the_lease_is_asked_for_nobody_else_is_offered_the_cards(
    leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = cluster()
    first, second = api.put("pods", pod("a")), api.put("pods", pod("b"))
    async with extender(api) as one:
        for obj in (first, second):
            await seen(one, obj)
        other = one.view.pods.get("b", "ns")
        assert other is not None
        offered: list[bool] = []

        async def meanwhile(_: float) -> None:
            offered.extend(one.placing.filter(other, NodeNames(["n0"])).ok.tolist())
            if not leads:
                raise LeadershipLost("lost")

        monkeypatch.setattr(one.fence, "check", meanwhile)
        with contextlib.nullcontext() if leads else pytest.raises(LeadershipLost):
            await one.binder.bind(args(first))
        assert offered == [False]
        assert one.placing.filter(other, NodeNames(["n0"])).ok.tolist() == [not leads]


async def test_a_conflict_because_the_pod_changed_is_tried_again_with_the_new_version():
    api = cluster()
    obj = api.put("pods", pod("a"))
    async with extender(api) as one:
        api.hold_watches = True
        api.put("pods", {**api.get("pods", "a", "ns"), "status": {"phase": "Pending"}})
        await one.binder.bind(args(obj))
        assert api.get("pods", "a", "ns")["spec"]["nodeName"] == "n0"


async def test_a_pod_that_another_scheduler_bound_first_leaves_no_assumption():
    api = cluster()
    obj = api.put("pods", pod("a"))
    async with extender(api) as one:
        api.hold_watches = True
        stolen = api.get("pods", "a", "ns")
        api.put("pods", {**stolen, "spec": {**stolen["spec"], "nodeName": "n9"}})
        with pytest.raises(Conflict):
            await one.binder.bind(args(obj))
        assert one.view.cache.ledger.holders() == {}


async def test_a_pod_deleted_between_filter_and_bind_leaves_nothing_behind():
    api = cluster()
    obj = api.put("pods", pod("a"))
    async with extender(api) as one:
        api.hold_watches = True
        api.remove("pods", "a", "ns")
        with pytest.raises(ElasticGPUError):
            await one.binder.bind(args(obj))
        api.put("pods", pod("a"))  # made again under its name: another pod
        with pytest.raises(Conflict):
            await one.binder.bind(args(obj))
        assert one.view.cache.ledger.holders() == {}


def on_binding(action: Fault) -> Fault:
    """A fault that strikes the first binding only."""
    struck: list[bool] = []

    def fault(api: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.url.path.endswith("/binding") and not struck:
            struck.append(True)
            return action(api, request)
        return None

    return fault


async def test_a_timeout_of_a_binding_that_succeeded_is_a_success():
    api = cluster()
    obj = api.put("pods", pod("a"))

    def land_then_time_out(api: FakeAPI, request: httpx2.Request) -> httpx2.Response:
        api.serve(request)
        raise httpx2.ReadTimeout("no answer")

    async with extender(api) as one:
        api.fault = on_binding(land_then_time_out)
        await one.binder.bind(args(obj))
        assert len(one.view.cache.ledger.holders()) == 1
        assert sum(line[1].endswith("/binding") for line in api.log) == 1


async def test_a_timed_out_binding_that_arrives_late_is_shut_out():
    """The request is lost, its pod is settled as unbound, the cards go to another pod; then the request arrives."""
    api = cluster()
    first, second = api.put("pods", pod("a")), api.put("pods", pod("b"))
    late: list[httpx2.Request] = []

    def lose(_: FakeAPI, request: httpx2.Request) -> httpx2.Response:
        late.append(request)
        raise httpx2.ReadTimeout("no answer")

    async with extender(api) as one:
        api.fault = on_binding(lose)
        with pytest.raises(Unavailable):
            await one.binder.bind(args(first))
        await one.binder.bind(args(second))
        assert api.serve(late[0]).status_code == 409
        assert max(given_out(api).values()) == 60


async def test_a_doubt_that_cannot_be_settled_keeps_the_cards():
    api = cluster()
    first, second = api.put("pods", pod("a")), api.put("pods", pod("b"))

    def dark(api: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.url.path.endswith("/binding"):
            raise httpx2.ReadTimeout("no answer")
        return status(503) if request.method == "PATCH" and request.url.path.endswith("/pods/a") else None

    async with extender(api) as one:
        await seen(one, second)
        api.fault = dark
        with pytest.raises(Unavailable):
            await one.binder.bind(args(first))
        with pytest.raises(DoesNotFit):
            await one.binder.bind(args(second))
        api.fault = None
        await one.binder.bind(args(first))  # settled by the next attempt, then bound
        assert api.get("pods", "a", "ns")["spec"]["nodeName"] == "n0"


async def test_a_killed_extenders_binding_still_under_way_cannot_double_book():
    """The case for the fence: SIGKILL with a POST in a socket buffer, a new extender, then the POST arrives."""
    api = cluster()
    first, second = api.put("pods", pod("a")), api.put("pods", pod("b"))
    under_way: list[httpx2.Request] = []

    def swallow(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.url.path.endswith("/binding"):
            under_way.append(request)
            raise asyncio.CancelledError
        return None

    async with extender(api) as old:
        api.fault = swallow
        with pytest.raises(asyncio.CancelledError):
            await old.binder.bind(args(first))
    api.fault = None
    async with extender(api) as new:
        await seen(new, second)
        await new.binder.bind(args(second))
        assert api.get("pods", "a", "ns")["metadata"]["annotations"][names.FENCE]
        assert api.serve(under_way[0]).status_code == 409
        assert max(given_out(api).values()) == 60
        with pytest.raises(DoesNotFit):
            await new.binder.bind(args(first))


async def test_a_killed_extenders_binding_that_landed_before_the_takeover_is_seen():
    api = cluster()
    first, second = api.put("pods", pod("a")), api.put("pods", pod("b"))

    def land_unheard(api: FakeAPI, request: httpx2.Request) -> httpx2.Response:
        api.serve(request)
        raise asyncio.CancelledError

    async with extender(api) as old:
        api.fault = on_binding(land_unheard)
        with pytest.raises(asyncio.CancelledError):
            await old.binder.bind(args(first))
    async with extender(api) as new:
        with pytest.raises(DoesNotFit):
            await new.binder.bind(args(second))


async def test_an_old_extender_that_wakes_up_may_not_write():
    api = cluster(cards=2)
    first, second = api.put("pods", pod("a")), api.put("pods", pod("b"))
    async with extender(api) as old, extender(api) as new:
        await new.binder.bind(args(first))
        with pytest.raises(ElasticGPUError, match="lease"):
            await old.binder.bind(args(second))
        assert "nodeName" not in api.get("pods", "b", "ns")["spec"]


async def test_one_question_about_the_lease_does_for_all_pods_that_had_been_read_before_it():
    api = cluster(cards=4)
    early = [api.put("pods", pod(name)) for name in "ab"]

    def questions() -> int:
        return sum(method == "GET" and "/leases/" in path for method, path in api.log)

    async with extender(api) as one:
        before = questions()
        for obj in early:
            await one.binder.bind(args(obj))
        assert questions() == before + 1
        later = api.put("pods", pod("c"))
        await seen(one, later)
        await one.binder.bind(args(later))
        assert questions() == before + 2
        claimed = [api.put("pods", pod(name, annotations={names.CLAIM_PREFIXES[0] + "app": "c"})) for name in "de"]
        api.put("elasticgpuclasses", gpu_class("waits", "WaitForFirstConsumer"))
        api.put("elasticgpuclaims", claim("c", "waits"))
        await until(lambda: one.view.cache.claim("ns", "c") is not None)
        await seen(one, claimed[0])
        await one.binder.bind(args(claimed[0]))
        assert questions() > before + 2, "the claim was read as well"


async def test_an_old_extender_that_had_asked_in_time_writes_nothing_that_was_touched_since():
    api = cluster(cards=2)
    first, second = api.put("pods", pod("a")), api.put("pods", pod("b"))
    async with extender(api) as old:
        await old.binder.bind(args(first))
        api.hold_watches = True
        async with extender(api) as new:
            with pytest.raises(ElasticGPUError, match="lease"):
                await old.binder.bind(args(second))
            assert "nodeName" not in api.get("pods", "b", "ns")["spec"]
            await new.binder.bind(args(second))
        assert max(given_out(api).values()) == 60


async def test_immediate_claims_are_bound_at_once_and_reserve_their_card():
    api = cluster()
    api.put("elasticgpuclasses", gpu_class("now", "Immediate"))
    async with extender(api) as one:
        api.put("elasticgpuclaims", claim("c", "now"))
        await until(lambda: (api.get("elasticgpuclaims", "c", "ns").get("status") or {}).get("allocation") is not None)
        obj = api.put("pods", pod("a"))
        await seen(one, obj)
        with pytest.raises(DoesNotFit):
            await one.binder.bind(args(obj))
        user = api.put("pods", pod("u", annotations={names.CLAIM_PREFIXES[0] + "app": "c"}))
        other = api.put("pods", pod("o", annotations={names.CLAIM_PREFIXES[0] + "app": "c"}))
        await seen(one, other)
        await one.binder.bind(args(user))
        with pytest.raises(DoesNotFit, match="its class allows one pod at a time"):
            await one.binder.bind(args(other))
        assert given_out(api) == {"GPU-n0-00000000": 60}


async def test_two_immediate_claims_with_room_for_one():
    api = cluster()
    api.put("elasticgpuclasses", gpu_class("now", "Immediate"))
    for name in ("c", "d"):
        api.put("elasticgpuclaims", claim(name, "now"))
    async with extender(api):
        await until(lambda: any(event["reason"] == "DoesNotFit" for event in api.all("events")))
        assert given_out(api) == {"GPU-n0-00000000": 60}


async def test_a_waiting_claim_gets_its_cards_with_its_pod_and_gives_them_back_when_the_bind_fails():
    api = cluster()
    api.put("elasticgpuclasses", gpu_class("later", "WaitForFirstConsumer"))
    api.put("elasticgpuclaims", claim("c", "later"))
    user = api.put("pods", pod("u", annotations={names.CLAIM_PREFIXES[0] + "app": "c"}))
    async with extender(api) as one:
        api.fault = on_binding(lambda *_: status(422, "Invalid"))
        with pytest.raises(ElasticGPUError):
            await one.binder.bind(args(user))
        assert not (api.get("elasticgpuclaims", "c", "ns").get("status") or {}).get("allocation")
        assert one.view.cache.ledger.holders() == {}
        await one.binder.bind(args(user))
        held = api.get("elasticgpuclaims", "c", "ns")["status"]["allocation"]
        written = json.loads(api.get("pods", "u", "ns")["metadata"]["annotations"][names.ALLOCATION])
        assert held["container"]["cards"] == written["containers"]["app"]["cards"]
        assert given_out(api) == {"GPU-n0-00000000": 60}


async def test_many_binds_at_once_never_over_commit_and_fill_the_cards():
    api = cluster(nodes=2, cards=2)
    pods = [api.put("pods", pod(f"p{number}", core=30)) for number in range(30)]
    async with extender(api) as one:
        answers = await asyncio.gather(
            *(one.binder.bind(args(obj, f"n{number % 2}")) for number, obj in enumerate(pods)), return_exceptions=True
        )
        assert sum(answer is None for answer in answers) == 12
        assert all(answer is None or isinstance(answer, DoesNotFit) for answer in answers)
        assert given_out(api) == {f"GPU-n{node}-{index:08x}": 90 for node in range(2) for index in range(2)}
        for obj in pods:
            api.remove("pods", obj["metadata"]["name"], "ns")
        await until(lambda: one.view.cache.ledger.holders() == {})


async def test_losing_the_lease_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("egpu_base.kubernetes.election.RENEW_SECONDS", 0.01)
    api = cluster()
    config = ExtenderConfig(listen="127.0.0.1:0", health_listen="127.0.0.1:0")
    config = dataclasses.replace(config, **extender_credentials(tmp_path / "tls").config())
    one = Extender(config, api.client())
    supervisor = Supervisor()
    running = asyncio.create_task(one.run(supervisor))
    await until(lambda: one.not_ready() is None or running.done())
    async with extender(api):
        with pytest.raises(ElasticGPUError, match="lease"):
            await asyncio.wait_for(running, DEADLINE_SECONDS)


async def test_a_pod_bound_and_deleted_while_the_watch_was_blind_leaks_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egpu.apps.extender.binder.SETTLE_SECONDS", 0.05)
    api = cluster()
    async with extender(api) as one:
        api.hold_watches = True
        obj = api.put("pods", pod("a"))
        await one.binder.bind(args(obj))
        assert len(one.view.cache.ledger.holders()) == 1
        api.remove("pods", "a", "ns")
        api.history.clear()  # the watch will never tell
        await until(lambda: one.view.cache.ledger.holders() == {})


async def test_nobody_is_asked_about_a_pod_that_the_watch_showed(monkeypatch: pytest.MonkeyPatch):
    """Not even when it is gone before anybody looks after what was assumed."""
    monkeypatch.setattr("egpu.apps.extender.binder.SETTLE_SECONDS", 0.05)
    api = cluster(cards=2)
    async with extender(api) as one:
        shown = api.put("pods", pod("shown"))
        await seen(one, shown)
        await one.binder.bind(args(shown))
        await until(lambda: (known := one.view.pods.get("shown", "ns")) is not None and known.spec.node_name)
        api.remove("pods", "shown", "ns")
        await until(lambda: one.view.pods.get("shown", "ns") is None)
        api.hold_watches = True
        blind = api.put("pods", pod("blind"))
        await one.binder.bind(args(blind))
        api.remove("pods", "blind", "ns")
        api.history.clear()
        await until(lambda: one.view.cache.ledger.holders() == {})  # asked for after the other would have been
        asked = [path for method, path in api.log if method == "GET" and "/pods/" in path]
        assert set(asked) == {"/api/v1/namespaces/ns/pods/blind"}


async def test_a_claim_that_the_controller_saw_bound_is_not_taken_back():
    """Taking its cards away would make it Lost for good; it stays a reservation for its pod's next attempt."""
    api = cluster()
    api.put("elasticgpuclasses", gpu_class("later", "WaitForFirstConsumer"))
    api.put("elasticgpuclaims", claim("c", "later"))
    user = api.put("pods", pod("u", annotations={names.CLAIM_PREFIXES[0] + "app": "c"}))

    def bound_meanwhile(api: FakeAPI, _: httpx2.Request) -> httpx2.Response:
        held = api.get("elasticgpuclaims", "c", "ns")
        api.put("elasticgpuclaims", {**held, "status": {**held["status"], "phase": "Bound"}})
        return status(422, "Invalid")

    async with extender(api) as one:
        api.fault = on_binding(bound_meanwhile)
        with pytest.raises(ElasticGPUError):
            await one.binder.bind(args(user))
        assert api.get("elasticgpuclaims", "c", "ns")["status"]["allocation"]
        await until(lambda: {holder.kind for holder in one.view.cache.ledger.holders()} == {"claim"})
        await one.binder.bind(args(user))
        assert given_out(api) == {"GPU-n0-00000000": 60}


async def test_a_takeover_goes_on_until_everything_is_fenced(monkeypatch: pytest.MonkeyPatch):
    """The webhook, through which a touch passes, may be down when an extender starts."""
    monkeypatch.setattr("egpu.apps.extender.fence.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("egpu_base.kubernetes.client.BACKOFF_SECONDS", 0.001)
    api = cluster()
    api.put("pods", pod("a"))
    refusals = []

    def webhook_down(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "PATCH" and request.url.path.endswith("/pods/a") and len(refusals) < 10:
            refusals.append(request)
            return status(500, "InternalError", "failed calling webhook")
        return None

    api.fault = webhook_down
    async with extender(api) as one:
        assert one.not_ready() is None
        assert len(refusals) == 10
        assert names.FENCE in api.get("pods", "a", "ns")["metadata"]["annotations"]


async def test_a_claim_write_in_doubt_keeps_its_cards_until_it_is_known_and_then_gives_them_back(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("egpu.apps.extender.claim_writer.SETTLE_SECONDS", 0.05)
    monkeypatch.setattr("egpu_base.kubernetes.client.BACKOFF_SECONDS", 0.001)
    api = cluster()
    api.put("elasticgpuclasses", gpu_class("later", "WaitForFirstConsumer"))
    api.put("elasticgpuclaims", claim("c", "later"))
    user = api.put("pods", pod("u", annotations={names.CLAIM_PREFIXES[0] + "app": "c"}))
    other = api.put("pods", pod("o"))
    late: list[httpx2.Request] = []

    def dark(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "PATCH" and "/elasticgpuclaims/" in request.url.path:
            late.append(request)
            raise httpx2.ReadTimeout("no answer")
        return None

    async with extender(api) as one:
        await seen(one, other)
        api.fault = dark
        with pytest.raises(Unavailable):
            await one.binder.bind(args(user))
        assert {holder.kind for holder in one.view.cache.ledger.holders()} == {"claim"}
        with pytest.raises(ElasticGPUError):
            await one.binder.bind(args(other))  # those cards may be the claim's
        api.fault = None
        await until(lambda: one.view.cache.ledger.holders() == {})
        await one.binder.bind(args(other))
        assert api.serve(late[0]).status_code == 409  # the lost write comes too late
        assert given_out(api) == {"GPU-n0-00000000": 60}
