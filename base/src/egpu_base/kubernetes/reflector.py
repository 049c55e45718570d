"""A local copy of one kind of object, kept current by list and watch.

Other Python clients lose deletions that happen while a watch is broken. Here a list after 410 (or after a watch that
cannot be resumed) is compared with the copy, and handlers get the differences like any other change.

Handlers are plain functions called in order, inside the event loop: nothing is queued, so nothing can overflow. A
failing handler ends `run()` and with it the process, because a wrong copy must not be served. The copy is bounded by
the API server's objects; a page, an event and the waiting time have their own bounds.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic

import structlog

from egpu_base.api.objects import Object, key_of
from egpu_base.errors import ElasticGPUError, Gone, NotFound
from egpu_base.kubernetes.client import Client, T, WatchEvent
from egpu_base.kubernetes.lists import Large, same
from egpu_base.kubernetes.store import Store

MAX_BACKOFF_SECONDS = 5.0
# A watch that fails this often in a row is not resumed: the server may have lost its history without a 410.
RESUMES = 3
ABSENT_SECONDS = 60.0
"""Until a kind that the API server does not serve is looked for again."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Change(Generic[T]):
    """A change of one object: added (no old), changed, or deleted (no new)."""

    old: T | None
    new: T | None

    @property
    def subject(self) -> T:
        one = self.new if self.new is not None else self.old
        assert one is not None
        return one


Handler = Callable[[Change[T]], None]


class Reflector(Generic[T]):
    """`get`, `by_uid` and iteration read the copy; `synced` is set after the first list; `run()` keeps it current."""

    def __init__(
        self,
        client: Client,
        kind: type[T],
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        packed: bool = False,
        transform: Callable[[T], T] = same,
        large: Large[T] = None,
        optional: bool = False,
    ) -> None:
        """Prepare a copy. `packed`: see `Store`. `transform` reduces objects before they are kept and handled;
        `large` reads those of more than LARGE_BYTES. `optional`: a kind that the API server does not serve counts as
        listed, and is looked for again."""
        self._client = client
        self.kind = kind
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._packed = packed
        self._objects = Store(kind, packed=packed)
        self._transform, self._large = transform, large
        self._handlers: list[Handler[T]] = []
        self._version: str | None = None
        self._optional = optional
        self.synced = asyncio.Event()
        self.listed = asyncio.Event()
        """As `synced`, but not set for an optional kind that the API server has not served yet."""

    def on_change(self, handler: Handler[T]) -> None:
        """Register a handler. It also gets the present objects, as added ones."""
        self._handlers.append(handler)
        for obj in self._objects:
            handler(Change(None, obj))

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get(key_of(name, namespace))

    def snapshot(self) -> Mapping[str, T]:
        """Return all present objects by key (`namespace/name`, or `name`), each decoded on access."""
        return self._objects.snapshot()

    def by_uid(self, uid: str) -> T | None:
        return self._objects.by_uid(uid)

    def all_keys(self) -> set[str]:
        """Return `namespace/name` of each object, or `name` for kinds without a namespace."""
        return self._objects.keys()

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def absorb(self, obj: T) -> None:
        """Take in the answer to our own write, so that the copy is not older than this process's knowledge.

        The watch repeats it. An object whose deletion the watch already reported must not be absorbed.
        """
        known = self._objects.get(obj.key)
        if known is not None and known.uid == obj.uid and _newer(obj, known):
            self._put(self._transform(obj))

    async def run(self) -> None:
        """List and watch for ever; only cancellation or a handler's exception ends it."""
        failures = 0
        while True:
            started = time.monotonic()
            try:
                if self._version is None:
                    await self._list()
                    failures = 0
                await self._follow()
            except Gone:
                log.info("watch history expired: listing again", kind=self.kind.__name__)
                self._version = None
            except NotFound:
                failures += 1
                await asyncio.sleep(self._absent() or _backoff(failures))
                continue
            except ElasticGPUError as error:
                failures += 1
                log.warning("list or watch failed", kind=self.kind.__name__, failures=failures, reason=str(error))
                if failures >= RESUMES:
                    self._version = None
                await asyncio.sleep(_backoff(failures))
                continue
            if time.monotonic() - started < 1.0:
                failures += 1  # a server that hangs up at once must not be called in a hot loop
                await asyncio.sleep(_backoff(failures))
            else:
                failures = 0

    def _absent(self) -> float:
        """Record that the API server does not serve the kind. Return the seconds to wait; 0 where it must."""
        log.warning("the API server does not serve this kind", kind=self.kind.__name__)
        self._version = None
        if not self._optional or self.listed.is_set():
            return 0.0
        self.synced.set()
        return ABSENT_SECONDS

    async def _list(self) -> None:
        """Report deletions first. For that, new objects are put aside in the form of the copy: as sent, the objects of
        a large cluster are ten times as large. The first list needs none of this, because nothing can be deleted."""
        known, listed = self._objects.keys(), Store(self.kind, packed=self._packed)
        pages = self._client.pages(
            self.kind,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
            transform=self._transform,
            large=self._large,
        )
        version = None
        async with aclosing(pages):
            async for page in pages:
                version = page.version
                for obj in page.objects:
                    if known:
                        listed.put(obj)
                    else:
                        self._put(obj)
        for key in sorted(known - listed.keys()):
            self._remove(key)
        for obj in listed:
            self._put(obj)
        self._version = version
        self.listed.set()
        self.synced.set()

    async def _follow(self) -> None:
        assert self._version is not None
        events = self._client.watch(
            self.kind,
            resource_version=self._version,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
            timeout_seconds=random.randint(180, 300),
            large=self._large,
        )
        async with aclosing(events):
            async for event in events:
                self._take(event)
                self._version = event.identity.resource_version or self._version

    def _take(self, event: WatchEvent[T]) -> None:
        match event.type:
            case "DELETED":
                self._remove(key_of(event.identity.name, event.identity.namespace), last=event.object)
            case "ADDED" | "MODIFIED" if event.object is not None:
                self._put(self._transform(event.object))
            case _:
                pass  # a bookmark, or an unreadable object: keep its last readable state

    def _put(self, obj: T) -> None:
        old = self._objects.get(obj.key)
        if old is not None and old.uid != obj.uid:
            self._remove(obj.key)  # deleted and made again under the same name
            old = None
        if old is not None and not _newer(obj, old):
            return
        self._objects.put(obj)
        self._tell(Change(old, obj))

    def _remove(self, key: str, last: T | None = None) -> None:
        old = self._objects.pop(key)
        if old is None:
            return
        same = last is not None and last.uid == old.uid
        self._tell(Change(last if same else old, None))

    def _tell(self, change: Change[T]) -> None:
        for handler in self._handlers:
            handler(change)


def _newer(obj: Object, known: Object) -> bool:
    """Return whether `obj` may replace `known`: versions of one kind are ordered (guaranteed since Kubernetes 1.35)."""
    new, old = obj.metadata.resource_version, known.metadata.resource_version
    if new.isdigit() and old.isdigit():
        return int(new) > int(old)
    return new != old


def _backoff(failures: int) -> float:
    """Return seconds, doubling from 0.1, bounded, with jitter."""
    return min(MAX_BACKOFF_SECONDS, 0.1 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0)
