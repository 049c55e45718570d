"""Errors and zero values of Go's decoder. The real server decodes built-in kinds into Go's structs.

A wrong type is refused before any other check, in the words of Go's decoder. Null is the zero value: an absent field,
an empty struct in a list, an empty text in a map.
"""

import re
from typing import Any, Final

from egpu_sim.cluster.apiserver.kinds.schema import Schema
from egpu_sim.cluster.trees import Json, as_list, as_object

_QUANTITY: Final = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
_NUMBER: Final = re.compile(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)$")
_SUFFIX: Final = re.compile(r"^([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]+)?$")
_GO_TYPES: Final = {"string": "string", "boolean": "bool", "integer": "int32", "number": "float64"}


class Undecodable(Exception):
    """Go's error for the first value that it cannot decode."""


def decode(schema: Schema, value: Any) -> None:
    """Check and complete, in place, an object of a built-in kind. Raises Undecodable."""
    _Decoder().value(schema, value, "", schema.struct)


class _Decoder:
    def value(self, schema: Schema, value: object, path: str, struct: str) -> None:
        """Check a value. `path` is the path of its field in `struct`, without indices and keys, as Go reports it."""
        tree, items = as_object(value), as_list(value)
        if schema.format == "quantity":
            _check_quantity(value)
        elif not _fits(schema, value):
            where = f"struct field {struct}.{path}" if path else "value"
            raise Undecodable(f"json: cannot unmarshal {_json_word(value)} into Go {where} of type {_go_type(schema)}")
        elif isinstance(value, dict):
            self._fields(schema, tree, path, struct)
        elif isinstance(value, list) and schema.items is not None:
            for index, item in enumerate(items):
                if item is None:
                    items[index] = _zero(schema.items)
                self.value(schema.items, items[index], path, struct)

    def _fields(self, schema: Schema, tree: Json, path: str, struct: str) -> None:
        for key, item in list(tree.items()):
            field = (schema.properties or {}).get(key)
            if field is None and schema.values is not None:
                if item is None:
                    tree[key] = _zero(schema.values)
                self.value(schema.values, tree[key], path, struct)
            elif field is not None and item is None:
                if not field.nullable:
                    del tree[key]
            elif field is not None:
                self.value(field, item, f"{path}.{key}" if path else key, schema.struct)


def _json_word(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, dict | list):
        return "object" if isinstance(value, dict) else "array"
    return "string" if isinstance(value, str) else "number"


def _zero(schema: Schema) -> Any:
    match schema.type:
        case "object":
            return {}
        case "array":
            return []
        case "integer" | "number":
            return 0
        case "boolean":
            return False
        case _:
            return ""


def _fits(schema: Schema, value: Any) -> bool:
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
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return True


def _go_type(schema: Schema) -> str:
    if schema.struct:
        return f"v1.{schema.struct}"
    if schema.items is not None:
        return f"[]{_go_type(schema.items)}"
    if schema.values is not None:
        # the values' type: Go reports a map's wrong value with it, and a wrong map with `map[string]` before it
        return f"map[string]{_go_type(schema.values)}"
    if schema.int_or_string:
        return "intstr.IntOrString"
    return _GO_TYPES.get(schema.type, "interface {}")


def _check_quantity(value: Any) -> None:
    """Raise Undecodable as `resource.Quantity` does."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str) or (match := _QUANTITY.match(text)) is None:
        raise Undecodable(f"quantities must match the regular expression '{_QUANTITY.pattern}'")
    if not _NUMBER.match(match[1]):
        raise Undecodable("unable to parse numeric part of quantity")
    if not _SUFFIX.match(match[2]):
        raise Undecodable("unable to parse quantity's suffix")
