"""`egpu get` on a large cluster: selected rows, totals and watches."""

from functools import cache
from typing import Literal

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation
from egpu.cli import views
from egpu.cli.output import Table
from egpu.cli.selecting import KEYS, Selection, What, summary
from egpu.cli.snapshot import Snapshot, snapshot_of
from egpu.cli.watching import GONE, Changes
from egpu.core.view import SliceKey, SliceUsage
from egpu_base.api.kubernetes import Node, NodeStatus
from egpu_base.api.objects import Condition, ObjectMeta
from egpu_base.errors import InvalidInput
from support.objects import card, claim, container, placed, pod

NODES = 300
EVERYTHING = Selection()


@cache
def cluster(*, taken: int = 3, without: str = "") -> Snapshot:
    """A cluster of nodes with two cards, every third with A100s. A pod has half of the first card on the first `taken`
    nodes. The second card of every tenth node is unhealthy."""
    nodes = [Node(metadata=ObjectMeta(name=f"n{at}", labels={"zone": "a" if at % 2 else "b"})) for at in range(NODES)]
    cards = [
        card(f"n{at}", index, model="A100" if at % 3 == 0 else "T4", healthy=not (index == 1 and at % 10 == 0))
        for at in range(NODES)
        for index in (0, 1)
    ]
    pods = [placed(pod(f"p{at}", container("app")), _half(f"n{at}")) for at in range(taken)]
    named = [claim("c0")]
    return snapshot_of(nodes, [one for one in cards if one.spec.node_name != without], (), named, pods)


def _half(node: str) -> PodAllocation:
    share = CardShare(uuid=f"GPU-{node}-0", index=0, minor=0, core=50, memory_mib=4096)
    given = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,))
    return PodAllocation(node=node, containers={"app": given})


def selected(what: What, selection: Selection = EVERYTHING) -> Table:
    snapshot = cluster()
    table = {
        What.GPUS: lambda: views.gpus(snapshot),
        What.NODES: lambda: views.nodes(snapshot),
        What.PODS: lambda: views.pods(snapshot, None),
    }[what]()
    return selection.of(what, table, snapshot)


