"""The controller against a pretend API server: what a cache that lags behind must not make it believe."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.apps.controller import Controller, ControllerConfig
from egpu.apps.controller.claim_controller import SWEEP_SECONDS, SWEEP_STEPS
from egpu_base.errors import Conflict
from support.fake_api import FakeAPI, Json
from support.waiting import until

SHARE = {"uuid": "GPU-1", "index": 0, "minor": 0, "core": 50, "memoryMiB": 1024, "model": "T4"}
ALLOCATION = {"node": "n0", "container": {"provisioner": names.VCUDA, "mode": "shared", "cards": [SHARE]}}


def api_with_a_class() -> FakeAPI:
    api = FakeAPI()
    api.put("nodes", {"kind": "Node", "metadata": {"name": "n0"}})
    physical = {key: SHARE[key] for key in ("uuid", "index", "minor", "model")} | {"memoryMiB": 16384}
    spec = {"nodeName": "n0", "physicalGPU": physical}
    api.put("elasticgpus", {"kind": "ElasticGPU", "metadata": {"name": "n0-1"}, "spec": spec})
    api.put("elasticgpuclasses", {"kind": "ElasticGPUClass", "metadata": {"name": "k"}, "provisioner": names.VCUDA})
    return api


def claim(**status: object) -> Json:
    metadata = {"name": "c", "namespace": "ns", "finalizers": [names.CLAIM_FINALIZER]}
    spec = {"elasticGPUClassName": "k", "resources": {"requests": {names.GPU_CORE: 50}}}
    return {"kind": "ElasticGPUClaim", "metadata": metadata, "spec": spec, "status": status}


@asynccontextmanager
async def controller(api: FakeAPI) -> AsyncGenerator[Controller]:
    one = Controller(ControllerConfig(), api.client())
    task = asyncio.create_task(one.lead())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def slices(api: FakeAPI) -> list[Json]:
    return [gpu for gpu in api.all("elasticgpus") if "slice" in gpu["spec"]]


async def test_a_slice_that_the_cache_does_not_show_yet_is_not_a_lost_claim():
    api = api_with_a_class()
    api.put("elasticgpuclaims", claim(allocation=ALLOCATION))
    api.hold_watches = True
    async with controller(api) as one:
        await until(lambda: api.get("elasticgpuclaims", "c", "ns")["status"].get("phase") == "Bound")
        for _ in range(3):
            with suppress(Conflict):  # the controller's own worker was first, and would try again as well
                await one.claims.reconcile_claim(("ns", "c"))
        assert api.get("elasticgpuclaims", "c", "ns")["status"]["phase"] == "Bound"
        assert len(slices(api)) == 1


async def test_slices_of_an_allocation_that_was_taken_back_go():
    api = api_with_a_class()
    held = api.put("elasticgpuclaims", claim(allocation=ALLOCATION))
    async with controller(api):
        await until(lambda: slices(api))
    api.put("elasticgpuclaims", {**held, "status": {"phase": "Pending"}})
    async with controller(api):
        await until(lambda: not slices(api))
        assert api.get("elasticgpuclaims", "c", "ns")["status"]["phase"] == "Pending"


async def test_a_claim_being_deleted_waits_for_a_pod_that_the_cache_does_not_show_yet():
    api = api_with_a_class()
    held = api.put("elasticgpuclaims", claim(allocation=ALLOCATION))
    async with controller(api):
        await until(lambda: api.get("elasticgpuclaims", "c", "ns")["status"].get("phase") == "Bound")
        api.hold_watches = True
        annotations = {names.CLAIM_PREFIXES[0] + "app": "c"}
        pod = {
            "kind": "Pod",
            "metadata": {"name": "u", "namespace": "ns", "annotations": annotations},
            "spec": {"nodeName": "n0", "containers": [{"name": "app"}]},
        }
        api.put("pods", pod)
    fresh = api.get("elasticgpuclaims", "c", "ns")
    fresh["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.put("elasticgpuclaims", fresh)
    blind = Controller(ControllerConfig(), api.client())
    blind.claims._claims._put(_typed(api))
    await blind.claims.reconcile_claim(("ns", "c"))
    assert api.get("elasticgpuclaims", "c", "ns")["metadata"]["finalizers"] == [names.CLAIM_FINALIZER]
    api.remove("pods", "u", "ns")
    blind.claims._claims._put(_typed(api))
    await blind.claims.reconcile_claim(("ns", "c"))
    assert not api.get("elasticgpuclaims", "c", "ns")["metadata"].get("finalizers")
    assert held["metadata"]["uid"] == fresh["metadata"]["uid"]


def _typed(api: FakeAPI) -> ElasticGPUClaim:

    return msgspec.convert(api.get("elasticgpuclaims", "c", "ns"), ElasticGPUClaim)


async def test_pods_are_told_that_their_card_fell_sick_and_that_it_is_well_again():
    api = api_with_a_class()
    given = {"version": 1, "node": "n0", "containers": {"app": ALLOCATION["container"]}}
    for name, annotations in (("has", {names.ALLOCATION: json.dumps(given)}), ("has-not", {})):
        metadata = {"name": name, "namespace": "ns", "annotations": annotations}
        api.put("pods", {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n0"}})

    def told() -> list[tuple[str, str, str]]:
        return [(one["involvedObject"]["name"], one["reason"], one["message"]) for one in api.all("events")]

    async with controller(api) as one:
        await until(lambda: one.claims.caches.not_ready() is None)
        sick = {"healthy": False, "message": "XID 79"}
        api.put("elasticgpus", api.get("elasticgpus", "n0-1") | {"status": sick})
        await until(lambda: len(told()) == 1)
        assert told() == [("has", "CardUnhealthy", "card 0 of node n0 is unhealthy: XID 79")]
        api.put("elasticgpus", api.get("elasticgpus", "n0-1") | {"status": {"healthy": True}})
        await until(lambda: len(told()) == 2)
        assert told()[1] == ("has", "CardsHealthy", "its card takes new work again")


async def test_a_sweep_comes_to_everything_and_never_to_everything_at_once(monkeypatch: pytest.MonkeyPatch):
    one = Controller(ControllerConfig(), FakeAPI().client()).claims
    spec = {"nodeName": "n0", "physicalGPU": {key: SHARE[key] for key in ("uuid", "index", "minor")}}
    for number in range(2 * SWEEP_STEPS):
        card = {"kind": "ElasticGPU", "metadata": {"name": f"n0-{number}", "uid": f"{number}"}, "spec": spec}
        one._gpus._put(msgspec.convert(card, ElasticGPU))
    while len(one.gpus.queue):
        one.gpus.queue.done(await one.gpus.queue.get())
    waited, sleep = list[float](), asyncio.sleep

    async def turn(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", turn)
    task, queued = asyncio.create_task(one.sweep()), list[int]()
    while len(waited) <= SWEEP_STEPS:
        await sleep(0)
        queued.append(len(one.gpus.queue))
    task.cancel()
    assert sum(waited[:SWEEP_STEPS]) == pytest.approx(SWEEP_SECONDS)
    assert queued[-1] == 2 * SWEEP_STEPS, "after one sweep"
    assert max(after - before for before, after in itertools.pairwise(queued)) == 2


async def test_a_claim_with_thousands_of_finalizers_keeps_them():
    """The controller's copy has not all of them."""
    api = api_with_a_class()
    body, many = claim(allocation=ALLOCATION), [f"a.example/{number}" for number in range(5000)]
    body["metadata"]["finalizers"] = many
    api.put("elasticgpuclaims", body)
    async with controller(api):
        await until(lambda: names.CLAIM_FINALIZER in api.get("elasticgpuclaims", "c", "ns")["metadata"]["finalizers"])
    assert api.get("elasticgpuclaims", "c", "ns")["metadata"]["finalizers"] == [*many, names.CLAIM_FINALIZER]
