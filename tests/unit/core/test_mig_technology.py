"""MIG from admission to the choice of a place: claims and plain names, beside what is in use and nothing else."""

import itertools

import pytest

from egpu.api import names
from egpu.api.allocation import PodAllocation, decode_allocation, encode
from egpu.api.mig import InstancePlace
from egpu.api.objects import ElasticGPU
from egpu.core.admission import mutate_pod, validate_claim, validate_class
from egpu.core.demand.pods import read_pod
from egpu.core.explain import explain_pod
from egpu.core.placement.cache import CLAIM_CONTAINER, SchedulerCache, rebuild
from egpu.core.placement.ledger import Holder
from egpu.core.provisioners import NodeTotals, provisioner
from egpu.core.provisioners.preparation import CardInstance
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import TerminalError
from support.mig import mig_card
from support.objects import (
    BINPACK,
    card,
    claim,
    claim_pod,
    container,
    fits,
    gpu_class,
    place,
    placed,
    pod,
    slice_pod,
    why_not,
)


def at(profile: str, start: int, size: int) -> InstancePlace:
    return InstancePlace(profile=profile, start=start, size=size)


def cluster_of(*cards: ElasticGPU) -> SchedulerCache:
    cache = rebuild(list(cards), [], [])
    cache.class_changed(gpu_class("cut", names.MIG, wait=True))
    cache.class_changed(gpu_class("as-it-is", names.MIG, wait=True, parameters={"repartition": "never"}))
    return cache


def asking(name: str, *profiles: str) -> Pod:
    """A pod with a container for an instance of each profile."""
    return pod(name, *(container(f"c{n}", {names.MIG_PREFIX + each: 1}) for n, each in enumerate(profiles)))


def instances(allocation: PodAllocation) -> list[str]:
    return [str(share.instance) for each in allocation.containers.values() for share in each.cards]


def test_a_plain_name_gets_an_instance_with_its_own_memory_and_compute() -> None:
    cache = cluster_of(mig_card("n0"))
    given = place(cache, asking("p", "2g.10gb"))
    (share,) = given.containers["c0"].cards
    assert share.instance is not None
    assert (share.core, share.memory_mib, share.instance.profile, share.instance.size) == (28, 9984, "2g.10gb", 2)
    assert decode_allocation(encode(given)) == given
    assert cache.ledger.snapshot()["n0", "GPU-n0-0"] == (72, 40960 - 9984, names.MIG, True)
    cache.pod_deleted("uid-p")
    assert cache.ledger.snapshot()["n0", "GPU-n0-0"] == (100, 40960, "", True)


def test_containers_of_one_pod_are_placed_together_in_whatever_order_they_ask() -> None:
    for order in itertools.permutations(["1g.5gb", "2g.10gb", "1g.5gb", "3g.20gb"]):
        cache = cluster_of(mig_card("n0"))
        what = asking("p", *order)
        assert fits(cache, what), order
        given = place(cache, what)
        assert [each.partition(" ")[0] for each in instances(given)] == list(order)
        assert cache.ledger.overcommits() == []


def test_cards_in_mig_mode_and_others_keep_to_themselves() -> None:
    cache = cluster_of(mig_card("n0"), card("n0", 1))
    assert place(cache, slice_pod("slice")).containers["app"].cards[0].index == 1
    assert place(cache, asking("p", "1g.5gb")).containers["c0"].cards[0].index == 0
    whole = pod("whole", container("app", {names.NVIDIA_GPU: 1}))
    assert "card 0 is in MIG mode: only its instances can be used" in why_not(cache, whole)
    assert "card 1 is not in MIG mode" in why_not(cache, asking("q", "7g.40gb"))
    assert "card 0 can only be cut into 1g.5gb" in why_not(cache, asking("q", "7g.80gb"))


def test_refusals_say_what_is_in_the_way() -> None:
    cache = cluster_of(mig_card("n0", others=[at("1g.5gb", 0, 1)]))
    place(cache, asking("p", "3g.20gb"))
    text = why_not(cache, asking("q", "2g.10gb", "2g.10gb"))
    assert "each container fits alone" in text
    assert "has no place for 4g.20gb (3g.20gb at 4 in use, 1g.5gb at 0 not created by this agent)" in why_not(
        cache, asking("q", "4g.20gb")
    )


def test_a_claim_gets_what_it_names_or_the_smallest_that_has_as_much() -> None:
    cache = cluster_of(mig_card("n0", others=[at("2g.10gb", 0, 2)]))
    for name, asks in (
        ("named", {names.MIG_PREFIX + "1g.5gb": 1}),
        ("amounts", {names.GPU_CORE: 14, names.GPU_MEMORY: 9000}),
    ):
        cache.claim_changed(claim(name, asks, "cut"))
    assert instances(place(cache, claim_pod("p", "named")))[0].startswith("1g.5gb")
    assert instances(place(cache, claim_pod("q", "amounts")))[0].startswith("1g.10gb")


