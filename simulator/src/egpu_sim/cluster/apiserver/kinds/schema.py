"""Structural schemas: prune, default and validate a JSON tree against an OpenAPI v3 schema.

One walker serves custom resources (their CRD's schema) and built-in kinds (schemas of their models). It does not
evaluate `x-kubernetes-validations` (CEL): a CRD may have them, and its other rules hold.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from egpu_base.api.quantities import parse_quantity
from egpu_base.errors import InvalidQuantity
from egpu_sim.cluster.apiserver.status import Cause, invalid, required, unsupported, wrong_type
from egpu_sim.cluster.trees import Json, as_list, as_object, copy, encode

CAUSES_LIMIT = 64
"""The most errors reported for one object."""


@dataclass
class Schema:
    """One compiled node. With `properties` None and `values` None, everything below it is kept."""

    type: str = ""
    format: str = ""
    struct: str = ""
    """Name of its definition, if it is one."""
    properties: dict[str, "Schema"] | None = None
    values: "Schema | None" = None
    items: "Schema | None" = None
    required: tuple[str, ...] = ()
    preserve: bool = False
    embedded: bool = False
    int_or_string: bool = False
    nullable: bool = False
    atomic: bool = False
    """A map that is one field for server-side apply."""
    list_type: str = ""
    list_keys: tuple[str, ...] = ()
    default: Any = None
    has_default: bool = False
    checks: list[Callable[[Any, str], Cause | None]] = field(default_factory=list[Callable[[Any, str], Cause | None]])
    all_of: tuple["Schema", ...] = ()
    any_of: tuple["Schema", ...] = ()
    one_of: tuple["Schema", ...] = ()
    negated: "Schema | None" = None


@dataclass
class Findings:
    """The result of a walk: removed unknown fields, and errors."""

    unknown: list[str] = field(default_factory=list[str])
    causes: list[Cause] = field(default_factory=list[Cause])


def compile_schema(source: Json) -> Schema:
    """Compile an OpenAPI v3 schema without references."""
    return Compiler({}).compile(source)


class Compiler:
    """Compiles OpenAPI v3 schemas. Each definition that they refer to is compiled once for all of them."""

    def __init__(self, definitions: Mapping[str, Json]) -> None:
        """Resolve `$ref`s by their last path element."""
        self._definitions = definitions
        self._named: dict[str, Schema] = {}

    def compile(self, source: Json) -> Schema:
        """Compile a schema."""
        if isinstance(reference := source.get("$ref"), str):
            return self._resolve(reference.rsplit("/", 1)[-1])
        schema = Schema()
        self._fill(schema, source)
        return schema

    def _resolve(self, name: str) -> Schema:
        if name not in self._named:
            schema = self._named[name] = Schema(
                struct=name.rpartition(".")[2]
            )  # filled after it is named: models refer to themselves
            self._fill(schema, self._definitions[name])
        return self._named[name]

    def _fill(self, schema: Schema, source: Json) -> None:
        schema.type = str(source.get("type") or "")
        schema.format = str(source.get("format") or "")
        schema.int_or_string = bool(source.get("x-kubernetes-int-or-string")) or source.get("format") == "int-or-string"
        schema.preserve = bool(source.get("x-kubernetes-preserve-unknown-fields"))
        schema.embedded = bool(source.get("x-kubernetes-embedded-resource"))
        schema.atomic = source.get("x-kubernetes-map-type") == "atomic"
        schema.list_type = str(source.get("x-kubernetes-list-type") or "")
        schema.list_keys = tuple(map(str, as_list(source.get("x-kubernetes-list-map-keys"))))
        schema.nullable = bool(source.get("nullable"))
        schema.required = tuple(map(str, as_list(source.get("required"))))
        if "properties" in source:
            schema.properties = {
                name: self.compile(as_object(child)) for name, child in as_object(source["properties"]).items()
            }
        additional = source.get("additionalProperties")
        if isinstance(additional, dict):
            schema.values = self.compile(cast(Json, additional))
        elif additional is True:
            schema.preserve = True
        if isinstance(source.get("items"), dict):
            schema.items = self.compile(as_object(source["items"]))
        if "default" in source:
            schema.default, schema.has_default = source["default"], True
        schema.all_of = self._several(source, "allOf")
        schema.any_of = () if schema.int_or_string else self._several(source, "anyOf")
        schema.one_of = self._several(source, "oneOf")
        if isinstance(source.get("not"), dict):
            schema.negated = self.compile(as_object(source["not"]))
        # Merge keys of built-in lists do not forbid doubled items: Go's structs hold an item twice.
        schema.checks = [] if self._definitions else _checks(source)

    def _several(self, source: Json, key: str) -> tuple[Schema, ...]:
        return tuple(self.compile(as_object(item)) for item in as_list(source.get(key)))


def _checks(source: Json) -> list[Callable[[Any, str], Cause | None]]:
    checks: list[Callable[[Any, str], Cause | None]] = []
    if source.get("format") == "quantity":
        checks.append(_is_quantity)
    if "enum" in source:
        checks.append(_one_of(as_list(source["enum"])))
    if isinstance(pattern := source.get("pattern"), str):
        checks.append(_matches(pattern))
    for key, measure, noun in (
        ("Length", str, "chars long"),
        ("Items", list, "items"),
        ("Properties", dict, "properties"),
    ):
        for bound in ("min", "max"):
            if isinstance(limit := source.get(bound + key), int):
                checks.append(_measured(measure, bound, limit, noun))
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(limit := source.get(bound), int | float):
            checks.append(_bounded(bound, limit, strict=bool(source.get(exclusive))))
    if isinstance(step := source.get("multipleOf"), int | float) and step:
        checks.append(_stepped(step))
    if source.get("uniqueItems") or source.get("x-kubernetes-list-type") == "set":
        checks.append(_unique(()))
    if source.get("x-kubernetes-list-type") == "map":
        checks.append(_unique(tuple(map(str, as_list(source.get("x-kubernetes-list-map-keys"))))))
    return checks


def _is_quantity(value: Any, path: str) -> Cause | None:
    try:
        parse_quantity(value)
    except InvalidQuantity as error:
        return invalid(path, value, error.reason)
    return None


def _one_of(choices: list[Any]) -> Callable[[Any, str], Cause | None]:
    def check(value: Any, path: str) -> Cause | None:
        return None if value in choices else unsupported(path, value, [str(choice) for choice in choices])

    return check


def _matches(pattern: str) -> Callable[[Any, str], Cause | None]:
    compiled = re.compile(pattern)

    def check(value: Any, path: str) -> Cause | None:
        if not isinstance(value, str) or compiled.search(value):
            return None
        return invalid(path, value, f"{path} in body should match '{pattern}'")

    return check


def _measured(kind: type, bound: str, limit: int, noun: str) -> Callable[[Any, str], Cause | None]:
    word = "at least" if bound == "min" else "at most"

    def check(value: Any, path: str) -> Cause | None:
        if not isinstance(value, kind):
            return None
        size = len(value)  # type: ignore[arg-type]
        if (size >= limit) if bound == "min" else (size <= limit):
            return None
        return invalid(path, value if kind is str else size, f"{path} in body should be {word} {limit} {noun}")

    return check


def _bounded(bound: str, limit: float, *, strict: bool) -> Callable[[Any, str], Cause | None]:
    lower = bound == "minimum"
    word = ("greater than" if lower else "less than") + ("" if strict else " or equal to")

    def check(value: Any, path: str) -> Cause | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        fine = value > limit if lower else value < limit
        if fine or (not strict and value == limit):
            return None
        return invalid(path, value, f"{path} in body should be {word} {limit}")

    return check


def _stepped(step: float) -> Callable[[Any, str], Cause | None]:
    def check(value: Any, path: str) -> Cause | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or value % step == 0:
            return None
        return invalid(path, value, f"{path} in body should be a multiple of {step}")

    return check


def _unique(keys: tuple[str, ...]) -> Callable[[Any, str], Cause | None]:
    def check(value: Any, path: str) -> Cause | None:
        seen: set[bytes] = set()
        for index, item in enumerate(as_list(value)):
            mark = encode([as_object(item).get(key) for key in keys] if keys else item)
            if mark in seen:
                return Cause("FieldValueDuplicate", f"{path}[{index}]", f"Duplicate value: {mark.decode()}")
            seen.add(mark)
        return None

    return check


_ENVELOPE = ("apiVersion", "kind", "metadata")


def prune(schema: Schema, value: Any, findings: Findings, path: str = "") -> None:
    """Remove unknown fields and invalid nulls, in place, and report them."""
    if isinstance(value, list):
        if schema.items is not None:
            for index, item in enumerate(cast("list[Any]", value)):
                prune(schema.items, item, findings, f"{path}[{index}]")
        return
    if not isinstance(value, dict):
        return
    tree = cast(Json, value)
    for key in list(tree):
        child = (schema.properties or {}).get(key) or schema.values
        where = f"{path}.{key}" if path else key
        if schema.embedded and key in _ENVELOPE:
            continue
        if child is not None:
            if tree[key] is None and not child.nullable and (child.has_default or schema.values is None):
                del tree[key]
            else:
                prune(child, tree[key], findings, where)
        elif not schema.preserve and (schema.properties is not None or schema.type == "object"):
            findings.unknown.append(where)
            del tree[key]


def apply_defaults(schema: Schema, value: Any) -> None:
    """Fill in the schema's defaults, in place."""
    if isinstance(value, list):
        if schema.items is not None:
            for item in cast("list[Any]", value):
                apply_defaults(schema.items, item)
        return
    if not isinstance(value, dict):
        return
    tree = cast(Json, value)
    for key, child in (schema.properties or {}).items():
        if key not in tree and child.has_default:
            tree[key] = copy({"value": child.default})["value"]
    for key, item in tree.items():
        child = (schema.properties or {}).get(key) or schema.values
        if child is not None:
            apply_defaults(child, item)


