"""The ledger's arrays: what a cell says, how they grow, and what tells a reader that something changed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation
from egpu.core.arrays import BoolArray, IntArray
from egpu.core.changes import Changes, Verdicts
from egpu.core.placement.ledger import SPARE_KINDS, Card, Holder, Ledger, NodeCards, OverCommit
from egpu.core.placement.node_names import NodeNames
from egpu.core.provisioners import provisioner

HOLDER = Holder("pod", "one")


def node(name: str, cards: int = 1) -> NodeCards:
    return NodeCards(name, tuple(Card(f"{name}-{i}", i, i, 1000 * (i + 1), tflops={"fp32": 8.0}) for i in range(cards)))


def slice_of(where: str, *, core: int = 30, memory_mib: int = 400) -> PodAllocation:
    share = CardShare(uuid=f"{where}-0", index=0, minor=0, core=core, memory_mib=memory_mib)
    container = ContainerAllocation(provisioner="elasticgpu.io/vcuda", mode="shared", cards=(share,))
    return PodAllocation(node=where, containers={"app": container})


def shapes(ledger: Ledger) -> set[tuple[int, ...]]:
    arrays = (ledger.present, ledger.healthy, ledger.memory_mib, ledger.core_free, ledger.memory_free, ledger.mode)
    return {array.shape for array in (*arrays, *ledger.tflops.values())}


# --- growing --------------------------------------------------------------------------------------------------------


def test_an_empty_ledger_has_no_rows() -> None:
    ledger = Ledger()
    assert shapes(ledger) == {(0, 0)}
    assert (len(ledger.changes), ledger.cards_version, ledger.nodes()) == (0, 0, [])


def test_rows_double_when_they_run_out_and_columns_follow_the_widest_node() -> None:
    ledger = Ledger()
    grown: list[tuple[int, ...]] = []
    for number in range(33):
        ledger.set_node(node(f"n{number}", cards=3 if number == 5 else 1))
        (shape,) = shapes(ledger)
        assert len(ledger.changes) == len(ledger.names) == shape[0]
        if shape not in grown:
            grown.append(shape)
    assert grown == [(16, 1), (16, 3), (32, 3), (64, 3)]


def test_what_was_written_is_where_it_was_after_growing() -> None:
    ledger = Ledger()
    ledger.set_node(node("n0"))
    ledger.hold(HOLDER, slice_of("n0"))
    for number in range(1, 40):
        ledger.set_node(node(f"n{number}", cards=4))
    assert ledger.snapshot()["n0", "n0-0"] == (70, 600, "elasticgpu.io/vcuda", True)
    assert ledger.snapshot()["n39", "n39-3"] == (100, 4000, "", True)
    assert ledger.totals(0).memory_mib.tolist() == [1000, 0, 0, 0]
    assert ledger.totals(39).tflops["fp32"].tolist() == [8.0] * 4


def test_amounts_are_whole_numbers() -> None:
    ledger = Ledger()
    ledger.set_node(node("n0"))
    amounts = (ledger.memory_mib, ledger.core_free, ledger.memory_free, ledger.mode)
    assert {array.dtype for array in amounts} == {np.dtype(np.int64)}
    assert {array.dtype for array in (ledger.present, ledger.healthy)} == {np.dtype(np.bool_)}


def test_rows_without_a_node_have_no_name() -> None:
    ledger = Ledger()
    ledger.set_node(node("n0"))
    assert ledger.names == ["n0", *[""] * 15]


# --- nodes that change and go ---------------------------------------------------------------------------------------


def test_a_card_that_its_node_no_longer_has_is_gone() -> None:
    ledger = Ledger()
    ledger.set_node(node("n0", cards=2))
    ledger.set_node(node("n0", cards=1))
    assert set(ledger.snapshot()) == {("n0", "n0-0")}
    assert ledger.present[0].tolist() == [True, False]


def test_links_that_are_no_longer_known_are_forgotten() -> None:
    ledger = Ledger()
    plain = node("n0", cards=2)
    joined = tuple(replace(card, links={"n0-0": "NVLink", "n0-1": "NVLink"}) for card in plain.cards)
    ledger.set_node(NodeCards("n0", joined))
    assert list(ledger.links) == [0]
    ledger.set_node(plain)
    assert ledger.links == {}


def test_a_node_that_went_leaves_an_unnamed_row() -> None:
    ledger = Ledger()
    ledger.set_node(node("n0"))
    ledger.set_node(node("n1"))
    ledger.remove_node("n0")
    assert ledger.names[:2] == ["", "n1"]
    assert (ledger.row("n0"), ledger.nodes(), ledger.cards("n0")) == (None, ["n1"], ())
    assert set(ledger.snapshot()) == {("n1", "n1-0")}
    ledger.remove_node("n0")
    assert ledger.nodes() == ["n1"]


def test_rows_are_found_with_their_places_among_the_nodes_asked_about() -> None:
    ledger = Ledger()
    for name in ("n0", "n1", "n2"):
        ledger.set_node(node(name))
    rows, places = ledger.rows_of(["n2", "elsewhere", "n0"])
    assert (rows.tolist(), places.tolist()) == ([2, 0], [0, 2])
    rows, places = ledger.rows_of(["elsewhere"])
    assert (rows.shape, places.shape) == ((0,), (0,))


# --- what tells that something changed ------------------------------------------------------------------------------


def test_cards_that_come_become_others_and_go_are_each_a_version() -> None:
    ledger = Ledger()
    versions: list[int] = []
    for step in (node("n0"), node("n0"), node("n0", cards=2), node("n1")):
        ledger.set_node(step)
        versions.append(ledger.cards_version)
    ledger.remove_node("n1")
    ledger.hold(HOLDER, slice_of("n0"))
    ledger.remove_node("n1")
    assert [*versions, ledger.cards_version] == [1, 1, 2, 3, 4]


def test_rows_that_changed_are_told_and_no_others() -> None:
    ledger = Ledger()
    ledger.set_node(node("n0"))
    ledger.set_node(node("n1"))
    told: list[set[int]] = []

    def step(change: Callable[[], None]) -> None:
        before = ledger.changes.version
        change()
        told.append(set(ledger.changes.since(before).tolist()))

    step(lambda: ledger.hold(HOLDER, slice_of("n1")))
    step(lambda: ledger.hold(HOLDER, slice_of("n1")))  # holds that already
    step(lambda: ledger.release(HOLDER))
    step(lambda: ledger.set_node(node("n0", cards=0)))
    step(lambda: ledger.remove_node("n1"))
    assert told == [{1}, set(), {1}, {0}, {1}]


def test_a_reader_that_is_far_behind_is_told_of_every_row() -> None:
    changes = Changes(3)
    for _ in range(1000):
        changes.note(1)
    changes.note(2)
    assert changes.since(0).tolist() == [1, 2]
    assert set(changes.since(999).tolist()) == {1, 2}
    changes.grow(5)
    assert (len(changes), changes.since(1001).tolist(), changes.since(-1).tolist()) == (5, [], [0, 1, 2, 3, 4])


def test_a_question_is_asked_again_only_about_rows_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes(4)
    verdicts = Verdicts(changes)
    truth, asked = np.array([True, False, True, False, True]), list[list[int]]()

    def answer(rows: IntArray) -> BoolArray:
        asked.append(rows.tolist())
        return truth[rows]

    assert verdicts.of("q", answer).tolist() == [True, False, True, False]
    truth[1] = True
    assert verdicts.of("q", answer).tolist() == [True, False, True, False]  # nobody said so
    changes.note(1)
    assert verdicts.of("q", answer).tolist() == [True, True, True, False]
    changes.grow(5)
    assert verdicts.of("q", answer).tolist() == [True, True, True, False, True]
    assert asked == [[0, 1, 2, 3], [1], [0, 1, 2, 3, 4]]
    monkeypatch.setattr("egpu.core.changes.QUESTIONS_LIMIT", 1)
    verdicts.of("r", answer)
    verdicts.of("q", answer)
    assert asked[3:] == [[0, 1, 2, 3, 4]] * 2, "one was forgotten for the other"


def test_names_are_looked_up_once_until_rows_are_others() -> None:
    ledger = Ledger()
    ledger.set_node(node("n0"))
    names = NodeNames(["n1", "n0"])
    assert [found.tolist() for found in ledger.rows_of(names)] == [[0], [1]]
    ledger.set_node(node("n0", cards=2))
    first = ledger.rows_of(names)
    assert ledger.rows_of(names) is first
    ledger.set_node(node("n1"))
    assert [found.tolist() for found in ledger.rows_of(names)] == [[1, 0], [0, 1]]
    ledger.remove_node("n0")
    assert [found.tolist() for found in ledger.rows_of(names)] == [[1], [0]]
    assert (names[0], names[:1], len(names), list(names)) == ("n1", ("n1",), 2, ["n1", "n0"])


# --- more than there is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "left"),
    [(slice_of("n0", core=100, memory_mib=1000), (0, 0)), (slice_of("n0", core=99, memory_mib=999), (1, 1))],
)
def test_a_card_can_be_given_out_to_the_last_of_it(held: PodAllocation, left: tuple[int, int]) -> None:
    ledger = Ledger()
    ledger.set_node(node("n0"))
    ledger.hold(HOLDER, held)
    assert ledger.snapshot()["n0", "n0-0"][:2] == left
    assert ledger.overcommits() == []


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (slice_of("n0", core=101), "has 100 % of compute, 101 % are allocated"),
        (slice_of("n0", memory_mib=1001), "has 1000 MiB, 1001 MiB are allocated"),
    ],
)
def test_a_card_of_which_more_is_held_than_it_has_is_full_and_reported(held: PodAllocation, reason: str) -> None:
    ledger = Ledger()
    ledger.set_node(node("n0"))
    ledger.hold(HOLDER, held)
    assert ledger.snapshot()["n0", "n0-0"][:2] == (0, 0)
    assert ledger.overcommits() == [OverCommit("n0", "n0-0", reason)]
    ledger.release(HOLDER)
    assert ledger.snapshot()["n0", "n0-0"][:2] == (100, 1000)
    assert ledger.overcommits() == []


def test_of_a_card_that_is_away_only_what_needs_no_size_is_known_to_be_too_much() -> None:
    ledger = Ledger()
    ledger.hold(HOLDER, slice_of("n0", memory_mib=1001))
    assert ledger.overcommits() == []
    ledger.set_node(node("n0"))
    assert ledger.overcommits() == [OverCommit("n0", "n0-0", "has 1000 MiB, 1001 MiB are allocated")]


@pytest.mark.parametrize(
    "demand",
    [
        ContainerDemand(provisioner=names.VCUDA, core=10, memory_mib=100),
        ContainerDemand(provisioner=names.VCUDA, core=10),
        ContainerDemand(provisioner=names.VCUDA, tflops=4, memory_percent=50),
        ContainerDemand(provisioner=names.PHYSICAL, exclusive=True),
    ],
)
def test_what_a_demand_takes_of_each_card_is_what_its_technology_says(demand: ContainerDemand) -> None:
    """Though it is asked once for every kind of card, and again when there is a new one."""
    ledger = Ledger()
    for at, (memory, tflops) in enumerate(((1000, {"fp32": 8.0}), (2000, {}), (1000, {"fp32": 16.0}), (50, {}))):
        ledger.set_node(NodeCards(f"n{at}", (Card("a", 0, 0, memory, tflops=tflops), Card("b", 1, 1, 2000))))
        rows = np.arange(at + 1)
        found, said = ledger.needs(demand, rows), provisioner(demand.provisioner).needs(demand, ledger.totals(rows))
        assert found.core.tolist() == said.core.tolist()
        assert found.memory_mib.tolist() == said.memory_mib.tolist()
        assert found.possible.tolist() == said.possible.tolist()


def test_kinds_that_no_card_has_any_more_are_forgotten() -> None:
    """An agent may change what it says of a card again and again."""
    ledger, fresh = Ledger(), Ledger()
    demand = ContainerDemand(provisioner=names.VCUDA, core=10, memory_percent=50)
    ledger.set_node(node("n0"))
    ledger.set_node(node("gone"))
    ledger.remove_node("gone")
    for number in range(5 * SPARE_KINDS):
        (card,) = node("n1").cards
        ledger.set_node(NodeCards("n1", (replace(card, model=f"model {number}", memory_mib=2000 + number),)))
        assert len(ledger.kinds) <= 3 * SPARE_KINDS
        assert int(ledger.needs(demand, ledger.rows_of(["n1"])[0]).memory_mib[0, 0]) == (2000 + number) // 2
        assert int(ledger.needs(demand, ledger.rows_of(["n0"])[0]).memory_mib[0, 0]) == 500
    for name in ("n0", "n1"):
        fresh.set_node(NodeCards(name, ledger.cards(name)))
        (row,), (place,) = ledger.rows_of([name])[0], fresh.rows_of([name])[0]
        assert ledger.kinds[int(ledger.kind[row, 0])] == fresh.kinds[int(fresh.kind[place, 0])]
