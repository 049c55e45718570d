"""Mistyped names of ours are refused, with the name that was meant: they would do nothing."""

import re
from pathlib import Path

import pytest

from egpu.api import names
from egpu.core.admission import validate_claim, validate_class, validate_pod_create
from egpu.core.demand.classes import own_parameters, shared_parameters
from egpu.core.provisioners import PROVISIONERS
from egpu.core.spelling import did_you_mean
from support.objects import claim, container, gpu_class, pod

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("cardSelectr", "cardSelector"),
        ("CardSelector", "cardSelector"),
        ("card-selector", "cardSelector"),
        ("maxcore", "maxCore"),
        ("memoryOverSubscription", "memoryOversubscription"),
        ("parkingResidents", "parkingResident"),
        ("polizy", "policy"),
        ("work-", "work"),
    ],
)
def test_a_mistyped_parameter_of_a_class_is_refused_with_the_one_that_was_meant(written: str, meant: str) -> None:
    (found,) = validate_class(gpu_class(provisioner=names.VCUDA, parameters={written: "1"}), None)
    assert str(found).startswith(f"parameters[{written}]: does not exist; did you mean {meant}")


def test_a_parameter_that_is_like_none_is_refused_with_the_list() -> None:
    (found,) = validate_class(gpu_class(provisioner=names.MIG, parameters={"zzz": "1"}), None)
    assert found.reason.startswith("does not exist; elasticgpu.io/mig has cardPreference, cardSelector, ")
    assert "repartition" in found.reason
    assert "memoryUnit" not in found.reason


def test_a_parameter_of_another_technology_is_refused_with_its_technologies() -> None:
    (found,) = validate_class(gpu_class(provisioner=names.VCUDA, parameters={"replicas": "4"}), None)
    assert found.reason == (
        "is a parameter of elasticgpu.io/timeslice and elasticgpu.io/mps, not of elasticgpu.io/vcuda; remove it"
    )


def test_a_class_that_is_there_can_still_be_changed() -> None:
    older = gpu_class(provisioner=names.VCUDA, parameters={"cardSelectr": "1"})
    assert validate_class(older, older) == []


def test_every_parameter_that_the_page_of_claims_describes_is_known() -> None:
    page = (ROOT / "docs/start/claims.md").read_text()
    table = page.split("## Parameters of a class")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    known = shared_parameters().union(*(own_parameters(one) for one in PROVISIONERS.values()))
    described |= {"precision", "links", "cardSelector", "cardPreference", "memoryUnit"}  # on pages of their own
    assert described == known


@pytest.mark.parametrize(
    ("written", "meant"),
    [("elasticgpu.io/vcude", "vcuda"), ("elasticgpu.io/vCUDA", "vcuda"), ("elasticgpu.io/time-slice", "timeslice")],
)
def test_a_mistyped_provisioner_is_refused_with_the_one_that_was_meant(written: str, meant: str) -> None:
    (found,) = validate_class(gpu_class(provisioner=written), None)
    assert f"did you mean elasticgpu.io/{meant}" in found.reason


def test_a_mistyped_class_is_refused_with_the_one_that_was_meant() -> None:
    known = {f"{number:02}": gpu_class() for number in range(20)} | {"vcuda-shared": gpu_class()}
    found = validate_claim(claim("c", class_name="vcuda-sharde"), None, known)
    assert "does not exist; did you mean vcuda-shared?; existing classes: 00, 01" in found[0].reason


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("elasticgpu.io/card-selektor", "elasticgpu.io/card-selector"),
        ("elasticgpu.io/cardSelector", "elasticgpu.io/card-selector"),
        ("elasticgpu.io/egpu-app", "elasticgpu.io/egpuc-app"),
        ("elasticgpu.io/egpuc.app", "elasticgpu.io/egpuc-app"),
        ("egpucc.elasticgpu.io/app", "egpuc.elasticgpu.io/app"),
        ("egpuc-templates.elasticgpu.io/app", "egpuc-template.elasticgpu.io/app"),
        ("elasticgpu.io/gang_size", "elasticgpu.io/gang-size"),
        ("elasticgpu.io/gpu-corelimit", "elasticgpu.io/gpu-core-limit"),
    ],
)
@pytest.mark.parametrize("asks", [{}, {names.GPU_MEMORY: "1024"}])
def test_a_mistyped_annotation_of_ours_is_refused_with_the_one_that_was_meant(
    written: str, meant: str, asks: dict[str, str]
) -> None:
    (found,) = validate_pod_create(pod("p", container("app", asks), annotations={written: "x"}), {}, {})
    assert found.field == f"metadata.annotations[{written}]"
    assert meant in found.reason


def test_other_annotations_are_left_alone() -> None:
    kept: dict[str, str] = dict.fromkeys(
        ("elasticgpu.io/owner-of-this", "team.elasticgpu.io/app", "example.com/card-selektor", "myelasticgpu.io"), "x"
    )
    assert validate_pod_create(pod("p", container("app"), annotations=kept), {}, {}) == []


def test_a_long_word_is_compared_with_nothing() -> None:
    assert did_you_mean("card-selecto" + 1000 * "r", ["card-selector"]) == ""


def test_a_provisioner_that_is_like_no_other_gets_no_suggestion() -> None:
    (found,) = validate_class(gpu_class(provisioner="elasticgpu.io/none"), None)
    assert "does not exist; choose one of" in found.reason
