"""A server is believed about its own cards and leases, and about nothing else."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api.allocation import CardShare
from egpu.core.leasing.belief import MAX_CARDS, believed
from egpu.core.leasing.pool import MAX_LEASES, MAX_LEASES_PER_HOLDER, MAX_LEASES_PER_PEER, Pool
from egpu.core.leasing.records import LeaseRecord, Report, RunningLease, lease_name
from egpu.core.leasing.state import Lease
from egpu.core.placement.ledger import Card
from egpu_base.errors import Refused
from support import leases


def share(server: str, index: int = 0, *, core: int = 1, memory_mib: int = 1) -> CardShare:
    return CardShare(uuid=f"GPU-{server}-{index}", index=index, minor=index, core=core, memory_mib=memory_mib)


def record(key: str, *cards: CardShare, part: int = 0, parts: int = 1) -> LeaseRecord:
    return LeaseRecord(
        lease=lease_name(key), holder="h", peer="client/eve", request=key, key=key, part=part, parts=parts, cards=cards
    )


def take(pool: Pool, report: Report) -> tuple[str, ...]:
    """The report as a broker takes it in; the leases that it did not believe."""
    report, doubted = believed(report, pool, max_leases=MAX_LEASES)
    pool.report(report, 0.0)
    return doubted


def granted(pool: Pool, key: str = "secret", count: int = 1) -> str:
    return leases.grant(pool, lease_name(key), count, key=key).id


def test_a_server_without_cards_has_no_leases_and_fills_no_pool() -> None:
    pool = Pool("e")
    take(pool, leases.report("honest", 1))
    made_up = [leases.running(record(f"made up {number}", share("eve"))) for number in range(MAX_LEASES)]
    assert len(take(pool, leases.report("eve", 0, made_up))) == MAX_LEASES
    assert pool.leases == {}
    assert granted(pool) in pool.leases


def test_what_a_server_makes_up_fits_on_its_cards() -> None:
    pool = Pool("e")
    made_up = [leases.running(record(f"made up {number}", share("eve"))) for number in range(500)]
    assert len(take(pool, leases.report("eve", 2, made_up))) == 400, "each takes a percent at least"
    assert len(pool.leases) == 100
    assert pool.ledger.overcommits() == []


@pytest.mark.parametrize(
    "cards",
    [
        (),
        (share("eve", core=0),),
        (share("eve", memory_mib=0),),
        (share("eve", core=101),),
        (share("eve", memory_mib=leases.CARD_MIB + 1),),
        (share("honest"),),
        (share("eve", core=60), share("eve", core=60)),
    ],
)
def test_a_lease_that_no_broker_gives_is_not_believed(cards: tuple[CardShare, ...]) -> None:
    pool = Pool("e")
    take(pool, leases.report("honest", 1))
    assert take(pool, leases.report("eve", 1, [leases.running(record("k", *cards))])) == (lease_name("k"),)
    assert pool.leases == {}


@pytest.mark.parametrize("key", ["guessed", "secret"])
@pytest.mark.parametrize("failure", ["", "I say it failed"])
def test_who_knows_a_leases_name_does_not_end_it_elsewhere(key: str, failure: str) -> None:
    """Nor who had its key: all its parts are spoken for."""
    pool = Pool("e")
    take(pool, leases.report("honest", 1))
    lease = granted(pool)
    leases.obey(pool, "honest")
    claimed = replace(record(key, share("eve")), lease=lease)
    assert take(pool, leases.report("eve", 1, [leases.running(claimed, failure=failure)])) == (lease,)
    assert (pool.leases[lease].state, pool.leases[lease].servers) == ("active", ("honest",))


def test_a_name_alone_does_not_take_a_lease_over_while_the_broker_starts() -> None:
    pool = Pool("e")
    lease = lease_name("secret")
    claimed = replace(record("guessed", share("eve")), lease=lease)
    assert take(pool, leases.report("eve", 1, [leases.running(claimed)])) == (lease,)
    honest = [leases.running(record("secret", share("honest", core=50, memory_mib=400)))]
    assert take(pool, leases.report("honest", 1, honest)) == ()
    assert pool.leases[lease].key == "secret"
    assert pool.leases[lease].servers == ("honest",)


def test_the_parts_of_a_lease_are_learnt_from_all_its_servers() -> None:
    pool = Pool("e")
    for part, server in enumerate(("one", "two")):
        shares = share(server, core=50, memory_mib=400)
        assert not take(pool, leases.report(server, 1, [leases.running(record("k", shares, part=part, parts=2))]))
    assert pool.leases[lease_name("k")].servers == ("one", "two")
    third = record("k", share("eve"), part=1, parts=2)
    assert take(pool, leases.report("eve", 1, [leases.running(third)])) == (lease_name("k"),)


def test_the_pool_takes_in_no_more_than_it_counts() -> None:
    pool = Pool("e")
    known = [leases.running(record(f"{number}", share("one"))) for number in range(3)]
    report, doubted = believed(leases.report("one", 1, known), pool, max_leases=2)
    assert (len(report.leases), doubted) == (2, (lease_name("2"),))


def one_card(**changed: Any) -> tuple[Card, ...]:
    return (dataclasses.replace(leases.cards("s", 1)[0], **changed),)


@pytest.mark.parametrize(
    "changed",
    [
        {"server": "a\x1b[2J"},
        {"address": "a\nb"},
        {"link_mbps": -1},
        {"cards": leases.cards("s", 1) * 2},
        {"cards": leases.cards("s", MAX_CARDS + 1)},
        {"cards": one_card(memory_mib=10**30)},
        {"cards": one_card(memory_mib=0)},
        {"cards": one_card(uuid="GPU\x9b")},
        {"cards": one_card(model="\u202eT4")},
        {"cards": one_card(index=2**40)},
        {"cards": one_card(tflops={"fp32": float("inf")})},
        {"cards": one_card(tflops={f"fp{number}": 1.0 for number in range(100)})},
        {"cards": one_card(links={"GPU": "\x07"})},
    ],
)
def test_what_no_server_says_ends_its_connection(changed: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        believed(dataclasses.replace(leases.report("s", 1), **changed), Pool("e"), max_leases=1)


@pytest.mark.parametrize(
    "one",
    [
        RunningLease(record=record("k", share("s")), occupied_mib=()),
        RunningLease(record=record("k", share("s")), occupied_mib=(10**30,)),
        RunningLease(record=record("k", share("s")), occupied_mib=(1,), sessions=-1),
        RunningLease(record=replace(record("k", share("s")), holder="\x1b]0;owned\x07"), occupied_mib=(1,)),
        RunningLease(record=record("k", share("s"), part=1), occupied_mib=(1,)),
        RunningLease(record=record("k", share("s"), parts=9), occupied_mib=(1,)),
    ],
)
def test_impossible_figures_and_names_are_not_believed(one: RunningLease) -> None:
    assert believed(leases.report("s", 1, [one]), Pool("e"), max_leases=1)[1] == (one.record.lease,)


def test_why_an_executor_is_gone_is_told_without_control_characters() -> None:
    pool = Pool("e")
    take(pool, leases.report("s", 1))
    lease = granted(pool)
    leases.obey(pool, "s")
    _, (given,) = pool.orders("s")
    take(pool, leases.report("s", 1, [leases.running(given, failure="line\n\x1b[31mred")]))
    assert pool.why_ended(lease) == "line\\n\\x1b[31mred"


def test_another_callers_holder_of_the_same_name_is_another() -> None:
    pool = Pool("e")
    take(pool, leases.report("s", 4))
    for number in range(MAX_LEASES_PER_HOLDER):
        leases.grant(pool, f"eve {number}", core=1, memory_mib=1, holder="pod:victim", peer="client/eve")
    with pytest.raises(Refused, match="one holder"):
        leases.grant(pool, "one more", core=1, memory_mib=1, holder="pod:victim", peer="client/eve")
    assert leases.grant(pool, "v", core=1, memory_mib=1, holder="pod:victim", peer="client/ann").peer == "client/ann"


def test_one_caller_cannot_take_all_that_the_pool_can_count() -> None:
    pool = Pool("e")
    take(pool, leases.report("s", MAX_CARDS))
    assert MAX_LEASES_PER_PEER <= MAX_LEASES // 4
    for number in range(MAX_LEASES_PER_PEER):
        pool.add(
            Lease(
                id=str(number), holder=str(number), peer="client/eve", request=str(number), key="k", state="active",
                parts={}, expected_parts=1, deadline=1.0, since=0.0,
            )
        )  # fmt: skip
    with pytest.raises(Refused, match="one caller"):
        leases.grant(pool, "one more", core=1, memory_mib=1, holder="another name", peer="client/eve")
    assert leases.grant(pool, "ann's", core=1, memory_mib=1, holder="another name", peer="client/ann")
