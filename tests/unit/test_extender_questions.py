"""What kube-scheduler asks and is answered about many nodes: lists are recognised, answers are what Go reads."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.api.extender import HostPriority
from egpu.apps.extender import questions
from egpu.apps.extender.questions import Questions
from egpu.apps.extender.server import priorities
from egpu.core.placement.ledger import Card, Ledger, NodeCards
from egpu.core.placement.node_names import NodeNames
from egpu.errors import InvalidInput

POD = {"metadata": {"name": "p", "uid": "u"}}


def body(names: Sequence[str] | None, nodes: object = None) -> bytes:
    return msgspec.json.encode({"Pod": POD, "Nodes": nodes, "NodeNames": names})


def test_a_list_that_was_sent_before_is_recognised_and_another_is_not() -> None:
    asked = Questions()
    first = asked.read(body(["a", "b"]))
    assert (first.pod.name, first.nodes.names, first.full_nodes) == ("p", ("a", "b"), None)
    assert asked.read(body(["a", "b"])).nodes is first.nodes
    assert asked.read(body(["b", "a"])).nodes.names == ("b", "a")
    assert asked.read(body(None)).nodes.names == ()


def test_those_that_fit_are_recognised_when_they_are_asked_about_next() -> None:
    ledger = Ledger()
    for name in ("c", "a"):
        ledger.set_node(NodeCards(name, (Card(f"{name}-0", 0, 0, 1000),)))
    asked = Questions()
    nodes = asked.read(body(["a", "b", "stranger", "c"])).nodes
    ledger.rows_of(nodes)
    assert asked.expect(nodes, np.array([True, False, True, True])) == b'["a","stranger","c"]'
    part = asked.read(body(["a", "stranger", "c"])).nodes
    looked_up = [found.tolist() for found in part.found(-2, lambda _: (np.array([7]), np.array([7])))]
    assert looked_up == [[7], [7]], "rows of another version are looked up again"
    asked.expect(nodes, np.array([True, False, True, True]))
    part = asked.read(body(["a", "stranger", "c"])).nodes
    assert [found.tolist() for found in ledger.rows_of(part)] == [[1, 0], [0, 2]]
    assert [found.tolist() for found in ledger.rows_of(list(part))] == [[1, 0], [0, 2]]


def test_whole_nodes_are_kept_as_they_were_sent() -> None:
    sent = [{"metadata": {"name": name, "labels": {"keep": "me"}}} for name in ("a", "b")]
    asked = Questions().read(body(None, {"items": sent}))
    assert asked.nodes.names == ("a", "b")
    assert asked.full_nodes is not None
    assert [msgspec.json.decode(one) for one in asked.full_nodes] == sent


def test_only_so_many_lists_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "LISTS_LIMIT", 2)
    asked = Questions()
    first, second = asked.read(body(["a"])).nodes, asked.read(body(["b"])).nodes
    assert asked.read(body(["a"])).nodes is first
    asked.read(body(["c"]))
    assert asked.read(body(["a"])).nodes is first
    assert asked.read(body(["b"])).nodes is not second


@pytest.mark.parametrize("sent", [b"", b"[]", body(["a"])[:-2], b'{"Pod":{},"NodeNames":["a",1]}', b'{"NodeNames":[]}'])
def test_what_is_no_question_is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidInput, match="body"):
        Questions().read(sent)


@given(st.lists(st.tuples(st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?\Z"), st.integers(0, 10))))
def test_scores_are_written_as_their_structs_would_be(pairs: list[tuple[str, int]]) -> None:
    scores = np.array([score for _, score in pairs], dtype=np.int64)
    written = priorities(NodeNames([name for name, _ in pairs]), scores)
    assert written == msgspec.json.encode([HostPriority(host=name, score=score) for name, score in pairs])


def test_a_name_that_no_node_can_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="quote"):
        priorities(NodeNames(['a",b']), np.zeros(1, dtype=np.int64))
    scores = msgspec.json.decode(priorities(NodeNames(["a,b", "\x01"]), np.array([3, 10])), type=list[HostPriority])
    assert scores == [HostPriority(host="a,b", score=3), HostPriority(host="\x01", score=10)]
