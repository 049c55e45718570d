"""Every change of an object: create, replace, patch, delete, bind; each whole or not at all.

The pattern: read the stored object, compute the new one, ask the webhooks (the only await), and commit if the stored
object is still the one that was read. Between that check and the commit nothing else runs, so no lock is needed.
"""

import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

from egpu.embedded.apiserver import pods
from egpu.embedded.apiserver.admission import Admission
from egpu.embedded.apiserver.calls import Call, Write
from egpu.embedded.apiserver.deletion import finished
from egpu.embedded.apiserver.names import generated_name, validate_metadata
from egpu.embedded.apiserver.objects import (
    Json,
    as_list,
    as_object,
    at,
    copy,
    encode,
    metadata,
    name_of,
    namespace_of,
    now,
)
from egpu.embedded.apiserver.resources import Resource
from egpu.embedded.apiserver.schema import Findings, apply_defaults, prune, validate
from egpu.embedded.apiserver.status import (
    Cause,
    already_exists,
    bad_request,
    forbidden,
    forbidden_field,
    invalid_object,
    not_found,
)
from egpu.embedded.apiserver.store import Store, Stored

ATTEMPTS = 16
"""Times an unconditional change is computed anew because somebody else changed the object meanwhile."""
NAME_ATTEMPTS = 8
"""Generated names tried before giving up."""

_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")

Change: TypeAlias = Callable[[Json], Json]
"""From the served object (a copy that may be changed) to the one wanted."""


