"""Every change of an object: create, replace, patch, delete, bind; each whole or not at all.

The pattern: read the stored object, compute the new one, ask the webhooks (the only await), and commit if the stored
object is still the one that was read. Nothing else runs between that check and the commit, so no lock is needed.
"""

import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.admission.priority import PriorityAdmission
from egpu_sim.cluster.apiserver.admission.quota import QuotaAdmission
from egpu_sim.cluster.apiserver.admission.webhooks import Admission
from egpu_sim.cluster.apiserver.calls import Call, Write
from egpu_sim.cluster.apiserver.kinds import pods
from egpu_sim.cluster.apiserver.kinds.devices import rights
from egpu_sim.cluster.apiserver.kinds.devices.parts import CLAIMS
from egpu_sim.cluster.apiserver.kinds.names import generated_name
from egpu_sim.cluster.apiserver.kinds.schema import Findings, apply_defaults, prune
from egpu_sim.cluster.apiserver.patching import ownership
from egpu_sim.cluster.apiserver.status import (
    Cause,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid_object,
    not_found,
)
from egpu_sim.cluster.apiserver.storage.store import Store, Stored
from egpu_sim.cluster.apiserver.writing import checks, strict
from egpu_sim.cluster.apiserver.writing.deletion import finished
from egpu_sim.cluster.trees import (
    Json,
    as_list,
    at,
    copy,
    encode,
    metadata,
    name_of,
    namespace_of,
    now,
)

ATTEMPTS = 16
"""Times an unconditional change is computed again because the object changed meanwhile."""
NAME_ATTEMPTS = 8
"""Generated names tried before giving up."""

Change: TypeAlias = Callable[[Json], Json]
"""Makes the wanted object of the served one (a copy that may be changed)."""


