"""Strategic merge patch: merge patch that knows which lists are keyed.

The strategy of a list comes from the OpenAPI definition of its field (`x-kubernetes-patch-strategy` and
`x-kubernetes-patch-merge-key`). Directives: `$patch` (replace, delete, merge), `$retainKeys`,
`$setElementOrder/<list>`, `$deleteFromPrimitiveList/<list>`. Behaviour: `strategic-merge-patch.md` of the Kubernetes
API conventions.

Why not a library: there is none in Python; the Kubernetes clients only send such patches, servers apply them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from egpu_sim.cluster.apiserver.patching.json_patch import PatchFailed
from egpu_sim.cluster.trees import Json, as_list, as_object

_ORDER = "$setElementOrder/"
_DROP = "$deleteFromPrimitiveList/"


@dataclass(frozen=True)
class Definitions:
    """OpenAPI definitions in which to follow `$ref`s."""

    by_name: Mapping[str, Json]

    def resolve(self, schema: Json) -> Json:
        reference = schema.get("$ref")
        return self.by_name.get(reference.rsplit("/", 1)[-1], {}) if isinstance(reference, str) else schema

    def field(self, schema: Json, name: str) -> Json:
        """Return the schema of a field as its owner has it (so with its patch strategy)."""
        schema = self.resolve(schema)
        found = as_object(as_object(schema.get("properties")).get(name))
        return found or as_object(schema.get("additionalProperties"))


def strategic_merge(target: Json, patch: Json, schema: Json, definitions: Definitions) -> Json:
    """Apply `patch` to `target` and return the result. Raises PatchFailed."""
    directive = patch.get("$patch")
    if directive == "replace":
        return _plain({key: value for key, value in patch.items() if key != "$patch"})
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchFailed(f"unknown $patch directive {directive!r}", malformed=True)
    result = dict(target)
    if "$retainKeys" in patch:
        kept = set(map(str, as_list(patch["$retainKeys"])))
        result = {key: value for key, value in result.items() if key in kept}
    for key, value in patch.items():
        if key.startswith(_DROP):
            name = key.removeprefix(_DROP)
            result[name] = [item for item in as_list(result.get(name)) if item not in as_list(value)]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        else:
            order = patch.get(_ORDER + key)
            result[key] = _merge_value(result.get(key), value, definitions.field(schema, key), definitions, order)
    for key, value in patch.items():
        name = key.removeprefix(_ORDER)
        if name != key and name not in patch and name in result:
            merge_key = str(definitions.field(schema, name).get("x-kubernetes-patch-merge-key") or "")
            result[name] = _ordered(as_list(result[name]), as_list(result[name]), as_list(value), merge_key)
    return result


def _merge_value(target: Any, value: Any, schema: Json, definitions: Definitions, order: Any) -> Any:
    if isinstance(value, dict):
        return strategic_merge(as_object(target), cast(Json, value), schema, definitions)
    if not isinstance(value, list):
        return value
    patch_items = cast("list[Any]", value)
    if "merge" not in str(schema.get("x-kubernetes-patch-strategy") or "").split(","):
        return _plain(patch_items)
    merge_key = str(schema.get("x-kubernetes-patch-merge-key") or "")
    original = as_list(target)
    if merge_key:
        merged = _merge_keyed(original, patch_items, merge_key, as_object(schema.get("items")), definitions)
    else:
        merged = [*original, *(item for item in patch_items if item not in original)]
    return merged if order is None else _ordered(merged, original, as_list(order), merge_key)


def _merge_keyed(
    original: list[Any], patch_items: list[Any], merge_key: str, schema: Json, definitions: Definitions
) -> list[Any]:
    if any(as_object(item).get("$patch") == "replace" for item in patch_items):
        return _plain([item for item in patch_items if as_object(item).get("$patch") != "replace"])
    result = list(original)
    for item in patch_items:
        entry = as_object(item)
        if merge_key not in entry:
            raise PatchFailed(f"map: {entry} does not contain declared merge key: {merge_key}", malformed=True)
        position = _position(result, entry[merge_key], merge_key)
        if entry.get("$patch") == "delete":
            if position is not None:
                del result[position]
        elif position is None:
            result.append(strategic_merge({}, entry, schema, definitions))
        else:
            result[position] = strategic_merge(as_object(result[position]), entry, schema, definitions)
    return result


def _identity(item: Any, merge_key: str) -> Any:
    return as_object(item).get(merge_key) if merge_key else item


def _position(items: list[Any], identity: Any, merge_key: str) -> int | None:
    return next((at for at, item in enumerate(items) if _identity(item, merge_key) == identity), None)


def _ordered(merged: list[Any], original: list[Any], order: list[Any], merge_key: str) -> list[Any]:
    """Put the items named in `order` in that order. The server's own items keep their places relative to them."""
    wanted = [_identity(entry, merge_key) for entry in order]
    named = [item for item in merged if _identity(item, merge_key) in wanted]
    named.sort(key=lambda item: wanted.index(_identity(item, merge_key)))
    others = [item for item in merged if _identity(item, merge_key) not in wanted]
    result: list[Any] = []
    while named and others:
        mine = _position(original, _identity(named[0], merge_key), merge_key)
        theirs = _position(original, _identity(others[0], merge_key), merge_key)
        others_first = mine is not None and theirs is not None and theirs < mine
        result.append(others.pop(0) if others_first else named.pop(0))
    return result + named + others


def _plain(value: Any) -> Any:
    """Return the value without directives and nulls, for merging with nothing."""
    if isinstance(value, dict):
        tree = cast(Json, value)
        return {key: _plain(item) for key, item in tree.items() if item is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value
