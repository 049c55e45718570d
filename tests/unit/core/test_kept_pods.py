"""The part of a pod that is kept decides about cards as the whole pod does, and is limited in size."""

import tracemalloc
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.core.claims.lifecycle import claim_users
from egpu.core.demand.selection import Selection
from egpu.core.dra.references import claim_names
from egpu.core.kept_pods import MOST_BYTES, MOST_CONTAINERS, bare, kept, kept_of_large, of_node, of_node_of_large
from egpu.core.placement.requests import awaits_placement, pod_request
from egpu.core.placement.sums import asked_beyond_held, asked_in_use
from egpu.core.preemption.sums import only_the_scheduler_can_tell
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.objects import ObjectMeta
from support.objects import claim, cluster, place, placed, slice_pod

CLAIMS = [{"name": "gpu", "resourceClaimName": "data"}]
LARGE = {f"key-{number}": "v" * 60 for number in range(2_000)}


def changed(pod: Pod, **changes: Any) -> Pod:
    value = msgspec.to_builtins(pod)
    for part, change in changes.items():
        value[part] = value.get(part, {}) | change
    return msgspec.convert(value, Pod)


def size(pod: Pod) -> int:
    return len(msgspec.msgpack.encode(pod))


def as_sent(pod: Pod) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(pod))


def waiting() -> Pod:
    spec: dict[str, Any] = {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "t"}], "resourceClaims": CLAIMS}
    return changed(slice_pod("waits", core=30), spec=spec, metadata={"annotations": {names.DEMAND: "{}", "x": "y"}})


LARGE_PARTS: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"labels": LARGE}},
    "annotations": {"metadata": {"annotations": LARGE | dict(waiting().annotations)}},
    "nodeSelector": {"spec": {"nodeSelector": LARGE}},
    "tolerations": {"spec": {"tolerations": [{"key": key} for key in LARGE]}},
    "volumes": {"spec": {"volumes": [{"name": key, "emptyDir": {}} for key in LARGE]}},
    "message": {"status": {"message": "m" * 4 * MOST_BYTES}},
}


def test_a_usual_pod_keeps_what_decides_where_it_goes() -> None:
    pod = waiting()
    assert kept(pod) == replace(pod, spec=bare(pod.spec))
    assert pod_request(kept(pod), cluster()) == pod_request(pod, cluster())


@pytest.mark.parametrize("part", LARGE_PARTS)
def test_a_large_pod_asks_for_the_same_cards_and_evicts_no_other(part: str) -> None:
    pod = changed(waiting(), **LARGE_PARTS[part])
    for one in (kept(pod), kept_of_large(as_sent(pod))):
        assert size(one) < MOST_BYTES
        assert (one.key, one.uid, one.metadata.resource_version) == (pod.key, pod.uid, pod.metadata.resource_version)
        assert awaits_placement(one)
        assert one.spec.resource_claims == CLAIMS
        assert pod_request(one, cluster()).demand == pod_request(pod, cluster()).demand
        assert only_the_scheduler_can_tell(one)


def test_our_own_annotations_are_limited_too() -> None:
    junk = {f"elasticgpu.io/{key}": text for key, text in LARGE.items()}
    pod = changed(waiting(), metadata={"annotations": junk | dict(waiting().annotations)})
    for one in (kept(pod), kept_of_large(as_sent(pod))):
        assert size(one) < MOST_BYTES
        assert not awaits_placement(one)


def test_claims_are_limited_too() -> None:
    many = [{"name": key, "resourceClaimName": key} for key in LARGE]
    pod = changed(waiting(), spec={"resourceClaims": many})
    for one in (kept(pod), kept_of_large(as_sent(pod))):
        assert size(one) < MOST_BYTES
        assert not one.spec.resource_claims


