"""Watches: readers of the change log.

A watcher holds only a position in its log. A change that it reports wakes it; any other change only moves its position,
so watchers of other nodes do not wake for a pod. A watcher whose position fell out of the log gets 410 and is closed,
so a slow reader costs no memory. Each change is encoded once per served version and shared by all.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.http.negotiation import Form
from egpu_sim.cluster.apiserver.reading import table
from egpu_sim.cluster.apiserver.reading.reads import Selection, revision_of, shown
from egpu_sim.cluster.apiserver.status import bad_request, expired, refused, too_large_revision
from egpu_sim.cluster.apiserver.storage.store import Change, Store, Stored, TooOld
from egpu_sim.cluster.trees import Json, encode

DEFAULT_SECONDS = 3600.0
BOOKMARK_SECONDS = 30.0
CHUNK_BYTES = 256 * 1024
"""The most bytes of events in one write (an event is never split)."""
WATCHERS_LIMIT = 4096


class Hub:
    """Passes changes to the watchers of a shelf."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._watches: defaultdict[str, set[Watch]] = defaultdict(set)
        self._closing = False
        self.cuts = 0
        """Number of times that all watches were ended."""
        store.listen(self._on_change)

    def _on_change(self, shelf: str, change: Change) -> None:
        for watch in self._watches[shelf]:
            watch.happened(change)

    def close(self) -> None:
        """End every watch, now and from now on."""
        self._closing = True
        self._wake_all()

    def cut(self) -> None:
        """End every open watch, as a replaced server does."""
        self.cuts += 1
        self._wake_all()

    def _wake_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    @property
    def closing(self) -> bool:
        return self._closing

    def join(self, shelf: str, watch: "Watch") -> None:
        """Add a watcher. Raises RequestRefused when there are too many."""
        if sum(map(len, self._watches.values())) >= WATCHERS_LIMIT:
            raise refused(429, "TooManyRequests", f"more than {WATCHERS_LIMIT} watches are open")
        self._watches[shelf].add(watch)

    def leave(self, shelf: str, watch: "Watch") -> None:
        self._watches[shelf].discard(watch)