def test_where_the_smallest_has_no_place_an_amount_gets_a_larger_one_and_is_counted_with_it() -> None:
    cache = cluster_of(mig_card("n0", others=[at("1g.5gb", 0, 1), at("3g.20gb", 4, 4)]))
    asks = {names.GPU_CORE: 14, names.GPU_MEMORY: 4096}
    for name in ("first", "second", "third"):
        cache.claim_changed(claim(name, asks, "as-it-is"))
    assert instances(place(cache, claim_pod("p", "first"))) == ["1g.5gb at 0"]
    given = place(cache, claim_pod("q", "second"))
    (share,) = given.containers["app"].cards
    assert (str(share.instance), share.core, share.memory_mib) == ("3g.20gb at 4", 42, 20096)
    assert cache.ledger.snapshot()["n0", "GPU-n0-0"] == (44, 40960 - 4864 - 20096, names.MIG, True)
    assert (
        "has no place for 1g.5gb or larger (1g.5gb at 0 in use, 3g.20gb at 4 in use); its class forbids repartitioning"
        in why_not(cache, claim_pod("r", "third"))
    )
    assert "has no place for 1g.5gb (" in why_not(
        cluster_of(mig_card("n0", others=[at("7g.40gb", 0, 8)])), asking("s", "1g.5gb")
    ), "who names a profile gets no other"


def test_a_card_that_has_the_smallest_is_taken_before_one_that_has_a_larger() -> None:
    """Although the other one has it ready, and is the fuller."""
    cache = cluster_of(mig_card("n0", others=[at("3g.20gb", 4, 4), at("4g.20gb", 0, 4)]), mig_card("n0", 1))
    cache.claim_changed(claim("c", {names.GPU_CORE: 14, names.GPU_MEMORY: 4096}, "cut"))
    (share,) = place(cache, claim_pod("p", "c")).containers["app"].cards
    assert share.instance is not None
    assert (share.index, share.instance.profile) == (1, "1g.5gb")


def test_what_programs_of_others_use_is_neither_given_nor_destroyed() -> None:
    mine, theirs = at("1g.5gb", 0, 1), at("3g.20gb", 4, 4)
    cache = cluster_of(mig_card("n0", own=[mine], others=[theirs], used=[mine, theirs]))
    assert instances(place(cache, asking("p", "1g.5gb"))) != ["1g.5gb at 0"]
    assert "1g.5gb at 0 in use by other programs, 3g.20gb at 4 in use by other programs" in why_not(
        cache, asking("q", "3g.20gb")
    )
    assert not fits(cache, asking("q", "4g.20gb")), "it would take the place of what is used"
    cache.gpu_changed(mig_card("n0", own=[mine], others=[theirs]))
    assert fits(cache, asking("q", "3g.20gb"))


def test_a_class_says_whether_cards_are_cut() -> None:
    cache = cluster_of(mig_card("n0", others=[at("2g.10gb", 2, 2)]))
    for name, profile in (("there", "2g.10gb"), ("again", "2g.10gb")):
        cache.claim_changed(claim(name, {names.MIG_PREFIX + profile: 1}, "as-it-is"))
    assert instances(place(cache, claim_pod("p", "there"))) == ["2g.10gb at 2"]
    assert "has no place for 2g.10gb (2g.10gb at 2 in use); its class forbids repartitioning" in why_not(
        cache, claim_pod("q", "again")
    )
    assert fits(cache, asking("plain", "2g.10gb"))


def test_a_card_that_has_the_instance_is_taken_before_one_is_cut() -> None:
    cache = cluster_of(mig_card("n0"), mig_card("n0", 1, own=[at("1g.5gb", 3, 1)]))
    assert instances(place(cache, asking("p", "1g.5gb"))) == ["1g.5gb at 3"]


def test_a_node_that_has_the_instance_is_better_than_a_fuller_one() -> None:
    cache = cluster_of(mig_card("n0"), mig_card("n1", own=[at("1g.5gb", 3, 1)]), card("n2", 0))
    place(cache, asking("p", "3g.20gb"))
    request = cache.request(asking("q", "1g.5gb"))
    scores = cache.ranking.scores(request, ["n0", "n1", "n2"], BINPACK)
    assert scores["n1"] == 1 > scores["n0"] > scores["n2"] == 0
    place(cache, asking("r", "1g.5gb"), "n1")
    scores = cache.ranking.scores(request, ["n0", "n1"], BINPACK)
    assert scores["n0"] == 1 > scores["n1"], "the fuller one where it has to be made"


