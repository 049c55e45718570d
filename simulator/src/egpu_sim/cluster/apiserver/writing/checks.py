"""The checks of every write, and the fields of an object that no client can set."""

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.kinds.decoding import Undecodable, decode
from egpu_sim.cluster.apiserver.kinds.names import validate_metadata
from egpu_sim.cluster.apiserver.kinds.resources import Resource
from egpu_sim.cluster.apiserver.kinds.schema import Findings, validate
from egpu_sim.cluster.apiserver.status import Cause, bad_request, forbidden_field, invalid, invalid_object
from egpu_sim.cluster.apiserver.writing import resize
from egpu_sim.cluster.trees import Json, as_list, as_object, copy, encode, metadata, name_of

SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
_RULES_NEED = frozenset(
    {"FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTypeInvalid", "FieldValueTooMany"}
)
"""Kinds whose invalid objects rules in CEL do not evaluate."""


def check_kind(resource: Resource, body: Json) -> None:
    version, kind = (
        str(body.setdefault("apiVersion", resource.api_version)),
        str(body.setdefault("kind", resource.kind)),
    )
    if kind != resource.kind:
        bare = version.rpartition("/")[2]
        raise bad_request(
            f'{kind} in version "{bare}" cannot be handled as a {resource.kind}: converting ({bare}.{kind}) to '
            f"({resource.group.partition('.')[0] or 'core'}.{resource.kind}): unknown conversion"
        )
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )


def check_types(resource: Resource, served: Json) -> None:
    """Raise RequestRefused (400) for objects that the real server could not decode."""
    assert resource.schema is not None
    try:
        decode(resource.schema, served)
    except Undecodable as error:
        raise bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {error}'
        ) from error


def carry_over(call: Call, old: Json, new: Json) -> Json:
    """Copy the fields into the new state that only the server, or only another path, may change."""
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
        if resource.group:
            # The status of these kinds says nothing about labels and the like.
            return {**merged, "metadata": copy(old_meta)}
        new = {**merged, "metadata": new_meta}
    elif resource.has_status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = copy(as_object(old["status"]))
    for key in (*SERVER_OWNED, "name", "namespace", "resourceVersion", "generateName"):
        new_meta.pop(key, None)
        if key in old_meta:
            new_meta[key] = old_meta[key]
    for key in ("selfLink", "managedFields"):
        new_meta.pop(key, None)
    return new


def update_causes(call: Call, old: Json, new: Json) -> list[Cause]:
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
    if call.subresource == "resize":
        return causes + resize.validate(old, new)
    causes += (
        rules.validate_status_update(old, new) if call.subresource == "status" else rules.validate_update(old, new)
    )
    return causes + schema_causes(resource, new)


def schema_causes(resource: Resource, obj: Json) -> list[Cause]:
    if not resource.custom or resource.schema is None:
        return []
    findings = Findings()
    validate(resource.schema, obj, findings)
    blocked = any(cause.reason in _RULES_NEED for cause in findings.causes)
    if blocked and b"x-kubernetes-validations" in encode(resource.source_schema):
        message = (
            "some validation rules were not checked because the object was invalid; correct the existing errors to "
            "complete validation"
        )
        findings.causes.append(invalid("<nil>", None, message))
    return findings.causes


def refuse_if_wrong(resource: Resource, obj: Json, causes: list[Cause]) -> None:
    rules = resource.rules
    causes = [*validate_metadata(obj, label_names=rules.label_names, free_names=rules.free_names), *causes]
    if causes:
        raise invalid_object(resource.group, resource.kind, name_of(obj), causes)
