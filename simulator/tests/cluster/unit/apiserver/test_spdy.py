"""The frames of port-forward."""

import struct
import zlib

import pytest

from egpu_sim.cluster.apiserver.nodes import spdy
from egpu_sim.cluster.apiserver.nodes.spdy import DICTIONARY, Frame, Framer, Kind


class Client:
    """The other end, as far as it opens streams and reads answers."""

    def __init__(self) -> None:
        self.packer = zlib.compressobj(zdict=DICTIONARY)
        self.unpacker = zlib.decompressobj(zdict=DICTIONARY)

    def open(self, stream: int, **headers: str) -> bytes:
        words = [text.encode() for pair in headers.items() for text in pair]
        block = struct.pack("!I", len(headers)) + b"".join(struct.pack("!I", len(word)) + word for word in words)
        packed = self.packer.compress(block) + self.packer.flush(zlib.Z_SYNC_FLUSH)
        return struct.pack("!HHIIIH", 0x8003, 1, 10 + len(packed), stream, 0, 0) + packed


def test_the_dictionary_is_the_protocol_s() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_frames_arrive_in_any_pieces() -> None:
    client, framer = Client(), Framer()
    ping = struct.pack("!HHII", 0x8003, 6, 4, 9)
    sent = client.open(1, streamtype="error", port="80") + client.open(3, streamtype="data") + ping
    sent += spdy.data(3, b"hello") + spdy.data(3, b"", finished=True) + spdy.reset(3, 5)
    found = [frame for byte in sent for frame in framer.feed(bytes([byte]))]
    assert found == [
        Frame(Kind.OPEN, 1, headers={"streamtype": "error", "port": "80"}),
        Frame(Kind.OPEN, 3, headers={"streamtype": "data"}),
        Frame(Kind.PING, 9),
        Frame(Kind.DATA, 3, payload=b"hello"),
        Frame(Kind.DATA, 3, finished=True),
        Frame(Kind.RESET, 3),
    ]


def test_answers_share_one_compression() -> None:
    client, framer = Client(), Framer()
    for stream in (1, 3):
        answer = framer.opened(stream)
        assert struct.unpack("!HHII", answer[:12]) == (0x8003, Kind.OPENED, len(answer) - 8, stream)
        assert client.unpacker.decompress(answer[12:]) == b"\0\0\0\0", "no headers"


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("!HHII", 0x8002, 1, 4, 1),
        struct.pack("!II", 1, spdy.FRAME_BYTES + 1),
        struct.pack("!HHIIIH", 0x8003, 1, 14, 1, 0, 0) + b"none",
        Client().open(1, name="x" * 2 * spdy.HEADER_BYTES),
    ],
    ids=["version", "length", "no headers", "headers too long"],
)
def test_what_is_no_frame_is_refused(sent: bytes) -> None:
    with pytest.raises(spdy.Malformed):
        list(Framer().feed(sent))
