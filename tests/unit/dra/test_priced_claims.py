"""The extender allocates ResourceClaims: which ones, on which nodes and cards, and what it says about the others."""

import asyncio
import copy
import random
import uuid
from collections.abc import Sequence
from typing import Any
from unittest import mock

import httpx2
import pytest

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.apps.extender import device_claims
from egpu.core.placement.node_names import NodeNames
from egpu_base.api.extender import ExtenderBindingArgs
from support.extenders import extender
from support.fake_api import FakeAPI
from support.priced import (
    a_card,
    a_claim,
    a_pod,
    allocated,
    allocation,
    cluster,
    given_out,
    places,
    put,
    put_class,
    selecting,
    set_status,
    warnings,
)
from support.priced import free as end
from support.waiting import until


async def test_an_allocation_has_everything_that_kube_scheduler_expects() -> None:
    api = cluster()
    pod = put(api, a_pod("p", "a"), a_claim("a", cores=30, mib=4096))
    async with extender(api):
        await allocated(api, "a")
    found = api.get("resourceclaims", "a", "ns")
    (result,) = found["status"]["allocation"]["devices"]["results"]
    assert uuid.UUID(result.pop("shareID"))
    assert result == {
        "request": "gpu", "driver": names.DRIVER, "pool": "n0", "device": "gpu-n0-0",
        "consumedCapacity": {"cores": "30", "memory": "4Gi"},
    }  # fmt: skip
    (config,) = found["status"]["allocation"]["devices"]["config"]
    assert (config["source"], config["requests"]) == ("FromClass", ["gpu"])
    assert config["opaque"]["parameters"]["technology"] == names.VCUDA
    only = {"key": "metadata.name", "operator": "In", "values": ["n0"]}
    assert found["status"]["allocation"]["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [only]}]}
    assert found["status"]["allocation"]["allocationTimestamp"]
    user = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
    assert found["status"]["reservedFor"] == [user]
    assert found["metadata"]["finalizers"] == [names.DELETE_PROTECTION]


async def test_a_whole_card_and_all_of_a_card() -> None:
    api = cluster(cards=3)
    put(api, a_pod("p", "whole", "all"), a_claim("whole", klass="whole", count=2), a_claim("all"))
    async with extender(api) as one:
        await allocated(api, "whole", "all")
        assert given_out(api) == dict.fromkeys(("gpu-n0-0", "gpu-n0-1", "gpu-n0-2"), (100, 16384))
        assert not one.view.cache.problems()
        assert {free[:2] for free in one.view.cache.ledger.snapshot().values()} == {(0, 0)}


async def test_claims_of_one_pod_get_cards_of_one_node_or_none() -> None:
    api = cluster(nodes=2)
    put(api, a_pod("first", "big"), a_claim("big", cores=50, mib=1024))
    async with extender(api) as one:
        await allocated(api, "big")
        ((taken, _),) = places(api, "big")
        put(api, a_pod("p", "a", "b"), a_claim("a", cores=40, mib=64), a_claim("b", cores=40, mib=64))
        await allocated(api, "a", "b")
        assert {node for name in ("a", "b") for node, _ in places(api, name)} == {"n0", "n1"} - {taken}
        put(api, a_pod("q", "c", "d"), a_claim("c", cores=20, mib=64), a_claim("d", cores=60, mib=64))
        await until(lambda: warnings(api, "DoesNotFit"))
        assert (allocation(api, "c"), allocation(api, "d")) == (None, None)
        assert names.FENCE not in (api.get("resourceclaims", "c", "ns")["metadata"].get("annotations") or {})
        end(api, "first")
        await allocated(api, "c", "d")
        assert not one.view.cache.problems()


async def test_pods_and_claims_share_the_cards_of_one_ledger() -> None:
    api = cluster()
    put(api, a_pod("p", "a"), a_claim("a", cores=60, mib=1024))
    async with extender(api) as one:
        await allocated(api, "a")
        limits = {names.GPU_CORE: "50", names.GPU_MEMORY: "1024"}
        body = {
            "kind": "Pod",
            "metadata": {
                "name": "q",
                "namespace": "ns",
                "annotations": {names.DEMAND: '{"version":1,"containers":{}}'},
            },
            "spec": {"containers": [{"name": "app", "resources": {"limits": limits}}]},
        }
        api.put("pods", body)
        await until(lambda: one.view.waiting)
        (pod,) = one.view.waiting.values()
        request = one.view.cache.request(pod)
        assert not one.view.cache.filter(request, ["n0"]).fits
        assert "has 40 % of compute free" in one.view.cache.filter(request, ["n0"]).refusal("n0").text()
        end(api, "p")
        await until(lambda: bool(one.view.cache.filter(request, ["n0"]).fits))


async def test_selectors_select_cards_and_say_why_a_pod_waits() -> None:
    api = cluster(nodes=2)
    api.put("elasticgpus", a_card("n1", 0, memory_mib=32768))
    large = selecting(f'device.capacity["{names.DRIVER}"].memory.compareTo(quantity("20Gi")) > 0', "true")
    newer = selecting(f'device.attributes["{names.DRIVER}"].model == "H100"')
    put(api, a_pod("p", "a"), a_claim("a", cores=10, selectors=large))
    put(api, a_pod("q", "b"), a_claim("b", cores=10, selectors=newer))
    async with extender(api):
        await allocated(api, "a")
        await until(lambda: warnings(api, "DoesNotFit"))
    assert places(api, "a") == [("n1", "gpu-n1-0")]
    assert "is false" in warnings(api, "DoesNotFit")[0]
    assert allocation(api, "b") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"selectors": selecting('device.attributes["gpu.elasticgpu.io"].uuid == "x"')}, "does not know uuid"),
        ({"selectors": selecting("(")}, "where a value was expected"),
        ({"selectors": selecting("x" * 300, "x" * 300)}, "more than 512 characters"),
        ({"allocationMode": "All"}, "use ExactCount"),
        ({"adminAccess": True}, "adminAccess gives a card to two users"),
        ({"tolerations": [{"operator": "Exists"}]}, f"tolerates the taint {names.PRICED_TAINT}"),
        ({"capacity": {"requests": {"colour": "1"}}}, "cards have no capacity colour"),
        ({"capacity": {"requests": {"cores": "101"}}}, "ask for several with count"),
        ({"capacity": {"requests": {"memory": "1e99"}}}, "no card has more than 16 TiB"),
        ({"count": 33}, "it asks for 33 cards; the most is 32"),
        ({"deviceClassName": "whole", "capacity": {"requests": {"cores": "1"}}}, "whole cards only"),
    ],
)
async def test_claims_that_cannot_be_served_say_why(changes: dict[str, Any], words: str) -> None:
    api = cluster()
    put(api, a_pod("p", "a"), a_claim("a", **changes))
    async with extender(api):
        await until(lambda: warnings(api, "ClaimNotServed"))
    assert words in warnings(api, "ClaimNotServed")[0]
    assert allocation(api, "a") is None


