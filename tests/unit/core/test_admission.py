"""What the webhook changes in a pod, and what it refuses."""

import copy
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodDemand
from egpu.api.objects import (
    CardSelector,
    ClaimAllocation,
    ElasticGPU,
    ElasticGPUClaimStatus,
    ElasticGPUClass,
    ElasticGPUSpec,
    Slice,
)
from egpu.core.admission import (
    mutate_pod,
    validate_binding,
    validate_claim,
    validate_class,
    validate_egpu,
    validate_pod_create,
    validate_pod_update,
)
from egpu.core.demand.pods import read_pod
from egpu.core.provisioners import gpushare
from egpu_base.api.kubernetes import Binding, EnvVar, Pod
from egpu_base.api.objects import ObjectMeta, ObjectReference
from egpu_base.errors import InvalidDemand
from support.objects import (
    BINPACK,
    CORE,
    MEMORY,
    card,
    claim,
    claim_pod,
    cluster,
    container,
    gpu_class,
    placed,
    pod,
    slice_pod,
)

CLAIMS = {"c": claim("c"), "d": claim("d")}
CLASSES = {"shared": gpu_class()}


def apply(document: Any, patch: list[dict[str, Any]]) -> Any:
    """RFC 6902, the two operations that we use."""
    document = copy.deepcopy(document)
    for step in patch:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        target = document
        for part in way:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            if last == "-":
                target.append(step["value"])
            else:
                assert step["op"] == "replace"
                target[int(last)] = step["value"]
        else:
            assert step["op"] == "add"
            target[last] = step["value"]
    return document


def mutated(what: Pod) -> dict[str, Any]:
    return apply(msgspec.to_builtins(what), mutate_pod(what, CLAIMS, CLASSES))


def environment(written: dict[str, Any]) -> dict[str, str]:
    return {
        item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in item else item["value"]
        for item in written["env"]
    }


def test_a_gpu_container_gets_its_slot_its_requests_and_its_environment() -> None:
    written = mutated(slice_pod("p"))
    (app,) = written["spec"]["containers"]
    counted = {names.GPU_CORE: "20", names.GPU_MEMORY: "2560"}
    wanted = {CORE: 20, MEMORY: 10, names.SLOT: "1", **counted}
    assert app["resources"] == {"limits": wanted, "requests": wanted}
    assert environment(app) == {"NVIDIA_VISIBLE_DEVICES": "metadata.annotations['elasticgpu.io/cards-app']"}
    demand = msgspec.json.decode(written["metadata"]["annotations"][names.DEMAND], type=PodDemand)
    assert demand == read_pod(slice_pod("p"), {}, {})[0]


def test_other_containers_see_no_card_and_other_pods_are_left_alone() -> None:
    assert mutate_pod(pod("p", container("app", {"cpu": 1})), CLAIMS, CLASSES) == []
    written = mutated(pod("p", container("plain", {"cpu": 1}), container("app", {"nvidia.com/gpu": 1})))
    nothing = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    plain = {"name": "plain", "image": "x", "resources": {"limits": {"cpu": 1}}, "env": nothing}
    assert written["spec"]["containers"][0] == plain


def test_a_plain_pod_whose_variables_nobody_sees_is_told_to_see_no_card() -> None:
    elsewhere = [{"configMapRef": {"name": "hidden"}}]
    what = pod("p", replace(container("app"), env_from=elsewhere), container("other"))
    (app, other) = mutated(what)["spec"]["containers"]
    assert environment(app) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert "env" not in other
    said = [EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="none")]
    assert mutate_pod(pod("p", replace(container("app"), env_from=elsewhere, env=said)), CLAIMS, CLASSES) == []


@pytest.mark.parametrize("name", ["CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"])
def test_a_plain_pod_that_looks_like_an_image_of_early_cuda_is_told_to_see_no_card(name: str) -> None:
    """NVIDIA's runtime gives such a container all cards unless a variable says otherwise."""
    said = [EnvVar(name=name, value="12")]
    (app,) = mutated(pod("p", replace(container("app"), env=said)))["spec"]["containers"]
    assert environment(app) == {name: "12", "NVIDIA_VISIBLE_DEVICES": "void"}


def test_init_containers_get_slots_too() -> None:
    written = mutated(pod("p", container("app"), init=[container("warm", {"nvidia.com/gpu": 1})]))
    assert written["spec"]["initContainers"][0]["resources"]["requests"][names.SLOT] == "1"


def test_a_claims_container_gets_the_claims_resources() -> None:
    (app,) = mutated(claim_pod("p", "c"))["spec"]["containers"]
    wanted = {names.GPU_CORE: "30", names.GPU_MEMORY: "4096", names.SLOT: "1"}
    assert app["resources"] == {"limits": wanted, "requests": wanted}


