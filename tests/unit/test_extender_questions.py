"""What kube-scheduler asks and is answered about many nodes: lists are recognised, answers are what Go reads."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.api.extender import HostPriority
from egpu.apps.extender import questions
from egpu.apps.extender.answers import priorities, reasons
from egpu.apps.extender.placing import Refused
from egpu.apps.extender.questions import Questions
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


def test_any_text_is_written_as_a_name() -> None:
    names = ["a,b", "\x01", 'c","d', "é"]
    scores = msgspec.json.decode(priorities(NodeNames(names), np.array([3, 10, 0, 9])), type=list[HostPriority])
    assert scores == [HostPriority(host=name, score=score) for name, score in zip(names, (3, 10, 0, 9), strict=True)]


@given(st.lists(st.sampled_from(["", "full", '100 % "used"']), min_size=1), st.booleans())
def test_each_refused_node_has_its_reason(said: list[str], resolvable: bool) -> None:
    names = [f"n{number}" for number in range(len(said))]
    refused = [
        Refused(np.array([one == why for one in said]), why, resolvable=(why == "full") == resolvable)
        for why in ("full", '100 % "used"', "nobody's")
    ]
    written = reasons(NodeNames(names), refused, resolvable=resolvable)
    assert msgspec.json.decode(written) == {name: why for name, why in zip(names, said, strict=True) if why == "full"}
    others = reasons(NodeNames(names), refused, resolvable=not resolvable)
    told = {name: '100 percent "used"' for name, why in zip(names, said, strict=True) if "used" in why}
    assert msgspec.json.decode(others) == told


@given(st.data())
def test_a_part_of_a_part_is_what_its_names_say(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.from_regex(r"\A[a-z,]{0,4}\Z"), unique=True))
    nodes = NodeNames(names)
    for _ in range(3):
        which = np.array(data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes))), dtype=np.bool_)
        if data.draw(st.booleans()):
            nodes.found(1, lambda asked: (np.arange(len(asked)), np.arange(len(asked))))
        nodes, names = nodes.subset(which), [name for name, kept in zip(names, which.tolist(), strict=True) if kept]
        assert len(nodes) == len(names)
        assert list(nodes.quoted.texts) == [msgspec.json.encode(name) for name in names]
        assert list(nodes) == names
