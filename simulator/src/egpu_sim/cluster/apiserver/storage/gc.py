"""Garbage collection: dependents of deleted owners, contents of deleted namespaces and definitions, old events.

Store changes feed a work queue. Every step is idempotent and reads the store anew.
"""

import asyncio
import contextlib
from collections import OrderedDict, defaultdict
from typing import TypeAlias

import structlog

from egpu_base.runtime.restarts import kept_running
from egpu_sim.cluster.apiserver.kinds import crd
from egpu_sim.cluster.apiserver.kinds.resources import Registry
from egpu_sim.cluster.apiserver.storage.store import Change, Key, Store, Stored
from egpu_sim.cluster.apiserver.writing.deletion import FOREGROUND, ORPHAN, DeleteOptions, Deleter, finished
from egpu_sim.cluster.trees import (
    Json,
    age_seconds,
    as_list,
    at,
    copy,
    metadata,
    objects_at,
    uid_of,
)

log = structlog.get_logger(__name__)

EVENT_LIFE_SECONDS = 3600
"""Events older than this are dropped, as in the real server."""
EVENTS_LIMIT = 20_000
"""The most events kept; the oldest go first."""
SWEEP_SECONDS = 30

Ref: TypeAlias = tuple[str, Key]
"""(shelf, key)"""


def _owner_uids(obj: Json) -> list[str]:
    return [str(owner.get("uid")) for owner in objects_at(obj, "metadata", "ownerReferences")]


