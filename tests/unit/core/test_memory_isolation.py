"""`memoryIsolation: driver` of a class: cards whose driver limits memory, and no others."""

import pytest

from egpu.api import names
from egpu.core.admission import validate_class
from egpu.core.placement.cache import SchedulerCache
from egpu.core.resizing import check_resizable
from egpu_base.errors import NotSupported
from support.objects import card, claim, claim_pod, cluster, gpu_class, place, why_not

DRIVER = {"memoryIsolation": "driver"}


def with_claim(provisioner: str) -> SchedulerCache:
    """A node of one card, whose driver has no limits, and a claim that wants them."""
    cache = cluster()
    klass = gpu_class("held", provisioner, wait=True, parameters=DRIVER)
    assert validate_class(klass, None) == []
    cache.class_changed(klass)
    asked = {f"{names.VGPU}-4": 1} if provisioner == names.VGPU else {names.GPU_CORE: 25, names.GPU_MEMORY: 4096}
    cache.claim_changed(claim("c", asked, "held"))
    return cache


@pytest.mark.parametrize("provisioner", [names.VCUDA, names.VGPU])
def test_it_waits_for_a_card_whose_driver_can_and_says_so(provisioner: str) -> None:
    cache = with_claim(provisioner)
    assert "memoryIsolation is not driver" in why_not(cache, claim_pod("p", "c"))
    cache.gpu_changed(card("n0", 0, memory_isolation="driver"))
    given = place(cache, claim_pod("p", "c")).containers["app"]
    assert (given.provisioner, given.memory_isolation) == (provisioner, "driver")


def test_its_size_stays() -> None:
    cache = with_claim(names.VCUDA)
    cache.gpu_changed(card("n0", 0, memory_isolation="driver"))
    given = place(cache, claim_pod("p", "c")).containers["app"]
    with pytest.raises(NotSupported, match="the driver limits its memory"):
        check_resizable(given)


@pytest.mark.parametrize(
    ("provisioner", "more", "reason"),
    [
        (names.QGPU, {}, f"use one of {names.VCUDA}, {names.VGPU}"),
        (names.GPUSHARE, {}, f"use one of {names.VCUDA}, {names.VGPU}"),
        (names.VCUDA, {"shareable": "true"}, "claims of several pods"),
        (names.VCUDA, {"memoryOversubscription": "2"}, "does not support oversubscription"),
    ],
)
def test_what_the_driver_cannot_hold_is_refused(provisioner: str, more: dict[str, str], reason: str) -> None:
    (wrong,) = validate_class(gpu_class("c", provisioner, parameters=DRIVER | more), None)
    assert wrong.field == "parameters[memoryIsolation]"
    assert reason in wrong.reason
