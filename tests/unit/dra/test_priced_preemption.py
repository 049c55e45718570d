"""A pod with ResourceClaims that is more important than pods with resource names gets their cards."""

from egpu.api import names
from egpu.apps.extender import Extender
from egpu.core.placement.node_names import NodeNames, chosen
from egpu_base.api.extender import ExtenderBindingArgs
from support.extenders import extender
from support.fake_api import FakeAPI, Json
from support.priced import a_card, a_claim, a_node, a_pod, allocated, allocation, cluster, places, put, warnings
from support.waiting import until

UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]


async def usual(api: FakeAPI, one: Extender, name: str, core: int, priority: int = 0) -> None:
    """Run a pod with resource names."""
    made = a_pod(name, priority=priority)
    made["metadata"]["annotations"] = {names.DEMAND: '{"version":1,"containers":{}}'}
    made["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_CORE: str(core), names.GPU_MEMORY: "64"}}
    found = api.put("pods", made)
    await until(lambda: one.view.pods.get(name, "ns") is not None)
    shown = one.view.pods.get(name, "ns")
    assert shown is not None
    nodes = NodeNames(one.view.cache.ledger.nodes())
    node = chosen(nodes, one.placing.filter(shown, nodes).ok)[0]
    uid = found["metadata"]["uid"]
    await one.binder.bind(ExtenderBindingArgs(pod_name=name, pod_namespace="ns", pod_uid=uid, node=node))
    await until(lambda: one.view.population.placed.get(uid) is not None)


def urgent(name: str, claim: str, priority: int = 10) -> Json:
    return a_pod(name, claim, priority=priority) | {"status": {"phase": "Pending", "conditions": UNSCHEDULABLE}}


def going(api: FakeAPI, name: str) -> bool:
    return "deletionTimestamp" in api.get("pods", name, "ns")["metadata"]


async def test_the_least_important_pod_goes_and_the_claim_gets_its_card() -> None:
    api = cluster(cards=2)
    async with extender(api) as one:
        await usual(api, one, "low", 60, priority=1)
        await usual(api, one, "middle", 60, priority=5)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: going(api, "low"))
        assert not going(api, "middle")
        assert names.RESERVATION in api.get("pods", "urgent", "ns")["metadata"]["annotations"]
        put(api, a_pod("late", "b"), a_claim("b", cores=70, mib=64))
        await until(lambda: any("b" in message for message in warnings(api, "DoesNotFit")))
        api.remove("pods", "low", "ns")
        await allocated(api, "a")
        assert allocation(api, "b") is None
        assert not one.view.cache.problems()


async def test_a_claim_that_is_not_more_important_evicts_nobody() -> None:
    api = cluster()
    async with extender(api) as one:
        await usual(api, one, "low", 60, priority=10)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: warnings(api, "DoesNotFit"))
        await one.preemptor.look()
        assert not going(api, "low")


async def test_nobody_is_evicted_on_a_node_that_serves_no_claims() -> None:
    api = cluster()
    api.put("nodes", a_node("plain"))
    api.put("elasticgpus", a_card("plain", 0, allocator=""))
    async with extender(api) as one:
        put(api, a_pod("first", "x", priority=20), a_claim("x", cores=60, mib=64))
        await allocated(api, "x")
        assert places(api, "x")[0][0] == "n0"
        await usual(api, one, "low", 60)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: warnings(api, "DoesNotFit"))
        await one.preemptor.look()
        assert not going(api, "low")
