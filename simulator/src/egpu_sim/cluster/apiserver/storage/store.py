"""Versioned storage in memory: shelves of objects and, for each, the log of its latest changes.

Pure: no clock, no I/O, no asyncio. One counter numbers every change of every shelf (the `resourceVersion`). The log
answers watches. Undone from its end, it also gives earlier states, so that all pages of a list show the same moment.
Revisions before the log are `TooOld`: the reader must list again.
"""

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from egpu_sim.cluster.trees import Json, encode, metadata, name_of, namespace_of

Key: TypeAlias = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""

ChangeKind: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]

LOG_LIMIT = 8192
"""The fewest changes that a shelf remembers; it forgets as many at a time."""


class TooOld(Exception):
    """The requested revision is older than the log."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")


@dataclass(frozen=True, slots=True)
class Stored:
    """An object at one revision. `obj` is never mutated; `forms` caches encodings, the storage form under ""."""

    key: Key
    revision: int
    obj: Json
    forms: dict[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def raw(self) -> bytes:
        return self.forms[""]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log. `item` of a DELETED change is the last state, at the deletion's own revision."""

    kind: ChangeKind
    item: Stored
    previous: Stored | None

    @property
    def revision(self) -> int:
        return self.item.revision


def _revision(change: Change) -> int:
    return change.revision


class Shelf:
    """All objects of one resource, and the log of their changes."""

    def __init__(self, log_limit: int) -> None:
        self.items: dict[Key, Stored] = {}
        self.log: list[Change] = []
        self.forgotten = 0
        """Revision of the latest change that fell out of the log."""
        self._log_limit = log_limit

    def append(self, change: Change) -> None:
        self.log.append(change)
        if len(self.log) >= 2 * self._log_limit:
            self.forgotten = self.log[self._log_limit - 1].revision
            del self.log[: self._log_limit]

    def since(self, revision: int) -> list[Change]:
        """Return changes after `revision`, oldest first. Raises TooOld."""
        if revision < self.forgotten:
            raise TooOld(revision, self.forgotten)
        return self.log[bisect.bisect_right(self.log, revision, key=_revision) :]

    def at(self, revision: int) -> dict[Key, Stored]:
        """Return the objects as they were at `revision`. Raises TooOld."""
        later = self.since(revision)
        if not later:
            return self.items
        items = dict(self.items)
        for change in reversed(later):
            if change.previous is None:
                items.pop(change.item.key, None)
            else:
                items[change.item.key] = change.previous
        return items


Listener: TypeAlias = Callable[[str, Change], None]


class Store:
    """Every shelf and their common counter."""

    def __init__(self, *, first_revision: int = 1, log_limit: int = LOG_LIMIT) -> None:
        self.revision = first_revision
        self._first_revision = first_revision
        self._log_limit = log_limit
        self._shelves: dict[str, Shelf] = {}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call `listener` after every change, in order."""
        self._listeners.append(listener)

    def take_over(self, earlier: "Store") -> None:
        """Take over the objects of an earlier store, each at its revision, and call listeners. The log begins anew:
        revisions before `earlier.revision`, which becomes the first, are too old."""
        for name, shelf in earlier.shelves():
            self.shelf(name).items.update(shelf.items)
        for name, shelf in self.shelves():
            for item in list(shelf.items.values()):
                for listener in self._listeners:
                    listener(name, Change("ADDED", item, None))

    def shelf(self, name: str) -> Shelf:
        found = self._shelves.get(name)
        if found is None:
            found = self._shelves[name] = Shelf(self._log_limit)
            # A client may hold a revision from before the restart: that one is too old, not empty.
            found.forgotten = self._first_revision
        return found

    def shelves(self) -> Iterable[tuple[str, Shelf]]:
        return list(self._shelves.items())

    def get(self, name: str, key: Key) -> Stored | None:
        return self.shelf(name).items.get(key)

    def put(self, name: str, obj: Json) -> Stored:
        """Store `obj`, which then belongs to the store, with its new resourceVersion."""
        shelf = self.shelf(name)
        item = self._stamp(obj)
        previous = shelf.items.get(item.key)
        shelf.items[item.key] = item
        self._publish(name, shelf, Change("ADDED" if previous is None else "MODIFIED", item, previous))
        return item

    def remove(self, name: str, obj: Json) -> Stored:
        """Remove the object with the key of `obj`, which is its last state. Raises KeyError for an unknown object."""
        shelf = self.shelf(name)
        previous = shelf.items.pop((namespace_of(obj), name_of(obj)))
        item = self._stamp(obj)
        self._publish(name, shelf, Change("DELETED", item, previous))
        return item

    def _stamp(self, obj: Json) -> Stored:
        self.revision += 1
        metadata(obj)["resourceVersion"] = str(self.revision)
        return Stored((namespace_of(obj), name_of(obj)), self.revision, obj, {"": encode(obj)})

    def _publish(self, name: str, shelf: Shelf, change: Change) -> None:
        shelf.append(change)
        for listener in self._listeners:
            listener(name, change)
