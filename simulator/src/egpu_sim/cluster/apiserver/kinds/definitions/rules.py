"""A CustomResourceDefinition as a whole: group, names, versions, columns, subresources, conversion.

Where all versions agree (the usual case), the real server reports a field once, below `spec` itself: a schema below
`spec.validation`. Clients and people know these paths, so this server uses them too.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from egpu_sim.cluster.apiserver.http.openapi_protobuf import schema_message
from egpu_sim.cluster.apiserver.kinds.definitions import defaults, expressions, openapi, structural
from egpu_sim.cluster.apiserver.kinds.names import SUBDOMAIN_RULE, is_subdomain
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, required, unsupported
from egpu_sim.cluster.trees import Json, as_list, as_object, at, name_of, objects_at

_LABEL_1035: Final = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
_LABEL_1035_RULE: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_WHOLE: Final = ("schema", "subresources", "additionalPrinterColumns", "selectableFields")
"""Fields of a version that are reported below `spec` where all versions agree."""


def validate(definition: Json) -> list[Cause]:
    spec = as_object(definition.get("spec"))
    return [*_name(definition, spec), *_spec(spec), *_stored_versions(definition, spec)]


def validate_update(old: Json, new: Json) -> list[Cause]:
    """Return the errors of a changed definition: names and scope decide where its objects are stored."""
    return [
        *validate(new),
        *(
            invalid("spec." + ".".join(path), at(new, "spec", *path), "field is immutable")
            for path in (("scope",), ("names", "kind"), ("group",), ("names", "plural"))
            if at(old, "spec", *path) != at(new, "spec", *path)
        ),
    ]


def _name(definition: Json, spec: Json) -> Iterator[Cause]:
    if name_of(definition) != f"{at(spec, 'names', 'plural') or ''}.{spec.get('group') or ''}":
        yield invalid("metadata.name", name_of(definition), 'must be spec.names.plural+"."+spec.group')


def _spec(spec: Json) -> Iterator[Cause]:
    group = str(spec.get("group") or "")
    if not group:
        yield required("spec.group")
    elif not is_subdomain(group):
        yield invalid("spec.group", group, SUBDOMAIN_RULE)
    elif "." not in group:
        yield invalid("spec.group", group, "should be a domain with at least one dot")
    yield from _choice(spec.get("scope"), "spec.scope", ["Cluster", "Namespaced"])
    yield from _versions(objects_at(spec, "versions"))
    yield from _names(as_object(spec.get("names")))
    shared, _ = _split(objects_at(spec, "versions"))
    if "schema" in shared:
        yield from _schema(shared, "spec.validation")
    yield from _others(shared, "spec")
    yield from _conversion(as_object(spec.get("conversion")))
    if spec.get("preserveUnknownFields"):
        message = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        yield invalid("spec.preserveUnknownFields", True, message)


def _choice(value: Any, field: str, choices: list[str]) -> Iterator[Cause]:
    if not value:
        yield required(field)
    elif value not in choices:
        yield unsupported(field, value, choices)


def _split(versions: list[Json]) -> tuple[Json, list[Json]]:
    """Return (fields on which all versions agree, the versions without them)."""
    shared = {
        key: versions[0][key]
        for key in _WHOLE
        if versions and versions[0].get(key) and all(version.get(key) == versions[0][key] for version in versions)
    }
    return shared, [{key: value for key, value in version.items() if key not in shared} for version in versions]


def _versions(versions: list[Json]) -> Iterator[Cause]:
    for index, version in enumerate(versions):
        if not at(version, "schema", "openAPIV3Schema"):
            yield required(f"spec.versions[{index}].schema.openAPIV3Schema", "schemas are required")
    shared, own = _split(versions)
    names = [str(version.get("name") or "") for version in versions]
    for index, version in enumerate(own):
        path = f"spec.versions[{index}]"
        if not _LABEL_1035.match(names[index]):
            yield invalid(f"{path}.name", names[index], _LABEL_1035_RULE)
        if version.get("deprecationWarning") is not None and not version.get("deprecated"):
            message = "can only be set for deprecated versions"
            yield invalid(f"{path}.deprecationWarning", version["deprecationWarning"], message)
        yield from _schema({**shared, **version}, f"{path}.schema") if "schema" in version else ()
        yield from _others(version, path)
    shown = [_internal(version) for version in own]
    if len(set(names)) < len(names):
        yield invalid("spec.versions", shown, "must contain unique version names")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        yield invalid("spec.versions", shown, "must have exactly one version marked as storage version")


def _internal(version: Json) -> Json:
    """Return a version as the real server's messages show it."""
    return {
        "Name": version.get("name") or "",
        "Served": bool(version.get("served")),
        "Storage": bool(version.get("storage")),
        "Deprecated": bool(version.get("deprecated")),
        "DeprecationWarning": version.get("deprecationWarning"),
        "Schema": version.get("schema"),
        "Subresources": version.get("subresources"),
        "AdditionalPrinterColumns": version.get("additionalPrinterColumns"),
        "SelectableFields": version.get("selectableFields"),
    }


def _schema(version: Json, path: str) -> list[Cause]:
    """Check a version's schema; rules in CEL only without other errors, as their check needs the types."""
    schema, path = as_object(at(version, "schema", "openAPIV3Schema")), f"{path}.openAPIV3Schema"
    causes: list[Cause] = []
    if at(version, "subresources", "status") is not None and schema.get("type") != "object":
        message = 'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
        causes.append(invalid(f"{path}.type", schema.get("type") or "", message))
    if schema.get("nullable"):
        causes.append(forbidden_field(f"{path}.nullable", "nullable cannot be true at the root"))
    not_allowed = openapi.validate(schema, path)
    if not any(cause.message.endswith("is not supported") for cause in not_allowed):
        # with references and the like in it, the check would not know what is structural
        wrong = structural.validate(schema, path)
        causes += wrong or defaults.validate(schema, path)
    causes += not_allowed
    return causes or [*expressions.validate(schema, path), *_writable(schema, path)]


