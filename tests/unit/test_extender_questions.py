"""What kube-scheduler asks and is answered about many nodes: names are known again, answers are what Go reads."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.apps.extender import name_lists
from egpu.apps.extender.answers import priorities, reasons
from egpu.apps.extender.name_lists import NameLists
from egpu.apps.extender.placing import Refused
from egpu.apps.extender.questions import Questions
from egpu.core.arrays import IntArray
from egpu.core.placement.ledger import Card, Ledger, NodeCards
from egpu.core.placement.node_names import NodeNames
from egpu_base.api.extender import HostPriority
from egpu_base.errors import InvalidInput

POD = {"metadata": {"name": "p", "uid": "u"}}
NAMES = st.lists(st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?\Z") | st.text(max_size=253))


def body(names: Sequence[str] | None, nodes: object = None) -> bytes:
    return msgspec.json.encode({"Pod": POD, "Nodes": nodes, "NodeNames": names})


def questions() -> Questions:
    return Questions(NameLists())


def test_a_list_is_read_whether_it_was_sent_before_or_not() -> None:
    asked = questions()
    first = asked.read(body(["a", "b"]))
    assert (first.pod.name, first.nodes.names, first.full_nodes) == ("p", ("a", "b"), None)
    assert asked.read(body(["a", "b"])).nodes is first.nodes
    assert asked.read(body(["b", "a"])).nodes.names == ("b", "a")
    assert asked.read(body(None)).nodes.names == ()


def test_those_that_fit_are_recognised_when_they_are_asked_about_next() -> None:
    ledger = Ledger()
    for name in ("c", "a"):
        ledger.set_node(NodeCards(name, (Card(f"{name}-0", 0, 0, 1000),)))
    lists = NameLists()
    asked = Questions(lists)
    part = asked.read(body(["a", "b", "stranger", "c"])).nodes.subset(np.array([True, False, True, True]))
    assert lists.write(part) == b'["a","stranger","c"]'
    asked.expect(lists.write(part), part)
    assert asked.read(body(["a", "stranger", "c"])).nodes is part
    assert [found.tolist() for found in ledger.rows_of(part)] == [[1, 0], [0, 2]]
    assert [found.tolist() for found in ledger.rows_of(list(part))] == [[1, 0], [0, 2]]


def test_whole_nodes_are_kept_as_they_were_sent() -> None:
    sent = [{"metadata": {"name": name, "labels": {"keep": "me"}}} for name in ("a", "b")]
    asked = questions().read(body(None, {"items": sent}))
    assert asked.nodes.names == ("a", "b")
    assert asked.full_nodes is not None
    assert [msgspec.json.decode(one) for one in asked.full_nodes] == sent


def test_only_so_many_lists_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egpu.apps.extender.questions.LISTS_LIMIT", 2)
    asked = questions()
    first, second = asked.read(body(["a"])).nodes, asked.read(body(["b"])).nodes
    assert asked.read(body(["a"])).nodes is first
    asked.read(body(["c"]))
    assert asked.read(body(["b"])).nodes is second
    assert asked.read(body(["a"])).nodes is not first


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"[]",
        body(["a"])[:-2],
        b'{"Pod":{},"NodeNames":["a",1]}',
        b'{"NodeNames":[]}',
        body(["a" * 254]),
        b'{"Pod":{},"NodeNames":["a","b","\xff","a","b"]}',
        b'{"Pod":{"metadata":{"name":"\xff"}},"NodeNames":["a"]}',
    ],
)
def test_what_is_no_question_is_refused(sent: bytes) -> None:
    asked = questions()
    asked.read(body(["a", "b"]))
    with pytest.raises(InvalidInput, match=r"body|NodeNames"):
        asked.read(sent)


@given(st.lists(NAMES, max_size=4))
def test_lists_are_read_and_written_as_any_json_is(sent: list[list[str]]) -> None:
    lists = NameLists()
    for names in [*sent, *sent, [name for one in sent for name in one]]:
        text = msgspec.json.encode(names)
        found = lists.read(text)
        assert list(found) == names
        assert lists.write(found) == text


def test_names_in_another_order_are_found_without_reading_them_as_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by chance, so with many: thousands share a place of the table with another."""
    names = [f"node-{number}.example" for number in range(5_000)]
    lists = NameLists()
    lists.read(msgspec.json.encode(names))
    decoder = msgspec.json.Decoder(list[int])
    monkeypatch.setattr(lists, "_decoder", decoder)
    order = np.random.default_rng(1).permutation(len(names)).tolist()
    for asked in ([names[at] for at in order], names[17:2000:3], names[:1]):
        assert list(lists.read(msgspec.json.encode(asked))) == asked
    with pytest.raises(msgspec.ValidationError):
        lists.read(msgspec.json.encode([*names, "new"]))


