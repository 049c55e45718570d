"""Each namespace gets a tenth of the extender's time for looks in vain, and all of its gangs have their turn."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.core.rests import LONG_SECONDS, REST, Rests
from egpu.core.waking import MAX_LOOKED_AT, would_fit
from egpu_base.api.kubernetes import Pod
from support.objects import BINPACK, cluster, container, gang_pod, pod

CARD = {names.GPU_CORE: 100}


class Times:
    """Each look costs `look` seconds of work, which pass on the clock too."""

    now = 100.0
    worked = 0.0
    look = 0.0

    def work(self) -> float:
        self.worked += self.look
        self.now += self.look
        return self.worked


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def rests(times: Times) -> Rests:
    return Rests(clock=lambda: times.now, work=times.work)


def in_vain(rests: Rests, times: Times, seconds: float, namespace: str = "ns") -> None:
    with rests.look(namespace):
        times.worked += seconds
        times.now += seconds


def test_short_looks_add_up(rests: Rests, times: Times) -> None:
    """A tenant with hundreds of gangs had the extender stand still for seconds, with looks that were short enough."""
    for _ in range(4):
        in_vain(rests, times, LONG_SECONDS / 4)
        assert rests.seconds("ns") == 0
    in_vain(rests, times, LONG_SECONDS / 4)
    assert rests.seconds("ns") == pytest.approx(REST * LONG_SECONDS * 5 / 4, rel=0.2)
    assert rests.seconds("other") == 0


def test_time_that_passes_pays_for_short_looks(rests: Rests, times: Times) -> None:
    for _ in range(100):
        in_vain(rests, times, LONG_SECONDS * 0.6)
        times.now += REST * LONG_SECONDS * 0.45  # pays for a part
        in_vain(rests, times, LONG_SECONDS * 0.6)
        assert rests.seconds("ns") == 0
        times.now += REST * LONG_SECONDS


def test_a_tenth_of_the_time_is_spent_in_vain(rests: Rests, times: Times) -> None:
    began = times.now
    for _ in range(1000):
        times.now += rests.seconds("ns")
        in_vain(rests, times, LONG_SECONDS * 0.9)
    assert times.worked / (times.now - began) == pytest.approx(1 / (1 + REST), rel=0.25)


def test_a_namespace_that_spends_nothing_more_is_forgotten(rests: Rests, times: Times) -> None:
    for number in range(1000):
        in_vain(rests, times, LONG_SECONDS / 2, f"ns{number}")
        times.now += REST * LONG_SECONDS
    assert len(rests._spent) <= 2


def never_fits(number: int) -> list[Pod]:
    """A gang of three whole cards, in a cluster of two."""
    return [gang_pod(f"g{number:02}-{part}", gang=f"g{number:02}", size=3) for part in "abc"]


def test_every_gang_of_a_namespace_has_its_turn_though_those_before_it_never_fit(rests: Rests, times: Times) -> None:
    """The first gangs used up the time of each look: a gang behind them was never looked at."""
    waiting = [each for number in range(9) for each in never_fits(number)]
    waiting += [gang_pod(f"g99-{part}", gang="g99") for part in "ab"]
    cache = cluster(nodes=1, cards=2)
    for each in waiting:
        cache.pod_changed(each)
    times.look = LONG_SECONDS / 2
    found, looks = list[Pod](), 0
    while not found and looks < 20:
        found = would_fit(waiting, cache, ["n0"], BINPACK, rests)
        times.now += rests.seconds("default")
        looks += 1
    assert [pod.name for pod in found] == ["g99-a", "g99-b"]
    assert 1 < looks < 10


def alone(name: str, asks: Mapping[str, int] = CARD, namespace: str = "default", **spec: Any) -> Pod:
    made = pod(name, container("app", asks), namespace=namespace)
    return replace(made, spec=replace(made.spec, **spec))


ELSEWHERE: Any = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}


@pytest.mark.parametrize(
    "before",
    [
        never_fits(0),
        [alone("a", namespace="a", node_selector={"zone": "none"})],
        [alone("a", namespace="a", affinity=ELSEWHERE)],
    ],
    ids=["gang", "selector", "affinity"],
)
@pytest.mark.parametrize(
    "last", [[alone("z")], [gang_pod(f"z-{part}", gang="z") for part in "ab"]], ids=["alone", "gang"]
)
def test_what_finds_no_room_silences_no_equal_pods_with_more_choice(
    rests: Rests, before: list[Pod], last: list[Pod]
) -> None:
    """Any tenant could keep all pods that ask for one whole card from being woken, by one gang that never fits."""
    cache = cluster(nodes=1, cards=2)
    for each in (*before, *last):
        cache.pod_changed(each)
    assert would_fit([*before, *last], cache, ["n0"], BINPACK, rests) == last


def test_a_namespace_with_hundreds_of_requests_uses_up_no_looks_of_others(rests: Rests) -> None:
    large = ({names.GPU_MEMORY: 100_000 + number} for number in range(MAX_LOOKED_AT))
    many = [alone(f"a{number}", asks, namespace="a") for number, asks in enumerate(large)]
    cache, last = cluster(nodes=1, cards=1), alone("z", namespace="b")
    assert would_fit([*many, last], cache, ["n0"], BINPACK, rests) == [last]
    assert would_fit([*many, alone("z", namespace="a")], cache, ["n0"], BINPACK, rests) == []