def _writable(schema: Json, path: str) -> Iterator[Cause]:
    try:
        schema_message(schema)  # one that cannot be written would break the OpenAPI document of all kinds
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
        yield invalid(path, "", f"error building validator: {error}")


def _others(version: Json, path: str) -> Iterator[Cause]:
    yield from _scale(as_object(at(version, "subresources", "scale")), f"{path}.subresources.scale")
    for index, column in enumerate(objects_at(version, "additionalPrinterColumns")):
        yield from _column(column, f"{path}.additionalPrinterColumns[{index}]")
    schema = as_object(at(version, "schema", "openAPIV3Schema"))
    for index, field in enumerate(objects_at(version, "selectableFields")):
        yield from _selectable(str(field.get("jsonPath") or ""), schema, f"{path}.selectableFields[{index}].jsonPath")


def _scale(scale: Json, path: str) -> Iterator[Cause]:
    if not scale:
        return
    for key, owner in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        text = str(scale.get(key) or "")
        if not text:
            yield required(f"{path}.{key}")
        elif not text.startswith("."):
            yield invalid(f"{path}.{key}", text, "must be a simple json path starting with .")
        elif not text.startswith(owner):
            yield invalid(f"{path}.{key}", text, f"should be a json path under {owner.rstrip('.')}")
    selector = str(scale.get("labelSelectorPath") or "")
    if selector and not selector.startswith((".spec.", ".status.")):
        yield invalid(f"{path}.labelSelectorPath", selector, "should be a json path under either .spec or .status")


def _column(column: Json, path: str) -> Iterator[Cause]:
    if not column.get("name"):
        yield required(f"{path}.name")
    kind = str(column.get("type") or "")
    message = f"must be one of {','.join(_COLUMN_TYPES)}"
    if not kind:
        yield required(f"{path}.type", message)
    elif kind not in _COLUMN_TYPES:
        yield invalid(f"{path}.type", kind, message)
    if column.get("format") and column["format"] not in _COLUMN_FORMATS:
        yield invalid(f"{path}.format", column["format"], f"must be one of {','.join(_COLUMN_FORMATS)}")
    text = str(column.get("jsonPath") or "")
    if not text:
        yield required(f"{path}.JSONPath")
    elif not text.startswith("."):
        yield invalid(f"{path}.JSONPath", text, "must be a simple json path starting with .")


def _selectable(text: str, schema: Json, path: str) -> Iterator[Cause]:
    if not text:
        yield required(path)
        return
    if text.startswith(".metadata"):
        yield invalid(path, text, "must not point to fields in metadata")
        return
    found = schema
    for name in text.removeprefix(".").split(".") if schema else ():
        found = as_object(as_object(found.get("properties")).get(name))
        if not found:
            yield invalid(path, text, "is an invalid path: does not refer to a valid field")
            return
    if schema and found.get("type") not in ("string", "boolean", "integer"):
        message = (
            "must point to a field of type string, boolean or integer. "
            "Enum string fields and strings with formats are allowed."
        )
        yield invalid(path, text, message)


def _names(names: Json) -> Iterator[Cause]:
    for key in ("plural", "singular", "kind", "listKind"):
        if not names.get(key):
            yield required(f"spec.names.{key}")
    for key in ("plural", "singular"):
        if names.get(key) and not _LABEL_1035.match(str(names[key])):
            yield invalid(f"spec.names.{key}", names[key], _LABEL_1035_RULE)
    for key in ("kind", "listKind"):
        if names.get(key) and not _LABEL_1035.match(str(names[key]).lower()):
            message = f"may have mixed case, but should otherwise match: {_LABEL_1035_RULE}"
            yield invalid(f"spec.names.{key}", names[key], message)
    for key in ("shortNames", "categories"):
        for index, name in enumerate(map(str, as_list(names.get(key)))):
            if not _LABEL_1035.match(name):
                yield invalid(f"spec.names.{key}[{index}]", name, _LABEL_1035_RULE)
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        yield invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")


def _conversion(conversion: Json) -> Iterator[Cause]:
    yield from _choice(conversion.get("strategy"), "spec.conversion.strategy", ["None", "Webhook"])
    if conversion.get("strategy") == "Webhook":
        yield forbidden_field("spec.conversion.strategy", "this server supports strategy None only")
    elif conversion.get("webhook") is not None:
        message = "should not be set when strategy is not set to Webhook"
        yield forbidden_field("spec.conversion.webhookClientConfig", message)


def _stored_versions(definition: Json, spec: Json) -> Iterator[Cause]:
    """Check that no version with stored objects is dropped."""
    stored = list(map(str, as_list(at(definition, "status", "storedVersions"))))
    versions = objects_at(spec, "versions")
    for version in versions:
        if version.get("storage") and version.get("name") not in stored:
            message = f"must have the storage version {version.get('name')}"
            yield invalid("status.storedVersions", stored, message)
    for index, name in enumerate(stored):
        if name not in {version.get("name") for version in versions}:
            yield invalid(
                f"status.storedVersions[{index}]",
                name,
                f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration ensures no data remains persisted in {name} and removes "
                f"{name} from status.storedVersions",
            )
