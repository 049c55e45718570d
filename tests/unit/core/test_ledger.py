"""The books themselves: holders, cells, nodes that come and go."""

from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation
from egpu.core.placement.card_usage import CardKey, card_usage
from egpu.core.placement.ledger import Card, Holder, Ledger, NodeCards
from support.objects import BINPACK, cluster, slice_pod

HOLDER = Holder("pod", "one")


def node(name: str, cards: int = 1) -> NodeCards:
    return NodeCards(name, tuple(Card(f"{name}-{i}", i, i, 8192) for i in range(cards)))


def allocation(where: str, index: int = 0, *, core: int = 30, memory_mib: int = 1000) -> PodAllocation:
    share = CardShare(uuid=f"{where}-{index}", index=index, minor=index, core=core, memory_mib=memory_mib)
    container = ContainerAllocation(provisioner="elasticgpu.io/vcuda", mode="shared", cards=(share,))
    return PodAllocation(node=where, containers={"app": container})


def test_holding_something_else_gives_back_what_was_held() -> None:
    ledger = Ledger()
    ledger.set_node(node("a"))
    ledger.set_node(node("b"))
    ledger.hold(HOLDER, allocation("a"))
    ledger.hold(HOLDER, allocation("b", core=50))
    assert ledger.snapshot()[("a", "a-0")] == (100, 8192, "", True)
    assert ledger.snapshot()[("b", "b-0")] == (50, 7192, "elasticgpu.io/vcuda", True)
    assert ledger.card_holders("a", "a-0") == {}
    ledger.release(HOLDER)
    ledger.release(HOLDER)
    assert ledger.snapshot()[("b", "b-0")] == (100, 8192, "", True)


def test_rows_are_used_again_and_carry_nothing_over() -> None:
    ledger = Ledger()
    for number in range(40):
        ledger.set_node(node(f"n{number}", cards=number % 5 + 1))
    ledger.hold(HOLDER, allocation("n7"))
    row = ledger.row("n7")
    ledger.remove_node("n7")
    ledger.set_node(node("fresh", cards=2))
    assert ledger.row("fresh") == row
    assert ledger.snapshot()[("fresh", "fresh-0")] == (100, 8192, "", True)
    ledger.set_node(node("n7", cards=3))
    assert ledger.snapshot()[("n7", "n7-0")][:2] == (70, 7192)
    assert len(ledger.nodes()) == 41
    assert int(ledger.present.sum()) == len(ledger.snapshot())


def test_a_ledger_tells_which_rows_changed() -> None:
    cache = cluster(nodes=2)
    before = cache.ledger.changes.version
    what = slice_pod("p")
    cache.assume_pod(what, cache.ranking.choose(cache.request(what), "n1", BINPACK))
    assert set(cache.ledger.changes.since(before).tolist()) == {cache.ledger.row("n1")}


def test_an_allocation_counts_its_worst_moment_per_card() -> None:
    one, two = allocation("n", core=30, memory_mib=100), allocation("n", core=20, memory_mib=900)
    containers = {"app": one.containers["app"], "warm": two.containers["app"]}
    together = card_usage(PodAllocation(node="n", containers=containers))[CardKey("n", "n-0")]
    in_turn = card_usage(PodAllocation(node="n", containers=containers, init=("warm",)))[CardKey("n", "n-0")]
    assert (together.core, together.memory_mib) == (50, 1000)
    assert (in_turn.core, in_turn.memory_mib) == (30, 900)
