"""Which servers a lease gets cards of, how many leases there may be, and what is said when there is no place."""

import pytest

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.core.leasing import pool as pool_module
from egpu.core.leasing.pool import Pool
from egpu.core.leasing.state import Lease, Part
from egpu.core.placement.ledger import Holder
from egpu.core.policies.registry import Policies
from egpu_base.errors import DoesNotFit, Refused, Unavailable
from support.leases import CARD_MIB, cards, grant, obey, report


def pool_of(*servers: str, count: int = 1) -> Pool:
    pool = Pool("epoch")
    for server in servers:
        pool.report(report(server, count), 0.0)
    pool.changed.clear()
    return pool


def test_a_lease_is_all_that_was_asked_and_lives_for_its_time() -> None:
    pool = pool_of("one")
    version = pool.servers["one"].version
    made = grant(pool, "l", core=40, memory_mib=300, holder="pod:a", peer="peer", request="7", now=5.0)
    (share,) = made.parts["one"].wanted
    assert (share.uuid, share.index, share.minor, share.core, share.memory_mib) == ("GPU-one-0", 0, 0, 40, 300)
    assert made == Lease(
        id="l", holder="pod:a", peer="peer", request="7", key="key of l", state="granted",
        parts={"one": Part((share,), version + 1)}, expected_parts=1, deadline=35.0, since=5.0,
    )  # fmt: skip
    assert pool.leases == {"l": made}
    assert pool.changed == {"one"}
    assert pool.ledger.snapshot()["one", "GPU-one-0"][:2] == (60, CARD_MIB - 300)
    held = ContainerAllocation(provisioner=names.QGPU, mode="shared", cards=(share,))
    assert pool.ledger.holders() == {Holder("lease", "l@one"): PodAllocation(node="one", containers={"lease": held})}


def test_the_same_request_of_the_same_peer_is_answered_with_its_lease_until_that_ends() -> None:
    pool = pool_of("one")
    first = grant(pool, "a", memory_mib=100, core=10, request="1")
    assert grant(pool, "b", memory_mib=100, core=10, request="1", now=3.0) == first
    assert grant(pool, "c", memory_mib=100, core=10, request="2").id == "c"
    assert grant(pool, "d", memory_mib=100, core=10, request="1", peer="other").id == "d"
    obey(pool, "one")
    assert grant(pool, "e", memory_mib=100, core=10, request="1").id == "a", "active, as when it was only granted"
    pool.end("a", "released")
    assert grant(pool, "f", memory_mib=100, core=10, request="1").id == "f"
    assert sorted(pool.leases) == ["a", "c", "d", "f"]


def test_a_holder_has_so_many_leases_and_another_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MAX_LEASES_PER_HOLDER", 2)
    pool = pool_of("one")
    for lease in "ab":
        grant(pool, lease, core=1, memory_mib=1)
    with pytest.raises(Refused, match="h has 2 leases"):
        grant(pool, "c", core=1, memory_mib=1)
    assert grant(pool, "d", core=1, memory_mib=1, holder="other").id == "d"


def test_the_pool_has_so_many_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MAX_LEASES", 2)
    pool = pool_of("one")
    for lease in "ab":
        grant(pool, lease, core=1, memory_mib=1, holder=lease)
    with pytest.raises(Refused, match="the pool has 2 leases"):
        grant(pool, "c", core=1, memory_mib=1, holder="c")


def test_the_programs_own_machine_comes_first_and_then_the_fastest_link() -> None:
    for host, links, chosen in (("host-b", (3, 1, 2), "b"), ("host-z", (1, 2, 3), "c"), ("", (2, 3, 1), "b")):
        pool = Pool("epoch")
        for server, link in zip("abc", links, strict=True):
            pool.report(report(server, host=f"host-{server}", link_mbps=link), 0.0)
        assert grant(pool, "l", host=host).servers == (chosen,)


def test_servers_that_are_as_good_come_by_name() -> None:
    pool = pool_of("x", "c", "b", "a")
    assert grant(pool, "l", 4).servers == ("x", "a", "b", "c"), "the policy prefers the one that it knew first"


def test_a_program_that_does_not_say_where_it_is_is_on_no_servers_machine() -> None:
    pool = Pool("epoch")
    pool.report(report("near", host="", link_mbps=1), 0.0)
    pool.report(report("fast", host="host-f", link_mbps=2), 0.0)
    assert grant(pool, "l").servers == ("fast",)


def test_one_server_with_room_for_all_is_better_than_several_nearer_ones() -> None:
    pool = Pool("epoch")
    pool.report(report("near", 2, host="here", link_mbps=9), 0.0)
    pool.report(report("far", 3, link_mbps=1), 0.0)
    made = grant(pool, "l", 3, host="here")
    assert {server: len(part.wanted) for server, part in made.parts.items()} == {"far": 3}


