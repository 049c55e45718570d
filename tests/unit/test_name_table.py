"""Names by number in native code: what is read as plain is what it says, and nothing else is."""

import gc
import json
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.adapters.name_table import NameTable

NAMES = st.lists(st.text(max_size=40), unique=True, max_size=200)


def table_of(names: list[str]) -> NameTable:
    made = NameTable()
    for name in names:
        made.add(json.dumps(name).encode())
    return made


@given(NAMES, st.data())
def test_any_order_of_known_names_is_read_and_written_alike(names: list[str], data: st.DataObject) -> None:
    table = table_of(names)
    plain = [at for at, name in enumerate(names) if "\\" not in json.dumps(name)]
    order = data.draw(st.permutations(plain))
    text = json.dumps([names[at] for at in order], separators=(",", ":")).encode()
    found = table.read(text)
    assert found is not None
    assert found.tolist() == order
    assert b"[%b]" % table.write(found) == text


NOT_PLAIN = [b"", b"[", b"]", b"null", b'["a"', b'["a",]', b'["a" ]', b'["a""b"]', b'["\\u0061"]']
NOT_KNOWN = [b'["b","c"]', b'["a","b","a"]']


@pytest.mark.parametrize("text", [*NOT_PLAIN, *NOT_KNOWN])
def test_what_is_not_plain_or_not_known_is_left_to_others(text: bytes) -> None:
    assert table_of(["a", "b"]).read(text) is None


def test_scores_of_any_size_are_written_with_what_stands_around_them() -> None:
    table = table_of(["a", "bc"])
    scores = np.array([0, 10, 2**63 - 1])
    text = table.write_scored(np.array([1, 0, 1]), scores, b"<", b"=", b">")
    assert text == b'<"bc"=0>,<"a"=10>,<"bc"=9223372036854775807>'
    assert table.write(np.array([0, 1]), b"!") == b'"a"!,"bc"!'
    assert table.write(np.array([], dtype=np.int64)) == b""


@pytest.mark.parametrize("number", [-1, 2, 2**62])
def test_a_number_without_a_name_is_an_error(number: int) -> None:
    with pytest.raises(IndexError, match="one of the 2 names"):
        table_of(["a", "b"]).write(np.array([0, number]))
    with pytest.raises(ValueError, match="1 names, 2 scores"):
        table_of(["a"]).write_scored(np.array([0]), np.array([1, 2]), b"", b"", b"")


def test_a_table_goes_with_its_last_user() -> None:
    table = table_of(["a"])
    gone = weakref.ref(table)
    del table
    gc.collect()
    assert gone() is None
