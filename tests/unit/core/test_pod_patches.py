"""The steps of the webhook's patch: what it writes where a pod says nothing, something else, or the right thing."""

from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.core.admission import mutate_pod
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand
from support.objects import gang_pod, slice_pod


def labelled(pod: Pod, labels: dict[str, str] | None) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, labels=labels))


def steps_below(prefix: str, pod: Pod) -> list[tuple[str, Any]]:
    patch = mutate_pod(pod, {}, {})
    return [(step["path"], step["value"]) for step in patch if step["path"].startswith(prefix)]


def test_a_pod_without_annotations_gets_them_before_the_demand_is_written_there() -> None:
    pod = slice_pod("p")
    bare = replace(pod, metadata=replace(pod.metadata, annotations=None))
    (made, (path, _)) = steps_below("/metadata", bare)
    assert made == ("/metadata/annotations", {})
    assert path == "/metadata/annotations/elasticgpu.io~1demand"


LABEL = ("/metadata/labels/elasticgpu.io~1gang", "g")


@pytest.mark.parametrize(
    ("labels", "steps"),
    [
        (None, [("/metadata/labels", {}), LABEL]),
        ({"app": "train"}, [LABEL]),
        ({names.GANG: "another"}, [LABEL]),
        ({names.GANG: "g"}, []),
    ],
)
def test_the_gang_becomes_a_label_beside_those_that_there_are(
    labels: dict[str, str] | None, steps: list[tuple[str, Any]]
) -> None:
    assert steps_below("/metadata/labels", labelled(gang_pod("p"), labels)) == steps


def test_a_pod_of_no_gang_gets_no_label() -> None:
    assert steps_below("/metadata/labels", slice_pod("p")) == []


def test_a_pod_that_its_gang_has_no_place_for_is_not_patched() -> None:
    full = [gang_pod("a"), gang_pod("b")]
    with pytest.raises(InvalidDemand, match=r"the gang g already has 2 members \(a, b\)"):
        mutate_pod(gang_pod("c"), {}, {}, gang=full)
