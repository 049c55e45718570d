"""Texts the API server reads and writes: selectors, JSONPaths, ages."""

import datetime

import pytest

from egpu_base.kubernetes.label_selectors import label_selector
from egpu_sim.cluster.apiserver.reading import jsonpath
from egpu_sim.cluster.apiserver.reading.table import age
from egpu_sim.cluster.apiserver.storage.selectors import field_selector


@pytest.mark.parametrize("text", ["a in x", "a in (x", "=x", "a=b c", "a>x", "a==="])
def test_label_selectors_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        label_selector(text)


def test_empty_selectors_select_everything() -> None:
    assert label_selector("") is None
    assert field_selector("", {}) is None


def test_jsonpath() -> None:
    tree = {"a": {"b.c": [{"t": "x", "v": 1}, {"t": "y", "v": 2}]}}
    assert jsonpath.find(tree, r".a.b\.c[0].v") == [1]
    assert jsonpath.find(tree, ".a['b.c'][*].v") == [1, 2]
    assert jsonpath.find(tree, ".a['b.c'][?(@.t==\"y\")].v") == [2]
    assert jsonpath.find(tree, ".a.none.deeper") == []
    assert jsonpath.find({"s": {"c": 3, "b": 2}}, ".s['a', 'b','c']") == [2, 3]
    with pytest.raises(ValueError, match="unsupported JSONPath"):
        jsonpath.find(tree, ".a[(1)]")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (5, "5s"),
        (119, "119s"),
        (150, "2m30s"),
        (1200, "20m"),
        (4 * 3600 + 120, "4h2m"),
        (30 * 3600, "30h"),
        (10**6, "11d"),
    ],
)
def test_ages_read_as_kubectls_do(seconds: int, shown: str) -> None:
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds, milliseconds=100)
    assert age(moment.isoformat().replace("+00:00", "Z")) == shown
