"""What a CustomResourceDefinition is refused for, beside what the recordings of a real server show."""

import pytest

from egpu_sim.cluster.apiserver.kinds.crd import DefinitionRules
from egpu_sim.cluster.apiserver.kinds.definitions import expressions
from egpu_sim.cluster.apiserver.status import Cause
from egpu_sim.cluster.trees import Json, as_list, as_object

ROOT = "spec.validation.openAPIV3Schema"
SPEC = f"{ROOT}.properties[spec]"
TEXT: Json = {"type": "string"}


def definition(schema: Json, **changes: object) -> Json:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "kind": "Thing"}
    made: Json = {
        "metadata": {"name": "things.example.org", "uid": "u"},
        "spec": {"group": "example.org", "scope": "Cluster", "names": names, "versions": [version], **changes},
    }
    rules = DefinitionRules()
    rules.defaults(made)
    rules.prepare_create(made)
    return made


def causes(schema: Json, **changes: object) -> list[Cause]:
    return DefinitionRules().validate(definition(schema, **changes))


def of_spec(schema: Json) -> list[Cause]:
    return causes({"type": "object", "properties": {"spec": schema}})


def test_what_is_right_is_taken() -> None:
    item = {"type": "object", "required": ["k"], "properties": {"k": TEXT, "v": {"x-kubernetes-int-or-string": True}}}
    properties: Json = {
        "list": {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
        "set": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
        "map": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
        "any": {"x-kubernetes-preserve-unknown-fields": True},
        "amount": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "count": {"type": "integer", "default": 3},
        "pod": {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True},
    }
    choice = [{"required": ["map"]}, {"required": ["set"], "properties": {"count": {"minimum": 1}}}]
    assert of_spec({"type": "object", "properties": properties, "oneOf": choice}) == []


@pytest.mark.parametrize(
    ("schema", "where", "words"),
    [
        ({"type": "array", "items": {}}, ".items.type", "must not be empty for specified array items"),
        ({"type": "object", "additionalProperties": {}}, ".additionalProperties.type", "must not be empty for"),
        ({"type": "text"}, ".type", 'Unsupported value: "text": supported values: "array", "boolean"'),
        (
            {"type": "object", "anyOf": [{"properties": {"a": {"minLength": 1}}}]},
            ".properties[a]",
            "because it is defined",
        ),
        ({"type": "string", "not": {"description": "x"}}, ".not.description", "must be empty to be structural"),
        ({"type": "string", "allOf": [{"default": "x"}]}, ".allOf[0].default", "must be undefined to be structural"),
        ({"type": "string", "pattern": "a(?=b)"}, ".pattern", "invalid or unsupported Perl syntax: `(?=`"),
        ({"type": "object", "patternProperties": {"a": TEXT}}, ".patternProperties", "is not supported"),
        ({"type": "string", "x-kubernetes-list-type": "set"}, ".type", "must be array if x-kubernetes-list-type"),
        (
            {"type": "array", "items": TEXT, "x-kubernetes-list-type": "bag"},
            ".x-kubernetes-list-type",
            "Unsupported value",
        ),
        (
            {"type": "array", "items": TEXT, "x-kubernetes-list-map-keys": ["k"]},
            ".x-kubernetes-list-type",
            "must be map if",
        ),
        (
            {"type": "object", "x-kubernetes-map-type": "x"},
            ".x-kubernetes-map-type",
            'supported values: "atomic", "granular"',
        ),
        ({"type": "object", "x-kubernetes-embedded-resource": True}, ".properties", "must not be empty if"),
        ({"type": "integer", "default": "x"}, ".default", "in body must be of type integer"),
        ({"type": "object", "default": {"a": 1}}, ".default", "must not have unknown fields"),
        (
            {"x-kubernetes-int-or-string": True, "x-kubernetes-preserve-unknown-fields": True},
            ".x-kubernetes-preserve-unknown-fields",
            "must be false if x-kubernetes-int-or-string is true",
        ),
        (
            {"type": "string", "x-kubernetes-validations": [{"rule": ""}]},
            ".x-kubernetes-validations[0].rule",
            "Required",
        ),
        (
            {"type": "string", "x-kubernetes-validations": [{"rule": "self.size("}]},
            ".x-kubernetes-validations[0].rule",
            "Syntax error",
        ),
        (
            {"type": "string", "x-kubernetes-validations": [{"rule": "that == ''"}]},
            ".x-kubernetes-validations[0].rule",
            "undeclared reference to 'that'",
        ),
    ],
)
def test_schemas_that_are_refused(schema: Json, where: str, words: str) -> None:
    found = of_spec(schema)
    assert (SPEC + where) in {cause.field for cause in found}
    assert any(words in cause.message for cause in found), found


@pytest.mark.parametrize(
    ("keys", "item", "words"),
    [
        (["k"], {"type": "object", "properties": {"k": TEXT}}, "it must have a default or be a required property"),
        (["other"], {"type": "object", "properties": {"k": TEXT}}, "entries must all be names of item properties"),
        (
            ["k"],
            {"type": "object", "required": ["k"], "properties": {"k": {"type": "object"}}},
            "must be a scalar type",
        ),
        (["k"], TEXT, "must be object if parent array's x-kubernetes-list-type is map"),
    ],
)
def test_keyed_lists_that_are_refused(keys: list[str], item: Json, words: str) -> None:
    schema: Json = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    assert any(words in cause.message for cause in of_spec(schema))


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"scope": "World"}, "spec.scope", 'supported values: "Cluster", "Namespaced"'),
        ({"group": "org"}, "spec.group", "should be a domain with at least one dot"),
        ({"names": {"plural": "Things", "kind": "Thing"}}, "spec.names.plural", "a DNS-1035 label must consist of"),
        ({"names": {"plural": "things", "kind": "T", "listKind": "T"}}, "spec.names.listKind", "may not be the same"),
        ({"versions": []}, "spec.versions", "must have exactly one version marked as storage version"),
        ({"conversion": {"strategy": "Webhook"}}, "spec.conversion.strategy", "strategy None only"),
        ({"preserveUnknownFields": True}, "spec.preserveUnknownFields", "cannot set to true"),
    ],
)
def test_definitions_that_are_refused(changes: Json, field: str, words: str) -> None:
    (cause,) = [each for each in causes({"type": "object"}, **changes) if each.field == field]
    assert words in cause.message


