"""Structural schemas: a server can prune and default without `anyOf`, `allOf`, `oneOf` and `not`.

Every field, item and map value has its type outside of these junctors. Inside are only rules about values. Source:
"Specifying a structural schema" in Kubernetes' documentation of custom resources.
"""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from egpu_sim.cluster.apiserver.kinds.definitions.patterns import problem
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, required
from egpu_sim.cluster.trees import Json, as_list, as_object, objects_at

Level: TypeAlias = Literal["root", "item", "field"]

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"

_NO_TYPE: Final[dict[Level, str]] = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
_JUNCTORS: Final = ("anyOf", "allOf", "oneOf")
_INT_OR_STRING_ANY_OF: Final = [{"type": "integer"}, {"type": "string"}]
_OUTSIDE_ONLY: Final = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    PRESERVE: "must be false to be structural",
    EMBEDDED: "must be false to be structural",
    INT_OR_STRING: "must be false to be structural",
    "x-kubernetes-list-map-keys": "must be empty to be structural",
    "x-kubernetes-list-type": "must be undefined to be structural",
    "x-kubernetes-map-type": "must be undefined to be structural",
}


def validate(schema: Json, path: str) -> list[Cause]:
    """Return every way in which a schema is not structural, sorted as in the real server."""
    found = [*_invariants(schema, path, "root"), *_completeness(schema, path)]
    return sorted(found, key=Cause.sentence)


def children(schema: Json, path: str) -> Iterator[tuple[str, Json, str]]:
    """Return (key, schema, path) of a schema's fields, items and map values."""
    for name, child in as_object(schema.get("properties")).items():
        yield "properties", as_object(child), f"{path}.properties[{name}]"
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield key, as_object(schema[key]), f"{path}.{key}"


def junctors(schema: Json, path: str) -> Iterator[tuple[Json, str]]:
    """Return the schemas below `anyOf`, `allOf`, `oneOf` and `not`."""
    for key in _JUNCTORS:
        for index, item in enumerate(objects_at(schema, key)):
            yield item, f"{path}.{key}[{index}]"
    if isinstance(schema.get("not"), dict):
        yield as_object(schema["not"]), f"{path}.not"


def _invariants(schema: Json, path: str, level: Level) -> Iterator[Cause]:
    if schema.get("type") == "array" and "items" not in schema:
        yield required(f"{path}.items", "must be specified")
    if level == "root" and schema.get("additionalProperties") is not None:
        yield forbidden_field(f"{path}.additionalProperties", "must not be used at the root")
    for key, child, where in children(schema, path):
        yield from _invariants(child, where, "item" if key == "items" else "field")
    yield from _extension_clashes(schema, path)
    yield from _value_rules(schema, path)
    yield from _type_rules(schema, path, level)
    if level == "root" or schema.get(EMBEDDED):
        yield from _envelope_rules(schema, path, level)


def _extension_clashes(schema: Json, path: str) -> Iterator[Cause]:
    if schema.get(INT_OR_STRING):
        for extension in (PRESERVE, EMBEDDED):
            if schema.get(extension):
                yield invalid(f"{path}.{extension}", True, f"must be false if {INT_OR_STRING} is true")


def _type_rules(schema: Json, path: str, level: Level) -> Iterator[Cause]:
    kind = str(schema.get("type") or "")
    embedded = bool(schema.get(EMBEDDED))
    if embedded and kind != "object":
        message = f"must be object if {EMBEDDED} is true"
        yield invalid(f"{path}.type", kind, message) if kind else required(f"{path}.type", message)
    elif not kind and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE):
        yield required(f"{path}.type", _NO_TYPE[level])
    if embedded and schema.get("additionalProperties") is not None:
        yield forbidden_field(f"{path}.additionalProperties", f"must not be used if {EMBEDDED} is set")
    if embedded and not schema.get(PRESERVE) and not schema.get("properties"):
        yield required(f"{path}.properties", f"must not be empty if {EMBEDDED} is true without {PRESERVE}")
    if level == "root" and kind and kind != "object":
        yield invalid(f"{path}.type", kind, "must be object at the root")