async def test_claims_with_thousands_of_requests_cost_little_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would stop the extender for a minute, again and again, for all tenants."""
    monkeypatch.setattr(device_claims, "choose", mock.Mock(side_effect=AssertionError("chosen for too many requests")))
    api = cluster(nodes=2)
    many = [a_claim(f"c{at}", cores=1, mib=1) for at in range(40)]
    for one in many:
        requests = one["spec"]["devices"]["requests"]
        requests += [{**requests[0], "name": f"r{at}"} for at in range(31)]
    put(api, a_pod("p", *(one["metadata"]["name"] for one in many)), *many)
    async with extender(api):
        await until(lambda: warnings(api, "ClaimNotServed"))
    assert "its claims have 1280 requests; the most is 128" in warnings(api, "ClaimNotServed")[0]


async def test_claims_of_other_drivers_and_other_classes_are_left_alone() -> None:
    api = cluster()
    made_by_hand = api.get("deviceclasses", "slice")
    api.put("deviceclasses", {"kind": "DeviceClass", "metadata": {"name": "own"}, "spec": made_by_hand["spec"]})
    api.put("elasticgpuclasses", {"kind": "ElasticGPUClass", "metadata": {"name": "own"}, "provisioner": names.VCUDA})
    put(api, a_pod("p", "a"), a_claim("a", klass="nic"))
    put(api, a_pod("q", "b"), a_claim("b", klass="own"))
    put(api, a_pod("r", "c"), a_claim("c", cores=1))
    async with extender(api):
        await allocated(api, "c")
        assert (allocation(api, "a"), allocation(api, "b")) == (None, None)
        assert not warnings(api, "ClaimNotServed")


async def test_nodes_of_kube_scheduler_are_left_alone() -> None:
    api = cluster(allocator=names.DRA)
    put(api, a_pod("p", "a"), a_claim("a", cores=1))
    async with extender(api) as one:
        await until(one.view.device_claims.all_keys)
        api.put("elasticgpus", a_card("n1", 0))
        api.put("nodes", {**api.get("nodes", "n0"), "metadata": {"name": "n1"}})
        await allocated(api, "a")
        assert places(api, "a") == [("n1", "gpu-n1-0")]


async def test_what_kube_scheduler_gave_by_a_toleration_does_not_count() -> None:
    """The node's driver never prepares it."""
    api = cluster()
    put(api, a_pod("p", "a"), a_claim("a", cores=80, mib=1024))
    async with extender(api) as one:
        await allocated(api, "a")
        stolen = a_claim("s", cores=80, mib=1024, tolerations=[{"operator": "Exists"}])
        given = allocation(api, "a")
        assert given is not None
        given["devices"]["results"][0] |= {"tolerations": [{"operator": "Exists"}]}
        api.put("resourceclaims", {**stolen, "status": {"allocation": given}})
        await until(lambda: one.view.device_claims.get("s", "ns"))
        assert not one.view.cache.problems()
        put(api, a_pod("q", "b"), a_claim("b", cores=20, mib=64))
        await allocated(api, "b")


