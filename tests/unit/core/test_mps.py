"""`elasticgpu.io/mps`: slices of one size on a card whose node can run a server, and no more than it has."""

import pytest

from egpu.api import names
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.core.admission import validate_claim, validate_class, validate_pod_create
from egpu.core.placement.binding_annotations import binding_annotations
from egpu.core.placement.cache import SchedulerCache
from egpu.core.provisioners import NodeTotals, provisioner
from egpu.core.provisioners.mps import READY
from egpu.core.provisioners.preparation import Preparation, ServedSlice
from egpu.core.resizing import check_resizable
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import NotSupported
from support.local_node import Cards
from support.objects import card, claim, claim_pod, cluster, container, fits, gpu_class, place, pod, slice_pod, why_not


def served(cards: int = 1) -> SchedulerCache:
    """A node whose cards have servers when they are wanted."""
    cache = cluster(cards=cards)
    for index in range(cards):
        cache.gpu_changed(card("n0", index, mps=READY))
    return cache


def plain(name: str, number: int = 1) -> Pod:
    return pod(name, container("app", {names.MPS: number}))


def with_class(cache: SchedulerCache, name: str, **parameters: str) -> None:
    klass = gpu_class(name, names.MPS, wait=True, parameters=parameters)
    assert validate_class(klass, None) == []
    cache.class_changed(klass)


def test_by_its_name_a_slice_is_a_quarter_of_a_card() -> None:
    cache = served()
    assert validate_pod_create(plain("p"), {}, {}) == []
    for name in "abcd":
        given = place(cache, plain(name)).containers["app"]
        assert (given.provisioner, given.mode, given.cards[0].core) == (names.MPS, "shared", 25)
        assert given.cards[0].memory_mib == given.cards[0].card_memory_mib // 4
    assert fits(cache, plain("e")) == ()
    assert cache.ledger.overcommits() == []


def test_a_class_gives_other_parts_or_amounts_and_a_card_has_one_size() -> None:
    cache = served()
    with_class(cache, "tenths", replicas="10")
    with_class(cache, "sizes")
    cache.claim_changed(claim("tenth", {names.MPS: 1}, "tenths"))
    cache.claim_changed(claim("amount", {names.GPU_CORE: 30, names.GPU_MEMORY: 4096}, "sizes"))
    cache.claim_changed(claim("same", {names.GPU_CORE: 30, names.GPU_MEMORY: 4096}, "sizes"))
    given = place(cache, claim_pod("a", "amount")).containers["app"]
    assert (given.cards[0].core, given.cards[0].memory_mib) == (30, 4096)
    for other in (claim_pod("b", "tenth"), plain("c"), slice_pod("d")):
        assert f"has slices of {names.MPS} (30 % and 4096 MiB only)" in why_not(cache, other)
    place(cache, claim_pod("e", "same"))
    for gone in ("a", "e"):
        cache.pod_deleted(f"uid-{gone}")
    for gone in ("amount", "same"):
        cache.claim_deleted(f"uid-{gone}")
    given = place(cache, claim_pod("b", "tenth")).containers["app"]
    assert (given.cards[0].core, given.alike) == (10, "1/10")


@pytest.mark.parametrize(
    ("said", "why"), [("the driver has no server", "the driver has no server"), ("", "its agent does not report it")]
)
def test_a_card_without_servers_is_not_taken_and_says_why(said: str, why: str) -> None:
    cache = cluster()
    cache.gpu_changed(card("n0", 0, mps=said))
    assert f"has no MPS: {why}" in why_not(cache, plain("p"))
    place(cache, slice_pod("other"))


def test_a_program_finds_one_server() -> None:
    (refused,) = validate_pod_create(plain("p", 2), {}, {})
    assert "2 slices in one container; the most is 1" in refused.reason


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({names.GPU_CORE: 100}, "a part of one card"),
        ({names.GPU: 2, names.GPU_CORE: 30}, "a part of one card"),
        ({names.GPU_MEMORY: 4096}, "a fixed percentage of a card's compute"),
        ({names.TFLOPS: 5}, "a fixed percentage of a card's compute"),
    ],
)
def test_what_a_server_cannot_give_is_refused(asked: dict[str, int], why: str) -> None:
    (refused,) = validate_claim(claim("c", asked, "m"), None, {"m": gpu_class("m", names.MPS)})
    assert why in refused.reason


def test_idle_compute_of_others_is_not_given() -> None:
    klass = gpu_class("m", names.MPS, parameters={"computeMode": "share"})
    (refused,) = validate_claim(claim("c", {names.GPU_CORE: 30}, "m"), None, {"m": klass})
    assert "a fixed percentage of a card's compute" in refused.reason


def test_the_node_is_told_what_each_program_has_and_the_pod_says_what_is_shared() -> None:
    allocation = place(served(), plain("p"))
    given = allocation.containers["app"]
    (share,) = given.cards
    plan = provisioner(names.MPS).prepare("app", given, {share.uuid: share.minor})
    assert plan == Preparation((share.minor,), served=ServedSlice(share.uuid, 25, share.memory_mib))
    written = binding_annotations(allocation, assume_time_ns=1)
    assert written[names.ISOLATION] == "MPS limits each program of app; a fault of one ends all programs on its card"
    with pytest.raises(NotSupported):
        check_resizable(given)


def test_a_pod_of_two_technologies_says_what_both_leave_shared() -> None:
    cache = served(cards=2)
    mixed = pod("p", container("a", {names.MPS: 1}), container("b", {names.NVIDIA_GPU_SHARED: 1}))
    said = binding_annotations(place(cache, mixed), assume_time_ns=1)[names.ISOLATION]
    assert "MPS limits each program of a;" in said
    assert "none of b: time slices" in said


def test_a_node_publishes_the_slices_of_its_cards() -> None:
    published = provisioner(names.MPS).capacity(NodeTotals(cards=3, memory_mib=49152, tflops=1.0, mps_cards=2))
    assert published == {names.MPS: 8}


def test_a_node_offers_no_slices_of_cards_that_can_have_no_server() -> None:
    """And says 0, not nothing: an earlier agent may have published more."""
    cards = Cards(3).read()

    def offered(*reasons: str) -> str:
        why = dict(zip((card.uuid for card in cards), reasons, strict=True))
        return node_capacity(cards, 0, mps=lambda card: why[card.uuid])[names.MPS]

    assert offered(READY, "its program is missing", READY) == "8"
    assert offered("it is too old", "its program is missing", "") == "0"
