"""Gangs that may have more members than their size, and members that another scheduler places."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.core.gangs.membership import Gang, Gangs, disagreement
from egpu_base.api.kubernetes import Pod, PodStatus
from egpu_base.errors import InvalidDemand
from support.neighbours import grouped
from support.objects import gang_pod

POD_GROUP = "scheduling.x-k8s.io/pod-group"


def member(name: str, size: str = "2+", *, node: str = "", created: str = "", timeout: str = "never") -> Pod:
    one = gang_pod(name, "pod-group.g", timeout=timeout)
    annotations = {**one.annotations, names.GANG_SIZE: size}
    metadata = replace(one.metadata, annotations=annotations, creation_timestamp=created or None)
    return replace(one, metadata=metadata, spec=replace(one.spec, node_name=node))


def gang(pod: Pod, *others: Pod) -> Gang:
    gangs = Gangs()
    for one in (pod, *others):
        gangs.pod_changed(one)
    found = gangs.of(pod)
    assert found is not None
    return found


def cardless(name: str, phase: str = "") -> Pod:
    one = grouped(name, {POD_GROUP: "g"}, limits={})
    return replace(one, status=PodStatus(phase=phase))


def waiting(found: Gang) -> list[str]:
    return sorted(pod.name for pod in found.waiting)


def test_only_as_many_as_the_size_are_placed_at_once_and_the_asked_one_is_among_them() -> None:
    everyone = [member(name, created=f"2026-01-0{at + 1}T00:00:00Z") for at, name in enumerate("abcd")]
    found = gang(everyone[3], *everyone[:3])
    assert (waiting(found), found.later, found.existing, found.problem()) == (["a", "d"], 2, 4, "")


def test_members_beyond_the_size_follow_one_by_one() -> None:
    found = gang(member("c"), member("a", node="n0"), member("b", node="n0"), member("d"))
    assert (waiting(found), found.partial, found.problem()) == (["c"], False, "")


def test_a_gang_with_too_few_members_waits() -> None:
    assert gang(member("a", "3+"), member("b", "3+")).problem() == "gang pod-group.g: 2 of 3 members exist"


def test_pods_without_cards_count_as_placed_until_they_fail_or_go() -> None:
    gangs = Gangs()
    gangs.pod_changed(cardless("head"))
    gangs.pod_changed(member("a"))
    found = gangs.of(member("a"))
    assert found is not None
    assert (found.problem(), waiting(found)) == ("", ["a"])
    gangs.pod_changed(cardless("head", phase="Failed"))
    found = gangs.of(member("a"))
    assert found is not None
    assert found.problem() == "gang pod-group.g: 1 of 2 members exist"


def test_a_pod_without_cards_of_another_group_does_not_count() -> None:
    assert gang(member("a"), grouped("head", {POD_GROUP: "other"}, limits={})).existing == 1
    assert Gangs().partial() == []


def test_a_deleted_pod_without_cards_is_forgotten() -> None:
    gangs = Gangs()
    gangs.pod_changed(cardless("head"))
    gangs.pod_deleted(cardless("head").uid)
    found = gangs.of(member("a"))
    assert found is not None
    assert found.existing == 1


def test_a_gang_of_fixed_size_counts_no_pods_without_cards() -> None:
    gangs = Gangs()
    gangs.pod_changed(grouped("head", {POD_GROUP: "g"}, limits={}))
    found = gangs.of(gang_pod("a", "pod-group.g"))
    assert found is not None
    assert found.existing == 1


def test_the_size_of_the_youngest_member_counts() -> None:
    old = [member(name, "2+", created="2026-01-01T00:00:00Z") for name in "ab"]
    young = member("c", "3+", created="2026-01-02T00:00:00Z")
    assert waiting(gang(old[0], old[1], young)) == ["a", "b", "c"]
    assert waiting(gang(young, *old)) == ["a", "b", "c"]


def test_members_with_gates_come_last() -> None:
    gated = replace(member("b"), spec=replace(member("b").spec, scheduling_gates=[{"name": "kueue"}]))
    assert waiting(gang(member("a"), gated, member("c"))) == ["a", "c"]


@pytest.mark.parametrize(("bound", "partial"), [(0, False), (1, True), (2, False)])
def test_a_gang_is_bound_in_part_while_less_than_its_size_is(bound: int, partial: bool) -> None:
    members = [member(str(at), node="n0" if at < bound else "") for at in range(3)]
    gangs = Gangs()
    for one in members:
        gangs.pod_changed(one)
    assert bool(gangs.partial()) == partial


def test_members_that_succeeded_keep_a_gang_whole() -> None:
    done = replace(member("c", node="n0"), status=PodStatus(phase="Succeeded"))
    members = (member("a"), member("b", node="n0"), done)
    assert waiting(gang(*members)) == ["a"]
    assert not gang(*members).partial


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("+", "is not a number of pods"),
        ("2++", "is not a number of pods"),
        ("0+", "is not a number of pods from 1 to 512, with or without `[+]`"),
    ],
)
def test_a_size_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(InvalidDemand, match=why):
        Gangs().of(member("a", text))


def sizes(first: str, second: str) -> Callable[[], InvalidDemand | None]:
    return lambda: disagreement(member("a", first), [member("b", second)])


def test_open_sizes_may_differ_and_open_and_fixed_ones_may_not() -> None:
    assert sizes("3+", "2+")() is None
    assert "is 2, and 2+ in pod b" in str(sizes("2", "2+")())
    assert disagreement(member("c"), [member("a"), member("b")]) is None
    limits = disagreement(member("c", "2"), [member("a", "2", timeout="60")])
    assert "is never, and 60 in pod a" in str(limits)