class Writer:
    """Creates and changes objects on behalf of calls."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self._store = store
        self._admission = admission

    async def create(self, call: Call, body: Json) -> Stored:
        """Store a new object. Raises RequestRefused."""
        resource = call.resource
        _check_kind(resource, body)
        self._place(call, body)
        meta = metadata(body)
        generated = not meta.get("name") and bool(meta.get("generateName"))
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if generated:
            meta["name"] = generated_name(str(meta["generateName"]))
        for key in (*_SERVER_OWNED, "resourceVersion", "selfLink", "managedFields"):
            meta.pop(key, None)
        call.name = str(meta.get("name") or "")
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now()
        obj = self._digest(call, body)
        if resource.has_status and resource.custom:
            obj.pop("status", None)
        resource.rules.prepare_create(obj)
        self._check_absent(call, obj, generated=generated)
        obj = await self._admitted(call, "CREATE", obj, None)
        _refuse_if_wrong(resource, obj, [*resource.rules.validate(obj), *_schema_causes(resource, obj)])
        self._check_namespace(call)
        self._check_absent(call, obj, generated=generated)
        if resource.generations:
            metadata(obj)["generation"] = 1
        return self._unsaved(obj) if call.dry_run else self._store.put(resource.shelf, obj)

    async def replace(self, call: Call, body: Json) -> Stored:
        """Put a whole object in the place of the stored one."""
        _check_kind(call.resource, body)
        self._place(call, body)
        if name_of(body) != call.name:
            found, wanted = name_of(body), call.name
            raise bad_request(f"the name of the object ({found}) does not match the name on the URL ({wanted})")
        if call.resource.custom and not metadata(body).get("resourceVersion"):
            cause = Cause(
                "FieldValueInvalid", "metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update"
            )
            raise invalid_object(call.resource.group, call.resource.kind, call.name, [cause])
        return await self.change(call, lambda _: copy(body))

    async def change(self, call: Call, change: Change) -> Stored:
        """Commit `change` of the stored object; again when that changed meanwhile and `change` names no version."""
        resource = call.resource
        for _ in range(ATTEMPTS):
            stored = self.existing(call)
            wanted = change(copy(resource.served(stored)))
            conditional = metadata(wanted).get("resourceVersion") not in (
                None,
                "",
                metadata(stored.obj)["resourceVersion"],
            )
            if conditional:
                raise call.modified()
            new = self._digest(call, wanted)
            new = _carry_over(call, stored.obj, new)
            new = await self._admitted(call, "UPDATE", new, stored.obj)
            _refuse_if_wrong(resource, new, _update_causes(call, stored.obj, new))
            if self._store.get(resource.shelf, stored.key) is stored:
                return self.commit(call, stored, new)
        raise call.modified()

    def commit(self, call: Call, stored: Stored, new: Json) -> Stored:
        """Store the new state of an object, unless nothing changed; one that only waited to be deleted is removed."""
        resource = call.resource
        if new == stored.obj:
            return stored
        if resource.generations and _substance(new) != _substance(stored.obj):
            metadata(new)["generation"] = int(metadata(stored.obj).get("generation") or 0) + 1
        if call.dry_run:
            return self._unsaved(new)
        if finished(new) and resource.shelf != "namespaces":
            return self._store.remove(resource.shelf, new)
        return self._store.put(resource.shelf, new)

    def existing(self, call: Call) -> Stored:
        """The stored object of a call. Raises RequestRefused (404)."""
        stored = self._store.get(call.resource.shelf, call.key)
        if stored is None:
            raise call.not_found()
        return stored

    async def bind(self, call: Call, binding: Json) -> None:
        """Put a pod on a node, the Binding's annotations merged in, in one change."""
        causes = pods.validate_binding(binding, call.name)
        if causes:
            raise invalid_object("", "Binding", call.name, causes)
        await self._admission_of_binding(call, binding)
        stored = self.existing(call)
        uid = at(binding, "metadata", "uid")
        if uid and uid != metadata(stored.obj)["uid"]:
            raise call.conflict(
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata(stored.obj)['uid']}"
            )
        version = at(binding, "metadata", "resourceVersion")
        if version and version != metadata(stored.obj)["resourceVersion"]:
            raise call.modified()
        if metadata(stored.obj).get("deletionTimestamp"):
            raise call.conflict(f"pod {call.name} is being deleted, cannot be assigned to a host")
        if node := at(stored.obj, "spec", "nodeName"):
            raise call.conflict(f'pod {call.name} is already assigned to node "{node}"')
        if as_list(at(stored.obj, "spec", "schedulingGates")):
            raise call.conflict(f"pod {call.name} has non-empty .spec.schedulingGates")
        self.commit(call, stored, pods.bind(stored.obj, binding))

    async def _admission_of_binding(self, call: Call, binding: Json) -> None:
        if self._admission.concerns(call, "CREATE"):
            write = Write(call, "CREATE", binding, None, _options("CREATE"))
            await self._admission.mutate(write)
            await self._admission.validate(write)

    # -- steps ---------------------------------------------------------------------------------------------------

    def _place(self, call: Call, body: Json) -> None:
        """Make the object's namespace that of the URL. Raises RequestRefused when they differ."""
        meta = metadata(body)
        if not call.resource.namespaced:
            meta.pop("namespace", None)  # as a real one does: kustomize gives one to kinds that it does not know
            return
        if meta.get("namespace") not in (None, "", call.namespace):
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        meta["namespace"] = call.namespace
        if call.verb == "create":
            self._check_namespace(call)

    def _check_namespace(self, call: Call) -> None:
        if not call.resource.namespaced:
            return
        namespace = self._store.get("namespaces", ("", call.namespace))
        if namespace is None:
            raise not_found("", "namespaces", call.namespace)
        if metadata(namespace.obj).get("deletionTimestamp"):
            message = f"unable to create new content in namespace {call.namespace} because it is being terminated"
            raise forbidden(call.resource.group, call.resource.plural, call.name, message)

    def _check_absent(self, call: Call, obj: Json, *, generated: bool) -> None:
        shelf = self._store.shelf(call.resource.shelf)
        for _ in range(NAME_ATTEMPTS):
            if (namespace_of(obj), name_of(obj)) not in shelf.items:
                return
            if not generated:
                break
            call.name = metadata(obj)["name"] = generated_name(str(metadata(obj)["generateName"]))
        raise already_exists(call.resource.group, call.resource.plural, name_of(obj))

    def _digest(self, call: Call, served: Json) -> Json:
        """From what a client sent to the stored form: unknown fields dropped, types checked, defaults filled in."""
        resource = call.resource
        if resource.schema is not None:
            findings = Findings()
            prune(resource.schema, served, findings)
            _report_unknown(call, findings.unknown)
            if resource.custom:
                apply_defaults(resource.schema, served)
            else:
                validate(resource.schema, served, findings)
                if findings.causes:
                    wrong = findings.causes[0]
                    raise bad_request(
                        f"{resource.kind} in version {resource.version!r} cannot be handled as a {resource.kind}: "
                        f"{wrong.sentence()}"
                    )
        obj = resource.to_storage(served) if resource.to_storage else served
        resource.rules.defaults(obj)
        return obj

    async def _admitted(self, call: Call, operation: str, obj: Json, old: Json | None) -> Json:
        if not self._admission.concerns(call, operation):
            return obj
        resource = call.resource
        shown = resource.from_storage or copy
        before = shown(obj)
        old_shown = None if old is None else shown(old)
        options = _options(operation)
        after = await self._admission.mutate(Write(call, operation, before, old_shown, options))
        if after is not before and after != before:
            for key in ("name", "namespace", "uid"):
                if metadata(after).get(key) != metadata(obj).get(key):
                    raise bad_request(f"an admission webhook changed metadata.{key}, which it must not")
            obj = self._digest(call, copy(after))
        await self._admission.validate(Write(call, operation, shown(obj), old_shown, options))
        return obj

    def _unsaved(self, obj: Json) -> Stored:
        """The outcome of a dry run."""
        return Stored((namespace_of(obj), name_of(obj)), self._store.revision, obj, {"": encode(obj)})