def test_a_claim_for_memory_only_brings_no_compute() -> None:
    claims = {"c": claim("c", {names.GPU_MEMORY: "4GB"})}
    patch = mutate_pod(claim_pod("p", "c"), claims, CLASSES)
    (app,) = apply(msgspec.to_builtins(claim_pod("p", "c")), patch)["spec"]["containers"]
    assert app["resources"]["limits"] == {names.GPU_MEMORY: "3815", names.SLOT: "1"}


def test_gpushares_own_environment() -> None:
    (app,) = mutated(pod("p", container("app", {"aliyun.com/gpu-mem": 3})))["spec"]["containers"]
    found = environment(app)
    assert found["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
    for name in ("IDX", "POD", "DEV"):
        assert found[f"ALIYUN_COM_GPU_MEM_{name}"] == f"metadata.annotations['ALIYUN_COM_GPU_MEM_{name}']"


def test_the_authors_own_visible_devices_are_replaced() -> None:
    what = slice_pod("p")
    app = replace(
        what.containers[0], env=[EnvVar(name="A", value="1"), EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all")]
    )
    written = mutated(replace(what, spec=replace(what.spec, containers=[app])))
    assert environment(written["spec"]["containers"][0]) == {
        "A": "1",
        "NVIDIA_VISIBLE_DEVICES": "metadata.annotations['elasticgpu.io/cards-app']",
    }


@pytest.mark.parametrize(
    "what",
    [slice_pod("p"), claim_pod("p", "c"), pod("p", container("app", {"aliyun.com/gpu-mem": 3}))],
    ids=["slice", "claim", "gpushare"],
)
def test_a_patched_pod_is_valid_and_patching_it_again_changes_nothing(what: Pod) -> None:
    again = msgspec.convert(mutated(what), Pod)
    assert validate_pod_create(again, CLAIMS, CLASSES) == []
    assert mutate_pod(again, CLAIMS, CLASSES) == []


@pytest.mark.parametrize(
    ("what", "field", "reason"),
    [
        (
            pod("p", container("app", {CORE: 150})),
            "spec.containers[app].resources.limits[docker.com/vcuda-core]",
            "multiple of 100",
        ),
        (
            pod("p", container("app"), annotations={names.ALLOCATION: "{}"}),
            "metadata.annotations[elasticgpu.io/allocation]",
            "written by the scheduler",
        ),
        (
            pod("p", container("app"), annotations={"elasticgpu.io/cards-app": "GPU-1"}),
            "metadata.annotations[elasticgpu.io/cards-app]",
            "written by the scheduler",
        ),
        (
            pod("p", container("app", {"nvidia.com/gpu": 1}), annotations={names.DEMAND: "{}"}),
            "metadata.annotations[elasticgpu.io/demand]",
            "does not match what this pod asks for",
        ),
        (
            pod("p", container("app"), annotations={names.DEMAND: "{}"}),
            "metadata.annotations[elasticgpu.io/demand]",
            "does not match what this pod asks for",
        ),
        (
            pod("p", container("app", {names.SLOT: 1})),
            "spec.containers[app].resources.limits[elasticgpu.io/slot]",
            "added by the webhook",
        ),
        (
            pod("p", container("app", {names.SLOT: 2, "nvidia.com/gpu": 1})),
            "spec.containers[app].resources.limits[elasticgpu.io/slot]",
            "a container has 1",
        ),
        (claim_pod("p", "gone"), "metadata.annotations[elasticgpu.io/egpuc-app]", "no ElasticGPUClaim 'gone'"),
        (claim_pod("p", "x/c"), "metadata.annotations[elasticgpu.io/egpuc-app]", "namespace 'x'"),
        (slice_pod("p", blocks=65), "spec.containers[app].resources.limits[docker.com/vcuda-memory]", "largest card"),
    ],
)
def test_bad_pods_are_refused_with_field_and_reason(what: Pod, field: str, reason: str) -> None:
    (violation,) = validate_pod_create(what, CLAIMS, CLASSES, largest_mib=16384)
    assert violation.field == field
    assert reason in violation.reason
    with pytest.raises(InvalidDemand):
        mutate_pod(what, CLAIMS, CLASSES, largest_mib=16384)


def test_a_pod_that_names_its_node_would_pass_by_the_scheduler() -> None:
    what = slice_pod("p")
    (violation,) = validate_pod_create(replace(what, spec=replace(what.spec, node_name="n0")), {}, {})
    assert violation.field == "spec.nodeName"


MIRROR = {
    "kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef",
    "kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef",
    "kubernetes.io/config.seen": "2026-07-01T00:00:00.000000000Z",
    "kubernetes.io/config.source": "file",
}
"""As kubelet 1.36 writes them."""


@pytest.mark.parametrize(
    "asks",
    [
        {names.NVIDIA_GPU: 1},
        {names.GPU_CORE: 500, names.GPU_MEMORY: "much"},
        {f"{names.GPU_CORE}s": 1},
        {names.SLOT: 1},
    ],
)
def test_the_mirror_of_a_static_pod_is_refused_in_one_sentence(asks: dict[str, int | str]) -> None:
    what = pod("static-n0", container("app", asks), annotations=MIRROR)
    what = replace(what, spec=replace(what.spec, node_name="n0"))
    (violation,) = validate_pod_create(what, {}, {})
    assert violation.field == "metadata.annotations[kubernetes.io/config.mirror]"
    assert violation.reason.startswith("a static pod can have no GPU")
    with pytest.raises(InvalidDemand, match=r"use a DaemonSet$"):
        mutate_pod(what, {}, {})


def test_the_mirror_of_a_static_pod_without_a_gpu_is_left_alone() -> None:
    what = pod("static-n0", container("app", {"cpu": 1, names.NVIDIA_GPU: 0}), annotations=MIRROR)
    assert validate_pod_create(replace(what, spec=replace(what.spec, node_name="n0")), {}, {}) == []


def test_every_bad_container_is_named() -> None:
    what = pod("p", container("a", {CORE: 150}), container("b", {CORE: -1}))
    assert [violation.field.split("]")[0] for violation in validate_pod_create(what, {}, {})] == [
        "spec.containers[a",
        "spec.containers[b",
    ]


def test_a_qgpu_demand_is_accepted() -> None:
    assert validate_pod_create(pod("p", container("app", {names.QGPU_CORE: 10, names.QGPU_MEMORY: 4})), {}, {}) == []


@pytest.mark.parametrize(
    "key",
    [
        names.ALLOCATION,
        names.DEMAND,
        "elasticgpu.io/cards-app",
        "elasticgpu.io/egpuc-app",
        "egpuc.elasticgpu.io/app",
        names.VCUDA_CORE_LIMIT,
    ],
)
def test_what_decides_the_placing_cannot_be_changed_later(key: str) -> None:
    cache = cluster()
    done = placed(slice_pod("p"), cache.ranking.choose(cache.request(slice_pod("p")), "n0", BINPACK))
    touched = replace(done, metadata=replace(done.metadata, annotations=done.annotations | {key: "other"}))
    assert [violation.field for violation in validate_pod_update(done, touched)] == [f"metadata.annotations[{key}]"]
    assert [violation.field for violation in validate_pod_update(touched, done)] == [f"metadata.annotations[{key}]"]


@pytest.mark.parametrize("key", [names.ISOLATION, f"{names.RESIZED_PREFIX}app", f"{names.RESIZED_PREFIXES[1]}app"])
def test_a_new_pod_has_been_told_nothing(key: str) -> None:
    (violation,) = validate_pod_create(pod("p", container("app"), annotations={key: "none needed"}), {}, {})
    assert violation.field == f"metadata.annotations[{key}]"


def test_only_the_scheduler_gives_out_cards() -> None:
    forged = Binding(
        metadata=ObjectMeta(name="p", annotations={names.ALLOCATION: "{}", "note": "x"}), target=ObjectReference()
    )
    trusted = ["system:serviceaccount:elastic-gpu:extender"]
    (violation,) = validate_binding(forged, username="mallory", groups=["devs"], trusted=trusted)
    assert violation.field == "metadata.annotations[elasticgpu.io/allocation]"
    assert validate_binding(forged, username=trusted[0], groups=[], trusted=trusted) == []
    assert validate_binding(forged, username="root", groups=["system:masters"], trusted=trusted) == []
    plain = replace(forged, metadata=ObjectMeta(name="p", annotations={"note": "x"}))
    assert validate_binding(plain, username="mallory", groups=[], trusted=trusted) == []


def test_other_annotations_may_change() -> None:
    done = slice_pod("p")
    touched = replace(done, metadata=replace(done.metadata, annotations={"note": "x", gpushare.ASSIGNED: "true"}))
    assert validate_pod_update(done, touched) == []


# --- our own kinds --------------------------------------------------------------------------------------------------


def held() -> ElasticGPUClaimStatus:
    share = CardShare(uuid="GPU-n0-0", index=0, minor=0, core=30, memory_mib=4096)
    container_allocation = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,))
    return ElasticGPUClaimStatus(allocation=ClaimAllocation(node="n0", container=container_allocation))


