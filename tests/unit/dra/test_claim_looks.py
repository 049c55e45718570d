"""How soon claims that found no cards are looked at again."""

import pytest

from egpu.apps.extender.claim_looks import COUNTS_SECONDS, ClaimLooks
from egpu.core.rests import LONG_SECONDS, REST
from egpu_base.errors import DoesNotFit


class Times:
    now = 100.0
    worked = 0.0


def in_vain(looks: ClaimLooks, times: Times, seconds: float, *, namespace: str = "ns", gang: str = "") -> None:
    def work() -> None:
        with looks.look(namespace, gang):
            times.worked += seconds
            raise DoesNotFit("no room")

    with pytest.raises(DoesNotFit):
        work()


def made() -> tuple[ClaimLooks, Times]:
    times = Times()
    return ClaimLooks(clock=lambda: times.now, work=lambda: times.worked), times


def test_a_namespace_rests_after_a_long_look_in_vain() -> None:
    looks, times = made()
    in_vain(looks, times, LONG_SECONDS / 2)
    assert looks.rest_seconds("ns") == 0
    times.now += REST * LONG_SECONDS
    in_vain(looks, times, 2.0)
    assert looks.rest_seconds("ns") == REST * 2.0
    assert looks.rest_seconds("another") == 0, "other tenants do not wait"
    times.now += REST * 2.0
    assert looks.rest_seconds("ns") == 0


def test_a_long_look_that_finds_cards_makes_nobody_wait() -> None:
    looks, times = made()
    with looks.look("ns", "ns/g"):
        times.worked += 2.0
    assert looks.rest_seconds("ns") == 0
    assert looks.why_not("ns/g") == ""


def test_a_look_counts_for_all_members_of_a_gang_until_something_changes() -> None:
    looks, times = made()
    for changes in (looks.made_room, lambda: looks.changed("ns/g")):
        in_vain(looks, times, 0.0, gang="ns/g")
        assert looks.why_not("ns/g") == "no room"
        assert looks.why_not("ns/other") == ""
        changes()
        assert looks.why_not("ns/g") == ""
    in_vain(looks, times, 0.0, gang="ns/g")
    times.now += COUNTS_SECONDS
    assert looks.why_not("ns/g") == ""