def _options(operation: str) -> Json:
    return {"kind": f"{operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"}


def _check_kind(resource: Resource, body: Json) -> None:
    found = str(body.setdefault("apiVersion", resource.api_version)), str(body.setdefault("kind", resource.kind))
    if found != (resource.api_version, resource.kind):
        raise bad_request(
            f"the object provided is a {found[0]} {found[1]}; this path takes {resource.api_version} {resource.kind}"
        )


def _report_unknown(call: Call, unknown: list[str]) -> None:
    if not unknown or call.field_validation == "Ignore":
        return
    notes = [f'unknown field "{name}"' for name in unknown]
    if call.field_validation == "Strict":
        raise bad_request(f"{call.resource.kind} in version {call.resource.version!r} cannot be handled as a "
                          f"{call.resource.kind}: strict decoding error: {', '.join(notes)}")  # fmt: skip
    call.warnings += notes


def _carry_over(call: Call, old: Json, new: Json) -> Json:
    """Give the new state what only the server, or only another path, may change."""
    resource = call.resource
    old_meta, new_meta = metadata(old), metadata(new)
    if new_meta.get("uid") not in (None, "", old_meta["uid"]):
        raise call.conflict(
            f"Precondition failed: UID in precondition: {new_meta.get('uid')}, UID in object meta: {old_meta['uid']}"
        )
    for key in ("name", "namespace"):
        if new_meta.get(key) not in (None, "", old_meta.get(key)):
            raise bad_request(f"metadata.{key}: field is immutable")
    if call.subresource == "status":
        merged = {**copy(old), "status": new.get("status", {})}
        if resource.custom:
            return merged
        new = {**merged, "metadata": new_meta}
    elif resource.has_status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = copy(as_object(old["status"]))
    for key in (*_SERVER_OWNED, "name", "namespace", "resourceVersion", "generateName"):
        new_meta.pop(key, None)
        if key in old_meta:
            new_meta[key] = old_meta[key]
    for key in ("selfLink", "managedFields"):
        new_meta.pop(key, None)
    return new


def _update_causes(call: Call, old: Json, new: Json) -> list[Cause]:
    resource = call.resource
    causes: list[Cause] = []
    if metadata(old).get("deletionTimestamp"):
        added = [
            f for f in as_list(metadata(new).get("finalizers")) if f not in as_list(metadata(old).get("finalizers"))
        ]
        if added:
            causes.append(
                forbidden_field(
                    "metadata.finalizers", f"no new finalizers can be added if the object is being deleted: {added}"
                )
            )
    rules = resource.rules
    causes += rules.validate_status(new) if call.subresource == "status" else rules.validate_update(old, new)
    return causes + _schema_causes(resource, new)


def _schema_causes(resource: Resource, obj: Json) -> list[Cause]:
    if not resource.custom or resource.schema is None:
        return []
    findings = Findings()
    validate(resource.schema, obj, findings)
    return findings.causes


def _refuse_if_wrong(resource: Resource, obj: Json, causes: list[Cause]) -> None:
    rules = resource.rules
    causes = [*validate_metadata(obj, label_names=rules.label_names, free_names=rules.free_names), *causes]
    if causes:
        raise invalid_object(resource.group, resource.kind, name_of(obj), causes)


def _substance(obj: Json) -> dict[str, Any]:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}
