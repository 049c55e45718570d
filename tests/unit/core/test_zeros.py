"""Zero means what the project of each name says: no GPU, no limit, or nothing; in every container and claim."""

import json
from collections.abc import Sequence
from typing import Any

import jsonpatch
import msgspec
import pytest

from egpu.api import names
from egpu.api.vocabularies import BY_RESOURCE, MIGS, VOCABULARIES, ZEROS, Zero
from egpu.core.admission import mutate_pod, validate_claim, validate_pod_create
from egpu.core.demand.claims import claim_demand
from egpu.core.demand.pods import read_pod
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand
from support.objects import claim, claim_pod, container, gpu_class, pod

ON = ("hami", "nvidia-shared")
COUNTS = [*(one.cards for one in VOCABULARIES if one.cards), names.ALIYUN_GPU_MEM]


def patched(what: Pod, patch: Sequence[Any]) -> Pod:
    had = json.loads(msgspec.json.encode(what))
    return msgspec.convert(jsonpatch.apply_patch(had, patch), Pod)


def asks(what: Pod, *vocabularies: str) -> dict[str, Any]:
    """What admission reads, and reads again once the pod is patched."""
    assert validate_pod_create(what, {}, {}, vocabularies=vocabularies) == []
    demand, problems = read_pod(what, {}, {}, vocabularies=vocabularies)
    after = patched(what, mutate_pod(what, {}, {}, vocabularies=vocabularies))
    assert validate_pod_create(after, {}, {}, vocabularies=vocabularies) == []
    assert (read_pod(after, {}, {})[0], problems) == (demand, [])
    assert mutate_pod(after, {}, {}, vocabularies=vocabularies) == []
    return dict(demand.containers)


def test_every_name_has_a_meaning_of_zero() -> None:
    assert ZEROS.keys() == {*BY_RESOURCE, names.ALIYUN_GPU_COUNT}


@pytest.mark.parametrize("zero", [0, "0", "0Gi", "0m", "0.0"])
@pytest.mark.parametrize("resource", sorted({*COUNTS, names.ALIYUN_GPU_COUNT}))
def test_a_zero_count_asks_for_no_gpu(resource: str, zero: int | str) -> None:
    what = pod("p", container("app", {resource: zero}), init=[container("init", {resource: zero})])
    assert asks(what, *ON) == {}


@pytest.mark.parametrize("resource", sorted(BY_RESOURCE))
def test_a_zero_asks_for_no_gpu_beside_a_container_with_one(resource: str) -> None:
    no_gpu = {resource: 0} if ZEROS[resource] is not Zero.NO_LIMIT else {resource: 0, names.NVIDIA_GPU: 0}
    what = pod("p", container("app", {names.GPU: 1}), container("b", no_gpu), init=[container("c", no_gpu)])
    assert set(asks(what, *ON)) == {"app"}
    assert set(asks(what)) == {"app"}, "and while the optional vocabularies are off"


def test_a_container_with_zero_sees_no_card_of_its_image() -> None:
    what = pod("p", container("app", {names.NVIDIA_GPU: 0}))
    (app,) = patched(what, mutate_pod(what, {}, {})).containers
    assert {one.name: one.value for one in app.env or []} == {names.NVIDIA_VISIBLE_DEVICES: names.NO_DEVICES}