def _envelope_rules(schema: Json, path: str, level: Level) -> Iterator[Cause]:
    """Check kind, apiVersion and metadata, which are the server's: a schema may only narrow an object's name."""
    properties = as_object(schema.get("properties"))
    for name, kind in (("kind", "string"), ("apiVersion", "string"), ("metadata", "object")):
        found = as_object(properties.get(name)).get("type")
        if name in properties and found != kind:
            yield invalid(f"{path}.properties[{name}].type", found or "", f"must be {kind}")
    if level == "root" and "metadata" in properties:
        rest = {
            key: value for key, value in as_object(properties["metadata"]).items() if key not in ("type", "default")
        }
        if set(as_object(rest.get("properties"))) <= {"name", "generateName"}:
            rest.pop("properties", None)
        if rest:
            yield forbidden_field(
                f"{path}.properties[metadata]",
                "must not specify anything other than name and generateName, but metadata is implicitly specified",
            )


def _value_rules(schema: Json, path: str) -> Iterator[Cause]:
    if (pattern := schema.get("pattern")) and (wrong := problem(str(pattern))) is not None:
        yield invalid(f"{path}.pattern", pattern, f"must be a valid regular expression, but isn't: {wrong}")
    says_both = schema.get("anyOf") == _INT_OR_STRING_ANY_OF
    first_says_both = any(item.get("anyOf") == _INT_OR_STRING_ANY_OF for item in objects_at(schema, "allOf")[:1])
    for nested, where in junctors(schema, path):
        if says_both and ".anyOf[" in where[len(path) :]:
            continue
        within = {key: value for key, value in nested.items() if key != "anyOf"}
        yield from _nested(within if first_says_both and where == f"{path}.allOf[0]" else nested, where)


def _nested(schema: Json, path: str) -> Iterator[Cause]:
    """Check a schema below a junctor: values only."""
    yield from _value_rules(schema, path)
    for _, child, where in children({**schema, "additionalProperties": None}, path):
        yield from _nested(child, where)
    for key, message in _OUTSIDE_ONLY.items():
        if schema.get(key) not in (None, "", False, []):
            yield forbidden_field(f"{path}.{key}", message)
    if "metadata" in as_object(schema.get("properties")):
        yield forbidden_field(f"{path}.properties[metadata]", "must not be specified in a nested context")


def _completeness(schema: Json, path: str) -> Iterator[Cause]:
    """Check that fields in a junctor also exist outside of it."""
    for nested, where in junctors(schema, path):
        yield from _specified(nested, schema, where, path)
    for _, child, where in children(schema, path):
        yield from _completeness(child, where)


def _specified(nested: Json, outside: Json, where: str, path: str) -> Iterator[Cause]:
    if "items" in nested and "items" not in outside:
        yield required(f"{path}.items", f"because it is defined in {where}.items")
    elif isinstance(nested.get("items"), dict):
        yield from _specified(
            as_object(nested["items"]), as_object(outside["items"]), f"{where}.items", f"{path}.items"
        )
    known = as_object(outside.get("properties"))
    for name, child in as_object(nested.get("properties")).items():
        inner, here = f"{where}.properties[{name}]", f"{path}.properties[{name}]"
        if name in known:
            yield from _specified(as_object(child), as_object(known[name]), inner, here)
        elif isinstance(outside.get("additionalProperties"), dict):
            values = as_object(outside["additionalProperties"])
            yield from _specified(as_object(child), values, inner, f"{path}.additionalProperties")
        else:
            yield required(here, f"because it is defined in {inner}")
    for deeper, below in junctors(nested, where):
        yield from _specified(deeper, outside, below, path)


def required_names(schema: Json) -> frozenset[str]:
    return frozenset(map(str, as_list(schema.get("required"))))
