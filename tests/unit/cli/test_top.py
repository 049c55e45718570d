"""`egpu top` without a terminal: its rows, its keys and its lines."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from msgspec import structs

from egpu.api import names
from egpu.api.allocation import encode
from egpu.cli.layout import wrapped
from egpu.cli.top_rows import Gauge, Row, own_rows, rows
from egpu.cli.top_screen import (
    FOOT_LINES,
    HEAD_LINES,
    HELP,
    State,
    frame,
    in_short,
    keys,
    plain_lines,
    pressed,
    scrolled,
)
from egpu.core.view import ClusterView, ProcessUsage, SliceKey, SliceUsage, cluster_view
from egpu.core.view.records import Totals
from egpu_base.api.kubernetes import Pod
from support.objects import CORE, MEMORY, cluster, container, place, placed, pod


def replace_annotations(one: Pod, annotations: dict[str, str]) -> Pod:
    return structs.replace(one, metadata=structs.replace(one.metadata, annotations=annotations))


NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SIZES = [(80, 24), (200, 60)]


@pytest.fixture
def view() -> ClusterView:
    """A cluster of two nodes with two cards. A slice of 30 % on n0, half used, and one of 60 % on n1."""
    cache, pods = cluster(nodes=2, cards=2), list[Pod]()
    for name, node, core in (("small", "n0", 30), ("large", "n1", 60)):
        one = pod(name, container("app", {CORE: core, MEMORY: 16}))
        pods.append(placed(one, place(cache, one, node)))
        cache.pod_changed(pods[-1])
    usage = {SliceKey("default", "small", "app", "GPU-n0-0"): SliceUsage(core_ratio=0.15, memory_bytes=1 << 30)}
    return cluster_view(cache, nodes=[], pods=pods, claims=[], gpus=[], usage=usage, now=NOW)


def test_it_lists_nodes_cards_and_slices(view: ClusterView) -> None:
    listed = rows(view)
    assert [(row.depth, row.name) for row in listed[:4]] == [
        (0, "n0"), (1, "0 T4"), (2, "default/small app"), (1, "1 T4"),
    ]  # fmt: skip
    assert [row.core for row in listed[:4]] == [Gauge(15, 7.5), Gauge(30, 15), Gauge(30, 15), Gauge(0, None)]
    assert listed[2].memory == Gauge(25, 6.25)
    assert listed[2].pod == ("default", "small")
    assert [row.depth for row in rows(view, tree=False)] == [0, 1, 1, 0, 1, 1]


def test_it_sorts_the_fullest_first_and_filters_with_parents(view: ClusterView) -> None:
    assert [row.name for row in rows(view, order="compute allocated") if row.depth == 0] == ["n1", "n0"]
    assert [row.name for row in rows(view, order="compute used") if row.depth == 0] == ["n0", "n1"]
    assert [row.name for row in rows(view, search="LARGE")] == ["n1", "0 T4", "default/large app"]
    assert [row.name for row in rows(view, search="n0")] == ["n0", "0 T4", "default/small app", "1 T4"]
    assert rows(view, search="nothing") == []


def test_processes_are_below_their_slice(view: ClusterView) -> None:
    """Check that processes are listed, as reported with the usage of their slice."""
    (small,) = (one for one in view.slices() if one.name == "small")
    assert small.used is not None
    told = replace(small.used, processes=(ProcessUsage(42, 700 << 20), ProcessUsage(7, 3 << 20)))
    nodes = tuple(
        replace(node, cards=tuple(
            replace(card, slices=tuple(replace(one, used=told) for one in card.slices if one.name == "small"))
            for card in node.cards
        ))
        for node in view.nodes
    )  # fmt: skip
    listed = rows(replace(view, nodes=nodes), search="small")
    assert [(row.depth, row.name, row.note, row.pod) for row in listed[3:]] == [
        (3, "process 42", "700 MiB", ("default", "small")), (3, "process 7", "3 MiB", ("default", "small")),
    ]  # fmt: skip
    assert list(plain_lines(listed[3:4], 80)) == ["      process 42  700 MiB"]
    assert [row.depth for row in rows(replace(view, nodes=nodes), search="small", tree=False)] == [0, 1]


def test_parked_memory_is_beside_its_slice(view: ClusterView) -> None:
    (small,) = (one for one in view.slices() if one.name == "small")
    assert small.used is not None
    parked = replace(small.used, parked_bytes=700 << 20)
    node = view.nodes[0]
    cards = tuple(
        replace(card, slices=tuple(replace(one, used=parked) for one in card.slices)) if card.slices else card
        for card in node.cards
    )
    listed = rows(replace(view, nodes=(replace(node, cards=cards),)), search="small")
    assert listed[2].note == "Guaranteed, 700 MiB parked"


def test_a_user_of_one_namespace_sees_its_pods(view: ClusterView) -> None:
    cache = cluster(nodes=1, cards=1)
    runs = pod("runs", container("app", {CORE: 30, MEMORY: 16}), namespace="team")
    runs = placed(runs, place(cache, runs, "n0"))
    waits = pod("waits", container("app", {CORE: 30, MEMORY: 16}), namespace="team")
    asked = replace_annotations(waits, {names.DEMAND: encode(cache.request(waits).demand)})
    none = pod("none", container("app", {}), namespace="team")
    listed = own_rows([none, asked, runs])
    assert [(row.depth, row.name) for row in listed] == [(0, "team/runs"), (1, "app"), (0, "team/waits")]
    assert listed[0].note.endswith("on n0")
    assert listed[1].note == "card 0: 30 %, 4096 MiB"
    assert "has not reported on it yet" in listed[2].note
    assert [row.name for row in own_rows([asked, runs], search="WAITS")] == ["team/waits"]
    assert len(own_rows([runs], tree=False)) == 1


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_a_frame_fills_the_terminal_and_no_more(view: ClusterView, columns: int, lines: int) -> None:
    text = frame(
        rows(view), State(), summary=in_short(view.totals, waiting=len(view.pending)), columns=columns, lines=lines
    )
    assert len(text) == lines
    assert max(line.cell_len for line in text) <= columns
    slice_line = next(line.plain for line in text if "default/small app" in line.plain)
    assert " 15/ 30" in slice_line
    assert "  6/ 25" in slice_line
    assert all(mark in slice_line for mark in "█▓░")


def test_the_cursor_stays_on_the_screen_and_on_a_line() -> None:
    listed = [Row(0, f"node-{number}") for number in range(9000)]
    state, lines = State(), 24
    page = lines - HEAD_LINES - FOOT_LINES
    for key, cursor, top in (
        ("up", 0, 0), ("down", 1, 0), ("pagedown", 1 + page, 2), ("end", 8999, 9000 - page),
        ("down", 8999, 9000 - page), ("pageup", 8999 - page, 8999 - page), ("home", 0, 0),
    ):  # fmt: skip
        state = pressed(state, key, listed, lines)
        assert (state.cursor, state.top) == (cursor, top), key
    assert scrolled(State(cursor=50, top=40), 3, page) == State(cursor=2, top=0), "most of it is gone"


def test_keys_choose_what_is_shown(view: ClusterView) -> None:
    listed = rows(view)
    assert pressed(State(), "q", listed, 24).done
    helped = pressed(State(), "h", listed, 24)
    assert helped.text == HELP
    assert pressed(helped, "q", listed, 24) == State(), "the first q leaves the help"
    assert pressed(State(), ".", listed, 24).order == "compute allocated"
    assert pressed(State(), ",", listed, 24).order == "memory used"
    assert not pressed(State(), "t", listed, 24).tree
    assert pressed(State(cursor=2), "e", listed, 24).explain == ("default", "small")
    assert pressed(State(cursor=0), "e", listed, 24).explain is None
    state = State(cursor=3)
    for key in ("/", "a", "q", "backspace", "enter"):
        state = pressed(state, key, listed, 24)
    assert state == State(search="a")
    assert pressed(state, "escape", listed, 24).search == ""


def test_keys_from_the_bytes_of_terminals() -> None:
    assert keys(b"j\x1b[B\x1b[6~\x1bOAq\r/") == ["j", "down", "pagedown", "up", "q", "enter", "/"]
    assert keys("ä\x1b".encode()) == ["ä", "escape"]
    assert keys(b"\xff") == []


def test_a_long_text_is_wrapped_and_scrolls(view: ClusterView) -> None:
    text = tuple(wrapped([f"  line {number} " + "word " * 30 for number in range(20)], 80))
    state = State(text=text, cursor=3)

    def shown(state: State) -> list[str]:
        return [line.plain for line in frame([], state, summary="", columns=80, lines=24)][HEAD_LINES:-1]

    assert shown(state)[0].startswith("  line 0 word")
    assert shown(state)[1].startswith("      word")
    assert not any("…" in line for line in shown(state))
    on = pressed(state, "pagedown", [], 24)
    assert shown(on)[0] == text[len(shown(state))]
    assert pressed(pressed(on, "end", [], 24), "down", [], 24).top == len(text) - len(shown(state))
    assert pressed(on, "escape", [], 24) == State(cursor=3, top=3)


def test_control_characters_do_not_reach_the_terminal() -> None:
    row = Row(0, "evil\x1b[2J", note="\x07beep")
    assert list(plain_lines([row], 80)) == ["evil\\x1b[2J  \\x07beep"]
    shown = frame([row], replace(State(), text=("a\x1b[2Jb",)), summary="", columns=80, lines=24)
    assert not any("\x1b" in line.plain for line in shown)


def test_the_first_line_counts_the_pods_that_wait_below_the_screen() -> None:
    totals = Totals(cards=24, free_cards=10, core_percent=2400, core_given=800, memory_mib=100, memory_given_mib=12)
    line = frame([], State(), summary=in_short(totals, waiting=300), columns=80, lines=24)[0].plain
    assert line == "egpu top  24 cards, 10 free; 300 waiting; compute 33 %, memory 12 % allocated"
    assert "waiting" not in in_short(totals, waiting=0)
