"""The cards of a node while a pod's containers are put on them: what is left for the next one, and who may come."""

import numpy as np
import pytest

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, Mode, PodAllocation, Role
from egpu.core.placement.candidates import CandidateCards
from egpu.core.placement.ledger import Card, Holder, Ledger, NodeCards
from egpu.core.provisioners import Needs, provisioner

NODE = "n0"
MEMORY_MIB = 1000
WHOLE = ContainerDemand(provisioner=names.PHYSICAL, exclusive=True)
UNDER_WAY = np.array([0])


def shared(core: int = 10, memory_mib: int = 100, technology: str = names.VCUDA) -> ContainerDemand:
    return ContainerDemand(provisioner=technology, core=core, memory_mib=memory_mib)


def ledger(*cards: Card) -> Ledger:
    """One node with these cards, or with two healthy ones."""
    made = Ledger()
    made.set_node(NodeCards(NODE, cards or (Card("a", 0, 0, MEMORY_MIB), Card("b", 1, 1, MEMORY_MIB))))
    return made


def held(on: Ledger, name: str, *, core: int = 10, memory_mib: int = 100, mode: Mode = "shared") -> None:
    """Somebody else's share of the first card."""
    share = CardShare(uuid="a", index=0, minor=0, core=core, memory_mib=memory_mib)
    technology = names.PHYSICAL if mode == "exclusive" else names.VCUDA
    container = ContainerAllocation(provisioner=technology, mode=mode, cards=(share,))
    on.hold(Holder("pod", name), PodAllocation(node=NODE, containers={"app": container}))


class Node:
    """The cards of `ledger`, and the containers that are put on the first one."""

    def __init__(self, on: Ledger) -> None:
        row = on.row(NODE)
        assert row is not None
        self.cards = CandidateCards.of(on, np.array([row]), ())

    def needs(self, demand: ContainerDemand) -> Needs:
        return provisioner(demand.provisioner).needs(demand, self.cards.totals)

    def take(self, demand: ContainerDemand, *, init: bool = False, sidecar: bool = False) -> None:
        at = (UNDER_WAY, np.array([0]))
        self.cards.take(demand, self.needs(demand), at, Role("side", init, sidecar, ("side",)))

    def can_take(self, demand: ContainerDemand, *, init: bool = False) -> list[bool]:
        """For each card whether it can take `demand` now."""
        return self.cards.eligible(demand, self.needs(demand), Role(init=init, beside=("side",)))[0].tolist()

    def fullness(self, demand: ContainerDemand) -> list[float]:
        return self.cards.fullness(self.needs(demand))[0].tolist()

    def mean_fullness(self) -> float:
        return float(self.cards.mean_fullness()[0])


# --- how full ---------------------------------------------------------------------------------------------------------


def test_fullness_is_the_mean_of_compute_and_memory_with_the_demand_taken_as_well() -> None:
    on = ledger()
    held(on, "other", core=20, memory_mib=500)
    node = Node(on)
    assert node.fullness(shared(30, 100)) == pytest.approx([0.55, 0.2])
    assert node.mean_fullness() == pytest.approx((0.35 + 0.0) / 2)
    node.take(shared(30, 100))
    assert node.mean_fullness() == pytest.approx((0.55 + 0.0) / 2)


def test_a_card_that_was_given_out_twice_is_full_and_no_more() -> None:
    on = ledger(Card("a", 0, 0, MEMORY_MIB))
    held(on, "one", core=80, memory_mib=900)
    held(on, "two", core=80, memory_mib=900)
    assert Node(on).mean_fullness() == 1.0


def test_a_card_that_cannot_be_used_counts_for_nothing() -> None:
    node = Node(ledger(Card("a", 0, 0, MEMORY_MIB), Card("b", 1, 1, MEMORY_MIB, healthy=False)))
    node.take(shared(100, MEMORY_MIB))
    assert node.mean_fullness() == 1.0
    assert Node(ledger(Card("a", 0, 0, MEMORY_MIB, healthy=False))).mean_fullness() == 0.0


# --- whole cards ------------------------------------------------------------------------------------------------------


def test_a_whole_card_is_a_healthy_one_that_nobody_else_has() -> None:
    on = ledger(Card("a", 0, 0, MEMORY_MIB), Card("b", 1, 1, MEMORY_MIB), Card("c", 2, 2, MEMORY_MIB, healthy=False))
    assert Node(on).can_take(WHOLE) == [True, True, False]
    held(on, "other")
    assert Node(on).can_take(WHOLE) == Node(on).can_take(WHOLE, init=True) == [False, True, False]


def test_a_container_that_has_a_whole_card_lets_no_other_container_on_it() -> None:
    node = Node(ledger())
    node.take(WHOLE)
    nothing = ContainerDemand(provisioner=names.VCUDA, core=0, memory_mib=1)
    assert node.can_take(WHOLE) == node.can_take(nothing) == [False, True]


def test_an_init_container_may_own_a_card_that_its_own_pod_shares() -> None:
    node = Node(ledger())
    node.take(shared())
    assert node.can_take(WHOLE) == [False, True]
    assert node.can_take(WHOLE, init=True) == [True, True]


def test_an_init_container_may_share_a_card_that_its_own_pod_owns_but_not_another_pods() -> None:
    node = Node(ledger())
    node.take(WHOLE)
    assert node.can_take(shared(), init=True) == [True, True]
    on = ledger()
    held(on, "other", mode="exclusive", core=0, memory_mib=0)
    assert Node(on).can_take(shared(), init=True) == [False, True]


# --- init containers and sidecars -------------------------------------------------------------------------------------


def test_what_an_init_container_took_is_there_for_the_apps() -> None:
    node = Node(ledger())
    node.take(shared(80, 800), init=True)
    assert node.can_take(shared(100, MEMORY_MIB)) == [True, True]
    assert node.mean_fullness() == pytest.approx(0.8 / 2)


def test_the_pod_uses_most_of_a_card_when_its_greediest_container_runs() -> None:
    node = Node(ledger())
    node.take(shared(30, 200))
    node.take(shared(20, 600), init=True)
    assert node.mean_fullness() == pytest.approx((0.3 + 0.6) / 2 / 2)
    assert node.cards.peak_core[0].tolist() == [70, 100]
    assert node.cards.peak_memory[0].tolist() == [400, 1000]


def test_the_mode_that_an_init_container_leaves() -> None:
    other = shared(technology=names.QGPU)
    node = Node(ledger())
    node.take(shared(), init=True)
    assert (node.can_take(shared()), node.can_take(other)) == ([True, True], [False, True])
    owned = Node(ledger())
    owned.take(WHOLE, init=True)
    assert owned.can_take(shared()) == [False, True]
    owned.take(shared(), init=True)
    assert owned.can_take(shared()) == [False, True], "once exclusive, a card stays so for the pod's life"


def test_a_sidecar_runs_beside_init_containers_and_an_app_does_not() -> None:
    node = Node(ledger())
    node.take(shared(30, 400), sidecar=True)
    node.take(shared(60, 100))
    assert node.can_take(shared(70, 600), init=True) == [True, True]
    assert node.can_take(shared(71, 100), init=True) == [False, True]
    assert node.can_take(shared(10, 601), init=True) == [False, True]
    assert node.can_take(shared(10, 500)) == [True, True]
    assert node.can_take(shared(11, 100)) == [False, True]
