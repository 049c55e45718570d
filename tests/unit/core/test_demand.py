"""Every vocabulary becomes one normal demand; everything else is refused with its field."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodDemand
from egpu.api.objects import ClaimResources, ElasticGPUClaim, ElasticGPUClass
from egpu.core.demand.claims import claim_demand
from egpu.core.demand.pods import read_pod
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import Quantity
from egpu_base.errors import InvalidDemand
from support.objects import claim, claim_pod, container, gpu_class, pod


def pod_demand(
    what: Pod,
    claims: Mapping[str, ElasticGPUClaim],
    classes: Mapping[str, ElasticGPUClass],
    *,
    largest_mib: int | None = None,
) -> PodDemand:
    """What the pod asks for, or its first problem raised."""
    demand, problems = read_pod(what, claims, classes, largest_mib=largest_mib)
    if problems:
        raise problems[0]
    return demand


def demand_of(asks: dict[str, int | str], **annotations: str) -> ContainerDemand:
    found = pod_demand(pod("p", container("app", asks), annotations=annotations), {}, {})
    return found.containers["app"]


@pytest.mark.parametrize(
    ("asks", "provisioner", "cards", "core", "memory_mib", "exclusive"),
    [
        ({"nvidia.com/gpu": 1}, names.PHYSICAL, 1, 100, 0, True),
        ({"nvidia.com/gpu": "4"}, names.PHYSICAL, 4, 100, 0, True),
        ({"aliyun.com/gpu-mem": 3}, names.GPUSHARE, 1, 0, 3072, False),
        ({"docker.com/vcuda-core": "20", "docker.com/vcuda-memory": "10"}, names.VCUDA, 1, 20, 2560, False),
        ({"docker.com/vcuda-core": "200"}, names.VCUDA, 2, 100, 0, True),
        ({"docker.com/vcuda-core": "100", "docker.com/vcuda-memory": "10"}, names.VCUDA, 1, 100, 2560, True),
        ({"tencent.com/vcuda-core": 300, "tencent.com/vcuda-memory": 31}, names.VCUDA, 3, 100, 2646, True),
        ({"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": "2k"}, names.VCUDA, 1, 50, 512000, False),
        (
            {"tke.cloud.tencent.com/qgpu-core": 10, "tke.cloud.tencent.com/qgpu-memory": 4},
            names.QGPU,
            1,
            10,
            4096,
            False,
        ),
        ({"elasticgpu.io/gpu-core": 30, "elasticgpu.io/gpu-memory": 2048}, names.VCUDA, 1, 30, 2048, False),
        ({"elasticgpu.io/gpu-memory": 2048}, names.VCUDA, 1, 0, 2048, False),
        ({"elasticgpu.io/gpu": 2}, names.PHYSICAL, 2, 100, 0, True),
        ({"elasticgpu.io/gpu": 2, "elasticgpu.io/gpu-core": 50}, names.VCUDA, 2, 50, 0, False),
        (
            {"gpushare.provisioner.elasticgpu.io/gpu-core": 10, "gpushare.provisioner.elasticgpu.io/gpu-memory": 4},
            names.GPUSHARE,
            1,
            10,
            4096,
            False,
        ),
    ],
)
def test_vocabularies(
    asks: dict[str, int | str], provisioner: str, cards: int, core: int, memory_mib: int, exclusive: bool
) -> None:
    found = demand_of(asks)
    assert (found.provisioner, found.cards, found.core, found.memory_mib, found.exclusive) == (
        provisioner,
        cards,
        core,
        memory_mib,
        exclusive,
    )


def test_tflops_are_kept_until_a_card_is_known() -> None:
    found = demand_of({"elasticgpu.io/tflops": 4})
    assert (found.tflops, found.core, found.exclusive) == (4, 0, False)


@pytest.mark.parametrize(
    ("asks", "field", "reason"),
    [
        ({"docker.com/vcuda-core": "-5"}, "docker.com/vcuda-core", "negative"),
        ({"docker.com/vcuda-core": "500m"}, "docker.com/vcuda-core", "fraction"),
        ({"docker.com/vcuda-core": "lots"}, "docker.com/vcuda-core", "not a number"),
        ({"docker.com/vcuda-core": "150"}, "docker.com/vcuda-core", "multiple of 100"),
        ({"docker.com/vcuda-core": "100000"}, "docker.com/vcuda-core", "the most is 64"),
        ({"nvidia.com/gpu": "65"}, "nvidia.com/gpu", "the most is 64"),
        ({"docker.com/vcuda-memory": "1e6"}, "docker.com/vcuda-memory", "no card has more"),
        ({"elasticgpu.io/gpu": 2, "elasticgpu.io/gpu-core": 200}, "elasticgpu.io/gpu-core", "the most is 100"),
        ({"elasticgpu.io/tflops": 2, "elasticgpu.io/gpu-core": 20}, "elasticgpu.io/tflops", "keep one"),
        ({"elasticgpu.io/tflops": "1e60"}, "elasticgpu.io/tflops", "the most is 1000000"),
        ({"aliyun.com/gpu-count": 1}, "aliyun.com/gpu-count", "ask for aliyun.com/gpu-mem"),
    ],
)
def test_impossible_amounts_name_their_field(asks: dict[str, int | str], field: str, reason: str) -> None:
    with pytest.raises(InvalidDemand, match=reason) as refused:
        demand_of(asks)
    assert refused.value.field == f"spec.containers[app].resources.limits[{field}]"


def test_two_vocabularies_in_one_container_are_refused_by_name() -> None:
    with pytest.raises(InvalidDemand, match=r"docker.com/vcuda-core and nvidia.com/gpu belong to two vocabularies"):
        demand_of({"docker.com/vcuda-core": 10, "nvidia.com/gpu": 1})


def test_two_containers_may_speak_two_vocabularies() -> None:
    both = pod("p", container("a", {"nvidia.com/gpu": 1}), container("b", {"aliyun.com/gpu-mem": 2}))
    assert set(pod_demand(both, {}, {}).containers) == {"a", "b"}


def test_memory_above_any_card_is_refused_once_cards_are_known() -> None:
    what = pod("p", container("app", {"aliyun.com/gpu-mem": 20}))
    assert pod_demand(what, {}, {}, largest_mib=None)
    with pytest.raises(InvalidDemand, match=r"20480 MiB is more than the largest card has \(16384 MiB\)"):
        pod_demand(what, {}, {}, largest_mib=16384)


def test_init_containers_are_told_apart() -> None:
    what = pod(
        "p",
        container("app", {"nvidia.com/gpu": 1}),
        init=[container("warm", {"nvidia.com/gpu": 1}), container("side", {"nvidia.com/gpu": 1}, sidecar=True)],
    )
    found = pod_demand(what, {}, {})
    assert (found.init, found.sidecars) == (("warm",), ("side",))
    bad = pod("p", container("app"), init=[container("warm", {"nvidia.com/gpu": -1})])
    with pytest.raises(InvalidDemand, match=r"spec.initContainers\[warm\].resources.limits\[nvidia.com/gpu\]"):
        pod_demand(bad, {}, {})


def test_gpu_managers_limit_lets_idle_compute_be_used() -> None:
    asks: dict[str, int | str] = {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 4}
    assert demand_of(asks, **{names.VCUDA_CORE_LIMIT: "60"}).core_limit == 60
    for wrong in ("20", "101", "x"):
        with pytest.raises(InvalidDemand, match="vcuda-core-limit"):
            demand_of(asks, **{names.VCUDA_CORE_LIMIT: wrong})


def test_a_pod_may_use_idle_compute_up_to_its_limit() -> None:
    asks: dict[str, int | str] = {names.GPU_CORE: 30, names.GPU_MEMORY: 1024}
    for text, expected in (("60", 60), ("30", 30), ("100", 100), ("0", 0)):
        assert demand_of(asks, **{names.GPU_CORE_LIMIT: text}).core_limit == expected
    for wrong in ("20", "101", "x"):
        with pytest.raises(InvalidDemand, match=r"annotations\[elasticgpu.io/gpu-core-limit\]"):
            demand_of(asks, **{names.GPU_CORE_LIMIT: wrong})
    with pytest.raises(InvalidDemand, match="no container of the pod asks for a percent of a card"):
        demand_of({"aliyun.com/gpu-mem": 8}, **{names.GPU_CORE_LIMIT: "60"})


# --- claims ---------------------------------------------------------------------------------------------------------


def test_a_bare_number_in_a_gpushare_claim_counts_what_the_class_says() -> None:
    asks = {names.GPUSHARE_CORE: 10, names.GPUSHARE_MEMORY: 4}
    for parameters, expected in ((None, 4096), ({"memoryUnit": "GiB"}, 4096), ({"memoryUnit": "MiB"}, 4)):
        klass = gpu_class(provisioner="gpushare.provisioner.elasticgpu.io", parameters=parameters)
        found = claim_demand(claim("c", asks), klass)
        assert (found.provisioner, found.core, found.memory_mib) == (names.GPUSHARE, 10, expected)


def test_the_articles_claim_is_read_in_bytes() -> None:
    found = claim_demand(claim("c", {names.QGPU_CORE: 10, names.QGPU_MEMORY: "4GB"}), gpu_class(provisioner=names.QGPU))
    assert (found.provisioner, found.core, found.memory_mib, found.claim) == (names.QGPU, 10, 3815, "c")


def test_a_claim_may_use_idle_compute_up_to_its_limit() -> None:
    def of(limit: int | str, provisioner: str = names.VCUDA, **parameters: str) -> int:
        asks: dict[str, Quantity] = {names.GPU_CORE: 30, names.GPU_MEMORY: "1Gi"}
        what = claim("c", asks)
        what = replace(
            what, spec=replace(what.spec, resources=ClaimResources(requests=asks, limits={names.GPU_CORE: limit}))
        )
        return claim_demand(what, gpu_class(provisioner=provisioner, parameters=parameters)).core_limit

    assert [of(60), of("60", names.QGPU), of(60, names.POOL), of(40, computeMode="share")] == [60, 60, 60, 40]
    assert (of(30), of(30, computeMode="cap"), of(30, computeMode="share")) == (0, 0, 100)
    with pytest.raises(InvalidDemand, match=r"limits\[elasticgpu.io/gpu-core\]: class shared sets computeMode: cap"):
        of(60, computeMode="cap")
    with pytest.raises(InvalidDemand, match="20 is out of range; write a percentage from 30"):
        of(20)
    with pytest.raises(InvalidDemand, match="gives out no idle compute"):
        of(60, names.GPUSHARE)


def test_a_class_may_be_for_latency_work() -> None:
    found = [
        claim_demand(claim("c"), gpu_class(parameters=one)) for one in ({"work": "latency"}, {"work": "batch"}, {})
    ]
    assert [one.latency for one in found] == [True, False, False]
    with pytest.raises(InvalidDemand, match=r"parameters\[work\]: .*gpushare gives out no turns"):
        claim_demand(claim("c"), gpu_class(provisioner=names.GPUSHARE, parameters={"work": "latency"}))


def test_the_class_decides_the_technology_and_whether_idle_compute_may_be_used() -> None:
    found = claim_demand(claim("c"), gpu_class(parameters={"computeMode": "share"}))
    assert (found.provisioner, found.core_limit, found.class_name) == (names.VCUDA, 100, "shared")
    with pytest.raises(InvalidDemand, match="whole cards only"):
        claim_demand(claim("c"), gpu_class(provisioner=names.PHYSICAL))


@pytest.mark.parametrize(
    ("text", "percent"), [("1.5", 150), ("1", 0), ("1.00", 0), ("2", 200), ("1.25", 125), ("10", 1000)]
)
def test_a_class_may_let_programs_allocate_more_memory_than_their_share(text: str, percent: int) -> None:
    found = claim_demand(claim("c"), gpu_class(parameters={"memoryOversubscription": text}))
    assert (found.memory_limit_percent, found.memory_mib) == (percent, 4096), "the scheduler counts the share alone"


@pytest.mark.parametrize(
    "text", ["0.9", "0", "-1.5", "1.505", "10.01", "1e1", "1,5", "nan", "inf", "", " 1.5", "1.5x", "\u0661", "9" * 99]
)
def test_an_oversubscription_that_is_no_factor_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidDemand, match=r"class shared: parameters\[memoryOversubscription\]: .*from 1 to 10"):
        claim_demand(claim("c"), gpu_class(parameters={"memoryOversubscription": text}))


def test_oversubscription_where_it_cannot_be_done_is_refused_by_name() -> None:
    more = {"memoryOversubscription": "1.5"}
    for technology in (names.QGPU, names.GPUSHARE, names.PHYSICAL):
        with pytest.raises(InvalidDemand, match=f"{technology} does not support oversubscription; use {names.VCUDA}"):
            claim_demand(claim("c"), gpu_class(provisioner=technology, parameters=more))
    with pytest.raises(InvalidDemand, match="which does not apply to whole cards"):
        claim_demand(claim("c", {names.GPU_CORE: 100}), gpu_class(parameters=more))


def resolve(name: str, known: list[ElasticGPUClaim], namespace: str = "default"):
    what = claim_pod("p", name)
    return pod_demand(what, {item.name: item for item in known}, {"shared": gpu_class()})


def test_a_pod_using_a_claim_asks_for_what_the_claim_says() -> None:
    found = resolve("c", [claim("c")]).containers["app"]
    assert (found.claim, found.core, found.memory_mib) == ("c", 30, 4096)


@pytest.mark.parametrize(
    ("name", "known", "reason"),
    [
        ("c", [], "has no ElasticGPUClaim 'c'"),
        ("other/c", [claim("c")], "is in namespace 'other'"),
        ("", [claim("c")], "names no claim"),
        ("small#x", [claim("c")], "is not the name of an object"),
        ("?limit=1", [claim("c")], "is not the name of an object"),
        ("C", [claim("c")], "is not the name of an object"),
        ("..", [claim("c")], "is not the name of an object"),
        ("c" * 254, [claim("c")], "is not the name of an object"),
        ("c", [claim("c", class_name="gone")], "ElasticGPUClass 'gone' does not exist"),
        ("c", [claim("c", {"cpu": 1})], "asks for no GPU"),
        ("c", [claim("c", {names.GPU_CORE: 1.5})], "fraction"),
        ("c", [claim("c", {names.GPU_CORE: 10, names.QGPU_MEMORY: 1})], "two vocabularies"),
    ],
)
def test_claims_that_cannot_be_used(name: str, known: list[ElasticGPUClaim], reason: str) -> None:
    with pytest.raises(InvalidDemand, match=reason) as refused:
        resolve(name, known)
    assert refused.value.field == "metadata.annotations[elasticgpu.io/egpuc-app]"


def test_annotations_for_containers_and_claims() -> None:
    known, classes = {"c": claim("c"), "d": claim("d")}, {"shared": gpu_class()}

    def refused(annotations: dict[str, str]) -> str:
        what = pod("p", container("app"), container("b"), annotations=annotations)
        with pytest.raises(InvalidDemand) as problem:
            pod_demand(what, known, classes)
        return str(problem.value)

    assert "no container 'ap'; its containers are app, b" in refused({"elasticgpu.io/egpuc-ap": "c"})
    both = {"elasticgpu.io/egpuc-app": "c", "egpuc.elasticgpu.io/app": "d"}
    assert "already names the claim 'c'" in refused(both)
    shared = {"elasticgpu.io/egpuc-app": "c", "egpuc.elasticgpu.io/b": "c"}
    assert "one container can use it" in refused(shared)
    same = pod("p", container("app"), annotations={"elasticgpu.io/egpuc-app": "c", "egpuc.elasticgpu.io/app": "c"})
    assert pod_demand(same, known, classes).containers["app"].claim == "c"


def test_a_container_with_a_claim_asks_for_nothing_beside_it() -> None:
    what = pod("p", container("app", {"nvidia.com/gpu": 1}), annotations={"elasticgpu.io/egpuc-app": "c"})
    with pytest.raises(InvalidDemand, match="uses the claim c, which sets its GPU resources; remove it"):
        pod_demand(what, {"c": claim("c")}, {"shared": gpu_class()})


def test_pods_alike_but_for_one_word_do_not_ask_for_the_same() -> None:
    asks: dict[str, int | str] = {"elasticgpu.io/gpu": 2, "elasticgpu.io/gpu-core": 50}
    words = ({}, {names.LINKS: "nvlink"}, {names.CARD_SELECTOR: "model = L40S"}, {names.CARD_PREFERENCE: "strongest"})
    found = [*(demand_of(asks, **word) for word in words), demand_of({**asks, "elasticgpu.io/gpu-core": 51})]
    shared: dict[str, int | str] = {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}
    found += [demand_of(shared), demand_of(shared, **{names.VCUDA_CORE_LIMIT: "40"})]
    assert len(set(found)) == len(found)
    assert demand_of(asks) == found[0]