def validate(schema: Schema, value: Any, findings: Findings, path: str = "") -> None:
    """Report every rule that `value` breaks (at most CAUSES_LIMIT)."""
    if len(findings.causes) >= CAUSES_LIMIT:
        return
    if value is None and schema.nullable:
        return
    if not _has_type(schema, value):
        findings.causes.append(wrong_type(path, value, "integer or string" if schema.int_or_string else schema.type))
        return
    findings.causes.extend(cause for check in schema.checks if (cause := check(value, path)) is not None)
    if isinstance(value, dict):
        _validate_object(schema, cast(Json, value), findings, path)
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(cast("list[Any]", value)):
            validate(schema.items, item, findings, f"{path}[{index}]")
    _validate_junctors(schema, value, findings, path)


def _validate_object(schema: Schema, tree: Json, findings: Findings, path: str) -> None:
    prefix = f"{path}." if path else ""
    findings.causes.extend(required(prefix + key) for key in schema.required if key not in tree)
    for key, item in tree.items():
        child = (schema.properties or {}).get(key) or schema.values
        if child is not None:
            validate(child, item, findings, prefix + key)


def _validate_junctors(schema: Schema, value: Any, findings: Findings, path: str) -> None:
    for part in schema.all_of:
        validate(part, value, findings, path)
    if schema.any_of and not any(_holds(part, value) for part in schema.any_of):
        findings.causes.append(invalid(path, value, f"{path} in body must validate at least one schema (anyOf)"))
    if schema.one_of and sum(_holds(part, value) for part in schema.one_of) != 1:
        findings.causes.append(invalid(path, value, f"{path} in body must validate one and only one schema (oneOf)"))
    if schema.negated is not None and _holds(schema.negated, value):
        findings.causes.append(invalid(path, value, f"{path} in body must not validate the schema (not)"))


def _holds(schema: Schema, value: Any) -> bool:
    findings = Findings()
    validate(schema, value, findings)
    return not findings.causes


def _has_type(schema: Schema, value: Any) -> bool:
    if schema.int_or_string:
        return isinstance(value, int | str) and not isinstance(value, bool)
    match schema.type:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return True
