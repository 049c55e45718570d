"""A container's name may have 63 characters: each annotation about it has a form that Kubernetes takes."""

import re

import pytest

from egpu.api import names
from egpu.core.admission import mutate_pod, validate_pod_create, validate_pod_update
from egpu.core.resizing import Size, asked_sizes
from egpu_base.errors import InvalidDemand
from support.objects import claim, container, gpu_class, pod

CLAIMS = {"c": claim("c", {names.GPU_CORE: 20, names.GPU_MEMORY: "1Gi"})}
CLASSES = {"shared": gpu_class()}
KEY = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
LENGTHS = (1, 54, 55, 56, 57, 58, 62, 63)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_container_of_any_name_can_use_a_claim_and_be_resized(length: int) -> None:
    name = "a" * length
    said = {names.CLAIM_PREFIXES[1] + name: "c", names.RESIZE_PREFIXES[1] + name: "core=30"}
    what = pod("p", container(name), annotations=said)
    assert validate_pod_create(what, CLAIMS, CLASSES) == []
    patch = mutate_pod(what, CLAIMS, CLASSES)
    references = [
        step["value"]["valueFrom"]["fieldRef"]["fieldPath"]
        for step in patch
        if isinstance(step["value"], dict) and "valueFrom" in step["value"]
    ]
    assert references
    read = [reference.split("'")[1] for reference in references]
    for key in (*said, *read, names.cards_annotation(name), names.resized_annotation(name)):
        assert KEY.fullmatch(key), key
    assert asked_sizes(what) == {name: Size(core=30)}


def test_short_names_keep_their_annotations() -> None:
    assert names.resized_annotation("app") == "elasticgpu.io/resized-app"
    assert names.resized_annotation("a" * 55) == "elasticgpu.io/resized-" + "a" * 55


def test_both_forms_of_a_size_must_agree() -> None:
    what = pod("p", container("app", {names.GPU_CORE: 20, names.GPU_MEMORY: 1024}))
    first, second = (f"{prefix}app" for prefix in names.RESIZE_PREFIXES)
    both = {first: "core=30", second: "core=40"}
    new = pod("p", *what.containers, annotations=both)
    (found,) = validate_pod_update(what, new)
    assert (found.field, "keep one" in found.reason) == (f"metadata.annotations[{second}]", True)
    assert asked_sizes(pod("p", *what.containers, annotations={first: "core=30", second: "core=30"}))
    with pytest.raises(InvalidDemand, match=r"resize.elasticgpu.io/none\]: names no container"):
        asked_sizes(pod("p", container("app"), annotations={f"{names.RESIZE_PREFIXES[1]}none": "core=30"}))
