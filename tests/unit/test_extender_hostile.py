"""What one tenant writes into objects of his own stops nothing for others: the extender leads, wakes, binds, evicts."""

import json
from typing import Any

import httpx2
import msgspec
import pytest
from test_extender_binding import args, card, claim, cluster, extender, gpu_class, pod, seen
from test_extender_gangs import ask, shown
from test_extender_preempting import UNSCHEDULABLE, evicted, full, ranked, ready_cluster, slow_extender, waiting

from egpu.api import names
from egpu.api.objects import ElasticGPU
from egpu.apps.extender import Extender, preemptor
from egpu.apps.extender.preemptor import AGAIN_SECONDS
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.published import MAX_LINK_MBPS
from egpu.core.preemption.plan import plan_in_slices
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import Conflict
from support.fake_api import FakeAPI, Fault, Json, status
from support.waiting import until

ANNOTATIONS_LIMIT = 256 * 1024
"""Bytes of all annotations of an object. Source: Kubernetes, `validation.TotalAnnotationSizeLimitB`."""


def stuffed(obj: Json) -> Json:
    """The object with as many annotations as it may have."""
    annotations = obj["metadata"].setdefault("annotations", {})
    annotations["stuffing"] = ""
    had = sum(len(key) + len(value) for key, value in annotations.items())
    annotations["stuffing"] = "x" * (ANNOTATIONS_LIMIT - had)
    return obj


def _size(obj: Json) -> int:
    return sum(len(key) + len(value) for key, value in (obj["metadata"].get("annotations") or {}).items())


