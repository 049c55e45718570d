"""HAMi's and Volcano's names, read as those read them; and names that nobody serves, refused with what to write."""

from collections.abc import Mapping

import numpy as np
import pytest

from egpu.api import foreign, names
from egpu.api.allocation import ContainerDemand
from egpu.api.foreign import FOREIGN
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.core.admission import Violation, validate_claim, validate_pod_create
from egpu.core.demand.pods import read_pod
from egpu.core.placement.refusal import describe
from egpu.core.provisioners import CardTotals, provisioner
from egpu_base.api.kubernetes import Pod
from support.local_node import Cards
from support.objects import claim, container, gpu_class, pod

CARDS = CardTotals(np.array([16384, 81920]), {})
HAMI = (names.NVIDIA_GPU, names.HAMI_MEMORY, names.HAMI_MEMORY_PERCENT, names.HAMI_CORES)
VOLCANO = (names.VOLCANO_NUMBER, names.VOLCANO_MEMORY, names.VOLCANO_MEMORY_PERCENT, names.VOLCANO_CORES)


def asking(asks: Mapping[str, int | str]) -> Pod:
    return pod("p", container("app", asks))


def demand_of(asks: Mapping[str, int | str]) -> ContainerDemand:
    demand, problems = read_pod(asking(asks), {}, {})
    assert problems == []
    return demand.containers["app"]


def refused(asks: Mapping[str, int | str], *vocabularies: str) -> list[Violation]:
    return validate_pod_create(asking(asks), {}, {}, vocabularies=vocabularies)


@pytest.mark.parametrize(("number", "memory", "percent", "cores"), [HAMI, VOLCANO], ids=["HAMi", "Volcano"])
def test_amounts_are_of_each_card(number: str, memory: str, percent: str, cores: str) -> None:
    both = demand_of({number: 2, memory: 3000, cores: 30})
    assert (both.provisioner, both.cards, both.memory_mib, both.core) == (names.VCUDA, 2, 3000, 30)
    assert not both.exclusive
    memory_alone = demand_of({number: 1, memory: 3000})
    assert (memory_alone.core, memory_alone.memory_mib, memory_alone.exclusive) == (0, 3000, False)
    half = demand_of({number: 1, percent: 50})
    assert (half.memory_mib, half.memory_percent, half.exclusive) == (0, 50, False)
    assert provisioner(half.provisioner).needs(half, CARDS).memory_mib.tolist() == [8192, 40960]
    assert describe(half) == "50 % of the memory of a card"
    cores_alone = demand_of({number: 1, cores: 30})
    assert (cores_alone.core, cores_alone.memory_percent) == (30, 100), "all the memory where none is named"
    assert demand_of({memory: 3000}).cards == 1, "one card where no number is given"
    whole = demand_of({number: 1, cores: 100, percent: 50})
    assert (whole.exclusive, whole.memory_percent) == (True, 0)


@pytest.mark.parametrize(("number", "memory", "percent", "cores"), [HAMI, VOLCANO], ids=["HAMi", "Volcano"])
def test_what_is_no_amount_of_a_card_is_refused(number: str, memory: str, percent: str, cores: str) -> None:
    for asks, field, reason in (
        ({number: 1, memory: 10, percent: 10}, percent, f"{memory} already sets the memory; keep one"),
        ({number: 1, percent: 101}, percent, "101 percent of a card's memory; the most is 100"),
        ({number: 1, cores: 200}, cores, "asks for 200 percent of each card; the most is 100"),
        ({cores: 200}, cores, "asks for 200 percent of each card; the most is 100"),
    ):
        (found,) = refused(asks, "hami")
        assert found == Violation(f"spec.containers[app].resources.limits[{field}]", reason)


def test_a_number_of_cards_alone_means_whole_cards() -> None:
    nvidia = demand_of({names.NVIDIA_GPU: 2})
    assert (nvidia.provisioner, nvidia.cards, nvidia.exclusive) == (names.PHYSICAL, 2, True)
    volcano = demand_of({names.VOLCANO_NUMBER: 2})
    assert (volcano.provisioner, volcano.cards, volcano.exclusive) == (names.PHYSICAL, 2, True)


def test_hami_is_off_until_somebody_turns_it_on() -> None:
    asks: dict[str, int | str] = {names.NVIDIA_GPU: 1, names.HAMI_MEMORY: 3000, names.HAMI_CORES: 30}
    assert refused(asks, "hami") == []
    found = refused(asks)
    limits = "spec.containers[app].resources.limits"
    assert [one.field for one in found] == [f"{limits}[{names.HAMI_CORES}]", f"{limits}[{names.HAMI_MEMORY}]"]
    assert found[0].reason == (
        "is of the vocabulary hami, which is not turned on in this cluster; "
        "ask for a slice with elasticgpu.io/gpu-core (percent) and elasticgpu.io/gpu-memory (MiB)"
    )
    assert refused({names.NVIDIA_GPU: 1}) == [], "NVIDIA's own name is nobody's secret"
    assert refused({names.VOLCANO_NUMBER: 1, names.VOLCANO_MEMORY: 300}) == []