class Housekeeper:
    """Runs beside the server from `start` to `stop`."""

    def __init__(self, store: Store, registry: Registry, deleter: Deleter) -> None:
        self._store = store
        self._registry = registry
        self._deleter = deleter
        self._dependents: defaultdict[str, set[Ref]] = defaultdict(set)
        self._uids: dict[str, Ref] = {}
        self._queue: OrderedDict[Ref, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._store.listen(self.on_change)
        works = {"removal": self._work, "expiry of events": self._sweep_events}
        self._tasks = [asyncio.create_task(kept_running(name, work)) for name, work in works.items()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def on_change(self, shelf: str, change: Change) -> None:
        """Handle a change of the store: update the indexes, queue possible work."""
        if shelf == "events":
            return
        ref, obj = (shelf, change.item.key), change.item.obj
        if change.previous is not None:
            for uid in _owner_uids(change.previous.obj):
                self._dependents[uid].discard(ref)
                if not self._dependents[uid]:
                    del self._dependents[uid]
        uid = uid_of(obj)
        if change.kind == "DELETED":
            self._uids.pop(uid, None)
            self._enqueue(*self._dependents.get(uid, ()))
            self._enqueue(*(self._uids[owner] for owner in _owner_uids(obj) if owner in self._uids))
            self._enqueue(*self._containers(shelf, obj))
            return
        self._uids[uid] = ref
        for owner in _owner_uids(obj):
            self._dependents[owner].add(ref)
        if _owner_uids(obj) or metadata(obj).get("deletionTimestamp"):
            self._enqueue(ref)

    def _containers(self, shelf: str, obj: Json) -> list[Ref]:
        """Return the namespace and the definition whose deletion may have waited for the deleted object."""
        found: list[Ref] = [("namespaces", ("", str(at(obj, "metadata", "namespace") or "")))]
        if "." in shelf:
            found.append((crd.SHELF, ("", shelf)))
        return [ref for ref in found if self._store.get(*ref) is not None]

    def _enqueue(self, *refs: Ref) -> None:
        for ref in refs:
            self._queue[ref] = None
        if refs:
            self._wake.set()

    async def _work(self) -> None:
        while True:
            while self._queue:
                ref, _ = self._queue.popitem(last=False)
                stored = self._store.get(*ref)
                if stored is None:
                    continue
                try:
                    self._process(ref[0], stored)
                except Exception:
                    # an error over one object must not stop the work on the others
                    log.exception("housekeeping.failed", shelf=ref[0], key=ref[1])
                await asyncio.sleep(0)
            self._wake.clear()
            await self._wake.wait()

    def _process(self, shelf: str, stored: Stored) -> None:
        if not metadata(stored.obj).get("deletionTimestamp"):
            self._check_owners(shelf, stored)
        elif shelf == "namespaces":
            self._empty_namespace(stored)
        elif shelf == crd.SHELF:
            self._empty_definition(stored)
        else:
            self._check_owners(shelf, stored)
            current = self._store.get(shelf, stored.key)
            if current is not None:
                self._release_dependents(shelf, current)

    # -- owners ---------------------------------------------------------------------------------------------------

    def _check_owners(self, shelf: str, stored: Stored) -> None:
        """Delete an object whose owners are all gone. With other owners left, remove the gone ones."""
        owners = objects_at(stored.obj, "metadata", "ownerReferences")
        gone = [owner for owner in owners if self._is_gone(owner)]
        waiting = [o for o in owners if o not in gone and o.get("blockOwnerDeletion") and self._leaves_in_foreground(o)]
        if not gone and not waiting:
            return
        left = [owner for owner in owners if owner not in gone and owner not in waiting]
        if left:
            new = copy(stored.obj)
            metadata(new)["ownerReferences"] = left
            self._store.put(shelf, new)
        elif not metadata(stored.obj).get("deletionTimestamp"):
            foreground = waiting and self._dependents.get(uid_of(stored.obj))
            self._deleter.erase(shelf, stored, DeleteOptions(propagation="Foreground" if foreground else "Background"))

    def _is_gone(self, owner: Json) -> bool:
        uid = str(owner.get("uid"))
        if uid in self._uids:
            return False
        # an owner of a kind that this server does not serve may live elsewhere
        return self._registry.find_kind(str(owner.get("apiVersion")), str(owner.get("kind"))) is not None

    def _leaves_in_foreground(self, owner: Json) -> bool:
        ref = self._uids.get(str(owner.get("uid")))
        stored = None if ref is None else self._store.get(*ref)
        if stored is None:
            return False
        meta = metadata(stored.obj)
        return bool(meta.get("deletionTimestamp")) and FOREGROUND in as_list(meta.get("finalizers"))

    def _release_dependents(self, shelf: str, stored: Stored) -> None:
        finalizers = as_list(metadata(stored.obj).get("finalizers"))
        uid = uid_of(stored.obj)
        dependents = list(self._dependents.get(uid, ()))
        if ORPHAN in finalizers:
            for ref in dependents:
                self._disown(ref, uid)
            self._drop_finalizer(shelf, stored, ORPHAN)
        elif FOREGROUND in finalizers:
            blocking = [ref for ref in dependents if self._blocks(ref, uid)]
            if blocking:
                self._enqueue(*[ref for ref in blocking if not self._is_leaving(ref)])
            else:
                self._drop_finalizer(shelf, stored, FOREGROUND)

    def _blocks(self, ref: Ref, uid: str) -> bool:
        stored = self._store.get(*ref)
        return stored is not None and any(
            owner.get("uid") == uid and owner.get("blockOwnerDeletion")
            for owner in objects_at(stored.obj, "metadata", "ownerReferences")
        )

    def _is_leaving(self, ref: Ref) -> bool:
        stored = self._store.get(*ref)
        return stored is None or bool(metadata(stored.obj).get("deletionTimestamp"))

    def _disown(self, ref: Ref, uid: str) -> None:
        stored = self._store.get(*ref)
        if stored is None:
            return
        new = copy(stored.obj)
        meta = metadata(new)
        meta["ownerReferences"] = [o for o in objects_at(new, "metadata", "ownerReferences") if o.get("uid") != uid]
        self._store.put(ref[0], new)

    def _drop_finalizer(self, shelf: str, stored: Stored, finalizer: str) -> None:
        new = copy(stored.obj)
        meta = metadata(new)
        meta["finalizers"] = [item for item in as_list(meta.get("finalizers")) if item != finalizer]
        if not meta["finalizers"]:
            del meta["finalizers"]
        if finished(new):
            self._store.remove(shelf, new)
        else:
            self._store.put(shelf, new)

    # -- containers of other objects ------------------------------------------------------------------------------

    def _empty_namespace(self, stored: Stored) -> None:
        name = stored.key[1]
        left = 0
        for resource in self._registry.one_per_shelf():
            if not resource.namespaced:
                continue
            for item in [i for key, i in self._store.shelf(resource.shelf).items.items() if key[0] == name]:
                if not metadata(item.obj).get("deletionTimestamp"):
                    self._deleter.erase(resource.shelf, item, DeleteOptions())
                left += self._store.get(resource.shelf, item.key) is not None
        if not left and not as_list(metadata(stored.obj).get("finalizers")):
            self._store.remove("namespaces", copy(stored.obj))

    def _empty_definition(self, stored: Stored) -> None:
        shelf = stored.key[1]
        for item in list(self._store.shelf(shelf).items.values()):
            if not metadata(item.obj).get("deletionTimestamp"):
                self._deleter.erase(shelf, item, DeleteOptions())
        if not self._store.shelf(shelf).items:
            self._drop_finalizer(crd.SHELF, stored, crd.CLEANUP_FINALIZER)

    async def _sweep_events(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            items = list(self._store.shelf("events").items.values())
            surplus = max(len(items) - EVENTS_LIMIT, 0)
            for index, item in enumerate(sorted(items, key=lambda item: item.revision)):
                age = age_seconds(at(item.obj, "metadata", "creationTimestamp"))
                if index < surplus or (age is not None and age > EVENT_LIFE_SECONDS):
                    self._store.remove("events", copy(item.obj))
