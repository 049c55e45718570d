"""Numbers as people and API servers write them."""

import pytest

from egpu.api.quantities import format_mib, format_quantity, parse_claim_memory, parse_count, parse_memory_mib
from egpu.errors import InvalidQuantity


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


def test_memory_is_written_for_people_and_for_objects() -> None:
    assert format_mib(2560) == "2560 MiB"
    assert format_mib(16384) == "16 GiB"
    assert format_quantity(2560) == "2560Mi"
    assert parse_memory_mib("2GiB") == 2048
