"""Texts the API server reads and writes: quantities, selectors, JSONPaths, ages."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu.embedded.apiserver import jsonpath, quantity
from egpu.embedded.apiserver.selectors import field_selector, label_selector
from egpu.embedded.apiserver.table import age


# as `resource.Quantity` of Kubernetes writes them
@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (2000, "2k"),
        ("2000", "2k"),
        ("1500", "1500"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1024Ki", "1Mi"),
        ("1536Mi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("512", "512"),
        ("0Mi", "0"),
        ("1e3", "1e3"),
        ("1000m", "1"),
        ("0.1Ki", "102400m"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        (1.5, "1500m"),
        ("-2000", "-2k"),
    ],
)
def test_canonical_quantities(text: object, canonical: str) -> None:
    assert quantity.canonical(text) == canonical


@pytest.mark.parametrize("text", ["", "x", "4GB", "1 Gi", "1KiB", "--1", "1e", True, None, "Gi", "1_000"])
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(quantity.NotAQuantity):
        quantity.parse(text)


@given(st.integers(-(10**15), 10**15), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3"]))
def test_canonical_means_the_same_and_is_stable(number: int, suffix: str) -> None:
    canonical = quantity.canonical(f"{number}{suffix}")
    assert quantity.parse(canonical) == quantity.parse(f"{number}{suffix}")
    assert quantity.canonical(canonical) == canonical


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
