"""Who is not known yet has few places, and one address has few of these."""

import resource

import pytest

from egpu_base.http.strangers import OWN_DESCRIPTORS, Strangers, places_for


class Callers:
    """Callers by name, and who was turned out."""

    def __init__(self, strangers: Strangers) -> None:
        self.strangers = strangers
        self.dropped: list[str] = []

    def add(self, address: str, *names: str) -> list[int]:
        return [self.strangers.add(address, lambda name=name: self.dropped.append(name)) for name in names]


def test_the_oldest_goes_when_there_is_no_more_room() -> None:
    callers = Callers(Strangers(at_most=3, per_address=3))
    callers.add("192.0.2.1", *"abcde")
    assert (callers.dropped, len(callers.strangers)) == (["a", "b"], 3)


def test_an_address_turns_out_its_own_only() -> None:
    callers = Callers(Strangers(at_most=4, per_address=2))
    callers.add("192.0.2.1", "ann")
    callers.add("192.0.2.66", *(f"eve {number}" for number in range(100)))
    assert "ann" not in callers.dropped
    assert len(callers.strangers) == 3


def test_when_many_addresses_fill_it_the_one_with_most_gives_way() -> None:
    callers = Callers(Strangers(at_most=4, per_address=3))
    callers.add("192.0.2.66", "eve 1", "eve 2", "eve 3")
    callers.add("192.0.2.1", "ann")
    callers.add("192.0.2.2", "bob")
    assert callers.dropped == ["eve 1"]


@pytest.mark.parametrize(
    ("one", "other"),
    [("2001:db8::1", "2001:db8::ffff:1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("fe80::1%eth0", "fe80::2%eth0")],
)
def test_a_site_is_one_address(one: str, other: str) -> None:
    callers = Callers(Strangers(at_most=9, per_address=1))
    callers.add(one, "first")
    callers.add(other, "second")
    callers.add("2001:db8:0:1::1", "elsewhere")
    assert callers.dropped == ["first"]


def test_this_machine_may_have_all_the_room() -> None:
    callers = Callers(Strangers(at_most=9, per_address=1))
    callers.add("127.0.0.1", *"abcd")
    callers.add("::1", *"efgh")
    assert callers.dropped == []


def test_who_is_known_has_its_place_no_more() -> None:
    callers = Callers(Strangers(at_most=1, per_address=1))
    (ann,) = callers.add("192.0.2.1", "ann")
    callers.strangers.remove(ann)
    callers.add("192.0.2.1", "eve", "eve again")
    callers.strangers.remove(ann)  # once more: nothing
    assert (callers.dropped, len(callers.strangers)) == (["eve"], 1)


def test_there_are_no_more_places_than_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    assert places_for(100, descriptors=2) == 100
    assert limits == [(1024, 4096)], "enough as it is"
    assert places_for(1000, descriptors=2) == 1000
    assert limits[-1] == (2000 + OWN_DESCRIPTORS, 4096)
    assert places_for(20_000, descriptors=4) == (4096 - OWN_DESCRIPTORS) // 4
    assert limits[-1] == (4096, 4096)
