"""Which pods are of a gang, by what was seen of them, at the bounds of what they may say."""

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.core.gangs import membership
from egpu.core.gangs.membership import Gangs, disagreement, gang_terms
from egpu_base.api.kubernetes import Pod, PodStatus
from egpu_base.errors import InvalidDemand
from support.objects import ended, gang_pod


def bound(pod: Pod, node: str = "n0") -> Pod:
    return replace(pod, spec=replace(pod.spec, node_name=node))


def of_age(pod: Pod, created: str | None) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, creation_timestamp=created))


def saying(pod: Pod, **changed: str) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, annotations={**pod.annotations, **changed}))


@pytest.mark.parametrize("size", ["1", "512", "000000512"])
def test_the_smallest_and_the_largest_gang(size: str) -> None:
    terms = gang_terms(saying(gang_pod("a"), **{names.GANG_SIZE: size}))
    assert terms is not None
    assert terms.size == int(size)


def test_a_size_of_ten_digits_is_refused_whatever_it_means() -> None:
    with pytest.raises(InvalidDemand, match="is not a number of pods"):
        gang_terms(saying(gang_pod("a"), **{names.GANG_SIZE: "0000000512"}))


@pytest.mark.parametrize(("text", "seconds"), [("1", 1), ("604800", 604800), ("168h", 604800)])
def test_the_shortest_and_the_longest_time_limit(text: str, seconds: int) -> None:
    terms = gang_terms(gang_pod("a", timeout=text))
    assert terms is not None
    assert terms.timeout_seconds == seconds


def test_a_second_more_than_the_longest_is_refused_and_the_longest_named() -> None:
    with pytest.raises(InvalidDemand, match="from 1 s to 604800 s"):
        gang_terms(gang_pod("a", timeout="604801"))


def test_a_member_that_cannot_be_read_hides_no_other() -> None:
    broken = saying(gang_pod("a"), **{names.GANG_SIZE: "many"})
    found = disagreement(gang_pod("c", size=3), [broken, gang_pod("b", size=2)])
    assert found is not None
    assert "is 3, and 2 in pod b of the gang g" in str(found)


def test_an_offer_is_over_when_its_pod_is_bound_or_ends_or_goes() -> None:
    for over in (bound, ended):
        gangs = Gangs()
        gangs.pod_changed(gang_pod("a"))
        gangs.offer(gang_pod("a"), ["n0"])
        gangs.pod_changed(gang_pod("a"))
        assert gangs.offered("uid-a") == ("n0",), "waiting still"
        gangs.pod_changed(over(gang_pod("a")))
        assert gangs.offered("uid-a") is None
        gangs.offer(gang_pod("a"), ["n0"])
        gangs.pod_deleted("uid-a")
        assert gangs.offered("uid-a") is None


def test_a_deleted_pod_is_no_member_and_those_left_stay() -> None:
    gangs = Gangs()
    for name in ("a", "b"):
        gangs.pod_changed(gang_pod(name))
    gangs.pod_deleted("uid-a")
    gangs.pod_deleted("uid-a")
    gang = gangs.of(gang_pod("b"))
    assert gang is not None
    assert [pod.name for pod in gang.waiting] == ["b"]
    gangs.pod_deleted("uid-b")
    gang = gangs.of(gang_pod("c"))
    assert gang is not None
    assert [pod.name for pod in gang.waiting] == ["c"], "a pod that was not shown yet is of its gang"
    assert gang.key == "default/g"


def test_the_oldest_offers_are_forgotten_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MAX_OFFERS", 2)
    gangs = Gangs()
    for name in ("a", "b", "a", "c"):
        gangs.offer(gang_pod(name), ["n0"])
    assert [gangs.offered(f"uid-{name}") for name in "abc"] == [("n0",), None, ("n0",)]


def test_partial_gangs_are_found_behind_whole_ones_and_unreadable_members() -> None:
    gangs = Gangs()
    whole = [bound(gang_pod(name, gang="whole")) for name in ("w1", "w2")]
    single = gang_pod("s", gang="single")
    unreadable = saying(gang_pod("a", gang="part"), **{names.GANG_SIZE: "many"})
    part = [unreadable, bound(gang_pod("b", gang="part")), gang_pod("c", gang="part")]
    for pod in (*whole, single, *part):
        gangs.pod_changed(pod)
    assert [gang.key for gang in gangs.partial()] == ["default/part"]


def test_a_gang_of_two_can_be_partial() -> None:
    gangs = Gangs()
    for pod in (bound(gang_pod("a")), gang_pod("b")):
        gangs.pod_changed(pod)
    assert [gang.key for gang in gangs.partial()] == ["default/g"]


def test_members_come_by_age_then_by_name_and_without_an_age_first() -> None:
    gangs = Gangs()
    ages = {"a": "2026-01-02T00:00:00Z", "b": "2026-01-01T00:00:00Z", "d": None, "c": None}
    for name, created in ages.items():
        gangs.pod_changed(of_age(gang_pod(name, size=4), created))
    gang = gangs.of(of_age(gang_pod("a", size=4), ages["a"]))
    assert gang is not None
    assert [pod.name for pod in gang.waiting] == ["c", "d", "b", "a"]


def test_only_members_that_succeeded_count_as_done() -> None:
    gangs = Gangs()
    done = replace(gang_pod("s", size=3), status=PodStatus(phase="Succeeded"))
    for pod in (bound(gang_pod("a", size=3)), ended(gang_pod("f", size=3)), done):
        gangs.pod_changed(pod)
    gang = gangs.of(gang_pod("b", size=3))
    assert gang is not None
    assert (gang.succeeded, gang.existing) == (1, 3)


def test_a_member_whose_cards_are_held_counts_as_bound_before_the_watch_shows_it() -> None:
    gangs = Gangs(is_held=lambda uid: uid == "uid-b")
    for name in ("a", "b"):
        gangs.pod_changed(gang_pod(name))
    gang = gangs.of(gang_pod("a"))
    assert gang is not None
    assert ([pod.name for pod in gang.bound], [pod.name for pod in gang.waiting]) == (["b"], ["a"])