def test_versions_that_differ_are_reported_each_at_its_place() -> None:
    made = definition({"type": "object"})
    versions = as_list(as_object(made["spec"])["versions"])
    broken = {"openAPIV3Schema": {"type": "object", "properties": {"a": {}}}}
    versions.append({**as_object(versions[0]), "name": "v2", "storage": False, "schema": broken})
    (cause,) = DefinitionRules().validate(made)
    assert cause.field == "spec.versions[1].schema.openAPIV3Schema.properties[a].type"


def test_a_version_that_was_stored_stays() -> None:
    old = definition({"type": "object"})
    new = definition({"type": "object"})
    as_object(as_list(as_object(new["spec"])["versions"])[0])["name"] = "v2"
    rules = DefinitionRules()
    new["status"] = as_object(old["status"]) | {"storedVersions": ["v1"]}
    rules.prepare_update(old, new)
    assert as_object(new["status"])["storedVersions"] == ["v1", "v2"]
    (cause,) = rules.validate_update(old, new)
    assert (cause.field, "missing from spec.versions" in cause.message) == ("status.storedVersions[0]", True)


@pytest.mark.parametrize(
    "rule",
    [
        "self.a == oldSelf.a",
        "has(self.b) ? self.b.size() > 0 : true",
        "self.b.all(x, x.startsWith('a') || x in ['b', \"c\"])",
        "self.m.exists(k, self.m[k] > 1) && !(self.a > 1 + 2 * 3)",
        "size(self.b) <= 5 && self.b[0] != ''",
        "self.m.map(k, self.m[k]).filter(v, v > 0).size() < 3",
    ],
)
def test_rules_that_are_right(rule: str) -> None:
    schema: Json = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 20}},
            "m": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "integer"}},
        },
        "x-kubernetes-validations": [{"rule": rule}],
    }
    assert expressions.validate({"type": "object", "properties": {"spec": schema}}, "") == []


def test_a_rule_in_a_long_list_costs_as_often_as_the_list_is_long() -> None:
    def schema(**limit: int) -> Json:
        rule = {"rule": "self.all(x, x.all(y, y != 'z'))"}
        inner = {"type": "array", "items": {"type": "string", "maxLength": 9}, **limit}
        return {"type": "object", "properties": {
            "spec": {"type": "array", "items": inner, **limit, "x-kubernetes-validations": [rule]}}}  # fmt: skip

    assert expressions.validate(schema(maxItems=100), "") == []
    refused = expressions.validate(schema(), "")
    assert "estimated rule cost exceeds budget by factor of more than 100x" in refused[0].message
