"""Latency or batch work: by the class, or else by the pod's priority."""

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation
from egpu.api.objects import ElasticGPUClass
from egpu.core.admission import validate_class
from egpu.core.demand.kinds import DEFAULT_PRIORITY, with_kinds
from support.objects import gpu_class

NONE: dict[str, ElasticGPUClass] = {}
OWN = ContainerAllocation(
    provisioner=names.VCUDA, mode="shared", cards=(CardShare(uuid="GPU-1", index=0, minor=0, core=30, memory_mib=1024),)
)
CLAIMED = replace(OWN, class_name="shared", claim="c")


def kind(container: ContainerAllocation, priority: int, **parameters: str) -> str:
    classes = {"shared": gpu_class(parameters=parameters)}
    given = PodAllocation(node="n", containers={"app": container})
    return with_kinds(given, priority, classes).containers["app"].work


def test_the_priority_of_a_pod_decides_where_its_class_does_not() -> None:
    for one in (OWN, CLAIMED):
        assert [kind(one, at) for at in (-5, 0, 1000, DEFAULT_PRIORITY - 1)] == ["batch"] * 4
        assert [kind(one, at) for at in (DEFAULT_PRIORITY, 2_000_000_000)] == ["latency"] * 2


def test_a_class_names_the_border() -> None:
    assert [kind(CLAIMED, at, latencyPriority="1k") for at in (999, 1000)] == ["batch", "latency"]
    assert kind(OWN, 1000, latencyPriority="1k") == "batch"  # it has no class


def test_a_class_that_says_the_kind_has_the_last_word() -> None:
    latency = replace(CLAIMED, latency=True)
    assert kind(latency, 0, work="latency") == "latency"
    assert kind(CLAIMED, 2_000_000_000, work="batch") == "batch"


def test_each_pod_of_a_claim_has_the_kind_of_its_own_priority() -> None:
    assert kind(replace(CLAIMED, latency=True), 0) == "batch"  # the pod before it was more important


def test_a_claim_without_its_class_keeps_what_the_class_said() -> None:
    for latency in (True, False):
        given = PodAllocation(node="n", containers={"app": replace(CLAIMED, latency=latency)})
        assert with_kinds(given, DEFAULT_PRIORITY, NONE) == given


@pytest.mark.parametrize(
    "container",
    [
        replace(CLAIMED, shared_claim="uid"),
        replace(OWN, provisioner=names.PHYSICAL, mode="exclusive"),
        replace(OWN, provisioner=names.GPUSHARE),
        replace(OWN, cards=(CardShare(uuid="GPU-1", index=0, minor=0, core=0, memory_mib=1024),)),
    ],
)
def test_slices_of_several_pods_and_slices_without_turns_are_batch_work(container: ContainerAllocation) -> None:
    assert kind(container, DEFAULT_PRIORITY) == "batch"


@pytest.mark.parametrize(
    ("provisioner", "parameters", "words"),
    [
        (names.VCUDA, {"latencyPriority": "high"}, "parameters[latencyPriority]: 'high' is not a number"),
        (names.VCUDA, {"latencyPriority": "3000000000"}, "Kubernetes' highest priority"),
        (names.VCUDA, {"latencyPriority": "10", "work": "batch"}, "no priority decides"),
        (names.GPUSHARE, {"latencyPriority": "10"}, "gives out no turns"),
        (names.GPUSHARE, {"work": "latency"}, "gives out no turns"),
    ],
)
def test_a_wrong_border_is_refused_with_the_class(provisioner: str, parameters: dict[str, str], words: str) -> None:
    (found,) = validate_class(gpu_class(provisioner=provisioner, parameters=parameters), None)
    assert words in str(found)
