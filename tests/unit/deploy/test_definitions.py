"""Our CustomResourceDefinitions obey what Kubernetes asks of structural schemas, and print columns for people.

Source of the rules: "Specifying a structural schema" in Kubernetes' documentation of custom resources, and the
validation of apiextensions.k8s.io/v1.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from egpu.api.crds import definitions
from egpu_sim.cluster.apiserver.reading import jsonpath

Schema = Mapping[str, Any]

TYPES = {"array", "boolean", "integer", "number", "object", "string"}
BOUNDS = {
    "array": {"minItems", "maxItems"},
    "integer": {"minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"},
    "object": {"minProperties", "maxProperties"},
    "string": {"minLength", "maxLength", "pattern"},
}
CHILDREN = {"properties", "additionalProperties", "items"}
PLAIN = {"type", "description", "format", "enum", "nullable", "required", "default", "example", *CHILDREN}
EXTENSIONS = {
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}
JUNCTORS = {"allOf", "anyOf", "oneOf"}
INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
COLUMN_TYPES = {"integer", "number", "string", "boolean", "date"}


def violations(schema: Schema, path: str = "", *, root: bool = True) -> Iterator[str]:
    """What a real API server would refuse in the schema, each with where it is."""
    kind = schema.get("type")
    known = PLAIN | EXTENSIONS | JUNCTORS | {"not"} | BOUNDS.get(str(kind), set())
    yield from (f"{path}.{key}: forbidden, or not of type {kind}" for key in schema.keys() - known)
    mixed = schema.get("x-kubernetes-int-or-string") is True
    if not mixed and schema.get("x-kubernetes-preserve-unknown-fields") is not True and kind not in TYPES:
        yield f"{path}.type: required"
    if root and kind != "object":
        yield f"{path}.type: must be object at the root"
    for junctor in JUNCTORS & schema.keys():
        if not (mixed and junctor == "anyOf" and schema[junctor] == INT_OR_STRING):
            for option in schema[junctor]:
                spare = {"type", "description", "default", "additionalProperties", "nullable"} & option.keys()
                yield from (f"{path}.{junctor}.{key}: forbidden in a junctor" for key in spare)
                if option.get("properties", {}).keys() - schema.get("properties", {}).keys():
                    yield f"{path}.{junctor}: names properties that are not outside of it"
    yield from _children(schema, path, root=root)
    yield from _values(schema, path)
    yield from _extensions(schema, path)


def _children(schema: Schema, path: str, *, root: bool) -> Iterator[str]:
    kind = schema.get("type")
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}.additionalProperties: excludes properties"
    if CHILDREN & {"properties", "additionalProperties"} & schema.keys() and kind != "object":
        yield f"{path}.properties: only of objects"
    for name, child in schema.get("properties", {}).items():
        below = f"{path}.{name}"
        if root and name == "metadata":
            if child.get("properties", {}).keys() - {"name", "generateName"} or child.keys() - {"type", "properties"}:
                yield f"{below}: metadata is specified already"
        else:
            yield from violations(child, below, root=False)
    more = schema.get("additionalProperties")
    if more is False:
        yield f"{path}.additionalProperties: false is forbidden"
    elif isinstance(more, Mapping):
        yield from violations(more, f"{path}{{}}", root=False)
    if (kind == "array") != ("items" in schema):
        yield f"{path}.items: of arrays, and of each"
    elif kind == "array" and not isinstance(schema["items"], Mapping):
        yield f"{path}.items: must be one schema"
    elif kind == "array":
        yield from violations(schema["items"], f"{path}[]", root=False)
    if set(schema.get("required", ())) - schema.get("properties", {}).keys():
        yield f"{path}.required: names what is not there"


def _values(schema: Schema, path: str) -> Iterator[str]:
    python = {"array": list, "boolean": bool, "integer": int, "number": float, "object": dict, "string": str}
    kind = python.get(str(schema.get("type")), object)
    if "enum" in schema and not schema["enum"]:
        yield f"{path}.enum: empty"
    for value in schema.get("enum", ()):
        if not isinstance(value, kind):
            yield f"{path}.enum: {value!r} is not of the type"
    if "default" in schema:
        value = schema["default"]
        if not (isinstance(value, kind) or (value is None and schema.get("nullable"))):
            yield f"{path}.default: {value!r} is not of the type"
        elif isinstance(value, dict) and value.keys() - schema.get("properties", {}).keys():
            yield f"{path}.default: would be pruned"
    try:
        re.compile(schema.get("pattern", ""))
    except re.error as error:
        yield f"{path}.pattern: {error}"


def _extensions(schema: Schema, path: str) -> Iterator[str]:
    kind = schema.get("type")
    for extension, wanted in {
        "x-kubernetes-list-type": "array",
        "x-kubernetes-list-map-keys": "array",
        "x-kubernetes-map-type": "object",
        "x-kubernetes-embedded-resource": "object",
        "x-kubernetes-preserve-unknown-fields": "object",
    }.items():
        if extension in schema and kind != wanted:
            yield f"{path}.{extension}: only of type {wanted}"
    if schema.get("x-kubernetes-list-type", "atomic") not in ("atomic", "set", "map"):
        yield f"{path}.x-kubernetes-list-type: must be atomic, set or map"
    if schema.get("x-kubernetes-map-type", "atomic") not in ("atomic", "granular"):
        yield f"{path}.x-kubernetes-map-type: must be atomic or granular"
    keys = schema.get("x-kubernetes-list-map-keys", [])
    if (schema.get("x-kubernetes-list-type") == "map") != bool(keys):
        yield f"{path}.x-kubernetes-list-map-keys: of maps, and of each"
    elif keys and set(keys) - schema.get("items", {}).get("properties", {}).keys():
        yield f"{path}.x-kubernetes-list-map-keys: names what is not there"
    for rule in schema.get("x-kubernetes-validations", ()):
        if not str(rule.get("rule", "")).strip() or "\n" in rule.get("message", ""):
            yield f"{path}.x-kubernetes-validations: needs a rule, and a message of one line"


VERSIONS = [
    pytest.param(definition, version, id=f"{definition['spec']['names']['kind']}-{version['name']}")
    for definition in definitions()
    for version in definition["spec"]["versions"]
]


@pytest.mark.parametrize(("definition", "version"), VERSIONS)
def test_our_schemas_are_structural(definition: Schema, version: Schema) -> None:
    assert list(violations(version["schema"]["openAPIV3Schema"])) == []
    assert definition["metadata"]["name"] == f"{definition['spec']['names']['plural']}.{definition['spec']['group']}"
    assert [one["storage"] for one in definition["spec"]["versions"]].count(True) == 1


@pytest.mark.parametrize(
    ("inner", "where"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}, "excludes"),
        ({"type": "object", "additionalProperties": False}, "false is forbidden"),
        ({"properties": {"a": {"type": "string"}}}, "type: required"),
        ({"type": "object", "anyOf": [{"type": "object"}]}, "anyOf.type"),
        ({"type": "object", "anyOf": [{"properties": {"a": {}}}]}, "not outside"),
        ({"$ref": "#/x"}, "$ref"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"type": "array"}, "items"),
        ({"type": "array", "items": [{"type": "string"}]}, "must be one schema"),
        ({"type": "string", "items": {"type": "string"}}, "items"),
        ({"type": "string", "default": 5}, "default"),
        ({"type": "object", "properties": {}, "default": {"a": 1}}, "pruned"),
        ({"type": "string", "enum": [1]}, "enum"),
        ({"type": "string", "minimum": 1}, "minimum"),
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
        ({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}, "list-map-keys"),
        ({"type": "string", "x-kubernetes-map-type": "atomic"}, "map-type"),
        ({"type": "object", "x-kubernetes-validations": [{"message": "no rule"}]}, "needs a rule"),
        ({"type": "object", "required": ["a"], "properties": {}}, "required"),
    ],
)
def test_what_a_server_refuses_is_found(inner: Schema, where: str) -> None:
    found = list(violations({"type": "object", "properties": {"spec": inner}}))
    assert [one for one in found if where in one], found


def undescribed(schema: Schema, path: str) -> list[str]:
    """Paths of fields that `kubectl explain` has nothing to say about."""
    own = {name: child for name, child in schema.get("properties", {}).items() if name not in SERVERS}
    inner = [(f"{path}.{name}", child) for name, child in own.items()]
    missing = [where for where, child in inner if not child.get("description")]
    inner += [
        (f"{path}[]", schema[key]) for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)
    ]
    return missing + [found for where, child in inner for found in undescribed(child, where)]


SERVERS = ("kind", "apiVersion", "metadata")
"""Fields that API servers describe by themselves."""


@pytest.mark.parametrize(("definition", "version"), VERSIONS)
def test_every_field_says_what_it_is_for(definition: Schema, version: Schema) -> None:
    missing = undescribed(version["schema"]["openAPIV3Schema"], definition["spec"]["names"]["kind"])
    assert not missing, "write it below the field, in egpu.api.objects"


def test_metadata_is_the_servers() -> None:
    bounded = {"type": "object", "properties": {"labels": {"type": "object"}}}
    assert list(violations({"type": "object", "properties": {"metadata": bounded}}))


@pytest.mark.parametrize(("definition", "version"), VERSIONS)
def test_columns_name_fields_that_exist(definition: Schema, version: Schema) -> None:
    columns = version["additionalPrinterColumns"]
    assert columns[-1] == {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    for column in columns[:-1]:
        assert column["type"] in COLUMN_TYPES
        assert set(column) <= {"name", "type", "jsonPath", "description", "priority", "format"}
        found: Any = version["schema"]["openAPIV3Schema"]
        first = re.sub(r"\['(\w+)'(?:,'\w+')*\]$", r".\1", column["jsonPath"])
        steps = re.findall(r"\.((?:\\.|[^.\[\]])+)|(\[\d+\])", first)
        assert "".join(f".{field}" if field else index for field, index in steps) == first
        for field, index in steps:
            found = found["items"] if index else found.get("properties", {}).get(field) or found["additionalProperties"]
        assert found.get("type", "string") in (column["type"], "array"), column
        assert found.get("type") != "array" or column.get("priority") == 1, "a list is for -o wide"


def columns_of(kind: str) -> list[str]:
    (found,) = (one for one in definitions() if one["spec"]["names"]["kind"] == kind)
    return [column["name"] for column in found["spec"]["versions"][0]["additionalPrinterColumns"]]


def test_a_claim_shows_its_share_and_a_card_what_it_is() -> None:
    claim = ["Phase", "Class", "Node", "Card", "Model", "Core", "Memory-MiB", "QoS", "Used-By"]
    claim += ["All-Users", "Cards-On", "Slices", "Age"]
    assert columns_of("ElasticGPUClaim") == claim
    card = [
        "Node",
        "Card",
        "Slice-Of",
        "Model",
        "Core",
        "Allocated",
        "Memory-MiB",
        "Allocated-MiB",
        "Held-By",
        "Claim",
        "Phase",
    ]
    assert columns_of("ElasticGPU")[: len(card)] == card


@pytest.mark.parametrize("field", ["elasticGPUClassName", "egpuClassName", "storageClassName"])
def test_a_claim_that_waits_shows_its_class_too(field: str) -> None:
    (claims,) = (one for one in definitions() if one["spec"]["names"]["kind"] == "ElasticGPUClaim")
    (column,) = (one for one in claims["spec"]["versions"][0]["additionalPrinterColumns"] if one["name"] == "Class")
    pending = {"spec": {field: "shared", "resources": {}}, "status": {"phase": "Pending"}}
    assert jsonpath.find(pending, column["jsonPath"]) == ["shared"]
