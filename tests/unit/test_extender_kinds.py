"""The kind of work that a Binding gives to a pod, against a pretend API server."""

from test_extender_binding import args, claim, cluster, gpu_class, pod, seen

from egpu.api import names
from egpu.api.allocation import decode_allocation
from support.extenders import extender
from support.fake_api import FakeAPI, Json
from support.waiting import until


def important(obj: Json, priority: int) -> Json:
    return {**obj, "spec": {**obj["spec"], "priority": priority}}


def work(api: FakeAPI, name: str) -> str:
    bound = api.get("pods", name, "ns")
    return decode_allocation(bound["metadata"]["annotations"][names.ALLOCATION]).containers["app"].work


async def test_a_pod_with_a_high_priority_is_bound_as_latency_work() -> None:
    api = cluster()
    plain = api.put("pods", pod("plain", core=30))
    urgent = api.put("pods", important(pod("urgent", core=30), 1_000_000))
    async with extender(api) as one:
        for obj in (plain, urgent):
            await one.binder.bind(args(obj))
    assert (work(api, "plain"), work(api, "urgent")) == ("batch", "latency")


async def test_a_claim_keeps_what_its_class_says_and_each_of_its_pods_has_its_own_kind() -> None:
    api = cluster()
    api.put("elasticgpuclasses", {**gpu_class("k", "WaitForFirstConsumer"), "parameters": {"latencyPriority": "10"}})
    api.put("elasticgpuclaims", claim("c", "k"))
    uses = {names.CLAIM_PREFIXES[0] + "app": "c"}
    first = api.put("pods", important(pod("first", annotations=uses), 10))
    async with extender(api) as one:
        await seen(one, first)
        await one.binder.bind(args(first))
        assert work(api, "first") == "latency"
        assert "latency" not in api.get("elasticgpuclaims", "c", "ns")["status"]["allocation"]["container"]
        api.remove("pods", "first", "ns")
        await until(lambda: one.view.pods.by_uid(first["metadata"]["uid"]) is None)
        second = api.put("pods", important(pod("second", annotations=uses), 9))
        await seen(one, second)
        await one.binder.bind(args(second))
    assert work(api, "second") == "batch"
