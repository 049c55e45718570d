"""What people read when a pod fits nowhere, and whom kube-scheduler would evict."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from egpu_base.api.kubernetes import Node, Pod
from egpu_sim.cluster.scheduler import preemption
from egpu_sim.cluster.scheduler.filters import Filters
from egpu_sim.cluster.scheduler.messages import MAX_EVENT_CHARACTERS, event_text, unschedulable
from egpu_sim.cluster.scheduler.preemption import NO_VICTIMS, NOT_HELPFUL, Victims
from egpu_sim.cluster.scheduler.scoring import extender_score, score
from egpu_sim.cluster.scheduler.usage import Usage


def test_reasons_are_counted_and_sorted_as_texts():
    reasons = {f"n{number}": ("Insufficient cpu",) for number in range(10)}
    reasons |= {"x": ("node(s) were unschedulable", "Too many pods"), "y": ("Too many pods",)}
    said = "0/12 nodes are available: 1 node(s) were unschedulable, 10 Insufficient cpu, 2 Too many pods. then"
    assert unschedulable(12, reasons, after="then") == said
    assert unschedulable(1, {}) == "0/1 nodes are available:"


@pytest.mark.parametrize(
    ("message", "formatted"),
    [
        ("60 % and 1024 MiB", "60 %!a(MISSING)nd 1024 MiB"),
        ("100%", "100%!(NOVERB)"),
        ("100%% of it", "100% of it"),
        ("%5.2f", "%!f(MISSING)"),
        ("no sign", "no sign"),
    ],
)
def test_an_event_goes_through_a_format(message: str, formatted: str):
    assert event_text(message) == formatted


def test_an_event_is_cut():
    assert len(event_text("x" * 2000)) == MAX_EVENT_CHARACTERS
    assert event_text("x" * 2000).endswith(" ...")
    assert event_text("x" * MAX_EVENT_CHARACTERS) == "x" * MAX_EVENT_CHARACTERS


def pod(name: str, cpu: int, *, priority: int = 0) -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    body: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {"name": name, "uid": name},
        "spec": {"priority": priority, "containers": [container]},
    }
    return msgspec.convert(body, Pod)


def node(name: str, cpu: int = 4) -> Node:
    status = {"allocatable": {"cpu": str(cpu), "memory": "8Gi", "pods": "10"}, "conditions": [READY]}
    return msgspec.convert({"kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status}, Node)


READY = {"type": "Ready", "status": "True"}


def found(preemptor: Pod, placed: dict[str, list[Pod]]) -> preemption.Found:
    usage = Usage()
    for name, pods in placed.items():
        for one in pods:
            usage.hold(one, name)
    states = {name: usage.on(node(name)) for name in placed}
    return preemption.find(Filters(preemptor, states), states, states)


def test_the_least_important_go_and_no_more_than_needed():
    placed = {"n": [pod("low", 2, priority=1), pod("lower", 1), pod("equal", 1, priority=5)]}
    assert found(pod("new", 1, priority=5), placed).candidates == (Victims("n", (placed["n"][1],)),)


def test_nobody_goes_where_it_would_not_help():
    placed = {"full": [pod("equal", 4, priority=5)], "tight": [pod("low", 1), pod("high", 3, priority=9)]}
    said = found(pod("new", 3, priority=5), placed).message
    assert said == f"0/2 nodes are available: 1 Insufficient cpu, 1 {NO_VICTIMS}."
    states = {"n": Usage().on(node("n"))}
    nowhere = preemption.find(Filters(pod("new", 9), states), states, [])
    assert nowhere.message == f"0/1 nodes are available: 1 {NOT_HELPFUL}."


def test_where_the_sums_have_room_kube_scheduler_gives_up():
    """A card is missing, not CPU: nobody of the node has to go, as far as kube-scheduler sees."""
    assert (
        found(pod("new", 1, priority=5), {"n": [pod("low", 1)]}).message
        == 'expected at least one victim pod on node "n"'
    )


def test_the_best_node_has_the_least_important_victims():
    high, low, lower = pod("h", 1, priority=3), pod("l", 1, priority=2), pod("m", 1, priority=1)
    one, two, three = Victims("a", (high,)), Victims("b", (low, lower)), Victims("c", (low, lower, lower))
    assert preemption.best([one, three, two]) == two


def test_usage_counts_a_pod_once_and_gives_everything_back():
    usage = Usage()
    one = pod("1", 1)
    usage.hold(one, "n")
    usage.hold(one, "n")
    assert usage.on(node("n")).used["cpu"] == 1
    usage.hold(one, "m")  # bound elsewhere than assumed: the watch is right
    assert usage.on(node("n")).used["cpu"] == 0
    assert usage.on(node("m")).used["cpu"] == 1
    assert usage.release("1")
    assert not usage.release("1")
    assert not any(usage.on(node("m")).used.values())


def test_what_was_promised_is_taken_for_others_of_no_higher_priority():
    usage = Usage()
    usage.promise(pod("preemptor", 2, priority=5), "n")
    for priority, taken in ((4, 2), (5, 2), (6, 0)):
        assert usage.seen_by(pod("other", 1, priority=priority), node("n")).used.get("cpu", Fraction(0)) == taken
    assert usage.seen_by(pod("preemptor", 2, priority=5), node("n")).used == {}
    assert usage.seen_by(pod("other", 1), node("elsewhere")).used == {}
    usage.hold(pod("preemptor", 2, priority=5), "m")
    assert usage.promised("preemptor") == ""
    assert usage.seen_by(pod("other", 1), node("n")).used.get("cpu", Fraction(0)) == 0


def test_a_node_that_is_left_freer_and_more_even_scores_more():
    requests = {"cpu": Fraction(1), "memory": Fraction(2**31)}
    empty = score(node("n"), requests=requests, used={})
    assert empty == 75 + 100
    assert score(node("n"), requests=requests, used={"cpu": Fraction(1), "memory": Fraction(2**31)}) == 50 + 100
    assert score(node("n"), requests=requests, used={"cpu": Fraction(2)}) == 50 + 75
    assert extender_score(10, weight=10) == 1000