def test_an_immediate_claim_keeps_its_instance_and_its_pods_get_that() -> None:
    cache = cluster_of(mig_card("n0"))
    cache.class_changed(gpu_class("now", names.MIG))
    wanted = claim("c", {names.MIG_PREFIX + "3g.20gb": 1}, "now")
    given = cache.ranking.choose(cache.claim_request(wanted), "n0", BINPACK)
    (share,) = given.containers[CLAIM_CONTAINER].cards
    assert share.instance is not None
    assert share.instance.profile == "3g.20gb"


def test_what_was_written_by_others_is_counted_and_reported() -> None:
    cache = cluster_of(mig_card("n0"))
    first = cache.ranking.choose(cache.request(asking("p", "3g.20gb")), "n0", BINPACK)
    for uid in ("one", "two"):
        cache.ledger.hold(Holder("pod", uid), first)
    (found,) = cache.ledger.overcommits()
    assert "do not fit beside each other: 3g.20gb at" in found.reason
    assert not fits(cache, asking("q", "1g.5gb"))


def test_admission_refuses_what_cannot_be() -> None:
    def problem(what: Pod) -> str:
        _, (found,) = read_pod(what, {}, {})
        return str(found)

    assert "2 instances in one container; the most is 1" in problem(
        pod("p", container("app", {names.MIG_PREFIX + "1g.5gb": 2}))
    )
    cut, shared = gpu_class("cut", names.MIG), gpu_class("shared")
    assert validate_class(gpu_class("cut", names.MIG, parameters={"repartition": "never"}), None) == []
    assert validate_class(gpu_class("cut", names.MIG, parameters={"repartition": "maybe"}), None)
    by_name = {"cut": cut, "shared": shared}
    instance = {names.MIG_PREFIX + "1g.5gb": 1}
    assert validate_claim(claim("c", instance, "cut"), None, by_name) == []
    (wrong,) = validate_claim(claim("c", instance, "shared"), None, by_name)
    assert "does not support MIG instances" in wrong.reason
    (whole,) = validate_claim(claim("c", {names.GPU_CORE: 100}, "cut"), None, by_name)
    assert "ask for one such as" in whole.reason


def test_nothing_but_the_agent_says_which_devices_a_container_sees() -> None:
    cache = cluster_of(mig_card("n0"))
    given = cache.ranking.choose(cache.request(asking("p", "1g.5gb")), "n0", BINPACK).containers["c0"]
    technology = provisioner(names.MIG)
    assert technology.visible_devices(given) == names.NO_DEVICES
    plan = technology.prepare("p", given, {"GPU-n0-0": 4})
    (share,) = given.cards
    assert share.instance is not None
    assert (plan.minors, plan.instance) == ((4,), CardInstance("GPU-n0-0", share.instance))
    patch = mutate_pod(asking("p", "1g.5gb"), {}, {})
    assert any(names.DEMAND.replace("/", "~1") in step["path"] for step in patch)


def test_an_allocation_without_an_instance_is_not_prepared() -> None:
    cache = rebuild([card("n0", 0)], [], [])
    given = cache.ranking.choose(cache.request(slice_pod("p")), "n0", BINPACK).containers["app"]
    with pytest.raises(TerminalError, match="names no MIG instance"):
        provisioner(names.MIG).prepare("p", given, {"GPU-n0-0": 0})


def test_a_node_publishes_how_many_of_each_it_can_have() -> None:
    totals = NodeTotals(
        cards=1, memory_mib=16384, tflops=8, cut_cards=2, cut_memory_mib=81920, instances={"1g.5gb": 14}
    )
    assert provisioner(names.MIG).capacity(totals) == {
        "nvidia.com/mig-1g.5gb": 14,
        names.GPU_CORE: 300,
        names.GPU_MEMORY: 98304,
    }
    assert provisioner(names.MIG).capacity(NodeTotals(cards=1, memory_mib=16384, tflops=8)) == {}


def test_explain_says_what_will_be_cut() -> None:
    cache = cluster_of(mig_card("n0", own=[at("1g.5gb", 0, 1), at("2g.10gb", 4, 2)]))

    def told(*profiles: str) -> list[str]:
        found = explain_pod(asking("p", *profiles), cache, ["n0"], BINPACK)
        return [detail for detail in found.details if "would get" in detail]

    assert told("2g.10gb") == ["container c0 would get 2g.10gb at 4 of card 0 of node n0: it exists"]
    assert told("4g.20gb") == [
        "container c0 would get 4g.20gb at 0 of card 0 of node n0: it will be created after 1g.5gb at 0 is destroyed"
    ]
    given = place(cache, asking("p", "2g.10gb"))
    found = explain_pod(placed(asking("p", "2g.10gb"), given), cache, ["n0"], BINPACK)
    assert any("has 2g.10gb at 4, 28 % and" in detail for detail in found.details)
