"""Field validation: unknown and doubled fields, which a decoder ignores, become warnings or errors, as the request's
`fieldValidation` says."""

import json
from typing import Any, Final

import msgspec
import yaml

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.status import bad_request, invalid, invalid_object
from egpu_sim.cluster.trees import as_list, decode, encode

DUPLICATES_LIMIT: Final = 64
"""The most notes on one body."""


def report(call: Call, notes: list[str]) -> None:
    """Warn about the findings, or refuse them (Strict). Raises RequestRefused."""
    if not notes or call.field_validation == "Ignore":
        return
    if call.field_validation == "Warn":
        call.warnings += notes
        return
    error = f"strict decoding error: {', '.join(notes)}"
    if call.verb == "patch":
        raise invalid_object("", "", "", [invalid("patch", "", error)])
    resource = call.resource
    raise bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {error}'
    )


def report_duplicates(call: Call, raw: bytes, media: str) -> None:
    """Look for doubled fields in a body that can be read. Raises RequestRefused."""
    if call.field_validation == "Ignore" or not raw:
        return
    found = _in_yaml(raw) if "yaml" in media else _in_json(raw)
    report(call, found[:DUPLICATES_LIMIT])


class _Doubled(dict[str, Any]):
    """A JSON object, and its doubled keys."""

    doubled: tuple[str, ...] = ()


def _pairs(pairs: list[tuple[str, Any]]) -> _Doubled:
    found = _Doubled(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        found.doubled = tuple(dict.fromkeys(key for index, key in enumerate(keys) if key in keys[:index]))
    return found


def _in_json(raw: bytes) -> list[str]:
    notes: list[str] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, _Doubled):
            prefix = f"{path}." if path else ""
            notes.extend(f'duplicate field "{prefix}{key}"' for key in value.doubled)
            for key, item in value.items():
                walk(item, prefix + key)
        for index, item in enumerate(as_list(value)):
            walk(item, f"{path}[{index}]")

    doubled: list[_Doubled] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        one = _pairs(found)
        if one.doubled:
            doubled.append(one)
        return one

    if _as_we_write(raw):
        return notes
    tree = json.loads(raw, object_pairs_hook=pairs)
    if doubled:  # rare: only then is the search for the place worth its time
        walk(tree, "")
    return notes


def _as_we_write(raw: bytes) -> bool:
    """Return whether encoding the body again gives the same bytes: then nothing was lost, and nothing was doubled.
    Bodies of our own clients pass, and this check takes a quarter of the time of looking for doubled fields."""
    try:
        return encode(decode(raw)) == raw
    except msgspec.DecodeError:
        return False


def _in_yaml(raw: bytes) -> list[str]:
    notes: list[str] = []

    def walk(node: yaml.Node | None) -> None:
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if key.value in seen:
                    notes.append(f'line {key.start_mark.line + 1}: key "{key.value}" already set in map')
                seen.add(key.value)
                walk(value)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                walk(item)

    if not _as_we_write(raw):  # JSON is YAML, too
        walk(yaml.compose(raw, Loader=yaml.SafeLoader))
    return notes


def unknown(names: list[str]) -> list[str]:
    return [f'unknown field "{name}"' for name in names]
