"""The objects of a reflector's copy, by name and by UID.

An object as Python has it is ten times as large as what it says, and the garbage collector walks through its parts
again and again. So kinds of which there are very many, and of which few are looked at, are kept *packed*: as bytes,
which are read anew whenever one is asked for (some microseconds). The latest alone are kept as they are, for whoever
writes them will be asking for them.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic

import msgspec

from egpu.adapters.kubernetes.client import T

RECENT: Final = 64
"""Objects of a packed kind that are kept as they are, the latest."""


class _Packing(Generic[T]):
    """Deflated, with the first object as the dictionary: all of a kind have the same field names, and most of the
    values."""

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
        """An object, packed or not."""
        if not isinstance(kept, bytes):
            return kept
        return self._decode(zlib.decompressobj(-zlib.MAX_WBITS, self._alike).decompress(kept))


class _Snapshot(Mapping[str, T]):
    """Objects as they were, by key; each is read when it is first asked for."""

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
    """By key (`namespace/name`, or `name` for kinds without a namespace) and UID. Iteration is over the objects as they
    were when it began."""

    def __init__(self, kind: type[T], *, packed: bool) -> None:
        self._packing, self._packed = _Packing(kind), packed
        self._kept: dict[str, T | bytes] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()
        """Of a packed kind, the keys of those that are not packed, the latest last."""
        self._key_of: dict[str, str] | None = None
        """By UID; made when somebody first asks by UID, for of most kinds nobody ever does."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[T]:
        return map(self._packing.read, list(self._kept.values()))

    def keys(self) -> set[str]:
        return set(self._kept)

    def snapshot(self) -> Mapping[str, T]:
        """All of them as they are now, by key."""
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
        """In place of what has its name; another UID under one name must be `pop`ped first."""
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