@pytest.mark.parametrize(
    ("resource", "instead"),
    [
        ("nvidia.com/mig-9g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/priority", "PriorityClass"),
        ("volcano.sh/gpu-memory", "volcano.sh/vgpu-memory"),
        ("volcano.sh/gpu-number", "volcano.sh/vgpu-number"),
        ("volcano.sh/gpu-mem.128Mi", "elasticgpu.io/gpu-core"),
        ("volcano.sh/vgpu-anything", "volcano.sh/vgpu-memory"),
        ("koordinator.sh/gpu-core", "elasticgpu.io/gpu-core"),
        ("4paradigm.com/vgpu", "elasticgpu.io/gpu-core"),
        ("nvidia.com/gpu-10gb", "elasticgpu.io/gpu-core"),
        ("vke.volcengine.com/mgpu-core", "elasticgpu.io/gpu-core"),
        ("baidu.com/cgpu_memory", "elasticgpu.io/gpu-core"),
        ("k8s.amazonaws.com/vgpu", "elasticgpu.io/gpu-core"),
        ("aliyun.com/gpu-core.tflops", "elasticgpu.io/gpu-core"),
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem"),
        ("tencent.com/vcuda-cores", "tencent.com/vcuda-core, tencent.com/vcuda-memory"),
        ("docker.com/vcuda-mem", "docker.com/vcuda-core, docker.com/vcuda-memory"),
        ("tke.cloud.tencent.com/qgpu-core-greedy", "PriorityClass"),
        ("gpushare.provisioner.elasticgpu.io/gpu-mem", "gpushare.provisioner.elasticgpu.io/gpu-memory"),
        ("elasticgpu.io/gpu-cores", "elasticgpu.io/gpu-core, elasticgpu.io/gpu-memory"),
    ],
)
def test_a_name_that_nobody_serves_is_refused_with_what_to_write(resource: str, instead: str) -> None:
    for asks in ({resource: 1}, {resource: 1, names.NVIDIA_GPU: 1}):
        (found,) = refused(dict(asks), "hami")
        assert found.field == f"spec.containers[app].resources.limits[{resource}]"
        assert instead in found.reason


def test_names_that_are_no_gpus_are_left_alone() -> None:
    for resource in ("cpu", "example.com/fpga", "nvidia.com/hostdev", "amd.com/gpu", "tke.cloud.tencent.com/eni-ip",
                     "baidu.com/rdma", names.SLOT):  # fmt: skip
        assert foreign.refused(resource, ()) is None


def test_qgpus_low_priority_compute_is_not_read_as_a_slice_of_memory_alone() -> None:
    asks: dict[str, int | str] = {"tke.cloud.tencent.com/qgpu-core-greedy": 10, names.QGPU_MEMORY: 5}
    (found,) = refused(asks)
    assert found.field == "spec.containers[app].resources.limits[tke.cloud.tencent.com/qgpu-core-greedy]"


def test_what_only_nodes_have_is_refused_as_that() -> None:
    (found,) = refused({names.ALIYUN_GPU_COUNT: 1})
    assert found.reason == "counts a node's cards; ask for aliyun.com/gpu-mem instead"


def test_init_containers_and_requests_are_looked_at_too() -> None:
    what = pod("p", container("app"), init=[container("fetch", {"nvidia.com/mig-9g.5gb": 1})])
    (found,) = validate_pod_create(what, {}, {})
    assert found.field == "spec.initContainers[fetch].resources.limits[nvidia.com/mig-9g.5gb]"


def test_a_claim_cannot_ask_for_them_either() -> None:
    classes = {"shared": gpu_class()}
    wanted = claim("c", {names.HAMI_MEMORY: 3000})
    (found,) = validate_claim(wanted, None, classes)
    assert found.field == f"spec.resources.requests[{names.HAMI_MEMORY}]"
    assert "not turned on" in found.reason
    assert validate_claim(wanted, None, classes, vocabularies=["hami"]) == []


def test_a_node_offers_what_is_turned_on() -> None:
    cards = Cards(2).read()
    memory = str(sum(one.memory_mib for one in cards))
    off = node_capacity(cards, 0)
    assert off[names.NVIDIA_GPU] == "2"
    assert not set(HAMI[1:]) & off.keys()
    assert {name: off[name] for name in VOLCANO} == dict(zip(VOLCANO, ("20", memory, "200", "200"), strict=True))
    on = node_capacity(cards, 0, ["hami"])
    assert {name: on[name] for name in HAMI} == dict(zip(HAMI, ("20", memory, "200", "200"), strict=True))


def test_no_name_of_others_is_one_of_ours() -> None:
    for one in FOREIGN:
        assert not one.has(names.VOLCANO_NUMBER) or one.prefix
        assert one.has(one.name)
        assert one.has(f"{one.name}x") == one.prefix
