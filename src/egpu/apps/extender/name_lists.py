"""Lists of names of nodes in JSON, read and written by array: a string for each of thousands of names, and a dictionary
that finds it, take longer than all that is decided.

A name is found by a hash of its bytes, eight at a time, in a table that is much larger than it need be, and compared
with what is found there, letter for letter. A list of which not all is found so is read as any JSON is.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from egpu.core.arrays import IntArray
from egpu.core.placement.node_names import KnownNodes, NodeNames
from egpu.errors import InvalidInput

ByteArray = NDArray[np.uint8]
WordArray = NDArray[np.uint64]

NAMES_LIMIT: Final = 32_768
"""Names known at once, unless more than half as many are asked about."""
MAX_NAME: Final = 253
"""Characters of the name of a node: Kubernetes allows no more."""
_SPARSE: Final = 32
"""Places in the table for each name: so one in thirty, or fewer, shares its place and is looked up as a string."""
_FEWEST_BITS: Final = 10
_WORD: Final = 8
_MULTIPLIER: Final = 0x9E37_79B9_7F4A_7C15
_QUOTE: Final = ord('"')
_PADDING: Final = b"\0"
"""What makes texts equally long. No JSON has such a letter."""


class NameLists:
    """`read` and `write` lists; what was named keeps its number."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(list[str])
        self._forget()

    def _forget(self) -> None:
        self._known = KnownNodes()
        self._quoted: ByteArray = np.zeros((0, 0), dtype=np.uint8)
        """By number the name as JSON, padded to whole words."""
        self._bits = _FEWEST_BITS
        self._places: NDArray[np.int32] = np.zeros(1 << self._bits, dtype=np.int32)
        """By the first bits of its hash, the number of a name."""

    def named(self, names: Sequence[str]) -> NodeNames:
        """These. Raises InvalidInput for a name that no node can have, for all are kept as long as the longest."""
        if any(len(name) > MAX_NAME for name in names):
            raise InvalidInput("NodeNames", f"a name is longer than {MAX_NAME} characters")
        if len(self._known) > max(NAMES_LIMIT, 2 * len(names)):
            self._forget()
        found = NodeNames(names, self._known)
        self._learn()
        return found

    def read(self, text: bytes) -> NodeNames:
        """Those of a list, which is JSON. Raises msgspec.MsgspecError where it is not one of strings, and as
        `named` does."""
        numbers = self._numbers(text)
        if numbers is None:
            return self.named(self._decoder.decode(text))
        return NodeNames.numbered(numbers, self._known)

    def write(self, nodes: NodeNames) -> bytes:
        """As a JSON list, as Go writes it."""
        return b"[%b]" % text_of(self.rows(nodes, b",", b""))[1:]

    def rows(self, nodes: NodeNames, before: bytes, after: bytes) -> ByteArray:
        """Each of the names as JSON between two texts, shape (nodes, bytes), for `text_of`."""
        if nodes.known is not self._known:
            nodes = self.named(nodes)
        start, end = len(before), len(before) + self._quoted.shape[1]
        rows = np.empty((len(nodes), end + len(after)), dtype=np.uint8)
        rows[:, :start] = np.frombuffer(before, dtype=np.uint8)
        rows[:, start:end] = self._quoted.take(nodes.numbers, axis=0)
        rows[:, end:] = np.frombuffer(after, dtype=np.uint8)
        return rows

    def _numbers(self, text: bytes) -> IntArray | None:
        """The numbers of the names of a list; None where it has to be read as any JSON."""
        rows = _strings(text, self._quoted.shape[1])
        if rows is None:
            return None
        numbers = self._places.take(_hashes(rows, self._bits)).astype(np.int64)
        differ = (_words(self._quoted).take(numbers, axis=0) != _words(rows)).ravel().nonzero()[0]
        if not len(differ):
            return numbers
        strange = np.unique(differ // (rows.shape[1] // _WORD))
        if len(strange) > len(numbers) // 4:
            return None
        names: list[bytes] = rows[strange].view(f"S{rows.shape[1]}").ravel().tolist()
        numbers[strange] = [self._known.number(name[1:-1].decode(errors="replace")) for name in names]
        if numbers.min() < 0:
            return None
        return numbers

    def _learn(self) -> None:
        """Takes in the names that are new."""
        known, width = self._quoted.shape
        if len(self._known) == known:
            return
        new = np.array([msgspec.json.encode(name) for name in self._known.names[known:]])
        self._quoted = _joined(self._quoted, new.view(np.uint8).reshape(len(new), -1))
        bits = max(self._bits, (_SPARSE * len(self._quoted) - 1).bit_length())
        if bits != self._bits or self._quoted.shape[1] != width:
            self._bits, known = bits, 0
            self._places = np.zeros(1 << bits, dtype=np.int32)
        self._places[_hashes(self._quoted[known:], bits)] = np.arange(known, len(self._quoted))


def text_of(rows: ByteArray) -> bytes:
    """Rows of `NameLists.rows`, one after the other."""
    return rows.tobytes().translate(None, _PADDING)


def _strings(text: bytes, width: int) -> ByteArray | None:
    """Of a list of strings and nothing else, without spaces between or escapes within, each string with its quotes,
    padded, shape (strings, width); None for any other JSON, and where one is longer."""
    quotes: IntArray = (np.frombuffer(text, dtype=np.uint8) == _QUOTE).nonzero()[0]
    starts, ends = quotes[::2], quotes[1::2] + 1
    plain = text.startswith(b'["') and b"\\" not in text
    if not plain or len(starts) != len(ends) or ends[-1] != len(text) - 1:
        return None
    lengths = ends - starts
    if (starts[1:] - ends[:-1] != len(",")).any() or lengths.max() > width:
        return None
    padded = text + _PADDING * width
    cut: NDArray[np.void] = np.ndarray((len(text),), dtype=f"V{width}", buffer=padded, strides=(1,))[starts]
    return cut.view(np.uint8).reshape(-1, width) & _masks(width).take(lengths, axis=0)


@lru_cache(maxsize=1)
def _masks(width: int) -> ByteArray:
    """By length, 0 to `width`, what of a row is so long a text, and not what follows it."""
    return 0xFF * np.tri(width + 1, width, -1, dtype=np.uint8)


def _hashes(rows: ByteArray, bits: int) -> IntArray:
    """The first bits of each row's hash, shape (rows,)."""
    words = _words(rows)
    factors = np.cumprod(np.full(words.shape[1], _MULTIPLIER, dtype=np.uint64))
    hashes: WordArray = words.dot(factors)
    hashes ^= hashes >> np.uint64(32)
    return (hashes * np.uint64(_MULTIPLIER) >> np.uint64(64 - bits)).astype(np.int64)


def _words(rows: ByteArray) -> WordArray:
    return rows.view(np.uint64)


def _joined(first: ByteArray, then: ByteArray) -> ByteArray:
    """The rows of both, padded alike, to whole words."""
    width = -(-max(first.shape[1], then.shape[1]) // _WORD) * _WORD
    return np.concatenate([np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in (first, then)])