class _Alarm:
    """Sets an event at a time. A watch sets it before each wait, nearly always to the same time."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when: float) -> None:
        if self._timer is None or self._timer.when() != when:
            self.stop()
            self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._event.set()


class Watch:
    """One watch: constructed when the request is checked, then iterated for chunks of newline-ended events."""

    def __init__(self, hub: Hub, call: Call, form: Form) -> None:
        self._hub = hub
        self._call = call
        self._form = form
        self._selection = Selection.of(call)
        self._bookmarks = call.query.get("allowWatchBookmarks") in ("true", "1")
        self._seconds = _seconds(call)
        self._header = True
        self._shelf = hub.store.shelf(call.resource.shelf)
        self._initial, self._position = self._start()
        self._news = asyncio.Event()
        """There may be a change to report after the position; the log decides."""
        self._news.set()

    def _start(self) -> tuple[list[Stored] | None, int]:
        """Return (objects to send first, the revision after which changes follow)."""
        current = self._hub.store.revision
        asked = revision_of(self._call)
        wanted = self._call.query.get("sendInitialEvents", "")
        match = self._call.query.get("resourceVersionMatch", "")
        if wanted and match != "NotOlderThan":
            raise bad_request("sendInitialEvents requires resourceVersionMatch=NotOlderThan")
        if match and not wanted:
            raise bad_request("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        if asked is not None and asked > current:
            raise too_large_revision(asked, current)
        tell_initial = wanted in ("true", "1") or (not wanted and not asked)
        if tell_initial:
            return [item for _, item in sorted(self._shelf.items.items()) if self._selection.has(item)], current
        return None, asked or current

    def happened(self, change: Change) -> None:
        """Handle a change of the shelf. A watch that has reported everything before only moves its position if this is
        no news."""
        if self._news.is_set():
            return
        if self._kind(change) is not None:
            self._news.set()
        else:
            self._position = change.revision

    def wake(self) -> None:
        self._news.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield events until the time is over, the reader is too slow, or the server closes."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        self._hub.join(self._call.resource.shelf, self)
        alarm = _Alarm(self._news)
        try:
            if self._initial is not None:
                for chunk in self._initial_chunks(self._initial):
                    yield chunk
                self._initial = None
            next_bookmark = loop.time() + BOOKMARK_SECONDS
            cuts = self._hub.cuts
            while not self._hub.closing and self._hub.cuts == cuts:
                self._news.clear()
                try:
                    changes = self._shelf.since(self._position)
                except TooOld as error:
                    yield _line(b"ERROR", encode(expired(str(error)).status))
                    return
                if changes:
                    for chunk in self._change_chunks(changes):
                        yield chunk
                    continue
                now = loop.time()
                if now >= end:
                    break
                if self._bookmarks and now >= next_bookmark:
                    next_bookmark = now + BOOKMARK_SECONDS
                    yield self._bookmark()
                alarm.at(min(end, next_bookmark) if self._bookmarks else end)
                await self._news.wait()
            if self._bookmarks and not self._hub.closing:
                yield self._bookmark()
        finally:
            alarm.stop()
            self._hub.leave(self._call.resource.shelf, self)

    def _initial_chunks(self, items: list[Stored]) -> list[bytes]:
        lines = [self._event(b"ADDED", item) for item in items]
        if self._bookmarks and self._call.query.get("sendInitialEvents") in ("true", "1"):
            lines.append(self._bookmark(initial_end=True))
        return _chunked(lines)

    def _change_chunks(self, changes: list[Change]) -> list[bytes]:
        self._position = changes[-1].revision
        return _chunked([line for change in changes if (line := self._told(change)) is not None])

    def _told(self, change: Change) -> bytes | None:
        """Return the event for a change, None for none."""
        kind = self._kind(change)
        return None if kind is None else self._event(kind, change.item)

    def _kind(self, change: Change) -> bytes | None:
        """Return a change's kind for this watch, None for nothing: a changed object may enter or leave its
        selection."""
        before = change.previous is not None and self._selection.has(change.previous)
        if change.kind == "DELETED":
            return b"DELETED" if before else None
        if self._selection.has(change.item):
            return b"MODIFIED" if before else b"ADDED"
        return b"DELETED" if before else None

    def _event(self, kind: bytes, item: Stored) -> bytes:
        body = shown(self._call, item, self._form, header=self._header)
        self._header = False
        return _line(kind, body)

    def _bookmark(self, *, initial_end: bool = False) -> bytes:
        meta: Json = {"resourceVersion": str(self._position if initial_end else self._reached())}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = self._call.resource
        obj: Json = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        if self._form.kind == "Table":
            part: Json = {"cells": [], "object": table.partial(obj, self._form.version)}
            obj = table.table(resource.columns, [part], self._form.version, meta, header=self._header)
        elif self._form.kind:
            obj = table.partial(obj, self._form.version)
        return _line(b"BOOKMARK", encode(obj))

    def _reached(self) -> int:
        """Return the store's revision, if the log has nothing after this watch's position; else the position."""
        if not self._shelf.log or self._shelf.log[-1].revision <= self._position:
            self._position = max(self._position, self._hub.store.revision)
        return self._position


def _seconds(call: Call) -> float:
    text = call.query.get("timeoutSeconds", "")
    if not text:
        return DEFAULT_SECONDS
    if not text.isdecimal():
        raise bad_request(f"timeoutSeconds: {text!r} is not a number of seconds")
    return float(text) or DEFAULT_SECONDS


def _line(kind: bytes, body: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind, body)


def _chunked(lines: list[bytes]) -> list[bytes]:
    chunks: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            chunks.append(b"".join(batch))
            batch, size = [], 0
    return [*chunks, b"".join(batch)] if batch else chunks
