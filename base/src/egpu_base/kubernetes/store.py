"""The objects of a reflector's copy, by name and by UID.

An object in Python is ten times as large as its data, and the garbage collector walks through its parts again and
again. So kinds with very many objects, of which few are used, are kept *packed*: as bytes that are decoded on each
access (some microseconds). Only the latest are kept unpacked, because their writer will ask for them.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic

import msgspec

from egpu_base.kubernetes.client import T

RECENT: Final = 64
"""The number of latest objects of a packed kind that stay unpacked."""


class _Packing(Generic[T]):
    """Deflate, with the first object as the dictionary: all of a kind have the same field names, and most values."""

    def __init__(self, kind: type[T]) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._alike = b""

    def pack(self, one: T) -> bytes:
        text = self._encode(one)
        self._alike = self._alike or text
        deflate = zlib.compressobj(1, wbits=-zlib.MAX_WBITS, zdict=self._alike)
        return deflate.compress(text) + deflate.flush()

    def read(self, kept: T | bytes) -> T:
        """Return an object, packed or not."""
        if not isinstance(kept, bytes):
            return kept
        return self._decode(zlib.decompressobj(-zlib.MAX_WBITS, self._alike).decompress(kept))


class _Snapshot(Mapping[str, T]):
    """Past objects by key; each is decoded on first access."""

    def __init__(self, kept: dict[str, T | bytes], unpack: Callable[[T | bytes], T]) -> None:
        self._kept = kept
        self._unpack = unpack
        self._read: dict[str, T] = {}

    def __getitem__(self, key: str) -> T:
        if key not in self._read:
            self._read[key] = self._unpack(self._kept[key])
        return self._read[key]

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class Store(Generic[T]):
    """Objects by key (`namespace/name`, or `name` for kinds without a namespace) and UID. Iteration covers the objects
    that are present when it begins."""

    def __init__(self, kind: type[T], *, packed: bool) -> None:
        self._packing, self._packed = _Packing(kind), packed
        self._kept: dict[str, T | bytes] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()
        """The keys of a packed kind's unpacked objects, the latest last."""
        self._key_of: dict[str, str] | None = None
        """By UID. It is made at the first access by UID, because most kinds never need it."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[T]:
        return map(self._packing.read, list(self._kept.values()))

    def keys(self) -> set[str]:
        return set(self._kept)

    def snapshot(self) -> Mapping[str, T]:
        """Return all present objects by key."""
        return _Snapshot(dict(self._kept), self._packing.read)

    def get(self, key: str) -> T | None:
        kept = self._kept.get(key)
        return None if kept is None else self._packing.read(kept)

    def by_uid(self, uid: str) -> T | None:
        if self._key_of is None:
            self._key_of = {one.uid: one.key for one in self}
        key = self._key_of.get(uid)
        return None if key is None else self.get(key)

    def put(self, one: T) -> None:
        """Replace the object with the same name. An object with another UID and that name must be `pop`ped first."""
        self._kept[one.key] = one
        if self._packed:
            self._recent[one.key] = None
            self._recent.move_to_end(one.key)
            if len(self._recent) > RECENT:
                self._pack(self._recent.popitem(last=False)[0])
        if self._key_of is not None:
            self._key_of[one.uid] = one.key

    def pop(self, key: str) -> T | None:
        old = self.get(key)
        if old is not None:
            del self._kept[key]
            self._recent.pop(key, None)
            if self._key_of is not None:
                self._key_of.pop(old.uid, None)
        return old

    def _pack(self, key: str) -> None:
        self._kept[key] = self._packing.pack(self._packing.read(self._kept[key]))
