"""Field ownership (`metadata.managedFields`), and server-side apply, which depends on it.

Every write has a manager. Fields that an update changes become its manager's. Fields that an apply names are its
manager's as long as each apply names them, shared by all managers that apply the same value. An apply that would change
another manager's field is a conflict, unless it is forced. Source: "Server-Side Apply" in Kubernetes' documentation.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.kinds.schema import Findings, prune
from egpu_sim.cluster.apiserver.patching import fieldsets
from egpu_sim.cluster.apiserver.patching.fieldsets import MissingKey, Path, Paths
from egpu_sim.cluster.apiserver.status import refused, unexplained
from egpu_sim.cluster.trees import Json, as_object, copy, metadata, now, objects_at

APPLY, UPDATE = "Apply", "Update"
_SERVER_METADATA: Final = frozenset(
    {"name", "namespace", "uid", "creationTimestamp", "generation", "selfLink", "resourceVersion", "managedFields",
     "generateName", "deletionTimestamp", "deletionGracePeriodSeconds"}
)  # fmt: skip
_SERVER_OWNED: Final = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _SERVER_METADATA)}
)


@dataclass(frozen=True)
class Owner:
    """One entry of `managedFields`."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str
    fields: Paths

    @property
    def identity(self) -> tuple[str, str, str, str]:
        return self.manager, self.operation, self.api_version, self.subresource

    def wire(self) -> Json:
        entry: Json = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fieldsets.to_wire(self.fields),
        }
        return {**entry, "subresource": self.subresource} if self.subresource else entry

    def shown(self) -> str:
        """Return the manager as a message of a conflict names it."""
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version} at {self.time}" if self.operation == UPDATE else text


def owners_of(obj: Json) -> list[Owner]:
    return [
        Owner(
            str(entry.get("manager") or ""),
            str(entry.get("operation") or UPDATE),
            str(entry.get("apiVersion") or ""),
            str(entry.get("subresource") or ""),
            str(entry.get("time") or now()),
            fieldsets.from_wire(as_object(entry.get("fieldsV1"))),
        )
        for entry in objects_at(obj, "metadata", "managedFields")
        if entry.get("operation")  # A client that sends one empty entry asks for none.
    ]


def record(call: Call, before: Json, after: Json) -> None:
    """Record in `after` the changes of the call's manager. Its `managedFields` are those of before the write."""
    old, new = _bare(before), _bare(after)
    touched, removed = fieldsets.changes(call.resource.schema, old, new)
    touched, removed = _relevant(call, touched), _relevant(call, removed)
    if not touched and not removed:
        return
    mine = Owner(call.manager, UPDATE, call.resource.api_version, call.subresource, now(), touched)
    owners = [
        owner if owner.identity == mine.identity else replace(owner, fields=owner.fields - touched)
        for owner in owners_of(after)
    ]
    owners = [replace(owner, fields=owner.fields - removed) for owner in owners]
    if touched:
        owners = _with(owners, replace(mine, fields=touched | _held(owners, mine)))
    _write(after, owners)


def applied(call: Call, live: Json, config: Json, *, force: bool) -> Json:
    """Return the live object with the values of `config`, and without fields that its manager no longer applies.

    Raises RequestRefused: 409 for fields of others, 500 (as the real server) for fields that the kind does not have.
    """
    schema = call.resource.schema
    wanted = _fields(call, config)
    mine = Owner(call.manager, APPLY, call.resource.api_version, call.subresource, now(), wanted)
    owners = owners_of(live)
    others = [owner for owner in owners if owner.identity != mine.identity]
    base, stated = _bare(live), _stated(call, config)
    result = fieldsets.merged(schema, base, stated)
    touched, _ = fieldsets.changes(schema, base, result)
    conflicts = [(owner, sorted(owner.fields & touched)) for owner in others if owner.fields & touched]
    if conflicts and not force:
        raise _conflict(conflicts)
    others = [replace(owner, fields=owner.fields - touched) for owner in others]
    kept = frozenset[Path]().union(wanted, *(owner.fields for owner in others))
    result = fieldsets.without(schema, result, _held(owners, mine) - kept, kept)
    if _held(owners, mine) == wanted:
        mine = next((owner for owner in owners if owner.identity == mine.identity), mine)
    served = {key: value for key, value in as_object(live.get("metadata")).items() if key not in base["metadata"]}
    result["metadata"] = {**as_object(result.get("metadata")), **served}
    _write(result, _with(others, mine))
    return result


