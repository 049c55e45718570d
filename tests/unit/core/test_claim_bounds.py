"""The least and the most that claims of a class may ask for: refused with the numbers, when made and when edited."""

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.api.objects import ClaimAllocation, ElasticGPUClaimStatus
from egpu.core.admission import validate_claim, validate_class
from support.objects import claim, gpu_class

BOUNDS = {"minCore": "10", "maxCore": "50", "minMemory": "1Gi", "maxMemory": "8192"}
CLASSES = {"shared": gpu_class(parameters=BOUNDS)}


def said(**asks: int) -> str:
    words = {"core": names.GPU_CORE, "memory": names.GPU_MEMORY, "cards": names.GPU, "tflops": names.TFLOPS}
    found = validate_claim(claim("c", {words[name]: value for name, value in asks.items()}), None, CLASSES)
    return "; ".join(map(str, found))


@pytest.mark.parametrize(("core", "memory"), [(10, 1024), (50, 8192), (30, 4096)])
def test_both_ends_are_allowed(core: int, memory: int) -> None:
    assert said(core=core, memory=memory) == ""


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (
            {"core": 9, "memory": 1024},
            "asks for 9 % of a card; class shared allows at least 10 % and at most 50 % of a card",
        ),
        ({"core": 51, "memory": 1024}, "51 % of a card"),
        (
            {"core": 10, "memory": 1023},
            "asks for 1023 MiB of a card; class shared allows at least 1024 MiB and at most 8192 MiB",
        ),
        ({"core": 10, "memory": 8193}, "8193 MiB of a card"),
        ({"memory": 4096}, f"must ask for {names.GPU_CORE}: class shared allows"),
        ({"core": 30}, f"must ask for {names.GPU_MEMORY}: class shared allows"),
        ({"tflops": 4, "memory": 4096}, f"must ask for {names.GPU_CORE}"),
        ({"core": 100}, "100 % of a card"),
    ],
)
def test_what_is_outside_or_cannot_be_compared_is_refused(asks: dict[str, int], words: str) -> None:
    assert words in said(**asks)


def test_an_edit_is_held_to_the_same() -> None:
    share = CardShare(uuid="GPU-1", index=0, minor=0, core=30, memory_mib=4096)
    container = ContainerAllocation(provisioner=names.VCUDA, mode="shared", claim="c", cards=(share,))
    status = ElasticGPUClaimStatus(phase="Bound", allocation=ClaimAllocation(node="n0", container=container))
    old = replace(claim("c"), status=status)
    for core, refused in ((50, False), (60, True)):
        new = replace(claim("c", {names.GPU_CORE: core, names.GPU_MEMORY: 4096}), status=status)
        assert bool(validate_claim(new, old, CLASSES)) is refused


def test_whole_cards_have_no_size_to_bound_from_below() -> None:
    least = {"shared": gpu_class(parameters={"minCore": "10", "minMemory": "1Gi"})}
    assert validate_claim(claim("c", {names.GPU_CORE: 100}), None, least) == []


@pytest.mark.parametrize(
    ("parameters", "field", "reason"),
    [
        ({"maxCore": "0"}, "maxCore", "0 is zero"),
        ({"maxCore": "101"}, "maxCore", "101 is not a share of one card"),
        ({"maxCore": "half"}, "maxCore", "half"),
        ({"maxMemory": "lots"}, "maxMemory", "lots"),
        ({"minCore": "60", "maxCore": "50"}, "minCore", "60 is more than the 50 of maxCore"),
        ({"minMemory": "2Gi", "maxMemory": "1Gi"}, "minMemory", "2048 is more than the 1024 of maxMemory"),
    ],
)
def test_bounds_that_bound_nothing_are_refused(parameters: dict[str, str], field: str, reason: str) -> None:
    (found,) = validate_class(gpu_class(parameters=parameters), None)
    assert found.field == f"parameters[{field}]"
    assert reason in found.reason
