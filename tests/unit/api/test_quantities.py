"""Numbers as people and API servers write them."""

from fractions import Fraction

import pytest

from egpu_base.api.quantities import (
    canonical_quantity,
    format_mib,
    parse_claim_memory,
    parse_count,
    parse_memory_mib,
    parse_quantity,
    quantity_or_zero,
)
from egpu_base.errors import InvalidQuantity


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), (10, 10), ("2k", 2000), ("2Ki", 2048), ("1e3", 1000), ("3000m", 3), (2.0, 2)]
)
def test_a_count_survives_the_api_servers_canonical_form(text: int | float | str, value: int) -> None:
    assert parse_count(text, field="f") == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "zero"),
        (0, "zero"),
        ("-1", "negative"),
        ("1.5", "fraction"),
        (1.5, "fraction"),
        ("500m", "fraction"),
        ("many", "not a number"),
        ("", "not a number"),
        ("4GB", "suffix"),
        ("1 0", "not a number"),
        ("\u0661", "not a number"),
        (True, "not a number"),
        ("9" * 100, "not a number"),
    ],
)
def test_what_is_no_count_is_refused_with_its_field(text: int | float | str, reason: str) -> None:
    with pytest.raises(InvalidQuantity, match=reason) as refused:
        parse_count(text, field="spec.x")
    assert refused.value.field == "spec.x"


@pytest.mark.parametrize(
    ("text", "mib"),
    [(4, 4096), ("4", 4096), ("4GB", 3815), ("4Gi", 4096), ("4GiB", 4096), ("1", 1024), ("1k", 1), ("1.5Gi", 1536)],
)
def test_claim_memory_counts_units_or_bytes_rounded_up(text: int | str, mib: int) -> None:
    assert parse_claim_memory(text, field="f", unit_mib=1024) == mib


@pytest.mark.parametrize("text", ["4XB", "500m", "-4GB", "0Gi", "0.5", "GB", "4 GB x"])
def test_bad_claim_memory_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        parse_claim_memory(text, field="f", unit_mib=1024)


def test_memory_is_written_for_people() -> None:
    assert format_mib(2560) == "2560 MiB"
    assert format_mib(16384) == "16 GiB"
    assert parse_memory_mib("2GiB") == 2048


# as `resource.Quantity` of Kubernetes writes them
@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (2000, "2k"),
        ("2000", "2k"),
        ("1500", "1500"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("1.", "1"),
        ("1024Ki", "1Mi"),
        ("1536Mi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("512", "512"),
        ("0Mi", "0"),
        ("1e3", "1e3"),
        ("1000e3", "1e6"),
        ("10000E20", "1e24"),
        ("100E", "100E"),
        ("1" + "0" * 40, "10"),  # no suffix is as large, and the zeros are lost
        ("10000E", "10"),
        ("10001E", "10001E"),
        ("1000m", "1"),
        ("0.1Ki", "102400m"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        (1.5, "1500m"),
        ("-2000", "-2k"),
        ("-2048Ki", "-2Mi"),
    ],
)
def test_canonical_quantities(text: object, canonical: str) -> None:
    assert canonical_quantity(text) == canonical


@pytest.mark.parametrize(
    "text", ["", "x", "4GB", "1 Gi", " 1", "1K", "1KiB", "--1", "1e", "1e100", "nan", True, None, "Gi", "1_000", "1/2"]
)
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(InvalidQuantity) as refused:
        parse_quantity(text, field="spec.x")
    assert refused.value.field == "spec.x"
    assert quantity_or_zero(text) == 0


def test_sums_count_nothing_below_zero() -> None:
    assert quantity_or_zero("-1") == 0
    assert quantity_or_zero("1500m") == Fraction(3, 2)
