"""Quantities and annotations come back as they were written, and nothing but refusals comes from garbage."""

from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from egpu.api import names
from egpu.api.allocation import (
    CardShare,
    ContainerAllocation,
    ContainerDemand,
    PodAllocation,
    PodDemand,
    decode_allocation,
    encode,
)
from egpu_base.api.quantities import (
    canonical_quantity,
    parse_claim_memory,
    parse_count,
    parse_memory_mib,
    parse_quantity,
)
from egpu_base.errors import CorruptData, InvalidQuantity

text = st.text(max_size=12)
suffixes = st.sampled_from([*"numkMGTPE", "", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e-6", "e0", "E3", "e20"])
small = st.integers(0, 2**31)
LOST = 10**21
"""From here on an API server loses zeros of numbers that are written without an exponent."""


def exponent(suffix: str) -> bool:
    return suffix[:1] in ("e", "E") and suffix[1:].lstrip("-").isdigit()


@given(st.integers(1, 2**40))
def test_memory_round_trips(memory_mib: int) -> None:
    assert parse_memory_mib(f"{memory_mib}Mi") == memory_mib
    assert parse_claim_memory(memory_mib, field="f", unit_mib=256) == memory_mib * 256


@given(st.integers(1, 2**53), st.sampled_from(["", "k", "Ki", "M", "Mi", "G", "Gi"]))
def test_counts_are_read_in_every_canonical_form(value: int, suffix: str) -> None:
    factor = {"": 1, "k": 10**3, "Ki": 2**10, "M": 10**6, "Mi": 2**20, "G": 10**9, "Gi": 2**30}[suffix]
    assert parse_count(f"{value}{suffix}", field="f") == value * factor


@given(st.decimals(-(10**15), 10**15, places=9), suffixes)
def test_canonical_quantities_mean_the_same_to_a_billionth_and_are_stable(number: Decimal, suffix: str) -> None:
    written = f"{number:f}{suffix}"
    assume(exponent(suffix) or abs(parse_quantity(written)) < LOST)
    canonical = canonical_quantity(written)
    finer = abs(parse_quantity(canonical)) - abs(parse_quantity(written))
    assert 0 <= finer < Fraction(1, 10**9)
    assert canonical_quantity(canonical) == canonical


@given(st.integers(1, 2**53), suffixes)
def test_a_whole_quantity_is_the_same_count_after_the_api_server(number: int, suffix: str) -> None:
    value = parse_quantity(f"{number}{suffix}")
    if value.denominator == 1 and (exponent(suffix) or value < LOST):
        assert parse_count(canonical_quantity(f"{number}{suffix}"), field="f") == value


@given(st.one_of(text, st.floats(), st.integers()))
def test_a_count_is_a_whole_number_above_zero_or_a_refusal(value: str | float) -> None:
    for read in (
        lambda: parse_count(value, field="f"),
        lambda: parse_claim_memory(value, field="f", unit_mib=256),
    ):
        try:
            found = read()
        except InvalidQuantity:
            continue
        assert found >= 1


shares = st.builds(
    CardShare,
    uuid=text,
    index=small,
    minor=small,
    core=st.integers(0, 100),
    memory_mib=small,
    model=text,
    card_memory_mib=small,
)
allocations = st.builds(
    ContainerAllocation,
    provisioner=st.sampled_from([names.VCUDA, names.PHYSICAL]),
    mode=st.sampled_from(["exclusive", "shared"]),
    class_name=text,
    claim=text,
    cards=st.lists(shares, max_size=3).map(tuple),
)
demands = st.builds(
    ContainerDemand, provisioner=text, cards=small, core=small, memory_mib=small, exclusive=st.booleans(), claim=text
)


@given(st.builds(PodAllocation, node=text, containers=st.dictionaries(text, allocations, max_size=3)))
def test_allocations_round_trip(allocation: PodAllocation) -> None:
    assert decode_allocation(encode(allocation)) == allocation


@given(st.builds(PodDemand, containers=st.dictionaries(text, demands, max_size=3), init=st.tuples(text)))
def test_demands_round_trip(demand: PodDemand) -> None:
    assert msgspec.json.decode(encode(demand), type=PodDemand) == demand


@given(st.text())
def test_garbage_is_corrupt_data(garbage: str) -> None:
    with pytest.raises(CorruptData):
        decode_allocation(garbage)
