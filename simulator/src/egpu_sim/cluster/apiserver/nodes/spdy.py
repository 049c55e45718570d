"""SPDY/3.1 as far as port-forward needs it: bytes to frames and back, without I/O.

Source: the SPDY protocol, draft 3.1. Only the client opens streams. There is no flow control: the WebSocket that
carries all of it does that, as at kubectl's own end.
"""

import enum
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

FRAME_BYTES = 1024 * 1024
"""The most bytes of a frame."""
HEADER_BYTES = 64 * 1024
"""The most bytes of a stream's headers, unpacked."""
_CONTROL, _VERSION, _FINISHED = 0x80, 3, 0x01

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
_words = [word.replace("_", " ").encode() for word in _WORDS.split()]
DICTIONARY = b"".join(struct.pack("!I", len(word)) + word for word in _words) + _TEXT.encode()
"""The dictionary of the headers' compression: words with their lengths, then text."""


class Kind(enum.IntEnum):
    """Control frames by their numbers; `DATA` is none of them."""

    DATA = 0
    OPEN = 1
    """SYN_STREAM"""
    OPENED = 2
    """SYN_REPLY"""
    RESET = 3
    PING = 6
    GO_AWAY = 7


REFUSED_STREAM = 3
"""Status of a RESET."""


class Malformed(Exception):
    """Bytes that are no frames of this protocol."""


@dataclass(frozen=True)
class Frame:
    """`stream` is the ping's number in a PING. `finished`: its sender sends no more on that stream."""

    kind: int
    stream: int
    finished: bool = False
    payload: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Framer:
    """One connection, from the server's side. Send replies in the order in which they are made."""

    def __init__(self) -> None:
        self._buffer = b""
        self._unpacker = zlib.decompressobj(zdict=DICTIONARY)
        self._packer = zlib.compressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Return the frames that are complete now. Raises Malformed."""
        self._buffer += data
        while len(self._buffer) >= 8:
            length = int.from_bytes(self._buffer[5:8])
            if length > FRAME_BYTES:
                raise Malformed(f"a frame of {length} bytes")
            if len(self._buffer) < 8 + length:
                return
            head, payload, self._buffer = self._buffer[:5], self._buffer[8 : 8 + length], self._buffer[8 + length :]
            yield self._frame(head, payload)

    def _frame(self, head: bytes, payload: bytes) -> Frame:
        finished = bool(head[4] & _FINISHED)
        if not head[0] & _CONTROL:
            return Frame(Kind.DATA, int.from_bytes(head[:4]), finished, payload)
        if int.from_bytes(head[:2]) != _CONTROL << 8 | _VERSION:
            raise Malformed("another version of SPDY")
        kind = int.from_bytes(head[2:4])
        headers = self._headers(payload[10:]) if kind == Kind.OPEN else {}
        return Frame(kind, int.from_bytes(payload[:4]) & 0x7FFFFFFF, finished, headers=headers)

    def _headers(self, packed: bytes) -> dict[str, str]:
        try:
            plain = self._unpacker.decompress(packed, HEADER_BYTES)
            words: list[str] = []
            at = 4
            for _ in range(2 * int.from_bytes(plain[:4])):
                length = int.from_bytes(plain[at : at + 4])
                at += 4 + length
                if at > len(plain):
                    raise Malformed("incomplete headers")
                words.append(plain[at - length : at].decode())
        except (zlib.error, UnicodeDecodeError) as error:
            raise Malformed(f"headers: {error}") from error
        return dict(zip(words[::2], words[1::2], strict=True))

    def opened(self, stream: int) -> bytes:
        none = self._packer.compress(struct.pack("!I", 0)) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return _control(Kind.OPENED, stream, none)


def data(stream: int, payload: bytes, *, finished: bool = False) -> bytes:
    """Return a frame of data; with `finished`, its stream's last."""
    return struct.pack("!II", stream, (_FINISHED if finished else 0) << 24 | len(payload)) + payload


def reset(stream: int, status: int) -> bytes:
    return _control(Kind.RESET, stream, struct.pack("!I", status))


def pong(number: int) -> bytes:
    return _control(Kind.PING, number, b"")


def _control(kind: Kind, number: int, rest: bytes) -> bytes:
    return struct.pack("!HHII", _CONTROL << 8 | _VERSION, kind, 4 + len(rest), number) + rest
