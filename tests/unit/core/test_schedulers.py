"""GPU pods go to a scheduler that asks the extender; no other pod is touched."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.core.admission import mutate_pod, validate_pod_create
from egpu.core.schedulers import OWN_SCHEDULER, Schedulers
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand
from support.objects import CORE, MEMORY, claim, claim_pod, container, gpu_class, pod

OWN = Schedulers(OWN_SCHEDULER, ("volcano",))
CLAIMS, CLASSES = {"c": claim("c")}, {"shared": gpu_class()}
ASKING = {
    "a slice": pod("p", container("app", {CORE: 10, MEMORY: 100})),
    "a card": pod("p", container("app", {names.NVIDIA_GPU: 1})),
    "a claim": claim_pod("p", "c"),
    "an init container": pod("p", container("app"), init=[container("first", {names.NVIDIA_GPU: 1})]),
}


def naming(one: Pod, scheduler: str) -> Pod:
    return replace(one, spec=replace(one.spec, scheduler_name=scheduler))


def named_by(patch: list[dict[str, Any]]) -> list[Any]:
    return [step["value"] for step in patch if step["path"] == "/spec/schedulerName"]


@pytest.mark.parametrize("named", ["", "default-scheduler"])
@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)
def test_a_gpu_pod_that_names_no_scheduler_gets_ours(asking: Pod, named: str) -> None:
    one = naming(asking, named)
    assert named_by(mutate_pod(one, CLAIMS, CLASSES, schedulers=OWN)) == [OWN_SCHEDULER]
    assert validate_pod_create(one, CLAIMS, CLASSES, schedulers=OWN) == []


@pytest.mark.parametrize("named", [OWN_SCHEDULER, "volcano"])
@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)
def test_one_that_names_ours_or_a_listed_one_keeps_it(asking: Pod, named: str) -> None:
    one = naming(asking, named)
    assert named_by(mutate_pod(one, CLAIMS, CLASSES, schedulers=OWN)) == []
    assert validate_pod_create(one, CLAIMS, CLASSES, schedulers=OWN) == []


@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)
def test_one_that_names_another_is_refused_with_what_to_do(asking: Pod) -> None:
    one = naming(asking, "volcano")
    alone = Schedulers(OWN_SCHEDULER)
    with pytest.raises(InvalidDemand) as refusal:
        mutate_pod(one, CLAIMS, CLASSES, schedulers=alone)
    (found,) = validate_pod_create(one, CLAIMS, CLASSES, schedulers=alone)
    for text in (str(refusal.value), str(found)):
        assert text.startswith("spec.schedulerName: is 'volcano', which does not ask Elastic GPU's extender")
        assert "remove the field, or use one of: elastic-gpu-scheduler." in text
        assert "scheduler.others" in text


@pytest.mark.parametrize("named", ["", "default-scheduler", "volcano"])
def test_pods_without_a_gpu_are_left_alone(named: str) -> None:
    for plain in (pod("p", container("app")), pod("p", container("app", {names.NVIDIA_GPU: 0}))):
        one = naming(plain, named)
        assert named_by(mutate_pod(one, {}, {}, schedulers=OWN)) == []
        assert validate_pod_create(one, {}, {}, schedulers=Schedulers(OWN_SCHEDULER)) == []


@pytest.mark.parametrize("named", ["", "default-scheduler", "volcano"])
def test_with_an_existing_scheduler_every_name_stays(named: str) -> None:
    one = naming(ASKING["a slice"], named)
    assert named_by(mutate_pod(one, CLAIMS, CLASSES)) == []
    assert validate_pod_create(one, CLAIMS, CLASSES) == []


def test_a_pod_that_was_changed_once_is_not_changed_again() -> None:
    one = naming(ASKING["a slice"], "")
    steps = mutate_pod(one, {}, {}, schedulers=OWN)
    assert {"op": "add", "path": "/spec/schedulerName", "value": OWN_SCHEDULER} in steps
    again = msgspec.convert(msgspec.to_builtins(naming(one, OWN_SCHEDULER)), Pod)
    assert named_by(mutate_pod(again, {}, {}, schedulers=OWN)) == []
