"""Sets of fields for server-side apply: fields of an object, changed fields, and merging by fields.

A path is a tuple of elements as `fieldsV1` writes them: `f:NAME` a field, `k:{…}` the item of a keyed list, `v:…` the
item of a set. An atomic value, or one without parts, is one field. The schema defines how lists and maps merge
(`x-kubernetes-list-type`, `-list-map-keys`, `-map-type`); by default, maps merge and lists are atomic. Source:
"Server-Side Apply" in Kubernetes' documentation, "Merge strategy".
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from egpu_sim.cluster.apiserver.kinds.schema import Schema
from egpu_sim.cluster.trees import Json, as_list, as_object, decode, encode

Path: TypeAlias = tuple[str, ...]
Paths: TypeAlias = frozenset[Path]
_Parts: TypeAlias = dict[str, tuple[Schema | None, Any]]

_keys: Final = msgspec.json.Encoder(order="sorted")


class MissingKey(ValueError):
    """An item of a keyed list lacks its key, and the key has no default."""


def fields_of(schema: Schema | None, value: Any) -> Paths:
    """Return every field of an object. Raises MissingKey."""
    found: set[Path] = set()
    _collect(schema, value, (), found)
    return frozenset(found)


def _collect(schema: Schema | None, value: Any, path: Path, found: set[Path]) -> None:
    parts = _parts(schema, value)
    if parts is None or value == {}:
        found.add(path)
        return
    for element, (inner, item) in parts.items():
        if not element.startswith("f:") or _is_map_entry(schema, element):
            found.add((*path, element))
        _collect(inner, item, (*path, element), found)


def _is_map_entry(schema: Schema | None, element: str) -> bool:
    return schema is None or element.removeprefix("f:") not in (schema.properties or {})


def _parts(schema: Schema | None, value: object) -> _Parts | None:
    """Return the fields of a map, or the items of a keyed list or a set; None when the value is one field."""
    tree, items = as_object(value), as_list(value)
    if isinstance(value, dict):
        if schema is not None and schema.atomic:
            return None
        known = (schema.properties or {}) if schema is not None else {}
        values = schema.values if schema is not None else None
        return {f"f:{key}": (known.get(key) or values, item) for key, item in tree.items()}
    if not isinstance(value, list) or schema is None or schema.list_type not in ("map", "set"):
        return None
    if schema.list_type == "set":
        return {f"v:{_keys.encode(item).decode()}": (None, item) for item in items}
    return {_key(schema, as_object(item)): (schema.items, item) for item in items}


def _key(schema: Schema, item: Json) -> str:
    found: Json = {}
    fields = (schema.items.properties or {}) if schema.items is not None else {}
    for name in schema.list_keys:
        default = fields[name].default if name in fields else None
        if name in item or default is not None:
            found[name] = item.get(name, default)
    if not found:
        omitted = " ".join(f'"{name}"' for name in schema.list_keys)
        raise MissingKey(f"associative list with keys has an element that omits all key fields [{omitted}] "
                         "(and doesn't have default values for any key fields)")  # fmt: skip
    return f"k:{_keys.encode(found).decode()}"


def changes(schema: Schema | None, old: Any, new: Any) -> tuple[Paths, Paths]:
    """Return (fields that `new` added or changed, fields that it lacks)."""
    found = _Changes()
    _compare(schema, old, new, (), found)
    return frozenset(found.touched), frozenset(found.removed)


@dataclass
class _Changes:
    touched: set[Path] = field(default_factory=set[Path])
    removed: set[Path] = field(default_factory=set[Path])


def _compare(schema: Schema | None, old: Any, new: Any, path: Path, found: _Changes) -> None:
    if old == new:
        return
    before, after = _parts(schema, old), _parts(schema, new)
    if before is None or after is None:
        found.touched.add(path)
        return
    for element, (inner, item) in after.items():
        where = (*path, element)
        if element in before:
            _compare(inner, before[element][1], item, where, found)
            continue
        if not element.startswith("f:") or _is_map_entry(schema, element):
            found.touched.add(where)
        _collect(inner, item, where, found.touched)
    for element in before.keys() - after.keys():
        where = (*path, element)
        found.removed.add(where)
        _collect(before[element][0], before[element][1], where, found.removed)


def merged(schema: Schema | None, live: Any, wanted: Any) -> Any:
    """Return `live` with all values of `wanted`."""
    mine, theirs = _parts(schema, live), _parts(schema, wanted)
    if mine is None or theirs is None:
        return wanted
    values = {element: item for element, (_, item) in mine.items()}
    for element, (inner, item) in theirs.items():
        values[element] = merged(inner, values[element], item) if element in values else item
    return _whole(live, values)


def without(schema: Schema | None, value: Any, gone: Paths, kept: Paths) -> Any:
    """Return `value` without the fields `gone`. Parents of fields in `kept` stay, and so do values that were empty
    before."""
    parts = _parts(schema, value)
    if parts is None:
        return value
    values: dict[str, Any] = {}
    for element, (inner, item) in parts.items():
        lost, held = _below(gone, element), _below(kept, element)
        if () in lost and not held:
            continue
        left = without(inner, item, lost, held) if lost else item
        if left or left == item or held:
            values[element] = left
    return _whole(value, values)


def _below(paths: Paths, element: str) -> Paths:
    return frozenset(path[1:] for path in paths if path and path[0] == element)


def _whole(like: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(like, list):
        return list(values.values())
    return {element.removeprefix("f:"): item for element, item in values.items()}


CACHED: Final = 1024
"""Cached sets in both forms: objects of one template have the same fields, and are written often."""


def to_wire(paths: Paths) -> Json:
    """Return `fieldsV1`. A field that is a member beside its own fields has the element `.`."""
    return as_object(decode(_encoded(paths)))


@functools.lru_cache(maxsize=CACHED)
def _encoded(paths: Paths) -> bytes:
    tree: Json = {}
    for path in sorted(paths):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    return encode({key: _leaves_plain(child) for key, child in tree.items() if key != "."})


def _leaves_plain(node: Json) -> Json:
    if node.keys() == {"."}:
        return {}
    return {key: child if key == "." else _leaves_plain(child) for key, child in node.items()}


def from_wire(tree: Json) -> Paths:
    return _decoded(encode(tree))


@functools.lru_cache(maxsize=CACHED)
def _decoded(raw: bytes) -> Paths:
    found: set[Path] = set()

    def walk(node: Json, path: Path) -> None:
        if not node and path:
            found.add(path)
        for key, child in node.items():
            if key == ".":
                found.add(path)
            else:
                walk(as_object(child), (*path, key))

    walk(as_object(decode(raw)), ())
    return frozenset(found)


def shown(path: Path) -> str:
    """Return a path as messages show it: `.spec.containers[name="a"].image`."""
    text = ""
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = as_object(msgspec.json.decode(rest))
            text += f"[{','.join(f'{name}={_keys.encode(value).decode()}' for name, value in keys.items())}]"
        else:
            text += f"[={rest}]" if kind == "v" else f"[{rest}]"
    return text