async def test_a_card_that_falls_sick_before_the_write_is_not_given() -> None:
    api = cluster(cards=2)

    def falls_sick(server: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "PATCH" and request.url.path.endswith("/resourceclaims/a"):
            sick = {**a_card("n0", 0), "status": {"healthy": False}}
            server.put("elasticgpus", sick)
        return None

    async with extender(api) as one:
        api.fault = falls_sick
        put(api, a_pod("p", "a"), a_claim("a", cores=30, mib=64))
        await allocated(api, "a")
        api.fault = None
        # The watch may be later than the write. Then the claim is on the sick card, as with kube-scheduler.
        assert places(api, "a")[0][1] in ("gpu-n0-0", "gpu-n0-1")
        put(api, a_pod("q", "b"), a_claim("b", cores=30, mib=64))
        await allocated(api, "b")
        assert places(api, "b") == [("n0", "gpu-n0-1")]
        assert not one.view.cache.problems()


async def test_the_place_is_one_that_the_pod_can_run_on() -> None:
    api = cluster(nodes=3)
    for name, label in (("n0", "a"), ("n1", "b"), ("n2", "b")):
        node = api.get("nodes", name)
        api.put("nodes", {**node, "metadata": {"name": name, "labels": {"zone": label}}})
    full = a_pod("full", cpu=60)
    full["spec"]["nodeName"] = "n1"
    api.put("pods", full)
    put(api, a_pod("p", "a", cpu=8, nodeSelector={"zone": "b"}), a_claim("a", cores=10, mib=64))
    async with extender(api):
        await allocated(api, "a")
        assert places(api, "a")[0][0] == "n2"
        put(api, a_pod("q", "b", cpu=60, nodeSelector={"zone": "b"}), a_claim("b", cores=10, mib=64))
        await until(lambda: warnings(api, "DoesNotFit"))
        (said,) = warnings(api, "DoesNotFit")
        assert "n1: Insufficient cpu" in said
        assert "n2: its CPU or memory is promised to pods that are about to start" in said


NO_OTHERS = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "train"}}}
        ]
    }
}
PORT = {"containerPort": 80, "hostPort": 80, "protocol": "TCP"}