def first_applied(call: Call, config: Json) -> Json:
    created = copy(config)
    fields = _fields(call, config)
    _write(created, [Owner(call.manager, APPLY, call.resource.api_version, call.subresource, now(), fields)])
    return created


def _stated(call: Call, config: Json) -> Json:
    """Return the part of a configuration that counts on its path: the status, or all but the status."""
    if call.subresource:
        return {key: value for key, value in config.items() if key in ("apiVersion", "kind", "metadata", "status")}
    return {key: value for key, value in config.items() if key != "status" or not call.resource.has_status}


def _fields(call: Call, config: Json) -> Paths:
    """Return the fields of a configuration. Raises RequestRefused."""
    findings = Findings()
    schema, meta = call.resource.schema, as_object(config.get("metadata"))
    where = f"{meta.get('namespace') or call.namespace}/{call.name}" if call.resource.namespaced else f"/{call.name}"
    what = f"({where}; {call.resource.api_version}, Kind={call.resource.kind})"
    if schema is not None:
        prune(schema, copy(config), findings)
    problems = [f".{name}: field not declared in schema" for name in findings.unknown]
    if problems:
        listed = problems[0] if len(problems) == 1 else "errors:\n" + "\n".join(f"  {each}" for each in problems)
        raise unexplained(f"failed to create typed patch object {what}: {listed}")
    try:
        return _relevant(call, fieldsets.fields_of(schema, _bare(_stated(call, config))))
    except MissingKey as error:
        raise unexplained(f"failed to create typed patch object {what}: {error}") from error


def _relevant(call: Call, fields: Paths) -> Paths:
    """Return the fields without the server's own and those of other paths of the object."""
    if call.subresource == "status":
        return frozenset(path for path in fields if path[0] in ("f:status", "f:metadata")) - _SERVER_OWNED
    if call.resource.has_status:
        fields = frozenset(path for path in fields if path[0] != "f:status")
    return fields - _SERVER_OWNED


def _bare(obj: Json) -> Json:
    """Return an object without fields that have no owner."""
    meta = as_object(obj.get("metadata"))
    return {**obj, "metadata": {key: value for key, value in meta.items() if key not in _SERVER_METADATA}}


def _held(owners: Iterable[Owner], mine: Owner) -> Paths:
    return frozenset[Path]().union(*(owner.fields for owner in owners if owner.identity == mine.identity))


def _with(owners: list[Owner], mine: Owner) -> list[Owner]:
    return [*(owner for owner in owners if owner.identity != mine.identity), mine]


def _write(obj: Json, owners: list[Owner]) -> None:
    left = [owner for owner in owners if owner.fields]
    left.sort(key=lambda owner: (owner.operation, owner.time, owner.manager))
    entries = [owner.wire() for owner in left]
    if entries:
        metadata(obj)["managedFields"] = entries
    else:
        metadata(obj).pop("managedFields", None)


def _conflict(conflicts: list[tuple[Owner, list[Path]]]) -> RequestRefused:
    causes: list[Any] = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {owner.shown()}", "field": fieldsets.shown(path)}
        for owner, paths in conflicts
        for path in paths
    ]
    if len(causes) == 1:
        told = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        groups = [
            "\n".join([f"conflicts with {owner.shown()}:", *(f"- {fieldsets.shown(path)}" for path in paths)])
            for owner, paths in sorted(conflicts, key=lambda each: each[0].shown())
        ]
        told = f"{len(causes)} conflicts: " + "\n".join(groups)
    return refused(409, "Conflict", f"Apply failed with {told}", details={"causes": causes})
