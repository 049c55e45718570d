"""Who belongs to a gang, what may be said of it, and where its members fit together."""

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.core.admission import mutate_pod, validate_pod_create, validate_pod_update
from egpu.core.explain import explain_pod
from egpu.core.gangs.membership import DEFAULT_TIMEOUT_SECONDS, disagreement, gang_terms
from egpu.core.gangs.placing import GangVerdict, place_gang
from egpu.core.placement.cache import SchedulerCache
from egpu_base.api.kubernetes import Node, NodeStatus, Pod, PodStatus, ResourceRequirements
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import InvalidDemand
from support.objects import BINPACK, cluster, container, ended, gang_pod, place, placed, pod, slice_pod


def show(cache: SchedulerCache, *members: Pod, nodes: tuple[str, ...] = ("n0", "n1")) -> None:
    """The watch shows the members, and the scheduler has asked about each."""
    for member in members:
        cache.pod_changed(member)
        cache.gangs.offer(member, nodes)


def verdict(cache: SchedulerCache, member: Pod, nodes: tuple[str, ...] = ("n0", "n1")) -> GangVerdict:
    gang = cache.gangs.of(member)
    assert gang is not None
    return place_gang(cache, gang, BINPACK, pod=member, nodes=nodes)


def annotated(**annotations: str) -> Pod:
    keys = {"gang": names.GANG, "size": names.GANG_SIZE, "timeout": names.GANG_TIMEOUT}
    asks = container("app", {names.GPU_CORE: 10})
    return pod("p", asks, annotations={keys[key]: value for key, value in annotations.items()})


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("30s", 30), ("5m", 300), ("2h", 7200)])
def test_a_time_limit_is_seconds_minutes_or_hours(text: str, seconds: int) -> None:
    terms = gang_terms(annotated(gang="g", size="3", timeout=text))
    assert terms is not None
    assert (terms.name, terms.size, terms.timeout_seconds) == ("g", 3, seconds)


def test_without_a_time_limit_there_is_the_default_and_without_annotations_no_gang() -> None:
    terms = gang_terms(annotated(gang="g", size="3"))
    assert terms is not None
    assert terms.timeout_seconds == DEFAULT_TIMEOUT_SECONDS
    assert gang_terms(annotated()) is None


@pytest.mark.parametrize(
    ("annotations", "field", "reason"),
    [
        ({"gang": "g"}, names.GANG_SIZE, "is missing; set it to the number of pods of the gang g"),
        *(
            ({"gang": "g", "size": size}, names.GANG_SIZE, f"{size!r} is not a number of pods from 1 to 512")
            for size in ("0", "-1", "two", "1.5", "", "513", "9" * 30, "²", " 3")
        ),
        *(
            ({"gang": "g", "size": "2", "timeout": text}, names.GANG_TIMEOUT, f"{text!r} is not a time from 1 s")
            for text in ("0", "-5", "soon", "1d", "", "1.5h", "5 m", "9999h")
        ),
        *(
            ({"gang": name, "size": "2"}, names.GANG, f"{name!r} is not a valid name")
            for name in ("", "a/b", "-a", "a b", "x" * 64)
        ),
        ({"size": "2"}, names.GANG_SIZE, "has no effect without elasticgpu.io/gang"),
        ({"timeout": "2"}, names.GANG_TIMEOUT, "has no effect without elasticgpu.io/gang"),
    ],
)
def test_nonsense_is_refused_by_field_and_reason(annotations: dict[str, str], field: str, reason: str) -> None:
    (found,) = validate_pod_create(annotated(**annotations), {}, {})
    assert found.field == f"metadata.annotations[{field}]"
    assert found.reason.startswith(reason)