@pytest.mark.parametrize(
    ("there", "asked", "words"),
    [
        (
            {"resources": {"requests": {"ephemeral-storage": "30Gi"}}},
            {"ephemeral-storage": "20Gi"},
            "ephemeral-storage",
        ),
        ({"ports": [PORT]}, {}, "uses port 80"),
        ({}, {}, "podAntiAffinity of pod ns/other"),
    ],
)
async def test_rules_that_are_not_counted_all_the_time_hold_too(
    there: dict[str, Any], asked: dict[str, str], words: str
) -> None:
    api = cluster()
    node = copy.deepcopy(api.get("nodes", "n0"))
    node["metadata"]["labels"] = {"kubernetes.io/hostname": "n0"}
    node["status"]["allocatable"]["ephemeral-storage"] = "40Gi"
    api.put("nodes", node)
    spec: dict[str, Any] = {"nodeName": "n0", "containers": [{"name": "app", **there}]}
    if "podAntiAffinity" in words:
        spec["affinity"] = NO_OTHERS
    api.put("pods", {"kind": "Pod", "metadata": {"name": "other", "namespace": "ns"}, "spec": spec})
    pod = a_pod("p", "a")
    pod["metadata"]["labels"] = {"app": "train"}
    (container,) = pod["spec"]["containers"]
    container["resources"]["requests"] = asked
    container["ports"] = [PORT]
    put(api, pod, a_claim("a", cores=30, mib=64))
    async with extender(api):
        await until(lambda: warnings(api, "DoesNotFit"))
        assert words in warnings(api, "DoesNotFit")[0]
        api.remove("pods", "other", "ns")
        await allocated(api, "a")


async def test_a_crowd_of_claims_shares_its_questions_and_writes_each_claim_twice() -> None:
    api, count = cluster(nodes=4, cards=4), 40
    for number in range(count):
        put(api, a_pod(f"p{number}", f"a{number}"), a_claim(f"a{number}", cores=10, mib=64))
    async with extender(api):
        await allocated(api, *(f"a{number}" for number in range(count)))
    writes = [path for method, path in api.log if method == "PATCH" and "/resourceclaims/" in path]
    assert len(writes) == 2 * count
    assert sum("resourcequotas" in path for _, path in api.log) < count / 2
    assert sum(method == "GET" and "/leases/" in path for method, path in api.log) < count / 2


async def test_a_node_from_which_kube_scheduler_takes_an_allocation_back_is_avoided() -> None:
    api = cluster(nodes=2)
    put(api, a_pod("p", "a"), a_claim("a", cores=10, mib=64))
    async with extender(api):
        await allocated(api, "a")
        ((first, _),) = places(api, "a")
        set_status(api, "a", {})
        await until(lambda: allocation(api, "a") is not None and places(api, "a")[0][0] != first)


async def test_a_quota_counts_claims() -> None:
    api = cluster()
    hard = {f"requests.{names.GPU_CORE}": "50"}
    api.put("resourcequotas", {
        "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "ns"},
        "status": {"hard": hard, "used": {f"requests.{names.GPU_CORE}": "10"}},
    })  # fmt: skip
    put(api, a_pod("p", "a"), a_claim("a", cores=30, mib=64))
    async with extender(api):
        await allocated(api, "a")
        put(api, a_pod("q", "b"), a_claim("b", cores=20, mib=64))
        await until(lambda: warnings(api, "QuotaExceeded"))
        assert allocation(api, "b") is None


async def test_several_pods_share_one_claim() -> None:
    api = cluster()
    put(api, a_pod("p", "a"), a_claim("a", cores=30, mib=64))
    put(api, a_pod("q", "a", "b"), a_claim("b", cores=30, mib=64))
    async with extender(api) as one:
        await allocated(api, "a", "b")
        await asyncio.sleep(0.1)
        assert given_out(api) == {"gpu-n0-0": (60, 128)}
        assert not one.view.cache.problems()