def test_claims() -> None:
    assert validate_claim(claim("c"), None, CLASSES, largest_mib=16384) == []
    (missing,) = validate_claim(claim("c", class_name="gone"), None, CLASSES)
    assert (missing.field, "ElasticGPUClass 'gone' does not exist" in missing.reason) == ("spec.egpuClassName", True)
    (none,) = validate_claim(claim("c", class_name=""), None, CLASSES)
    assert "names no class" in none.reason
    (zero,) = validate_claim(claim("c", {names.GPU_CORE: 0}), None, CLASSES)
    assert zero.field == "spec.resources.requests[elasticgpu.io/gpu-core]"
    (large,) = validate_claim(claim("c", {names.GPU_MEMORY: 20000}), None, CLASSES, largest_mib=16384)
    assert "largest card has 16384 MiB" in large.reason


def test_a_claim_is_resized_on_its_cards_and_keeps_its_class() -> None:
    larger = claim("c", {names.GPU_CORE: 50})
    assert validate_claim(larger, claim("c"), CLASSES) == []
    assert validate_claim(larger, replace(claim("c"), status=held()), CLASSES) == []
    (more,) = validate_claim(claim("c", {names.GPU: 2}), replace(claim("c"), status=held()), CLASSES)
    assert (more.field, "neither number nor kind can change" in more.reason) == ("spec.resources", True)
    soon = replace(larger, metadata=replace(larger.metadata, annotations={names.SHRINK_WITHIN: "soon"}))
    (when,) = validate_claim(soon, replace(claim("c"), status=held()), CLASSES)
    assert when.field == f"metadata.annotations[{names.SHRINK_WITHIN}]"
    elsewhere = replace(larger, spec=replace(larger.spec, selector=CardSelector()))
    (chosen,) = validate_claim(elsewhere, replace(claim("c"), status=held()), CLASSES)
    assert chosen.field == "spec.selector"
    (moved,) = validate_claim(claim("c", class_name="other"), claim("c"), CLASSES)
    assert "cannot change" in moved.reason
    assert validate_claim(claim("c"), replace(claim("c"), status=held()), {}) == []  # a status or metadata write


