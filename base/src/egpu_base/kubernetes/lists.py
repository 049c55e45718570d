"""The API server's pages of lists and lines of watches, and their decoded forms."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypedDict, TypeVar

import httpx2
import msgspec

from egpu_base.api.objects import Object, ObjectMeta
from egpu_base.errors import Unavailable

MAX_WATCH_LINE_BYTES: Final = 16 * 1024 * 1024

T = TypeVar("T", bound=Object)
Large: TypeAlias = Callable[[msgspec.Raw], T] | None
"""Reads the part of a large object that its reader needs. Raises msgspec's errors."""
LARGE_BYTES: Final = 256 * 1024
"""An object in Python takes ten times its text, and its parts cost time: of a larger one, all may be too much."""


class Asked(TypedDict, Generic[T], total=False):
    """The options of a list: see `Client.pages`."""

    namespace: str | None
    labels: str | None
    fields: str | None
    transform: Callable[[T], T]
    large: Large[T]


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class WatchLine(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


class ReadLine(msgspec.Struct, Generic[T]):
    """`WatchLine` of an object that decodes."""

    type: str
    object: T


class Identity(msgspec.Struct, rename="camel"):
    """The metadata that even an object has that does not decode."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Identified(msgspec.Struct):
    metadata: Identity = msgspec.field(default_factory=Identity)


@dataclass(frozen=True)
class WatchEvent(Generic[T]):
    """One line of a watch. `object` is None for a bookmark, and for an object that does not decode."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    identity: Identity | ObjectMeta
    object: T | None


@dataclass(frozen=True)
class Listed(Generic[T]):
    """One page of a list. `version`: the resourceVersion to watch from, that of the whole list."""

    objects: Sequence[T]
    version: str


def reader_of(kind: type[T]) -> msgspec.json.Decoder[ReadLine[T]]:
    """Return a decoder of lines about objects of a kind."""
    return msgspec.json.Decoder(ReadLine[kind])


def selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    """Return a list's or a watch's parameters that select objects."""
    pairs = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in pairs.items() if value is not None}


async def lines_of(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a watch. Raises Unavailable at one that is too long."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_WATCH_LINE_BYTES:
            raise Unavailable(f"a watch event is larger than {MAX_WATCH_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                yield line


def same(one: T) -> T:
    """Return an object as it is."""
    return one
