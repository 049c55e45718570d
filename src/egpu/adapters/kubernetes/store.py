"""The objects of a reflector's copy, by name and by UID.

An object as Python has it is ten times as large as what it says, and the garbage collector walks through its parts
again and again. So kinds of which there are very many, and of which few are looked at, are kept *packed*: as bytes,
which are read anew whenever one is asked for (some microseconds).
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic

import msgspec

from egpu.adapters.kubernetes.client import T


class _Whole(Generic[T]):
    """As it is."""

    def __init__(self, kind: type[T]) -> None:
        del kind

    def pack(self, one: T) -> Any:
        return one

    def unpack(self, kept: Any) -> T:
        return kept


class _Packed(Generic[T]):
    """Deflated, with the first object as the dictionary: all of a kind have the same field names, and most of the
    values."""

    def __init__(self, kind: type[T]) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._alike = b""

    def pack(self, one: T) -> Any:
        text = self._encode(one)
        self._alike = self._alike or text
        deflate = zlib.compressobj(1, wbits=-zlib.MAX_WBITS, zdict=self._alike)
        return deflate.compress(text) + deflate.flush()

    def unpack(self, kept: Any) -> T:
        return self._decode(zlib.decompressobj(-zlib.MAX_WBITS, self._alike).decompress(kept))


class _Snapshot(Mapping[str, T]):
    """Objects as they were, by key; each is read when it is first asked for."""

    def __init__(self, kept: dict[str, Any], unpack: Callable[[Any], T]) -> None:
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
        self._form: _Whole[T] | _Packed[T] = _Packed(kind) if packed else _Whole(kind)
        self._kept: dict[str, Any] = {}
        self._key_of: dict[str, str] | None = None
        """By UID; made when somebody first asks by UID, for of most kinds nobody ever does."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[T]:
        return map(self._form.unpack, list(self._kept.values()))

    def keys(self) -> set[str]:
        return set(self._kept)

    def snapshot(self) -> Mapping[str, T]:
        """All of them as they are now, by key."""
        return _Snapshot(dict(self._kept), self._form.unpack)

    def get(self, key: str) -> T | None:
        kept = self._kept.get(key)
        return None if kept is None else self._form.unpack(kept)

    def by_uid(self, uid: str) -> T | None:
        if self._key_of is None:
            self._key_of = {one.uid: one.key for one in self}
        key = self._key_of.get(uid)
        return None if key is None else self.get(key)

    def put(self, one: T) -> None:
        """In place of what has its name; another UID under one name must be `pop`ped first."""
        self._kept[one.key] = self._form.pack(one)
        if self._key_of is not None:
            self._key_of[one.uid] = one.key

    def pop(self, key: str) -> T | None:
        old = self.get(key)
        if old is not None:
            del self._kept[key]
            if self._key_of is not None:
                self._key_of.pop(old.uid, None)
        return old
