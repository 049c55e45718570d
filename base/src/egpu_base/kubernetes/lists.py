"""The API server's pages of lists and lines of watches, and their decoded forms."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec

from egpu_base.api.objects import Object, ObjectMeta

T = TypeVar("T", bound=Object)


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
