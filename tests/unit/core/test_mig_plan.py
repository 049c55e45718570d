"""A geometry for a job mix: all of it where one card could hold it, the rest named."""

from egpu.api.mig import InstancePlace, Mig
from egpu.core.mig import overlapping
from egpu.core.mig_plan import InstanceAsked, plan
from support.mig import mig_profiles


def card(model: str = "A100-40G", *own: InstancePlace) -> Mig:
    return Mig(profiles=mig_profiles(model), own=list(own))


def asked(*profiles: str) -> list[InstanceAsked]:
    return [InstanceAsked(profile) for profile in profiles]


def test_small_ones_come_after_large_ones_whatever_the_order_and_whatever_is_there() -> None:
    there = InstancePlace(profile="1g.5gb", start=2, size=1)
    mix = asked("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "3g.20gb")
    for order in (mix, mix[::-1]):
        found = plan({"a": card("A100-40G", there), "b": card()}, order)
        assert not found.left
        assert sorted(place.profile for places in found.cards.values() for place in places) == sorted(
            one.profile for one in mix
        )
        assert not any(overlapping(places) for places in found.cards.values())


def test_amounts_get_the_smallest_that_has_them_on_each_model() -> None:
    small, large = InstanceAsked(core=14, memory_mib=9000), InstanceAsked(core=14, memory_mib=17_000)
    for model, profiles in (("A100-40G", {"1g.10gb", "3g.20gb"}), ("A100-80G", {"1g.10gb", "1g.20gb"})):
        found = plan({"a": card(model)}, [small, large])
        assert {place.profile for place in found.cards["a"]} == profiles
        assert not found.left


def test_what_no_card_has_room_for_is_named() -> None:
    found = plan({"a": card()}, asked("7g.40gb", "7g.40gb", "1g.5gb", "7g.80gb"))
    assert [str(place) for place in found.cards["a"]] == ["7g.40gb at 0"]
    assert found.left == {"7g.40gb": 1, "1g.5gb": 1, "7g.80gb": 1}
    assert plan({}, asked("1g.5gb")).left == {"1g.5gb": 1}
