"""A pod with ResourceClaims that is more important than pods with resource names gets their cards."""

import copy

from egpu.api import names
from egpu.apps.extender import Extender
from egpu.core.placement.node_names import NodeNames, chosen
from egpu_base.api.extender import ExtenderBindingArgs
from support.extenders import extender
from support.fake_api import FakeAPI, Json
from support.priced import (
    a_card,
    a_claim,
    a_node,
    a_pod,
    allocated,
    allocation,
    cluster,
    free,
    places,
    put,
    set_status,
    warnings,
)
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


def urgent(name: str, *claims: str, priority: int = 10) -> Json:
    return a_pod(name, *claims, priority=priority) | {"status": {"phase": "Pending", "conditions": UNSCHEDULABLE}}


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


async def running(api: FakeAPI, one: Extender, *pods: Json, cores: int) -> None:
    """Run pods that ask by ResourceClaims."""
    for made in pods:
        claims = [each["resourceClaimName"] for each in made["spec"]["resourceClaims"]]
        known = {obj["metadata"]["name"] for obj in api.all("resourceclaims")}
        put(api, made, *(a_claim(each, cores=cores, mib=64) for each in claims if each not in known))
        await scheduled(api, one, made["metadata"]["name"], *claims)


async def scheduled(api: FakeAPI, one: Extender, name: str, *claims: str) -> None:
    """The extender allocates; then kube-scheduler reserves the claims for the pod, and binds it."""
    await allocated(api, *claims)
    pod = copy.deepcopy(api.get("pods", name, "ns"))
    uid = pod["metadata"]["uid"]
    for claim in claims:
        status = api.get("resourceclaims", claim, "ns")["status"]
        if uid not in [user["uid"] for user in status["reservedFor"]]:
            user = {"resource": "pods", "name": name, "uid": uid}
            set_status(api, claim, {**status, "reservedFor": [*status["reservedFor"], user]})
    api.put("pods", {**pod, "spec": {**pod["spec"], "nodeName": places(api, claims[0])[0][0]}})
    held = one.view.cache.device_claims
    await until(lambda: one.view.population.placed.get(uid) is not None and len(held.held_by(uid)) == len(claims))


async def test_a_pod_with_claims_gives_its_card_to_a_more_important_one() -> None:
    api = cluster(cards=2)
    async with extender(api) as one:
        await running(api, one, a_pod("low", "l", priority=1), a_pod("middle", "m", priority=5), cores=60)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: going(api, "low"))
        assert not going(api, "middle")
        free(api, "low")
        await allocated(api, "a")
        assert not one.view.cache.problems()


async def test_a_pod_with_claims_gives_its_card_to_a_pod_with_resource_names() -> None:
    api = cluster()
    node = copy.deepcopy(api.get("nodes", "n0"))
    node["status"]["allocatable"] |= {names.GPU_CORE: "100", names.GPU_MEMORY: "16384"}
    api.put("nodes", node)
    async with extender(api) as one:
        await running(api, one, a_pod("low", "l"), cores=60)
        wants = urgent("urgent")
        wants["metadata"]["annotations"] = {names.DEMAND: '{"version":1,"containers":{}}'}
        wants["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_CORE: "70", names.GPU_MEMORY: "64"}}
        made = api.put("pods", wants)
        await until(lambda: going(api, "low"))
        free(api, "low")
        await until(lambda: not one.view.cache.device_claims.holding())
        args = ExtenderBindingArgs(pod_name="urgent", pod_namespace="ns", pod_uid=made["metadata"]["uid"], node="n0")
        await one.binder.bind(args)
        assert not one.view.cache.problems()


async def test_all_users_of_a_claim_go_together_or_none_does() -> None:
    api = cluster(cards=2)
    async with extender(api) as one:
        shared = (a_pod("one", "s", priority=1), a_pod("two", "s", priority=9))
        await running(api, one, *shared, a_pod("alone", "l", priority=5), cores=60)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: going(api, "alone"))
        assert not going(api, "one")
        free(api, "alone")
        await allocated(api, "a")
        put(api, urgent("next", "b"), a_claim("b", cores=70, mib=64))
        await until(lambda: going(api, "one") and going(api, "two"))
        for name in ("one", "two"):
            free(api, name)
        await allocated(api, "b")


async def test_a_claim_with_a_more_important_user_stays() -> None:
    api = cluster()
    async with extender(api) as one:
        await running(api, one, a_pod("low", "s", priority=1), a_pod("high", "s", priority=20), cores=60)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: warnings(api, "DoesNotFit"))
        await one.preemptor.look()
        assert not going(api, "low")
        assert not going(api, "high")


async def test_a_claim_that_something_else_than_pods_uses_stays() -> None:
    api = cluster()
    async with extender(api) as one:
        await running(api, one, a_pod("low", "s"), cores=60)
        status = api.get("resourceclaims", "s", "ns")["status"]
        other = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}
        set_status(api, "s", {**status, "reservedFor": [*status["reservedFor"], other]})

        def shown() -> bool:
            claim = one.view.device_claims.get("s", "ns")
            return claim is not None and "g" in [user.uid for user in claim.status.reserved_for or ()]

        await until(shown)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: warnings(api, "DoesNotFit"))
        await one.preemptor.look()
        assert not going(api, "low")


async def test_a_gang_of_claims_goes_as_a_whole() -> None:
    api = cluster(cards=2)
    async with extender(api) as one:
        members = [a_pod(name, name, priority=1) for name in ("g1", "g2")]
        for made in members:
            made["metadata"]["annotations"] = {names.GANG: "g", names.GANG_SIZE: "2"}
            put(api, made, a_claim(made["metadata"]["name"], cores=60, mib=64))
        for name in ("g1", "g2"):
            await scheduled(api, one, name, name)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: going(api, "g1") and going(api, "g2"))


async def test_a_pod_with_claims_of_another_driver_has_no_cards() -> None:
    api = cluster()
    async with extender(api) as one:
        await usual(api, one, "high", 60, priority=20)
        other = a_pod("other", "disk")
        other["spec"]["nodeName"] = "n0"
        uid = put(api, other)["metadata"]["uid"]
        results = [{"request": "r", "driver": "disks.example", "pool": "n0", "device": "d"}]
        disk = a_claim("disk", cores=60)
        reserved = [{"resource": "pods", "name": "other", "uid": uid}]
        api.put(
            "resourceclaims",
            disk | {"status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}},
        )
        await until(lambda: one.view.population.placed.get(uid) is not None)
        put(api, urgent("urgent", "a"), a_claim("a", cores=70, mib=64))
        await until(lambda: warnings(api, "DoesNotFit"))
        await one.preemptor.look()
        assert not going(api, "other")