class Writer:
    def __init__(self, store: Store, admission: Admission) -> None:
        self._store = store
        self._admission = admission
        self._priority = PriorityAdmission(store)
        self._quota = QuotaAdmission(store)

    async def create(self, call: Call, body: Json, *, owned: Json | None = None) -> Stored:
        """Store a new object. `owned`: the configuration of an apply, whose fields are its manager's. Raises
        RequestRefused."""
        resource = call.resource
        checks.check_kind(resource, body)
        self._place(call, body)
        meta = metadata(body)
        generated = not meta.get("name") and bool(meta.get("generateName"))
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if generated:
            meta["name"] = generated_name(str(meta["generateName"]))
        for key in (*checks.SERVER_OWNED, "resourceVersion", "selfLink", "managedFields"):
            meta.pop(key, None)
        call.name = str(meta.get("name") or "")
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = now()
        obj = self._digest(call, body)
        if resource.has_status and resource.custom:
            obj.pop("status", None)
        resource.rules.prepare_create(obj)
        self._check_absent(call, obj, generated=generated)
        stated = {} if owned is None else copy(obj)
        if owned is not None:
            metadata(obj)["managedFields"] = metadata(owned)["managedFields"]
        obj = await self._mutated(call, "CREATE", obj, None)
        checks.refuse_if_wrong(resource, obj, [*resource.rules.validate(obj), *checks.schema_causes(resource, obj)])
        await self._approved(call, "CREATE", obj, None)
        self._check_namespace(call)
        self._check_absent(call, obj, generated=generated)
        self._quota.charge(call, None, obj)
        if resource.generations:
            metadata(obj)["generation"] = 1
        ownership.record(call, stated, obj)
        return self._unsaved(obj) if call.dry_run else self._store.put(resource.shelf, obj)

    async def replace(self, call: Call, body: Json) -> Stored:
        """Replace the stored object by a whole one."""
        checks.check_kind(call.resource, body)
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

    async def apply(self, call: Call, config: Json) -> tuple[Stored, bool]:
        """Apply server-side; return (the object, whether it was created). Raises RequestRefused."""
        if self._store.get(call.resource.shelf, call.key) is None and not call.subresource:
            created = ownership.first_applied(call, config)
            metadata(created).pop("resourceVersion", None)
            return await self.create(call, copy(created), owned=created), True
        force = call.asks("force")
        return await self.change(
            call, lambda live: ownership.applied(call, live, config, force=force), stated=True
        ), False

    async def change(self, call: Call, change: Change, *, stated: bool = False) -> Stored:
        """Commit `change` of the stored object. Retry if that changed meanwhile and `change` names no version.

        `stated`: the fields from `change` have owners already; only later changes (webhooks) are the manager's.
        """
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
            # A client that sends owners has read, or resets, them. They are not decoded.
            owners = metadata(wanted).pop("managedFields", metadata(stored.obj).get("managedFields"))
            new = self._digest(call, wanted)
            new = checks.carry_over(call, stored.obj, new)
            resource.rules.prepare_update(stored.obj, new)
            before = copy(new) if stated else stored.obj
            new = await self._mutated(call, "UPDATE", new, stored.obj)
            if (resource.shelf, call.subresource) == (CLAIMS, "status"):
                rights.check(call, stored.obj, new, self._admission.authorizer)
            checks.refuse_if_wrong(resource, new, checks.update_causes(call, stored.obj, new))
            await self._approved(call, "UPDATE", new, stored.obj)
            if self._store.get(resource.shelf, stored.key) is stored:
                self._quota.charge(call, stored.obj, new)
                if owners:
                    metadata(new)["managedFields"] = owners
                ownership.record(call, before, new)
                return self.commit(call, stored, new)
        raise call.modified()

    def commit(self, call: Call, stored: Stored, new: Json) -> Stored:
        """Store the new state of an object, unless nothing changed. Remove one that only waited to be deleted."""
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
        """Return the stored object of a call. Raises RequestRefused (404)."""
        stored = self._store.get(call.resource.shelf, call.key)
        if stored is None:
            raise call.not_found()
        return stored

    async def bind(self, call: Call, binding: Json) -> None:
        """Put a pod on a node and merge the Binding's annotations in, in one change."""
        causes = pods.validate_binding(binding, call.name)
        if causes:
            raise invalid_object("", "Binding", call.name, causes)
        await self._admission_of_binding(call, binding)
        stored = self.existing(call)
        uid = at(binding, "metadata", "uid")
        if uid and uid != metadata(stored.obj)["uid"]:
            found = metadata(stored.obj)["uid"]
            raise call.conflict(
                f"StorageError: invalid object, Code: 4, Key: /registry/pods/{call.namespace}/{call.name}, "
                f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, "
                f"UID in object meta: {found}"
            )
        version = at(binding, "metadata", "resourceVersion")
        if version and version != metadata(stored.obj)["resourceVersion"]:
            raise call.modified()
        if metadata(stored.obj).get("deletionTimestamp"):
            raise _unbound(call, f"pod {call.name} is being deleted, cannot be assigned to a host")
        if node := at(stored.obj, "spec", "nodeName"):
            raise _unbound(call, f'pod {call.name} is already assigned to node "{node}"')
        if as_list(at(stored.obj, "spec", "schedulingGates")):
            raise _unbound(call, f"pod {call.name} has non-empty .spec.schedulingGates")
        self.commit(call, stored, pods.bind(stored.obj, binding))

    async def _admission_of_binding(self, call: Call, binding: Json) -> None:
        if self._admission.concerns(call, "CREATE"):
            write = Write(call, "CREATE", binding, None, _options("CREATE"))
            await self._admission.mutate(write)
            await self._admission.validate(write)

    # -- steps ---------------------------------------------------------------------------------------------------

    def _place(self, call: Call, body: Json) -> None:
        """Set the object's namespace to the URL's. Raises RequestRefused when they differ."""
        meta = metadata(body)
        if not call.resource.namespaced:
            meta.pop("namespace", None)  # as the real server: kustomize sets one on kinds that it does not know
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
        """Convert a client's object to the stored form: unknown fields dropped, types checked, defaults filled in."""
        resource = call.resource
        if resource.schema is not None:
            findings = Findings()
            if not resource.custom:
                checks.check_types(resource, served)
            prune(resource.schema, served, findings)
            strict.report(call, strict.unknown(findings.unknown))
            if resource.custom:
                apply_defaults(resource.schema, served)
        obj = resource.to_storage(served) if resource.to_storage else served
        resource.rules.defaults(obj)
        return obj

    async def _mutated(self, call: Call, operation: str, obj: Json, old: Json | None) -> Json:
        """Return the object after mutating admission: the server's own plugins first, then the webhooks."""
        resource = call.resource
        if resource.shelf == "pods" and not call.subresource:
            self._priority.admit(call, obj, old)
        if not self._admission.concerns(call, operation):
            return obj
        shown = resource.from_storage or copy
        before = shown(obj)
        old_shown = None if old is None else shown(old)
        after = await self._admission.mutate(Write(call, operation, before, old_shown, _options(operation)))
        if after is not before and after != before:
            for key in ("name", "namespace", "uid"):
                if metadata(after).get(key) != metadata(obj).get(key):
                    raise bad_request(f"an admission webhook changed metadata.{key}, which is immutable")
            obj = self._digest(call, copy(after))
        return obj

    async def _approved(self, call: Call, operation: str, obj: Json, old: Json | None) -> None:
        if self._admission.concerns(call, operation):
            shown = call.resource.from_storage or copy
            old_shown = None if old is None else shown(old)
            await self._admission.validate(Write(call, operation, shown(obj), old_shown, _options(operation)))

    def _unsaved(self, obj: Json) -> Stored:
        return Stored((namespace_of(obj), name_of(obj)), self._store.revision, obj, {"": encode(obj)})


def _options(operation: str) -> Json:
    return {"kind": f"{operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"}


def _unbound(call: Call, message: str) -> RequestRefused:
    return conflict("", "pods/binding", call.name, message)


def _substance(obj: Json) -> dict[str, Any]:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}