def limited(api: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
    """As an API server: no object's annotations grow beyond the limit."""
    added = json.loads(request.content).get("metadata", {}).get("annotations") if request.method == "PATCH" else None
    plural, name = request.url.path.split("/")[-2:]
    obj = api.objects.get((plural, "ns", name))
    if obj is None or not added:
        return None
    after = {**obj, "metadata": {**obj["metadata"], "annotations": {**obj["metadata"]["annotations"], **added}}}
    return status(422, "Invalid", "metadata.annotations: Too long") if _size(after) > ANNOTATIONS_LIMIT else None


def full_object(name: str) -> Fault:
    """As an API server whose store takes not a byte more of this object."""

    def refuse(api: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "PATCH" and request.url.path.endswith(f"/{name}"):
            return status(500, "", "etcdserver: request is too large")
        return None

    return refuse


@pytest.mark.parametrize("what", ["pods", "elasticgpuclaims"])
async def test_an_extender_leads_beside_an_object_without_room_for_an_annotation(what: str) -> None:
    api = cluster()
    api.put(what, stuffed(pod("full") if what == "pods" else claim("full", "c")))
    version = api.get(what, "full", "ns")["metadata"]["resourceVersion"]
    api.fault = limited
    async with extender(api) as one:
        assert one.not_ready() is None
        assert api.get(what, "full", "ns")["metadata"]["resourceVersion"] != version  # fenced all the same


async def test_an_extender_leads_beside_an_object_that_cannot_grow() -> None:
    api = cluster()
    api.put("elasticgpuclaims", claim("full", "c"))
    api.fault = full_object("full")
    async with extender(api) as one:
        assert one.not_ready() is None


async def refused(one: Extender, api: FakeAPI, *pods: str) -> None:
    """They were asked about, and there was no room."""
    await shown(one, api)
    for name in pods:
        assert (await ask(one, name))[0] == []


async def test_whoever_cannot_be_woken_keeps_nobody_asleep() -> None:
    api = cluster(cards=2)
    async with extender(api) as one:
        await full(api, one, pod("a"), pod("b"))
        api.put("pods", pod("full"))
        api.put("pods", pod("later"))
        await refused(one, api, "full", "later")
        before = api.get("pods", "later", "ns")["metadata"]["resourceVersion"]
        api.fault = full_object("full")
        for name in ("a", "b"):
            api.remove("pods", name, "ns")
        await until(lambda: api.get("pods", "later", "ns")["metadata"]["resourceVersion"] != before)


async def test_a_claim_whose_write_is_in_doubt_and_that_cannot_be_touched_holds_nobody_up() -> None:
    """Its author changes it while it is bound, and has left no room in it."""
    api = cluster(cards=2)
    api.put("elasticgpuclasses", gpu_class("later", "WaitForFirstConsumer"))
    api.put("elasticgpuclaims", claim("full", "later"))
    user = api.put("pods", pod("u", annotations={names.CLAIM_PREFIXES[0] + "app": "full"}))
    other = api.put("pods", pod("o"))

    def changed_meanwhile(api: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method != "PATCH" or "/elasticgpuclaims/full" not in request.url.path:
            return None
        if not request.url.path.endswith("/status"):
            return status(422, "Invalid", "Too long")
        return status(409, "Conflict", "the object has been modified")

    async with extender(api) as one:
        await seen(one, other)
        api.fault = changed_meanwhile
        with pytest.raises(Conflict):
            await one.binder.bind(args(user))
        await one.binder.bind(args(other))
        assert api.get("pods", "o", "ns")["spec"]["nodeName"] == "n0"


def choosing(made: Json, *expressions: Json) -> Json:
    required = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    made["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return made


async def unschedulable(api: FakeAPI, one: Extender, *pods: Json) -> None:
    """kube-scheduler found no place for them, and never asked us."""
    for each in pods:
        api.put("pods", each | {"status": {"conditions": UNSCHEDULABLE}})
    await shown(one, api)


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
async def test_a_selector_that_compares_with_no_number_stops_nobody(operator: str) -> None:
    """No API server refuses it; kube-scheduler finds no place for its pod, which is then looked at here."""
    api = ready_cluster()
    node = api.get("nodes", "n0")
    node["metadata"]["labels"] = {"generation": "7"}
    api.put("nodes", node)
    async with slow_extender(api) as (one, _):
        await full(api, one, ranked("small", 1))
        strange = choosing(ranked("strange", 10), {"key": "generation", "operator": operator, "values": ["many"]})
        await unschedulable(api, one, strange)
        await waiting(api, one, ranked("great", 5))
        await evicted(api, one, "small")


async def test_a_pod_that_no_plan_can_be_made_for_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    api = ready_cluster()
    async with slow_extender(api) as (one, _):

        def failing(pod: Pod, *arguments: Any, **named: Any) -> Any:
            return plan_in_slices(pod, *arguments, **named) if pod.name != "strange" else 1 // 0

        monkeypatch.setattr(preemptor, "plan_in_slices", failing)
        await full(api, one, ranked("small", 1))
        await unschedulable(api, one, ranked("strange", 10))
        await waiting(api, one, ranked("great", 5))
        await evicted(api, one, "small")


async def test_many_pods_for_which_nobody_can_go_do_not_take_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one namespace, as important as another's and older: more than are looked at before the first is due again."""
    api = ready_cluster()
    async with slow_extender(api) as (one, now):
        await full(api, one, ranked("small", 1))
        hopeless = [ranked(f"hopeless-{number}", 10, core=60, memory=9999) for number in range(4)]
        for each in hopeless:
            each["metadata"] |= {"namespace": "theirs", "creationTimestamp": "2026-01-01T00:00:00Z"}
        great = ranked("great", 10)
        great["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
        looks: list[str] = []

        def noted(pod: Pod, *arguments: Any, **named: Any) -> Any:
            looks.append(pod.name)
            now[0] += AGAIN_SECONDS / 2  # a plan takes time where the cluster is large
            return plan_in_slices(pod, *arguments, **named)

        monkeypatch.setattr(preemptor, "plan_in_slices", noted)
        await unschedulable(api, one, *hopeless)
        await until(lambda: len(looks) >= 4)
        await waiting(api, one, great)
        await evicted(api, one, "small")


@pytest.mark.parametrize("said", ["9" * 5000, "9" * 4000, "-1", "fast", ""])
def test_what_one_node_says_of_its_network_stops_no_scheduler(said: str) -> None:
    """Written by the node's agent, so by whoever is root there; the whole cluster's extender reads it."""
    cache = SchedulerCache()
    annotations = {names.POOL_ADDRESS: "10.0.0.1:1", names.POOL_LINK: said}
    cache.node_changed(Node(metadata=ObjectMeta(name="n", annotations=annotations)))
    assert 0 <= cache.ledger.pool["n"].link_mbps <= MAX_LINK_MBPS


def test_a_card_larger_than_cards_are_is_not_counted_with() -> None:
    gpu = card("n", 0, 2**70)
    with pytest.raises(msgspec.ValidationError, match="memoryMiB"):
        msgspec.convert(gpu, ElasticGPU)
