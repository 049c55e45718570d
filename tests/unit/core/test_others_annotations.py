"""Annotations, labels and variables of other projects are read, refused by name, or without meaning; never dropped."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardRequirement
from egpu.api.foreign import FOREIGN, NO_USE_TYPE, OTHERS, USE_TYPE, Handling, Place
from egpu.api.vocabularies import BY_RESOURCE, VOCABULARIES
from egpu.core.admission import FIXED_ANNOTATIONS, Violation, mutate_pod, validate_pod_create, validate_pod_update
from egpu.core.attributes import CardKind, selects
from egpu.core.demand.pods import read_pod
from egpu_base.api.kubernetes import EnvVar, Pod
from support.objects import claim, claim_pod, container, gpu_class, pod

ASKS: dict[str, int | str] = {names.NVIDIA_GPU: 1}
KNOWN: dict[str, dict[str, list[str]]] = yaml.safe_load((Path(__file__).parent / "others_names.yaml").read_text())
PAGE = (Path(__file__).parents[3] / "docs/reference/foreign-names.md").read_text()
LISTED = [(place, name) for places in KNOWN.values() for place, listed in places.items() for name in listed]


def saying(place: Place, name: str, value: str, asks: dict[str, int | str] | None = ASKS, *, init: bool = False) -> Pod:
    one = container("app", asks)
    if place is Place.VARIABLE:
        one = replace(one, env=[EnvVar(name=name, value=value)])
    made = pod("p", container("other"), init=[one]) if init else pod("p", one)
    said = {name: value}
    if place is Place.ANNOTATION:
        return replace(made, metadata=replace(made.metadata, annotations=said))
    return replace(made, metadata=replace(made.metadata, labels=said)) if place is Place.LABEL else made


def refused(what: Pod, **more: Any) -> list[Violation]:
    return validate_pod_create(what, {}, {}, vocabularies=["hami"], **more)


@pytest.mark.parametrize(("place", "name"), LISTED)
def test_every_known_name_has_an_answer(place: str, name: str) -> None:
    if place == "resource":
        assert name in BY_RESOURCE or name == names.ALIYUN_GPU_COUNT or any(one.has(name) for one in FOREIGN)
        return
    rows = [one for one in OTHERS if one.place == place and one.has(name)]
    assert rows, f"{name} is not in OTHERS"
    assert f"`{rows[0].name}`" in PAGE


def test_every_answer_is_of_a_known_name() -> None:
    for one in OTHERS:
        assert any(place == one.place and one.has(name) for place, name in LISTED), one.name


@pytest.mark.parametrize("one", [one for one in OTHERS if one.handling is Handling.REFUSED], ids=lambda one: one.name)
def test_a_name_that_would_change_something_is_refused_by_name(one: Any) -> None:
    name = one.name.replace("*", "_0")
    field = {
        Place.ANNOTATION: f"metadata.annotations[{name}]",
        Place.LABEL: f"metadata.labels[{name}]",
        Place.VARIABLE: f"spec.containers[app].env[{name}]",
    }[one.place]
    for vocabulary in VOCABULARIES:
        for resource in vocabulary.resources()[-1:]:
            asks: dict[str, int | str] = {resource: 1}
            (found,) = refused(saying(one.place, name, "0.5", asks))
            assert (found.field, one.note in found.reason) == (field, True)
    (found,) = refused(saying(one.place, name, "0.5", init=True))
    assert found.field == field.replace("containers", "initContainers")
    for value in one.harmless:
        assert refused(saying(one.place, name, value)) == []


@pytest.mark.parametrize(
    "name",
    ["nvidia.com/use-gpu-type", "nvidia.com/nouse-gputypes", "hami.io/gpu-scheduler-polcy", "hami.io/vgpu-mode",
     "volcano.sh/vgpu-number", "volcano.sh/gpu-type", "gpu-fractions", "gpu-memory-request", "gpu-sm-count"],
)  # fmt: skip
def test_a_mistyped_or_newer_name_is_refused_and_not_dropped(name: str) -> None:
    (found,) = refused(saying(Place.ANNOTATION, name, "A100"))
    assert found.field == f"metadata.annotations[{name}]"


@pytest.mark.parametrize("name", ["hami.io/vgpu-time", "volcano.sh/vgpu-ids-new", "volcano.sh/queue-name", USE_TYPE])
def test_a_known_name_counts_before_those_that_begin_like_it(name: str) -> None:
    assert refused(saying(Place.ANNOTATION, name, "1")) == []


@pytest.mark.parametrize(
    "one", [one for one in OTHERS if one.handling is Handling.NO_MEANING], ids=lambda one: one.name
)
def test_a_name_without_meaning_changes_nothing(one: Any) -> None:
    what = saying(one.place, one.name.replace("*", "0"), "1")
    assert refused(what) == []
    assert read_pod(what, {}, {})[0] == read_pod(pod("p", container("app", ASKS)), {}, {})[0]


def test_amounts_in_annotations_are_refused() -> None:
    for resource in BY_RESOURCE:
        (found,) = refused(saying(Place.ANNOTATION, resource, "3000"))
        assert found.field == f"metadata.annotations[{resource}]"
        assert "write it under resources.limits" in found.reason


def test_a_pod_without_a_gpu_may_say_what_it_likes() -> None:
    for one in OTHERS:
        if not one.name.startswith(("gpu-fraction", "gpu-memory")):
            assert refused(saying(one.place, one.name, "1", {names.NVIDIA_GPU: 0})) == [], one.name


@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory"])
def test_a_pod_that_asks_by_annotation_alone_does_not_run_without_a_gpu(annotation: str) -> None:
    (found,) = refused(saying(Place.ANNOTATION, annotation, "0.5", None))
    assert found.field == f"metadata.annotations[{annotation}]"
    assert "elasticgpu.io/gpu-core (percent)" in found.reason


# --- card types -------------------------------------------------------------------------------------------------------

MODELS = ("NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA A10", "NVIDIA GeForce GTX 1080 Ti")


@pytest.mark.parametrize(
    ("annotation", "text", "allowed"),
    [
        (USE_TYPE, "A100", (0,)),
        (USE_TYPE, "a100, t4", (0, 1)),
        (USE_TYPE, "A10", (0, 2)),
        (USE_TYPE, "1080", (3,)),
        (USE_TYPE, "GTX 10", (3,)),
        (USE_TYPE, "NVIDIA-Tesla T4", (1,)),
        (USE_TYPE, "NVIDIA-NVIDIA A100-SXM4-80GB,", (0,)),
        (USE_TYPE, "V100", ()),
        (NO_USE_TYPE, "T4", (0, 2, 3)),
        (NO_USE_TYPE, "A100,1080", (1, 2)),
        (NO_USE_TYPE, "V100", (0, 1, 2, 3)),
    ],
)
def test_card_types_are_compared_as_hami_does(annotation: str, text: str, allowed: tuple[int, ...]) -> None:
    for vocabulary in VOCABULARIES:
        for resource in vocabulary.resources()[-1:]:
            what = pod("p", container("app", {resource: 1}), annotations={annotation: text})
            demand, problems = read_pod(what, {}, {})
            assert problems == []
            select = demand.containers["app"].select
            found = [number for number, model in enumerate(MODELS) if selects(select, CardKind(model, 1024))]
            assert tuple(found) == allowed


def test_both_types_and_our_own_selector_count_together() -> None:
    said = {USE_TYPE: "A10", NO_USE_TYPE: "A100", names.CARD_SELECTOR: "memory > 20Gi"}
    what = pod("p", container("app", ASKS), init=[container("init", ASKS)], annotations=said)
    demand, _ = read_pod(what, {}, {})
    assert demand.containers["app"].select == demand.containers["init"].select
    assert demand.containers["app"].select[1:] == (
        CardRequirement(key="modelText", operator="In", values=("A10",)),
        CardRequirement(key="modelText", operator="NotIn", values=("A100",)),
    )
    assert refused(what) == []
    assert mutate_pod(what, {}, {})


def test_what_cannot_be_a_type_is_refused() -> None:
    for annotation in (USE_TYPE, NO_USE_TYPE):
        for text in ("", " , "):
            (found,) = refused(saying(Place.ANNOTATION, annotation, text))
            assert (found.field, "names no model" in found.reason) == (f"metadata.annotations[{annotation}]", True)


def test_a_type_has_no_effect_on_claims_so_it_is_refused_there() -> None:
    user = claim_pod("p", "c")
    user = replace(user, metadata=replace(user.metadata, annotations={**user.annotations, USE_TYPE: "A100"}))
    _, (found,) = read_pod(user, {"c": claim("c")}, {"shared": gpu_class()})
    assert "set it in the claim" in found.reason


def test_types_cannot_change_afterwards() -> None:
    assert {USE_TYPE, NO_USE_TYPE} <= {*FIXED_ANNOTATIONS}
    before, after = (saying(Place.ANNOTATION, USE_TYPE, text) for text in ("A100", "T4"))
    (found,) = validate_pod_update(before, after)
    assert found.field == f"metadata.annotations[{USE_TYPE}]"