@pytest.mark.parametrize(("policy", "nodes"), [("binpack", 1), ("spread", 2)])
async def test_a_class_decides_the_policy_of_its_claims(policy: str, nodes: int) -> None:
    api = cluster(nodes=2)
    put_class(api, "own", names.VCUDA, policy=policy)
    async with extender(api):
        for name in ("a", "b"):
            put(api, a_pod(f"p-{name}", name), a_claim(name, cores=10, mib=64, klass="own"))
            await allocated(api, name)
    assert len({places(api, name)[0][0] for name in ("a", "b")}) == nodes


def test_the_avoided_time_is_longer_than_the_pause_between_two_tries() -> None:
    assert device_claims.AVOID_SECONDS > device_claims.RETRY_SECONDS


@pytest.mark.parametrize("policy", ["default", "best-fit", "spread"])
async def test_claims_are_placed_as_pods_that_ask_for_the_same(policy: str) -> None:
    """Two clusters: in one the extender binds pods with resource names, in the other it allocates their claims."""
    chance = random.Random(policy)
    asks = [
        (chance.choice((10, 25, 40, 70)), chance.choice((512, 3000, 8000)), chance.choice((1, 4))) for _ in range(24)
    ]
    by_names, by_claims = await placed_by_names(policy, asks), await placed_by_claims(policy, asks)
    assert by_claims == by_names
    assert sum(place is not None for place in by_names) > 12
    assert None in by_names


Place = tuple[str, str] | None


async def placed_by_names(policy: str, asks: Sequence[tuple[int, ...]]) -> list[Place]:
    api, found = cluster(nodes=3, cards=2), list[Place]()
    async with extender(api, node_policy=policy, card_policy=policy) as one:
        for number, (core, mib, cpu) in enumerate(asks):
            limits = {names.GPU_CORE: str(core), names.GPU_MEMORY: str(mib)}
            container = {"name": "app", "resources": {"limits": limits, "requests": {"cpu": str(cpu)}}}
            meta = {
                "name": f"p{number}",
                "namespace": "ns",
                "annotations": {names.DEMAND: '{"version":1,"containers":{}}'},
            }
            pod = api.put("pods", {"kind": "Pod", "metadata": meta, "spec": {"containers": [container]}})
            uid = pod["metadata"]["uid"]
            await until(lambda uid=uid: one.view.pods.by_uid(uid))
            known, nodes = one.view.pods.by_uid(uid), ["n0", "n1", "n2"]
            assert known is not None
            fits = [node for node, ok in zip(nodes, one.placing.filter(known, NodeNames(nodes)).ok, strict=True) if ok]
            if not fits:
                found.append(None)
                continue
            request = one.view.cache.request(known)
            scores = one.view.cache.ranking.scores(request, fits, one.policies, all_fit=True)
            best = max(fits, key=scores.__getitem__)
            await one.binder.bind(ExtenderBindingArgs(pod_name=known.name, pod_namespace="ns", pod_uid=uid, node=best))
            text = api.get("pods", known.name, "ns")["metadata"]["annotations"][names.ALLOCATION]
            (share,) = decode_allocation(text).containers["app"].cards
            found.append((best, share.uuid.lower()))
    return found


async def placed_by_claims(policy: str, asks: Sequence[tuple[int, ...]]) -> list[Place]:
    api, found = cluster(nodes=3, cards=2), list[Place]()
    async with extender(api, node_policy=policy, card_policy=policy):
        for number, (core, mib, cpu) in enumerate(asks):
            put(api, a_pod(f"p{number}", f"c{number}", cpu=cpu), a_claim(f"c{number}", cores=core, mib=mib))
            before = len(warnings(api, "DoesNotFit"))

            def answered(name: str = f"c{number}", before: int = before) -> bool:
                return allocation(api, name) is not None or len(warnings(api, "DoesNotFit")) > before

            await until(answered)
            given = places(api, f"c{number}")
            found.append(given[0] if given else None)
            if given:
                bound = copy.deepcopy(api.get("pods", f"p{number}", "ns"))
                bound["spec"]["nodeName"] = given[0][0]
                api.put("pods", bound)
            else:
                end(api, f"p{number}")
    return found
