"""Two readers of a usage file agree, whatever a container writes into it: one by one, and all rows at once."""

from hypothesis import given
from hypothesis import strategies as st

from egpu.adapters.slices.pages import (
    ABI_VERSION,
    MAX_DEVICES,
    SLOT_LIVE,
    USAGE_HEADER,
    USAGE_ROW,
    USAGE_ROWS_OFFSET,
    USAGE_SIZE,
    decode_usage,
)
from egpu.adapters.slices.rows import MOST_BYTES, PHYSICAL_PAGE, Memory, Row, memory_of, rows_of

LARGE = st.sampled_from([0, 1, PHYSICAL_PAGE - 1, PHYSICAL_PAGE, 60 << 30, 1 << 49, 2**63, 2**64 - 1])
NUMBER = st.sampled_from([0, 1, 2, 7, 2**32 - 1])


@st.composite
def usage(draw: st.DrawFn) -> bytes:
    content = bytearray(USAGE_SIZE)
    USAGE_HEADER.pack_into(content, 0, b"EGPUUSG1", ABI_VERSION, USAGE_SIZE, 1024, MAX_DEVICES)
    for row in draw(st.lists(st.integers(0, 1023), unique=True, max_size=5)):
        first = draw(st.sampled_from([SLOT_LIVE, 0, 2])), draw(st.sampled_from([0, 15, 16])), draw(NUMBER), 1
        times = draw(LARGE), draw(LARGE), draw(LARGE), draw(LARGE), draw(NUMBER), draw(NUMBER)
        rest = [0, 0, draw(NUMBER), 0, 0, 0, *draw(st.lists(LARGE, min_size=16, max_size=16))]
        USAGE_ROW.pack_into(content, USAGE_ROWS_OFFSET + row * USAGE_ROW.size, *first, *times, *rest)
    return bytes(content)


@given(usage())
def test_all_rows_at_once_say_the_same(content: bytes) -> None:
    processes = decode_usage(content).processes
    assert [tuple(row)[1:] for row in rows_of(content)] == [
        (one.device, one.pid, one.start_time, one.pid_namespace) for one in processes
    ]
    found = memory_of(content)
    assert found.movable_bytes >= 0
    assert 0 <= found.away_bytes <= found.counted_bytes
    assert found.active_ns == max((one.heartbeat_ns for one in processes), default=0)
    large = [one for one in processes if one.device_bytes >= PHYSICAL_PAGE]
    assert found.answered == {one.parking.answered for one in large}
    if any(max(one.device_bytes, one.memory_bytes, one.spill_bytes) > MOST_BYTES for one in processes):
        return  # larger than any card: cut, as the reader cuts it to the limit of the slice
    counted = sum(one.memory_bytes for one in processes)
    moved = [one for one in large if not (one.parking.parked_bytes and one.parking.parks > one.parking.wakes)]
    assert found.counted_bytes == counted
    assert found.away_bytes == min(sum(one.parking.parked_bytes for one in processes), counted)
    assert found.movable_bytes == sum(max(0, one.device_bytes - one.parking.parked_bytes) for one in moved)


@given(st.binary(max_size=200) | st.just(bytes(USAGE_SIZE)))
def test_other_bytes_are_no_rows(content: bytes) -> None:
    assert rows_of(content) == list[Row]()
    assert memory_of(content) == Memory()