@pytest.mark.parametrize(
    "text", [b'["a", "b"]', b'[ "a"]', b'["a" ]', b'["\\u0061","b"]', b'["a\\"b"]', b'["b","a","new"]', b"[]"]
)
def test_a_list_that_is_written_otherwise_says_the_same(text: bytes) -> None:
    lists = NameLists()
    lists.read(b'["a","b","a\\"b"]')
    assert list(lists.read(text)) == msgspec.json.decode(text)


@pytest.mark.parametrize("text", [b'["a",["b"]]', b'["a",1,"b"]', b'[{"a":"b"}]', b'{"a":"b"}', b'["a",null]', b'"a"'])
def test_what_is_no_list_of_names_is_none(text: bytes) -> None:
    lists = NameLists()
    lists.read(b'["a","b"]')
    with pytest.raises(msgspec.MsgspecError):
        lists.read(text)


def test_names_that_nobody_asks_about_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lists, "NAMES_LIMIT", 4)
    lists = NameLists()
    first = lists.named(["a", "b", "c", "d", "e"])
    assert lists.named(["a", "b", "x"]).known is first.known, "more than half are asked about"
    last = lists.named(["y"])
    assert (last.known is first.known, list(last)) == (False, ["y"])
    assert lists.write(first) == b'["a","b","c","d","e"]'


@given(st.lists(st.tuples(st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?\Z"), st.integers(0, 10))))
def test_scores_but_for_0_beside_others_are_written_as_their_structs_would_be(pairs: list[tuple[str, int]]) -> None:
    scores = np.array([score for _, score in pairs], dtype=np.int64)
    written = priorities(NameLists(), NodeNames([name for name, _ in pairs]), scores)
    some = any(score for _, score in pairs)
    expected = [HostPriority(host=name, score=score) for name, score in pairs if score or not some]
    assert written == msgspec.json.encode(expected)


def test_any_text_is_written_as_a_name() -> None:
    names = ["a,b", "\x01", 'c","d', "é", "\0", " "]
    written = priorities(NameLists(), NodeNames(names), np.array([3, 10, 8, 9, 1, 2]))
    scores = msgspec.json.decode(written, type=list[HostPriority])
    assert [(one.host, one.score) for one in scores] == list(zip(names, (3, 10, 8, 9, 1, 2), strict=True))


@given(st.lists(st.sampled_from(["", "full", '100 % "used"']), min_size=1), st.booleans())
def test_each_refused_node_has_its_reason(said: list[str], resolvable: bool) -> None:
    names = [f"n{number}" for number in range(len(said))]
    refused = [
        Refused(np.array([one == why for one in said]), why, resolvable=(why == "full") == resolvable)
        for why in ("full", '100 % "used"', "nobody's")
    ]
    lists = NameLists()
    written = reasons(lists, NodeNames(names), refused, resolvable=resolvable)
    assert msgspec.json.decode(written) == {name: why for name, why in zip(names, said, strict=True) if why == "full"}
    others = reasons(lists, NodeNames(names), refused, resolvable=not resolvable)
    told = {name: '100 percent "used"' for name, why in zip(names, said, strict=True) if "used" in why}
    assert msgspec.json.decode(others) == told


@given(st.data())
def test_a_part_of_a_part_is_what_its_names_say(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.from_regex(r"\A[a-z,]{0,4}\Z"), unique=True))
    nodes, lists = NodeNames(names), NameLists()
    for version in range(3):
        which = np.array(data.draw(st.lists(st.booleans(), min_size=len(nodes), max_size=len(nodes))), dtype=np.bool_)
        nodes, names = nodes.subset(which), [name for name, kept in zip(names, which.tolist(), strict=True) if kept]
        assert len(nodes) == len(names)
        assert lists.write(nodes) == msgspec.json.encode(names)
        assert list(nodes) == names
        rows, places = nodes.found(version, _even_lengths)
        even = {name: len(name) for name in names if len(name) % 2 == 0}
        assert dict(zip([names[at] for at in places.tolist()], rows.tolist(), strict=True)) == even


def _even_lengths(names: Sequence[str]) -> IntArray:
    return np.array([len(name) if len(name) % 2 == 0 else -1 for name in names], dtype=np.int64)