def test_a_large_pod_with_cards_still_holds_them_and_uses_its_claim() -> None:
    """However large its author makes it: otherwise others would get its cards."""
    pod = slice_pod("runs", core=30)
    pod = placed(pod, place(cluster(), pod))
    used = {names.CLAIM_PREFIXES[0] + pod.containers[0].name: "data"}
    junk = {f"elasticgpu.io/{key}": text for key, text in LARGE.items()}
    pod = changed(pod, metadata={"annotations": junk | used | dict(pod.annotations), "labels": LARGE})
    for one in (kept(pod), kept_of_large(as_sent(pod))):
        assert one.annotations[names.ALLOCATION] == pod.annotations[names.ALLOCATION]
        assert one.spec.node_name == pod.spec.node_name
        assert claim_users(claim("data"), [one]) == [f"{one.name}/{one.containers[0].name}"]


@pytest.mark.parametrize("running", [True, False])
def test_a_large_status_still_tells_whether_a_pod_has_ended(running: bool) -> None:
    states: list[dict[str, Any]] = [{"name": str(number), "state": {"terminated": {}}} for number in range(3_000)]
    states += [{"name": "last", "state": {"running": {}}}] if running else []
    pod = changed(slice_pod("ends", core=30), status={"phase": "Failed", "containerStatuses": states})
    for one in (kept(pod), kept_of_large(as_sent(pod))):
        assert size(one) < MOST_BYTES
        assert one.finished is not running


def test_selectors_of_large_pods_are_not_kept() -> None:
    selection = Selection()
    selection.node_changed(Node(metadata=ObjectMeta(name="n")))
    preferred = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [LARGE]}}
    pod = changed(waiting(), spec={"affinity": preferred})
    tracemalloc.start()
    for number in range(8):
        selection.models(replace(pod, spec=replace(pod.spec, node_selector={"n": str(number)})))
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < size(pod)


@pytest.mark.parametrize("part", LARGE_PARTS)
def test_a_node_s_agent_keeps_of_a_large_pod_what_decides_about_its_slots(part: str) -> None:
    """Each plain pod on a GPU node may be as large as an API server takes, and took 10 MiB in the agent."""
    statuses = [{"name": f"c{number}", "ready": True} for number in range(3)]
    pod = slice_pod("runs", core=30)
    pod = placed(pod, place(cluster(), pod))
    whole = changed(pod, **LARGE_PARTS[part])
    whole = changed(
        whole,
        metadata={"annotations": dict(whole.annotations) | dict(pod.annotations)},
        status={"initContainerStatuses": statuses},
        spec={"resourceClaims": CLAIMS},
    )
    for found in (of_node(whole), of_node_of_large(as_sent(whole))):
        assert found.annotations[names.ALLOCATION] == whole.annotations[names.ALLOCATION]
        assert found.status.init_container_statuses == whole.status.init_container_statuses
        assert list(claim_names(found)) == list(claim_names(whole))
        assert asked_in_use([found]) == asked_in_use([whole])
        assert asked_beyond_held([found]) == asked_beyond_held([whole])
        assert size(found) < MOST_BYTES or part == "message"
    assert of_node(pod) is pod


def test_of_a_pod_with_many_containers_a_node_s_agent_keeps_those_that_ask_for_devices() -> None:
    plain = [{"name": f"plain-{number}", "resources": {"limits": {"cpu": "1"}}} for number in range(5_000)]
    asking = [{"name": f"asks-{number}", "resources": {"limits": {names.GPU_CORE: "1"}}} for number in range(600)]
    spec: dict[str, Any] = {"nodeName": "n", "containers": [*plain, asking[0]]}
    pod = changed(slice_pod("runs", core=30), spec=spec)
    for found in (of_node(pod), of_node_of_large(as_sent(pod))):
        assert [one.name for one in found.containers] == ["asks-0"]
        assert asked_beyond_held([found]) == asked_beyond_held([pod])
    many = changed(pod, spec={"containers": asking * 10})
    assert len(of_node(many).containers) == MOST_CONTAINERS