def test_what_no_server_has_alone_comes_of_as_few_as_the_order_gives_each_with_all_it_has() -> None:
    pool = Pool("epoch")
    for server, count, link in (("slow", 4, 1), ("fast", 2, 9), ("middle", 3, 5)):
        pool.report(report(server, count, link_mbps=link), 0.0)
    grant(pool, "busy", core=100, holder="other")
    made = grant(pool, "l", 7, core=100)
    assert {server: len(part.wanted) for server, part in made.parts.items()} == {"fast": 1, "middle": 3, "slow": 3}
    assert made.servers == ("fast", "middle", "slow")
    assert made.expected_parts == 3
    assert len({share.uuid for part in made.parts.values() for share in part.wanted}) == 7


def test_of_the_last_server_only_what_is_left_is_taken() -> None:
    pool = pool_of("a", "b", count=3)
    made = grant(pool, "l", 4)
    assert [len(part.wanted) for part in made.parts.values()] == [3, 1]


def test_a_lease_spans_so_many_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MAX_PARTS", 3)
    pool = pool_of("a", "b", "c", "d")
    assert grant(pool, "l", 3).servers == ("a", "b", "c")
    pool.end("l", "released")
    for server in "abc":
        obey(pool, server)
    with pytest.raises(DoesNotFit, match="a: has room for some of the cards, but not for all"):
        grant(pool, "m", 4)


def test_no_place_says_of_each_server_why() -> None:
    pool = pool_of("a", "b")
    grant(pool, "busy", core=80)
    with pytest.raises(DoesNotFit) as one:
        grant(pool, "l", 2, core=60, memory_mib=100)
    said = str(one.value)
    assert said.startswith("no room for 2 × 60 % and 100 MiB now: a: card 0 has 20 % of compute free, 60 % needed;")
    assert said.endswith("; b: has room for some of the cards, but not for all")
    assert pool.leases.keys() == {"busy"}


@pytest.mark.parametrize(
    ("servers", "ending"), [(3, "s2: has room"), (4, "; and 1 servers more"), (11, "; and 8 serv")]
)
def test_of_many_servers_three_say_why(servers: int, ending: str) -> None:
    pool = pool_of(*(f"s{number:x}" for number in range(servers)))
    with pytest.raises(DoesNotFit) as none:
        grant(pool, "l", 12)
    said = str(none.value)
    assert ending in said
    assert said.count("has room for some") == 3
    assert ("servers more" in said) == (servers > 3)


def test_without_a_server_that_is_what_is_said() -> None:
    with pytest.raises(DoesNotFit, match="no server is connected to this pool now"):
        grant(Pool("epoch"), "l")


def test_where_servers_are_away_it_is_worth_asking_again() -> None:
    pool = pool_of("here", *(f"s{number}" for number in range(9, 0, -1)))
    for number in range(1, 10):
        pool.server_away(f"s{number}", 1.0)
    assert grant(pool, "fits").servers == ("here",)
    with pytest.raises(Unavailable) as none:
        grant(pool, "l", core=90)
    said = str(none.value)
    assert said.endswith("; s1, s2, s3, s4, s5, s6, s7, s8 may be back soon")
    assert "here: " in said
    pool.server_away("here", 1.0)
    with pytest.raises(Unavailable, match=r"^no server is connected to this pool now; here, s1"):
        grant(pool, "l")


def test_a_server_that_is_away_gives_nothing_out_though_its_cards_are_free() -> None:
    pool = pool_of("a", "b", count=2)
    pool.server_away("a", 1.0)
    assert grant(pool, "l").servers == ("b",)
    assert not pool.ledger.healthy[pool.ledger.row("a")].any()
    assert [card.healthy for card in pool.ledger.cards("a")] == [False, False]
    assert pool.ledger.cards("b") == cards("b", 2)


def test_without_a_word_about_policies_the_fullest_card_is_taken() -> None:
    pool = pool_of("one", count=2)
    for lease in ("a", "b"):
        (share,) = grant(pool, lease, core=20).parts["one"].wanted
        assert share.index == 0
    spread = Pool("epoch", Policies.named("spread", "spread"))
    spread.report(report("one", 2), 0.0)
    assert [grant(spread, lease, core=20).parts["one"].wanted[0].index for lease in "ab"] == [0, 1]


def test_every_request_counts_once_in_the_job_mix_by_its_peer_and_number() -> None:
    pool = pool_of("one")
    for lease, peer, request in (("a", "p", "1"), ("b", "p", "2"), ("c", "q", "1")):
        grant(pool, lease, core=10, memory_mib=100, peer=peer, request=request)
    ((shape, weight),) = pool.ranking.learned.mix().weights.items()
    assert (shape.cards, shape.core_milli, shape.card_memory_mib, weight) == (1, 100, 100, 3.0)
    for _ in range(2):
        with pytest.raises(DoesNotFit):
            grant(pool, "d", core=90, memory_mib=100, request="4")
    assert pool.ranking.learned.arrivals == 4, "a program that asks again is one"
