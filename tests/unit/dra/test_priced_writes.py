"""The extender writes allocations of ResourceClaims: all or none, under every race of its writes and leaders."""

import asyncio
import copy
from typing import Any

import httpx2
import pytest

from egpu.api import names
from egpu.core.dra.marking import AT_CREATION
from egpu_base.errors import ElasticGPUError
from support.extenders import extender
from support.fake_api import FakeAPI, status
from support.priced import (
    a_card,
    a_claim,
    a_node,
    a_pod,
    allocated,
    allocation,
    cluster,
    given_out,
    places,
    put,
    set_status,
)
from support.waiting import until

STATUS = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{}/status"


def is_write(request: httpx2.Request, claim: str) -> bool:
    return (request.method, request.url.path) == ("PATCH", STATUS.format(claim))


# --- writes that fail -------------------------------------------------------------------------------------------------


async def test_a_second_write_that_is_refused_takes_the_first_one_back() -> None:
    api = cluster(nodes=2)
    seen: list[list[tuple[str, str]]] = []
    withdrawn: list[bytes] = []

    def refuses_b(server: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if is_write(request, "a") and b'"allocation":null' in request.content:
            withdrawn.append(request.content)
        if is_write(request, "b") and len(seen) < 2:
            seen.append(places(server, "a"))
            set_status(server, "b", {})  # another version
        return None

    api.fault = refuses_b
    put(api, a_pod("p", "a", "b"), a_claim("a", cores=30, mib=64), a_claim("b", cores=30, mib=64))
    async with extender(api) as one:
        await until(lambda: len(seen) == 2)
        await allocated(api, "a", "b")
        assert all(seen)
        assert len(withdrawn) == 2
        assert all(b'"reservedFor":null' in one for one in withdrawn)
        assert places(api, "a")[0][0] == places(api, "b")[0][0]
        assert sum(core for core, _ in given_out(api).values()) == 60
        assert not one.view.cache.problems()


async def test_a_claim_that_another_pod_uses_by_now_is_not_taken_back() -> None:
    api, other = cluster(), {"resource": "pods", "name": "q", "uid": "uid-q"}

    def shares_a(server: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        found = copy.deepcopy(server.get("resourceclaims", "a", "ns").get("status") or {})
        if is_write(request, "b") and other not in found["reservedFor"]:
            set_status(server, "a", {**found, "reservedFor": [*found["reservedFor"], other]})
            set_status(server, "b", {})  # another version
        return None

    api.fault = shares_a
    put(api, a_pod("p", "a", "b"), a_claim("a", cores=30, mib=64), a_claim("b", cores=30, mib=64))
    async with extender(api):
        await allocated(api, "a", "b")
    mine = [one for kind, _, one in api.history if kind == "resourceclaims" and one["metadata"]["name"] == "a"]
    states = [one.get("status") or {} for one in mine]
    first = next(number for number, one in enumerate(states) if other in one.get("reservedFor", ()))
    assert all(one.get("allocation") for one in states[first:])


async def test_what_kube_scheduler_has_begun_to_allocate_is_left_to_it() -> None:
    api = cluster(nodes=1)
    api.put("nodes", a_node("its"))
    api.put("elasticgpus", a_card("its", 0, allocator=names.DRA))
    put(api, a_pod("p", "a", "b"), a_claim("a", cores=30, mib=64), a_claim("b", cores=30, mib=64))
    result = {"request": "gpu", "driver": names.DRIVER, "pool": "its", "device": "gpu-its-0", "shareID": "s"}
    devices = {"results": [{**result, "consumedCapacity": {"cores": "30", "memory": "64Mi"}}]}
    user = {"resource": "pods", "name": "p", "uid": api.get("pods", "p", "ns")["metadata"]["uid"]}
    set_status(api, "a", {"allocation": {"devices": devices}, "reservedFor": [user]})
    put(api, a_pod("q", "c"), a_claim("c", cores=30, mib=64))
    async with extender(api):
        await allocated(api, "c")
        await asyncio.sleep(0.2)
    assert places(api, "a") == [("its", "gpu-its-0")]
    assert allocation(api, "b") is None


@pytest.mark.parametrize("lands", [True, False])
async def test_a_write_of_unknown_outcome_is_found_out(lands: bool) -> None:
    api = cluster()
    lost: list[str] = []

    def loses_the_answer(server: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if is_write(request, "a") and not lost:
            lost.append(request.url.path)
            if lands:
                server.serve(request)
            raise httpx2.ReadError("cut")
        return None

    api.fault = loses_the_answer
    put(api, a_pod("p", "a"), a_claim("a", cores=30, mib=64))
    async with extender(api) as one:
        await allocated(api, "a")
        assert given_out(api) == {"gpu-n0-0": (30, 64)}
        uid, claims = api.get("resourceclaims", "a", "ns")["metadata"]["uid"], one.view.cache.device_claims
        await until(lambda: not claims.is_assumed(uid))  # what landed shows here before it is found out
        assert one.view.cache.ledger.snapshot()[("n0", "GPU-n0-0")][0] == 70
        assert not one.view.cache.problems()


async def test_a_claim_that_kube_scheduler_had_before_is_marked_all_the_same() -> None:
    api = cluster()
    claim = a_claim("a", cores=30, mib=64)
    claim["metadata"]["finalizers"] = ["other", names.DELETE_PROTECTION]
    put(api, a_pod("p", "a"), claim)
    async with extender(api):
        await allocated(api, "a")
    meta = api.get("resourceclaims", "a", "ns")["metadata"]
    assert names.FENCE in meta["annotations"]
    assert meta["finalizers"] == ["other", names.DELETE_PROTECTION]


def marked(claim: dict[str, Any], at_creation: bool = True) -> dict[str, Any]:
    """Return the claim as the webhook leaves it, if it marks it."""
    if at_creation:
        claim["metadata"] |= {"annotations": {names.FENCE: AT_CREATION}, "finalizers": [names.DELETE_PROTECTION]}
    return claim


@pytest.mark.parametrize("at_creation", [True, False])
async def test_a_claim_that_was_marked_at_its_creation_gets_its_allocation_in_one_write(at_creation: bool) -> None:
    api = cluster()
    put(api, a_pod("p", "a"), marked(a_claim("a", cores=30, mib=64), at_creation))
    async with extender(api):
        await allocated(api, "a")
    writes = [path for method, path in api.log if method == "PATCH" and "/resourceclaims/" in path]
    mine = STATUS.format("a")
    first = [path for path in writes if path != mine]
    # The touch of a takeover comes first, if the claim was marked then.
    assert first == [mine.removesuffix("/status")]
    assert writes[-1] == mine
    annotation = api.get("resourceclaims", "a", "ns")["metadata"]["annotations"][names.FENCE]
    assert annotation.startswith("lead-" if at_creation else "allocate-")


async def test_a_new_claim_that_the_webhook_marked_is_written_once() -> None:
    api = cluster()
    async with extender(api):
        put(api, a_pod("p", "a"), marked(a_claim("a", cores=30, mib=64)))
        await allocated(api, "a")
    writes = [path for method, path in api.log if method == "PATCH" and "/resourceclaims/" in path]
    assert writes == [STATUS.format("a")]
    assert api.get("resourceclaims", "a", "ns")["metadata"]["annotations"][names.FENCE] == AT_CREATION


# --- leaders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_creation", [True, False])
async def test_the_write_of_an_old_leader_is_refused_after_a_takeover(
    monkeypatch: pytest.MonkeyPatch, at_creation: bool
) -> None:
    """The old one is frozen with its write in the socket. The new one gives the card to another pod."""
    api, release = cluster(), asyncio.Event()
    held: list[httpx2.Request] = []
    serve = api.handle_async_request

    async def freezes(request: httpx2.Request) -> httpx2.Response:
        if is_write(request, "a") and not held:
            held.append(request)
            await release.wait()
            return api.serve(request)
        return await serve(request)

    monkeypatch.setattr(api, "handle_async_request", freezes)
    put(api, a_pod("p", "a"), marked(a_claim("a", cores=80, mib=64), at_creation))
    async with extender(api) as old:
        await until(lambda: held)
        api.remove("leases", old.election.name, old.election.namespace)  # it lost the lease without noticing
        api.remove("pods", "p", "ns")
        async with extender(api) as new:
            put(api, a_pod("q", "b"), a_claim("b", cores=80, mib=64))
            await allocated(api, "b")
            release.set()
            await asyncio.sleep(0.1)
            assert allocation(api, "a") is None
            assert given_out(api) == {"gpu-n0-0": (80, 64)}
            assert not new.view.cache.problems()


async def test_an_old_leader_takes_nothing_back_after_a_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is frozen while it releases the first of two claims. The new one completes the pod's claims."""
    api, release = cluster(), asyncio.Event()
    held: list[httpx2.Request] = []
    serve = api.handle_async_request

    async def freezes(request: httpx2.Request) -> httpx2.Response:
        if is_write(request, "b") and not held:
            return status(409, "Conflict")
        if is_write(request, "a") and b'"allocation":null' in request.content and not held:
            held.append(request)
            await release.wait()
            return api.serve(request)
        return await serve(request)

    monkeypatch.setattr(api, "handle_async_request", freezes)
    put(api, a_pod("p", "a", "b"), a_claim("a", cores=30, mib=64), a_claim("b", cores=30, mib=64))
    async with extender(api) as old:
        await until(lambda: held)
        api.remove("leases", old.election.name, old.election.namespace)
        async with extender(api):
            await allocated(api, "a", "b")
            before = copy.deepcopy(allocation(api, "a"))
            release.set()
            await asyncio.sleep(0.1)
            assert allocation(api, "a") == before  # its pod may run


async def test_a_process_that_lost_the_lease_writes_nothing() -> None:
    api = cluster()
    async with extender(api) as old:
        lease = api.get("leases", old.election.name, old.election.namespace)
        api.put("leases", copy.deepcopy({**lease, "spec": {**lease["spec"], "holderIdentity": "another"}}))
        put(api, a_pod("p", "a"), a_claim("a", cores=80, mib=64))
        await asyncio.sleep(0.3)
        assert allocation(api, "a") is None
        with pytest.raises(ElasticGPUError):
            await old.fence.check()


@pytest.mark.parametrize("room_beside", [True, False])
async def test_a_successor_completes_or_releases_what_a_dead_leader_left(room_beside: bool) -> None:
    """It ended between the writes of two claims. If the rest has no room there, all go to another node."""
    api = cluster(nodes=2)
    put(api, a_pod("p", "a", "b"), a_claim("a", cores=30, mib=64), a_claim("b", cores=30, mib=64))

    def dies(server: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(500, "InternalError") if is_write(request, "b") or (
            is_write(request, "a") and b'"allocation":null' in request.content
        ) else None  # fmt: skip

    api.fault = dies
    async with extender(api):
        await allocated(api, "a")
    api.fault = None
    ((first, _),) = places(api, "a")
    assert allocation(api, "b") is None
    if not room_beside:
        other = a_claim("other")
        given = allocation(api, "a")
        assert given is not None
        result = {**given["devices"]["results"][0], "consumedCapacity": {"cores": "60", "memory": "64Mi"}}
        devices = {**given["devices"], "results": [result]}
        api.put("resourceclaims", {**other, "status": {"allocation": {**given, "devices": devices}}})
    async with extender(api) as new:
        await allocated(api, "a", "b")
        await until(lambda: {place[0][0] for place in (places(api, "a"), places(api, "b"))} in ({"n0"}, {"n1"}))
        assert (places(api, "a")[0][0] == first) == room_beside
        assert not new.view.cache.problems()


async def test_an_api_server_without_these_claims_stops_nothing() -> None:
    api = cluster(allocator="")

    def unserved(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(404, "NotFound") if "resource.k8s.io" in request.url.path else None

    api.fault = unserved
    async with extender(api) as one:
        assert one.not_ready() is None
        api.put("elasticgpus", a_card("n1", 0))
        await until(lambda: one.not_ready() is not None)
        assert "the API server does not serve these" in (one.not_ready() or "")
