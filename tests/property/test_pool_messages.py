"""What a peer of the pool may send: any bytes are a message of ours or `CorruptData`, on the stream too, and nothing
of what is refused is kept. What we say ourselves, the other side reads as it was meant."""

import asyncio
import struct
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egpu.adapters.pool import messages
from egpu.adapters.pool.connection import MAX_HELLO_BYTES, Connection
from egpu.api.allocation import CardShare
from egpu.core.leasing.records import LeaseRecord
from egpu_base.errors import CorruptData, Unavailable

KINDS: tuple[type[messages.Message], ...] = get_args(messages.AnyMessage)

# Values of all the shapes that JSON has, many of them nearly right.
NAMES = [kind.__name__ for kind in KINDS]
NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(NAMES)
FIELDS = st.sampled_from(sorted({field.encode_name for kind in KINDS for field in msgspec.structs.fields(kind)}))
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=6
)
OF_THE_CORE = (
    messages.Reported, messages.Orders, messages.Granted, messages.Leases, messages.Moved, messages.Arrived,
)  # fmt: skip
SAID = [kind for kind in KINDS if kind not in OF_THE_CORE]
"""What has no objects of the core inside: `st.builds` makes mappings and numbers of those that nobody would say."""
# A default that is made anew for each struct is a marker in its signature, and `st.builds` would say that one.
NAMED = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=2)
st.register_type_strategy(messages.ServerView, st.builds(messages.ServerView, libraries=NAMED))


def meant(kind: type[messages.Message]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with that kind's fields, some of them of another type."""
    fields = {field.encode_name: JSON for field in msgspec.structs.fields(kind)}
    return st.fixed_dictionaries({"type": st.just(kind.__name__)}, optional=fields)


def decoded(data: bytes) -> messages.AnyMessage | None:
    try:
        return messages.decode(data)
    except CorruptData:
        return None


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"type":"Done","number":' + b"9" * 5000 + b"}")
@example(b'{"type":"Done","number":1e400}')
@example(b'{"type":"Hello","role":"\\ud800"}')
@example(b"\xff\xfe{}")
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    message = decoded(data)
    assert message is None or isinstance(message, messages.Message)


@given(st.sampled_from(KINDS).flatmap(meant))
def test_what_is_nearly_a_message_is_one_or_refused(value: dict[str, Any]) -> None:
    message = decoded(msgspec.json.encode(value))
    if message is not None:
        assert messages.decode(messages.encode(message)) == message, "what was accepted can be said again"


@given(st.sampled_from(SAID).flatmap(st.builds))
def test_what_we_say_is_what_is_read(message: messages.AnyMessage) -> None:
    assert messages.decode(messages.encode(message)) == message


class _Unsent:
    """A writer that nobody writes to."""

    def get_extra_info(self, name: str) -> None:
        return None


async def received(data: bytes, limit_bytes: int) -> list[messages.Message | type[Exception]]:
    """Everything on a stream that ends after `data`: messages, and why it ended."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    connection = Connection(reader, _Unsent())  # type: ignore[arg-type]
    found: list[messages.Message | type[Exception]] = []
    while True:
        try:
            found.append(await connection.receive(limit_bytes=limit_bytes))
        except (CorruptData, Unavailable) as error:
            return [*found, type(error)]


@given(st.binary(max_size=64), st.integers(0, 64))
def test_any_stream_ends_with_a_reason(data: bytes, limit_bytes: int) -> None:
    assert isinstance(asyncio.run(received(data, limit_bytes))[-1], type)


@given(st.lists(st.integers(0, 2**31), max_size=4), st.binary(max_size=40))
def test_frames_come_one_by_one_until_one_is_not_ours(numbers: list[int], rest: bytes) -> None:
    said = [messages.Done(number=number) for number in numbers]
    stream = b"".join(struct.pack(">I", len(body)) + body for body in map(messages.encode, said))
    found = asyncio.run(received(stream + rest, MAX_HELLO_BYTES))
    assert found[: len(said)] == said


@pytest.mark.parametrize("length", [MAX_HELLO_BYTES + 1, 2**32 - 1])
def test_a_length_beyond_the_limit_is_refused_before_anything_is_read(length: int) -> None:
    assert asyncio.run(received(struct.pack(">I", length), MAX_HELLO_BYTES)) == [CorruptData]


def test_an_order_is_said_in_the_words_that_servers_of_all_versions_know() -> None:
    share = CardShare(uuid="GPU-1", index=0, minor=0, core=50, memory_mib=1024, model="T4", card_memory_mib=16384)
    record = LeaseRecord(
        lease="lease-1",
        holder="h",
        peer="client/ann",
        request="r",
        key="k",
        part=0,
        parts=1,
        cards=(share,),
        fit_by=9.5,
    )
    assert messages.encode(messages.Orders(epoch="e", version=3, leases=(record,))) == (
        b'{"type":"Orders","epoch":"e","version":3,"leases":[{"lease":"lease-1","holder":"h","peer":"client/ann",'
        b'"request":"r","key":"k","part":0,"parts":1,"cards":[{"uuid":"GPU-1","index":0,"minor":0,"core":50,'
        b'"memoryMiB":1024,"model":"T4","cardMemoryMiB":16384}],"fitBy":9.5}]}'
    )