def test_members_that_disagree_are_refused_and_so_is_one_too_many() -> None:
    one, two = gang_pod("a", size=2), gang_pod("b", size=2)
    assert validate_pod_create(two, {}, {}, gang=[one]) == []
    (size,) = validate_pod_create(gang_pod("b", size=3), {}, {}, gang=[one])
    assert str(size) == f"metadata.annotations[{names.GANG_SIZE}]: is 3, and 2 in pod a of the gang g; write the same"
    (limit,) = validate_pod_create(gang_pod("b", timeout="5m"), {}, {}, gang=[one])
    assert (
        str(limit)
        == f"metadata.annotations[{names.GANG_TIMEOUT}]: is 300, and 60 in pod a of the gang g; write the same"
    )
    (full,) = validate_pod_create(gang_pod("c"), {}, {}, gang=[one, two])
    assert str(full) == f"metadata.annotations[{names.GANG}]: the gang g already has 2 members (a, b)"
    assert disagreement(gang_pod("c"), [one, ended(two)]) is None, "a finished member makes room for another"
    leaving = replace(two, metadata=replace(two.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    assert disagreement(gang_pod("c"), [one, leaving]) is None
    assert disagreement(gang_pod("c", gang="h"), [one, two]) is None


def test_a_pod_without_a_gpu_cannot_be_in_a_gang() -> None:
    plain = pod("p", container("app"), annotations={names.GANG: "g", names.GANG_SIZE: "2"})
    (found,) = validate_pod_create(plain, {}, {})
    assert (found.field, "asks for no GPU" in found.reason) == (f"metadata.annotations[{names.GANG}]", True)


def test_the_webhook_makes_the_gang_a_label_and_fixes_its_terms() -> None:
    made = mutate_pod(gang_pod("a"), {}, {})
    label = {"op": "add", "path": "/metadata/labels/elasticgpu.io~1gang", "value": "g"}
    assert made.index({"op": "add", "path": "/metadata/labels", "value": {}}) + 1 == made.index(label)
    with pytest.raises(InvalidDemand, match="gang-size"):
        mutate_pod(annotated(gang="g"), {}, {})
    for other in (gang_pod("a", size=3), gang_pod("a", gang="h"), gang_pod("a", timeout="5"), slice_pod("a")):
        assert validate_pod_update(gang_pod("a"), other)


def test_a_gang_waits_until_all_its_members_exist_and_were_asked_about() -> None:
    cache = cluster(nodes=2)
    first, second = gang_pod("a"), gang_pod("b")
    show(cache, first)
    assert verdict(cache, first) == GangVerdict({}, "gang g: 1 of 2 members exist")
    cache.pod_changed(second)
    assert verdict(cache, first) == GangVerdict({}, "gang g: the scheduler has not asked about pod b yet")
    cache.gangs.offer(second, ("n0", "n1"))
    assert set(verdict(cache, first).allocations) == {first.uid, second.uid}


def test_members_are_placed_with_each_other_in_mind_and_nothing_is_kept() -> None:
    cache = cluster(nodes=2)
    books, turnover = cache.ledger.snapshot(), cache.ranking.fleet().departures
    members = gang_pod("a"), gang_pod("b")
    show(cache, *members)
    found = verdict(cache, members[0])
    assert {allocation.node for allocation in found.allocations.values()} == {"n0", "n1"}
    pinned = verdict(cache, members[0], ("n1",))
    assert (pinned.allocations[members[0].uid].node, pinned.allocations[members[1].uid].node) == ("n1", "n0")
    assert cache.ledger.snapshot() == books
    assert cache.ranking.fleet().departures == turnover


def test_a_gang_that_fits_in_part_does_not_fit_and_says_who_is_stuck_where() -> None:
    cache = cluster(nodes=2)
    place(cache, slice_pod("busy", core=30), "n1")
    members = gang_pod("a"), gang_pod("b")
    show(cache, *members)
    found = verdict(cache, members[0])
    assert found.allocations == {}
    assert found.reason == "gang g: all 2 members exist, 1 fit at once; b has no room with 1 of the others placed"
    assert [(one.node, one.cards[0].reason) for one in found.refusals] == [
        ("n0", "is allocated whole"),
        ("n1", "is shared (30 % and 2560 MiB allocated)"),
    ]


def test_unlike_members_are_tried_in_other_places() -> None:
    """The big one fits on n1 only when the pinned small one, which the policy would have there, goes to n0."""
    cache = cluster(nodes=2)
    place(cache, slice_pod("busy", core=30, blocks=1), "n1")
    big, small = gang_pod("a", core=70), gang_pod("b", core=60)
    place(cache, slice_pod("more", core=35, blocks=1), "n0")
    show(cache, big, small)
    found = verdict(cache, small)
    assert {uid: allocation.node for uid, allocation in found.allocations.items()} == {big.uid: "n1", small.uid: "n0"}
    cache.gangs.offer(big, ("n0",))
    assert verdict(cache, small).allocations == {}


def test_cpu_is_counted_over_the_members_together() -> None:
    cache = cluster(nodes=1, cards=4)
    cache.node_changed(
        Node(metadata=ObjectMeta(name="n0"), status=NodeStatus(allocatable={"cpu": "5", "memory": "64Gi"}))
    )
    app = container("app", {names.GPU_CORE: 100})
    asks = replace(app, resources=ResourceRequirements(limits={names.GPU_CORE: 100}, requests={"cpu": "3"}))
    members = [replace(gang_pod(name), spec=replace(gang_pod(name).spec, containers=[asks])) for name in ("a", "b")]
    show(cache, *members, nodes=("n0",))
    found = verdict(cache, members[0], ("n0",))
    assert found.refusals[0].reason == "the node has too little CPU or memory left"


def test_a_lost_member_comes_back_beside_the_bound_ones_and_those_that_succeeded() -> None:
    cache = cluster(nodes=1, cards=3)
    early, again = gang_pod("early", size=3), gang_pod("again", size=3)
    place(cache, gang_pod("stays", size=3))
    show(cache, again, nodes=("n0",))
    assert verdict(cache, again, ("n0",)).reason == "gang g: 2 of 3 members exist"
    done = placed(early, cache.ranking.choose(cache.request(early), "n0", BINPACK))
    cache.pod_changed(replace(done, status=PodStatus(phase="Succeeded")))
    assert [gang.key for gang in cache.gangs.partial()] == ["default/g"]
    assert set(verdict(cache, again, ("n0",)).allocations) == {again.uid}
    show(cache, *(gang_pod(name, size=3) for name in ("x", "y")), nodes=("n0",))
    assert verdict(cache, again, ("n0",)).reason == "gang g: 4 members exist, its size is 3"


def test_an_earlier_run_that_succeeded_does_not_count_for_a_new_one() -> None:
    cache = cluster(nodes=1, cards=2)
    old = place(cache, gang_pod("old"))
    cache.pod_changed(replace(placed(gang_pod("old"), old), status=PodStatus(phase="Succeeded")))
    new = gang_pod("new")
    show(cache, new, nodes=("n0",))
    assert verdict(cache, new, ("n0",)).reason == "gang g: 1 of 2 members exist"


def test_explain_says_why_a_gang_waits() -> None:
    cache = cluster(nodes=1, cards=3)
    place(cache, slice_pod("busy", core=50))
    members = [gang_pod(name, size=4) for name in ("a", "b", "c", "d")]
    for member in members[:2]:
        cache.pod_changed(member)
    found = explain_pod(members[0], cache, ["n0"], BINPACK)
    assert found.lines()[0] == "pod default/a: waits: gang g: 2 of 4 members exist"
    for member in members[2:]:
        cache.pod_changed(member)
    assert explain_pod(members[0], cache, ["n0"], BINPACK).lines() == [
        "pod default/a: waits: gang g: all 4 members exist, 2 fit at once; c has no room with 2 of the others placed",
        "  container app asks for 1 whole card",
        "  gang g of 4 (deleted if bound only in part for 60 s): bound none; waiting a, b, c, d",
        "  node n0: container app asks for 1 whole card, 0 of 3 cards can take it",
        "    card 0 (GPU-n0-0) is shared (50 % and 2560 MiB allocated)",
        "    card 1 (GPU-n0-1) is allocated whole",
        "    card 2 (GPU-n0-2) is allocated whole",
    ]
    cache.pod_deleted("uid-busy")
    place(cache, gang_pod("a", size=4))
    lines = explain_pod(members[1], cache, ["n0"], BINPACK).lines()
    assert lines[0].endswith("all 4 members exist, 3 fit at once; d has no room with 2 of the others placed")