def test_classes() -> None:
    assert validate_class(gpu_class(provisioner="gpushare.provisioner.elasticgpu.io"), None) == []
    (unknown,) = validate_class(gpu_class(provisioner="acme.com/gpu"), None)
    assert unknown.field == "provisioner"
    assert "choose one of elasticgpu.io/physical" in unknown.reason
    (unit,) = validate_class(gpu_class(provisioner=names.GPUSHARE, parameters={"memoryUnit": "TB"}), None)
    assert unit.field == "parameters[memoryUnit]"
    (placing,) = validate_class(gpu_class(parameters={"policy": "best"}), None)
    assert placing.reason.startswith("'best' is not one of price, fgd, best-fit")
    assert validate_class(gpu_class(parameters={"memoryOversubscription": "1.5"}), None) == []
    (factor,) = validate_class(gpu_class(parameters={"memoryOversubscription": "0.5"}), None)
    assert str(factor).startswith("parameters[memoryOversubscription]: '0.5' is not a factor from 1 to 10")
    (cannot,) = validate_class(gpu_class(provisioner=names.QGPU, parameters={"memoryOversubscription": "2"}), None)
    assert cannot.reason.startswith("elasticgpu.io/qgpu does not support oversubscription")
    twice = ElasticGPUClass(
        provisioner=names.VCUDA, e_gpu_binding_mode="Immediate", egpu_binding_mode="WaitForFirstConsumer"
    )
    assert "contradicts" in validate_class(twice, None)[0].reason
    changed = gpu_class(provisioner=names.GPUSHARE, parameters={"memoryUnit": "MiB"}, wait=True, retain=True)
    assert [violation.field for violation in validate_class(changed, gpu_class())] == [
        "provisioner",
        "parameters",
        "eGPUBindingMode",
        "reclaimPolicy",
    ]


def test_cards_and_slices() -> None:
    assert validate_egpu(card("n0", 0), None) == []
    assert "exactly one" in validate_egpu(ElasticGPU(), None)[0].reason
    piece = Slice(provisioner=names.VCUDA, mode="shared", uuid="u", index=0, minor=0)
    lone = ElasticGPU(spec=ElasticGPUSpec(node_name="n0", slice=piece))
    assert validate_egpu(lone, None)[0].field == "spec.claimRef"
    owned = replace(lone, spec=replace(lone.spec, claim_ref=ObjectReference(uid="x")))
    assert validate_egpu(owned, None) == []
    grown = replace(owned, spec=replace(owned.spec, slice=replace(piece, core=10)))
    assert validate_egpu(grown, owned) == []
    other = replace(owned, spec=replace(owned.spec, slice=replace(piece, uuid="v")))
    assert "only the size of a slice can change" in validate_egpu(other, owned)[0].reason
    moved = replace(card("n0", 0), spec=replace(card("n0", 0).spec, node_name="n1"))
    assert validate_egpu(moved, card("n0", 0))[0].field == "spec.nodeName"