@pytest.mark.parametrize(
    ("amounts", "same"),
    [
        ({"tencent.com/vcuda-core": 0, "tencent.com/vcuda-memory": 4}, {"tencent.com/vcuda-memory": 4}),
        ({"docker.com/vcuda-core": 30, "docker.com/vcuda-memory": 0}, {"docker.com/vcuda-core": 30}),
        ({names.QGPU_CORE: 0, names.QGPU_MEMORY: 4}, {names.QGPU_MEMORY: 4}),
        ({names.GPU_CORE: 0, names.GPU_MEMORY: 4096}, {names.GPU_MEMORY: 4096}),
        ({names.GPU_CORE: 30, names.TFLOPS: 0}, {names.GPU_CORE: 30}),
        ({names.POOL_CORE: 0, names.POOL_MEMORY: 4096}, {names.POOL_MEMORY: 4096}),
        ({names.VOLCANO_NUMBER: 1, names.VOLCANO_CORES: 0, names.VOLCANO_MEMORY: 0}, {names.VOLCANO_NUMBER: 1}),
        ({names.VOLCANO_NUMBER: 1, names.VOLCANO_CORES: 0, names.VOLCANO_MEMORY: 300},
         {names.VOLCANO_NUMBER: 1, names.VOLCANO_MEMORY: 300}),
        ({names.NVIDIA_GPU: 1, names.HAMI_CORES: 0}, {names.NVIDIA_GPU: 1}),
        ({names.NVIDIA_GPU: 2, names.HAMI_CORES: 0, names.HAMI_MEMORY: 300},
         {names.NVIDIA_GPU: 2, names.HAMI_MEMORY: 300}),
        ({names.NVIDIA_GPU: 1, names.HAMI_MEMORY: 0, names.HAMI_MEMORY_PERCENT: 50},
         {names.NVIDIA_GPU: 1, names.HAMI_MEMORY_PERCENT: 50}),
        ({names.HAMI_CORES: 0}, {names.NVIDIA_GPU: 1}),
        ({names.HAMI_MEMORY: 0, names.HAMI_CORES: 0}, {names.NVIDIA_GPU: 1}),
        ({names.NVIDIA_GPU: 0, names.GPU_MEMORY: 4096}, {names.GPU_MEMORY: 4096}),
        ({names.GPU_MEMORY: 4096, MIGS[0].cards: 0}, {names.GPU_MEMORY: 4096}),
        ({names.NVIDIA_GPU: 1, names.GPU_MEMORY: 0, "koordinator.sh/gpu": 0}, {names.NVIDIA_GPU: 1}),
    ],
)  # fmt: skip
def test_a_zero_beside_other_names_is_no_limit(amounts: dict[str, int | str], same: dict[str, int | str]) -> None:
    assert asks(pod("p", container("app", amounts)), "hami") == asks(pod("p", container("app", same)), "hami")


@pytest.mark.parametrize(
    "amounts",
    [
        {names.NVIDIA_GPU: 0, names.HAMI_MEMORY: 3000, names.HAMI_CORES: 30},
        {names.VOLCANO_NUMBER: 0, names.VOLCANO_MEMORY: 3000},
        {names.GPU: 0, names.GPU_CORE: 30},
        {names.GPU_CORE: 0, names.GPU_MEMORY: 0},
        {names.VOLCANO_CORES: 0},
    ],
)
def test_zero_cards_of_a_vocabulary_are_no_gpu(amounts: dict[str, int | str]) -> None:
    assert asks(pod("p", container("app", amounts)), "hami") == {}


def test_hamis_zeros_ask_for_nothing_while_its_names_are_off() -> None:
    assert asks(pod("p", container("app", {names.HAMI_CORES: 0}))) == {}
    assert asks(pod("p", container("app", {names.NVIDIA_GPU: 1, names.HAMI_CORES: 0})))["app"].exclusive


def test_the_highest_priority_of_hami_is_no_zero() -> None:
    what = pod("p", container("app", {names.NVIDIA_GPU: 1, "nvidia.com/priority": 0}))
    assert "PriorityClass" in validate_pod_create(what, {}, {})[0].reason


def test_zero_of_gpu_managers_limit_is_no_use_of_idle_compute() -> None:
    amounts: dict[str, int | str] = {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 4}
    what = pod("p", container("app", amounts), annotations={names.VCUDA_CORE_LIMIT: "0"})
    assert asks(what)["app"].core_limit == 0


def test_a_claim_reads_zeros_too() -> None:
    classes = {"shared": gpu_class()}
    wanted = claim("c", {names.GPU_CORE: 0, names.GPU_MEMORY: "4Gi"})
    assert validate_claim(wanted, None, classes) == []
    found = claim_demand(wanted, classes["shared"])
    assert (found.core, found.memory_mib) == (0, 4096)
    with pytest.raises(InvalidDemand, match=r"asks for no GPU \(nvidia.com/gpu: 0\)"):
        claim_demand(claim("c", {names.NVIDIA_GPU: 0}), classes["shared"])


def test_a_container_with_a_claim_may_name_zeros() -> None:
    user = claim_pod("p", "c")
    user = Pod(metadata=user.metadata, spec=pod("p", container("app", {names.NVIDIA_GPU: 0})).spec)
    claims = {"c": claim("c", {names.GPU_CORE: 20, names.GPU_MEMORY: "1Gi"})}
    assert read_pod(user, claims, {"shared": gpu_class()})[1] == []
