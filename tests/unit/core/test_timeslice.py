"""`elasticgpu.io/timeslice`: replicas of a card, no more than asked for, of one length, and nothing held."""

import pytest

from egpu.api import names
from egpu.api.vocabularies import SHARED_CARDS
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.core.admission import mutate_pod, validate_claim, validate_class, validate_pod_create
from egpu.core.placement.binding_annotations import binding_annotations
from egpu.core.provisioners import NodeTotals, provisioner
from egpu.core.provisioners.preparation import Preparation
from egpu.core.provisioners.timeslice import COUNTS
from egpu_base.api.kubernetes import Pod
from support.local_node import Cards
from support.objects import claim, claim_pod, cluster, container, fits, gpu_class, place, pod, slice_pod, why_not

SHARED = names.NVIDIA_GPU_SHARED


def replica(name: str, cards: int = 1) -> Pod:
    return pod(name, container("app", {SHARED: cards}))


def test_nvidias_name_is_a_replica_of_which_a_card_has_four() -> None:
    cache = cluster()
    assert validate_pod_create(replica("p"), {}, {}) == []
    for name in "abcd":
        given = place(cache, replica(name)).containers["app"]
        assert (given.provisioner, given.mode, given.vocabulary) == (names.TIMESLICE, "shared", "timeslice")
    assert fits(cache, replica("e")) == ()
    assert cache.ledger.overcommits() == []


def whole_name(name: str, demand: str = "") -> Pod:
    """A pod that asks for `nvidia.com/gpu`; `demand`: what admission wrote of it."""
    annotations = {names.DEMAND: demand} if demand else {}
    return pod(name, container("app", {names.NVIDIA_GPU: 1}), annotations=annotations)


def admitted(name: str, *vocabularies: str) -> Pod:
    """The same, as the webhook leaves it where these vocabularies are turned on."""
    patch = mutate_pod(whole_name(name), {}, {}, vocabularies=vocabularies)
    (demand,) = (step["value"] for step in patch if step["path"].endswith(names.DEMAND.replace("/", "~1")))
    return whole_name(name, demand)


def test_where_it_is_turned_on_nvidias_name_of_a_card_is_a_replica_too() -> None:
    cache = cluster()
    for name in "abcd":
        given = place(cache, admitted(name, SHARED_CARDS.name)).containers["app"]
        assert (given.provisioner, given.mode, given.cards[0].core) == (names.TIMESLICE, "shared", 25)
    assert fits(cache, replica("e")) == fits(cache, admitted("e", SHARED_CARDS.name)) == ()
    for vocabularies in ((), ("hami",)):
        whole = place(cluster(), admitted("whole", *vocabularies)).containers["app"]
        assert (whole.provisioner, whole.mode) == (names.PHYSICAL, "exclusive")


def test_nobody_chooses_for_himself_what_nvidias_name_means() -> None:
    for written, here in (((SHARED_CARDS.name,), ()), ((), (SHARED_CARDS.name,))):
        brought = admitted("p", *written)
        (found,) = validate_pod_create(brought, {}, {}, vocabularies=here)
        assert "does not match what this pod asks for" in found.reason
        assert validate_pod_create(brought, {}, {}, vocabularies=written) == []


def test_a_node_publishes_as_many_as_the_name_means() -> None:
    def published(*vocabularies: str) -> str:
        return node_capacity(Cards(2).read(), 0, vocabularies)[names.NVIDIA_GPU]

    assert (published(), published(SHARED_CARDS.name)) == ("2", "8")


def test_several_are_of_different_cards() -> None:
    given = place(cluster(cards=2), replica("p", 2)).containers["app"]
    assert len({share.uuid for share in given.cards}) == 2


@pytest.mark.parametrize("replicas", COUNTS)
@pytest.mark.parametrize("memory_mib", [8192, 16384, 81559])
def test_a_class_says_how_many_and_a_card_has_exactly_so_many(replicas: int, memory_mib: int) -> None:
    cache = cluster(memory_mib=memory_mib)
    klass = gpu_class("t", names.TIMESLICE, wait=True, parameters={"replicas": str(replicas)})
    assert validate_class(klass, None) == []
    cache.class_changed(klass)
    placed = 0
    while placed <= replicas:
        cache.claim_changed(claim(f"c{placed}", {SHARED: 1}, "t"))
        if not fits(cache, claim_pod(f"p{placed}", f"c{placed}")):
            break
        place(cache, claim_pod(f"p{placed}", f"c{placed}"))
        placed += 1
    assert placed == replicas


def test_programs_get_the_whole_card_and_the_pod_says_that_nothing_holds_them() -> None:
    allocation = place(cluster(), replica("p"))
    given = allocation.containers["app"]
    minors = {share.uuid: share.minor for share in given.cards}
    assert provisioner(names.TIMESLICE).prepare("app", given, minors) == Preparation(tuple(minors.values()))
    written = binding_annotations(allocation, assume_time_ns=1)
    assert written[names.ISOLATION] == "none of app: time slices isolate neither memory nor faults"
    other = binding_annotations(place(cluster(), slice_pod("q")), assume_time_ns=1)
    assert names.ISOLATION not in other


def test_a_card_has_one_length_of_time_slices_and_no_other_technology() -> None:
    cache = cluster()
    for length in ("short", "long", "default"):
        cache.class_changed(gpu_class(length, names.TIMESLICE, wait=True, parameters={"timeSlice": length}))
        cache.claim_changed(claim(length, {SHARED: 1}, length))
    given = place(cache, claim_pod("a", "long")).containers["app"]
    assert provisioner(names.TIMESLICE).time_slice(given) == "long"
    for refused in (claim_pod("b", "short"), claim_pod("c", "default"), replica("d"), slice_pod("e")):
        assert f"has slices of {names.TIMESLICE} (long only)" in why_not(cache, refused)
    cache.pod_deleted("uid-a")
    cache.claim_deleted("uid-long")
    given = place(cache, claim_pod("c", "default")).containers["app"]
    assert provisioner(names.TIMESLICE).time_slice(given) == ""
    place(cache, replica("d"))


def test_amounts_and_other_numbers_are_refused() -> None:
    klass = gpu_class("t", names.TIMESLICE)
    (refused,) = validate_claim(claim("c", class_name="t"), None, {"t": klass})
    assert refused.reason == f"{names.TIMESLICE} provides replicas of cards, not amounts; ask for {SHARED}"
    for parameters in ({"replicas": "1"}, {"replicas": "13"}, {"timeSlice": "5ms"}):
        (wrong,) = validate_class(gpu_class("t", names.TIMESLICE, parameters=parameters), None)
        assert "is not one of" in wrong.reason


def test_a_node_publishes_the_replicas_of_its_cards() -> None:
    published = provisioner(names.TIMESLICE).capacity(NodeTotals(cards=2, memory_mib=32768, tflops=1.0))
    assert published == {SHARED: 8}
