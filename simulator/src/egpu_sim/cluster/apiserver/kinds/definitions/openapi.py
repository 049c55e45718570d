"""Parts of OpenAPI that a custom resource's schema may not have, and Kubernetes extensions that go together."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from egpu_sim.cluster.apiserver.kinds.definitions.structural import children, junctors, required_names
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, required, unsupported
from egpu_sim.cluster.trees import Json, as_list, as_object

LIST_TYPE: Final = "x-kubernetes-list-type"
LIST_KEYS: Final = "x-kubernetes-list-map-keys"
MAP_TYPE: Final = "x-kubernetes-map-type"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"

_TYPES: Final = ["array", "boolean", "integer", "number", "object", "string"]
_NOT_SUPPORTED: Final = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
_ENVELOPE: Final = ("metadata", "kind", "apiVersion")


@dataclass(frozen=True)
class _Place:
    root: bool = False
    in_metadata: bool = False
    no_default: str = ""
    """The reason why a default is not allowed here; empty if it is."""


def validate(schema: Json, path: str) -> list[Cause]:
    """Return every rule that a schema breaks, whether it is structural or not."""
    return list(_walk(schema, path, _Place(root=True)))


def _walk(schema: Json, path: str, place: _Place) -> Iterator[Cause]:
    yield from _not_allowed(schema, path, place)
    yield from _additional_properties(schema, path)
    for key, child, where in children(schema, path):
        yield from _walk(child, where, _below(schema, key, where, place))
    for nested, where in junctors(schema, path):
        yield from _walk(nested, where, replace(place, root=False))
    if schema.get(PRESERVE) is False:
        yield invalid(f"{path}.{PRESERVE}", False, "must be true or undefined")
    yield from _map_type(schema, path)
    yield from _list_type(schema, path)


def _below(schema: Json, key: str, where: str, place: _Place) -> _Place:
    if key == "additionalProperties" and place.in_metadata:
        return replace(place, root=False, no_default="inside additionalProperties applying to object metadata")
    name = where.rpartition("[")[2].removesuffix("]")
    is_envelope = place.root or bool(schema.get("x-kubernetes-embedded-resource"))
    if key == "properties" and is_envelope and name in _ENVELOPE:
        return _Place(in_metadata=True, no_default=f"in top-level {name}" if place.root else place.no_default)
    return replace(place, root=False)


def _not_allowed(schema: Json, path: str, place: _Place) -> Iterator[Cause]:
    kind = str(schema.get("type") or "")
    if kind and kind not in (*_TYPES, "null"):
        yield unsupported(f"{path}.type", kind, _TYPES)
    if "default" in schema and place.no_default:
        yield forbidden_field(f"{path}.default", f"must not be set {place.no_default}")
    for key in _NOT_SUPPORTED:
        if schema.get(key) not in (None, "", {}):
            yield forbidden_field(f"{path}.{key}", f"{key} is not supported")
    if kind == "null":
        yield forbidden_field(f"{path}.type", "type cannot be set to null, use nullable as an alternative")
    if isinstance(schema.get("items"), list):
        yield forbidden_field(f"{path}.items", "items must be a schema object and not an array")
    if schema.get("uniqueItems"):
        yield forbidden_field(
            f"{path}.uniqueItems", "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        )
    if place.in_metadata and schema.get("x-kubernetes-embedded-resource"):
        yield forbidden_field(f"{path}.x-kubernetes-embedded-resource", "must not be used inside of resource meta")


def _additional_properties(schema: Json, path: str) -> Iterator[Cause]:
    """Check that `properties` are for structs, `additionalProperties` for maps. Unknown fields are pruned, not
    refused."""
    additional = schema.get("additionalProperties")
    if additional is not None and additional is not True and schema.get("properties"):
        yield forbidden_field(
            f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"
        )


def _map_type(schema: Json, path: str) -> Iterator[Cause]:
    if (found := schema.get(MAP_TYPE)) is None:
        return
    yield from _must_be(schema, path, "object", f"{MAP_TYPE} is specified")
    if found not in ("atomic", "granular"):
        yield unsupported(f"{path}.{MAP_TYPE}", found, ["atomic", "granular"])


def _must_be(schema: Json, path: str, kind: str, because: str) -> Iterator[Cause]:
    found = schema.get("type")
    if not found:
        yield required(f"{path}.type", f"must be {kind} if {because}")
    elif found != kind:
        yield invalid(f"{path}.type", found, f"must be {kind} if {because}")


def _list_type(schema: Json, path: str) -> Iterator[Cause]:
    found = schema.get(LIST_TYPE)
    if found is not None:
        yield from _must_be(schema, path, "array", f"{LIST_TYPE} is specified")
        if found not in ("atomic", "set", "map"):
            yield unsupported(f"{path}.{LIST_TYPE}", found, ["atomic", "set", "map"])
    items = as_object(schema.get("items"))
    if found == "set":
        yield from _set_items(items, f"{path}.items")
    if as_list(schema.get(LIST_KEYS)) and found != "map":
        message = f"must be map if {LIST_KEYS} is non-empty"
        where = f"{path}.{LIST_TYPE}"
        yield required(where, message) if found is None else invalid(where, found, message)
    if found == "map":
        yield from _map_items(schema, items, path)
    if found in ("set", "map") and items.get("nullable"):
        yield forbidden_field(f"{path}.items.nullable", f"cannot be nullable when {LIST_TYPE} is {found}")


def _set_items(items: Json, path: str) -> Iterator[Cause]:
    message = f"must be atomic as item of a list with {LIST_TYPE}=set"
    if items.get("type") == "array" and items.get(LIST_TYPE, "atomic") != "atomic":
        yield invalid(f"{path}.{LIST_TYPE}", items.get(LIST_TYPE), message)
    if items.get("type") == "object" and items.get(MAP_TYPE) != "atomic":
        yield invalid(f"{path}.{MAP_TYPE}", items.get(MAP_TYPE), message)


def _map_items(schema: Json, items: Json, path: str) -> Iterator[Cause]:
    keys = list(map(str, as_list(schema.get(LIST_KEYS))))
    where = f"{path}.{LIST_KEYS}"
    if not keys:
        yield required(where, f"must not be empty if {LIST_TYPE} is map")
    if "items" not in schema:
        yield required(f"{path}.items", f"must have a schema if {LIST_TYPE} is map")
        return
    if items.get("type") != "object":
        message = f"must be object if parent array's {LIST_TYPE} is map"
        yield invalid(f"{path}.items.type", items.get("type") or "", message)
        return
    properties, needed = as_object(items.get("properties")), required_names(items)
    for index, key in enumerate(keys):
        inner = f"{path}.items.properties[{key}]"
        field = as_object(properties.get(key))
        if key not in properties:
            yield invalid(where, keys, "entries must all be names of item properties")
        elif field.get("type") in ("array", "object"):
            message = f"must be a scalar type if parent array's {LIST_TYPE} is map"
            yield invalid(f"{inner}.type", field["type"], message)
        if key in keys[:index]:
            yield invalid(where, keys, "must not contain duplicate entries")
        if key in properties and key not in needed and field.get("default") is None:
            message = f"this property is in {LIST_KEYS}, so it must have a default or be a required property"
            yield required(f"{inner}.default", message)
        if field.get("nullable"):
            yield forbidden_field(f"{inner}.nullable", f"this property is in {LIST_KEYS}, so it cannot be nullable")
