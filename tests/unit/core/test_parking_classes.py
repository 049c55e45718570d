"""`parking: "true"` of a class: on its way to the policy page, and refused by name where it does not apply."""

import pytest

from egpu.api import names
from egpu.core.admission import validate_class
from egpu.core.provisioners import provisioner
from support.objects import card, claim, claim_pod, cluster, gpu_class, place, why_not

PARKING = {"parking": "true"}


@pytest.mark.parametrize(("parameters", "parkable"), [(PARKING, True), ({"parking": "false"}, False), ({}, False)])
def test_it_reaches_the_container(parameters: dict[str, str], parkable: bool) -> None:
    cache = cluster()
    klass = gpu_class("parks", names.VCUDA, wait=True, parameters=parameters)
    assert validate_class(klass, None) == []
    cache.class_changed(klass)
    cache.gpu_changed(card("n0", 0))
    cache.claim_changed(claim("c", {names.GPU_CORE: 25, names.GPU_MEMORY: 4096}, "parks"))
    given = place(cache, claim_pod("p", "c")).containers["app"]
    plan = provisioner(given.provisioner).prepare("pod p", given, {given.cards[0].uuid: 0})
    assert (given.parkable, plan.parkable) == (parkable, parkable)


def test_an_executor_is_parkable_too() -> None:
    cache = cluster()
    cache.class_changed(gpu_class("parks", names.QGPU, wait=True, parameters={**PARKING, "parkingResident": "25%"}))
    cache.gpu_changed(card("n0", 0))
    cache.ledger.set_host_memory("n0", 4096)
    cache.claim_changed(claim("c", {names.GPU_CORE: 25, names.GPU_MEMORY: 4096}, "parks"))
    given = place(cache, claim_pod("p", "c")).containers["app"]
    assert (given.parkable, given.cards[0].resident_mib) == (True, 1024)


@pytest.mark.parametrize("technology", [names.POOL, names.MPS, names.VGPU])
def test_other_technologies_refuse_it(technology: str) -> None:
    (problem,) = validate_class(gpu_class("parks", technology, parameters=PARKING), None)
    assert problem.field == "parameters[parking]"
    assert f"use one of {names.VCUDA}, {names.QGPU}" in problem.reason


def test_only_the_two_words_are_values() -> None:
    problems = validate_class(gpu_class("parks", names.VCUDA, parameters={"parking": "yes"}), None)
    assert [one.field for one in problems] == ["parameters[parking]"]


@pytest.mark.parametrize(
    ("asked", "why"), [({names.GPU_CORE: 100}, "whole cards"), ({names.GPU_CORE: 200, names.GPU_MEMORY: 0}, "")]
)
def test_whole_cards_and_several_are_refused(asked: dict[str, int], why: str) -> None:
    cache = cluster()
    cache.class_changed(gpu_class("parks", names.VCUDA, wait=True, parameters=PARKING))
    cache.gpu_changed(card("n0", 0))
    cache.claim_changed(claim("c", asked, "parks"))
    assert f"parking, which {'does not apply to ' + why if why else ''}" in why_not(cache, claim_pod("p", "c"))
