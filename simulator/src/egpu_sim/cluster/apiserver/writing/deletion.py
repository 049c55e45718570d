"""Deletion: pods get a grace period, finalizers delay it, and the request decides about dependents."""

import time
from dataclasses import dataclass

from egpu_base.api.wire import rfc3339
from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.admission.webhooks import Admission
from egpu_sim.cluster.apiserver.calls import Call, Write
from egpu_sim.cluster.apiserver.kinds import pods
from egpu_sim.cluster.apiserver.status import bad_request, conflict
from egpu_sim.cluster.apiserver.storage.store import Store, Stored
from egpu_sim.cluster.trees import Json, as_list, as_object, at, copy, metadata

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_PROPAGATIONS = {"Background": None, "Foreground": FOREGROUND, "Orphan": ORPHAN}


@dataclass(frozen=True)
class DeleteOptions:
    grace_seconds: int | None = None
    propagation: str = "Background"
    uid: str = ""
    resource_version: str = ""

    @staticmethod
    def read(body: Json, query: dict[str, str] | None = None) -> "DeleteOptions":
        """Read options from a request's body, or from its query where the body has none. Raises RequestRefused."""
        asked = query or {}
        grace = body.get("gracePeriodSeconds", asked.get("gracePeriodSeconds"))
        propagation = str(body.get("propagationPolicy") or asked.get("propagationPolicy") or "Background")
        if propagation not in _PROPAGATIONS:
            raise bad_request(
                f"propagationPolicy: unsupported value {propagation!r}: supported values: {[*_PROPAGATIONS]}"
            )
        try:
            seconds = None if grace is None else int(grace)
        except (TypeError, ValueError):
            raise bad_request(f"gracePeriodSeconds: {grace!r} is not a number of seconds") from None
        if seconds is not None and seconds < 0:
            raise bad_request(f"gracePeriodSeconds: {seconds} is negative")
        conditions = as_object(body.get("preconditions"))
        return DeleteOptions(
            seconds, propagation, str(conditions.get("uid") or ""), str(conditions.get("resourceVersion") or "")
        )


def finished(obj: Json) -> bool:
    """Return whether an object that is being deleted has nothing left to wait for."""
    meta = metadata(obj)
    waiting = as_list(meta.get("finalizers")) or int(meta.get("deletionGracePeriodSeconds") or 0) > 0
    return bool(meta.get("deletionTimestamp")) and not waiting


def doomed(shelf: str, obj: Json, options: DeleteOptions) -> Json | None:
    """Return the object marked as being deleted; None when it can go at once."""
    new = copy(obj)
    meta = metadata(new)
    finalizers = as_list(meta.get("finalizers"))
    if not meta.get("deletionTimestamp"):
        finalizer = _PROPAGATIONS[options.propagation]
        if finalizer is not None and finalizer not in finalizers:
            finalizers = [*finalizers, finalizer]
    grace = pods.grace_seconds(new, options.grace_seconds) if shelf == "pods" else 0
    if meta.get("deletionTimestamp"):
        grace = min(grace, int(meta.get("deletionGracePeriodSeconds") or 0))
    if grace == 0 and not finalizers and shelf != "namespaces":
        return None
    if finalizers:
        meta["finalizers"] = finalizers
    if not meta.get("deletionTimestamp") or grace != meta.get("deletionGracePeriodSeconds"):
        meta["deletionTimestamp"] = rfc3339(time.time() + grace)
        meta["deletionGracePeriodSeconds"] = grace
    if shelf == "namespaces":
        as_object(new.setdefault("status", {}))["phase"] = "Terminating"
    return new


def _outdated(call: Call, what: str, asked: str, found: object, why: str) -> RequestRefused:
    return conflict(
        "",
        call.resource.kind,
        call.name,
        f"the {what} in the precondition ({asked}) does not match the {what} in record ({found}). "
        f"The object might have been {why}",
    )


class Deleter:
    def __init__(self, store: Store, admission: Admission) -> None:
        self._store = store
        self._admission = admission

    async def delete(self, call: Call, options: DeleteOptions) -> tuple[Stored, bool]:
        """Return (last state, whether it is gone). Raises RequestRefused."""
        stored = self._checked(call, options)
        if self._admission.concerns(call, "DELETE"):
            old = copy(call.resource.served(stored))
            review = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
            write = Write(call, "DELETE", None, old, review)
            await self._admission.mutate(write)
            await self._admission.validate(write)
            stored = self._checked(call, options)
        if call.dry_run:
            return stored, doomed(call.resource.shelf, stored.obj, options) is None
        return self.erase(call.resource.shelf, stored, options)

    def _checked(self, call: Call, options: DeleteOptions) -> Stored:
        stored = self._store.get(call.resource.shelf, call.key)
        if stored is None:
            raise call.not_found()
        uid = at(stored.obj, "metadata", "uid")
        if options.uid and options.uid != uid:
            raise _outdated(call, "UID", options.uid, uid, "deleted and then recreated")
        version = at(stored.obj, "metadata", "resourceVersion")
        if options.resource_version and options.resource_version != version:
            raise _outdated(call, "ResourceVersion", options.resource_version, version, "modified")
        return stored

    def erase(self, shelf: str, stored: Stored, options: DeleteOptions) -> tuple[Stored, bool]:
        marked = doomed(shelf, stored.obj, options)
        if marked is None:
            return self._store.remove(shelf, copy(stored.obj)), True
        if marked == stored.obj:
            return stored, False
        return self._store.put(shelf, marked), False