@pytest.mark.parametrize(
    ("how", "cards", "nodes"),
    [
        (EVERYTHING, 2 * NODES, NODES),
        (Selection(node=["n7", "n1?"]), 2 * 11, 11),
        (Selection(labels="zone=a"), NODES, NODES // 2),
        (Selection(labels="zone notin (a),zone"), NODES, NODES // 2),
        (Selection(model="a10"), 2 * NODES // 3, NODES // 3),
        (Selection(free=True), 2 * NODES - NODES // 10 - 3, NODES),
        (Selection(free=True, node=["n0"]), 0, 1),
        (Selection(node=["n1", "n2", "n3"], labels="zone=a", model="T4"), 2, 1),
    ],
)
def test_rows_of_cards_and_nodes_are_selected(how: Selection, cards: int, nodes: int) -> None:
    assert len(selected(What.GPUS, how).rows) == cards
    assert len(selected(What.NODES, how).records) == nodes


def test_parked_memory_is_shown_where_it_is_known() -> None:
    used = {SliceKey("default", "p1", "app", "GPU-n1-0"): SliceUsage(memory_bytes=3 << 30, parked_bytes=2 << 30)}
    table = views.pods(cluster(), None, used)
    assert [row[table.columns.index("parked")] for row in table.rows] == ["-", "2048 MiB", "-"]
    assert [one["parkedMiB"] for one in table.records] == [None, 2048, None]
    assert [one["parkedMiB"] for one in views.pods(cluster(), None).records] == [None] * 3


def test_what_is_resident_of_a_slice_is_in_its_record() -> None:
    share = CardShare(uuid="GPU-n0-0", index=0, minor=0, core=10, memory_mib=6000, resident_mib=180)
    given = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,), parkable=True)
    shares = placed(pod("p", container("app")), PodAllocation(node="n0", containers={"app": given}))
    (one,) = views.pods(snapshot_of((), (), (), (), [shares]), None).records
    assert one["parkable"] is True
    assert [(card["memoryMiB"], card["residentMiB"]) for card in one["cards"]] == [(6000, 180)]


def test_wide_tables_say_why_a_card_has_no_mps() -> None:
    cards = [card("n0", 0, mps="ready"), card("n0", 1, mps="its program is missing"), card("n0", 2)]
    table = views.gpus(snapshot_of([Node(metadata=ObjectMeta(name="n0"))], cards, (), (), ()))
    assert [row[table.columns.index("mps")] for row in table.rows] == ["ready", "its program is missing", "-"]
    assert [one["mps"] for one in table.records] == ["ready", "its program is missing", ""]
    assert "mps" in table.wide


def test_cards_are_selected_by_mode_and_pods_by_node_and_label() -> None:
    assert [one["node"] for one in selected(What.GPUS, Selection(mode="vcuda")).records] == ["n0", "n1", "n2"]
    assert len(selected(What.GPUS, Selection(mode="free")).rows) == 2 * NODES - 3
    assert [one["pod"] for one in selected(What.PODS, Selection(node=["n2"])).records] == ["p2"]
    assert not selected(What.PODS, Selection(labels="app=web")).rows


def test_wrong_selections_are_errors() -> None:
    with pytest.raises(InvalidInput, match="pods cannot be selected by this option"):
        Selection(free=True).check(What.PODS)
    with pytest.raises(InvalidInput, match="unable to parse"):
        selected(What.NODES, Selection(labels="a==b==c"))
    for what in (What.NODES, What.GPUS, What.CLAIMS, What.PODS):
        Selection(node=["n"], labels="a").check(what)


def test_the_summary_line() -> None:
    assert summary(What.GPUS, selected(What.GPUS).records) == (
        "600 cards on 300 nodes, 567 free; 0 % of compute and 0 % of memory allocated"
    )
    first = selected(What.NODES, Selection(node=["n0"])).records
    assert summary(What.NODES, first) == (
        "1 node, 0 ready; 2 cards, 1 free; 25 % of compute and 12 % of memory allocated"
    )
    assert summary(What.PODS, selected(What.PODS).records) == "3 containers: 3 Running"


def test_each_node_counts_its_own_pods() -> None:
    assert [one["pods"] for one in selected(What.NODES, Selection(node=["n1", "n99"])).records] == [1, 0]


def test_a_node_says_why_it_offers_nothing() -> None:
    """In its status; a condition that is True is no news."""
    cases: list[tuple[Literal["True", "False"], str]] = [("False", "NotReady,NoDriver"), ("True", "NotReady")]
    for status, shown in cases:
        said = [Condition(type="ElasticGPUReady", status=status, reason="NoDriver", message="no driver")]
        node = Node(metadata=ObjectMeta(name="n0"), status=NodeStatus(conditions=said))
        (row,) = views.nodes(snapshot_of([node], [], (), [], [])).records
        assert row["status"] == shown


def test_a_watch_shows_what_changed_and_nothing_twice() -> None:
    changes = Changes(KEYS[What.GPUS])
    assert len(changes.see(views.gpus(cluster())).rows) == 2 * NODES
    assert not changes.see(views.gpus(cluster())).rows
    again = changes.see(views.gpus(cluster(taken=4)))
    assert [(one["node"], one["corePercentGiven"]) for one in again.records] == [("n3", 50)]
    gone = changes.see(views.gpus(cluster(taken=4, without="n5")))
    assert [row[0] for row in gone.rows] == ["n5", "n5"]
    assert all(GONE in row for row in gone.rows)


def test_a_new_age_is_no_change() -> None:
    snapshot, changes = cluster(), Changes(KEYS[What.PODS])
    table = views.pods(snapshot, None)
    assert len(changes.see(table).rows) == 3
    older = [replace(one, metadata=replace(one.metadata, creation_timestamp="2020-01-01T00:00:00Z"))
             for one in snapshot.pods]  # fmt: skip
    later = views.pods(snapshot_of(snapshot.nodes, snapshot.gpus, (), (), older), None)
    assert later.rows != table.rows
    assert not changes.see(later).rows
