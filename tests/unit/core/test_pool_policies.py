"""The pool places by its policy, as a cluster does."""

from egpu.core.leasing.pool import Pool
from egpu.core.leasing.records import LeaseRequest, Report
from egpu.core.placement.ledger import Card
from egpu.core.policies.registry import Policies

MEMORY_MIB = 1000


def cards(count: int) -> tuple[Card, ...]:
    return tuple(Card(uuid=f"GPU-{index}", index=index, minor=index, memory_mib=MEMORY_MIB) for index in range(count))


def chosen(policy: str, asked: list[tuple[int, int]]) -> list[int]:
    """The card that each lease gets, in order; a lease asks for (percent, MiB) of one."""
    pool = Pool("epoch", Policies.named(policy, policy))
    pool.report(
        Report(server="s", address="", host="", link_mbps=1, instance="1", cards=cards(6), leases=()),
        now=0.0,
    )
    found: list[int] = []
    for number, (core, memory_mib) in enumerate(asked):
        request = LeaseRequest(cards=1, core=core, memory_mib=memory_mib)
        lease = pool.grant(
            request, lease=f"l{number}", key="k", holder=f"h{number}", peer="p", request=str(number), now=0.0
        )
        (share,) = lease.parts["s"].wanted
        found.append(share.index)
    return found


def test_price_keeps_what_the_others_can_use_and_binpack_fills_what_is_fullest() -> None:
    """Most leases ask for half a card. Nine of them leave one half, which another would fill; a lease of 40 % and 550
    MiB leaves a card that no half fits. A small one goes where it costs the others nothing, or where it is fullest."""
    halves, unlike, small = [(50, 500)] * 9, (40, 550), (10, 100)
    asked = [*halves, unlike, small]
    assert chosen("binpack", asked) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 4]
    assert chosen("price", asked) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 5]


def test_spread_takes_the_emptiest_card() -> None:
    assert chosen("spread", [(50, 500)] * 6) == [0, 1, 2, 3, 4, 5]


def ordered(policy: str) -> list[str]:
    """The servers that three leases get, of one with a card in use and one without."""
    pool = Pool("epoch", Policies.named(policy, policy))
    for server in ("a", "b"):
        pool.report(
            Report(server=server, address="", host=server, link_mbps=1, instance="1", cards=cards(1), leases=()),
            now=0.0,
        )
    request = LeaseRequest(cards=1, core=20, memory_mib=100)
    return [
        pool.grant(request, lease=f"l{number}", key="k", holder="h", peer="p", request=str(number), now=0.0).servers[0]
        for number in range(3)
    ]


def test_servers_that_are_as_near_are_taken_as_the_policy_ranks_them() -> None:
    assert ordered("binpack") == ["a", "a", "a"]
    assert ordered("spread") == ["a", "b", "a"]
