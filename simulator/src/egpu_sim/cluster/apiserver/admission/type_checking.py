"""Warnings about fields that an admission policy reads and a kind that it matches does not have.

On a real control plane, kube-controller-manager compiles every validation once for each kind of the policy's rules.
`object` and `oldObject` have the kind's schema as their type, and an error becomes a line of `status.typeChecking`.
The rules go on as before: `||` decides at run time whether such a field is read. `dyn(object)` has no type, so nothing
is said of its fields. Rules with `*`, and subresources, name no kind.

Known difference: only paths from `object`, `oldObject` and variables that are one of these are followed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from egpu_base.cel import grammar as cel
from egpu_sim.cluster.apiserver.kinds.schema import Schema
from egpu_sim.cluster.trees import Json, as_list, objects_at

KindOf: TypeAlias = Callable[[str, str, str], tuple[str, Schema] | None]
"""Returns the kind and schema of (group, version, plural); None if they are not known."""
Types: TypeAlias = Mapping[str, Schema]
"""The types of names, by name; a name without one is dynamic."""

_OBJECTS: Final = ("object", "oldObject")
_MACROS: Final = ("all", "exists")


def expression_warnings(spec: Json, kind_of: KindOf) -> list[Json]:
    """Return `status.typeChecking.expressionWarnings` of a policy with this spec."""
    kinds = dict(_kinds(spec, kind_of))
    return [
        {"fieldRef": f"spec.validations[{index}].expression", "warning": "\n".join(said)}
        for index, one in enumerate(objects_at(spec, "validations"))
        if (said := list(_said(str(one.get("expression")), spec, kinds)))
    ]


def _kinds(spec: Json, kind_of: KindOf) -> Iterator[tuple[str, Schema]]:
    for rule in objects_at(spec, "matchConstraints", "resourceRules"):
        for group in as_list(rule.get("apiGroups")):
            for version in as_list(rule.get("apiVersions")):
                for plural in as_list(rule.get("resources")):
                    found = kind_of(str(group), str(version), str(plural))
                    if found is not None:
                        yield f"{group}/{version}, Kind={found[0]}", found[1]


def _said(text: str, spec: Json, kinds: Mapping[str, Schema]) -> Iterator[str]:
    for kind, schema in sorted(kinds.items()):
        types: dict[str, Schema] = {"object": schema, "oldObject": schema}
        for one in objects_at(spec, "variables"):
            if _is_object(cel.tokens(str(one.get("expression")))):
                types[f"variables.{one.get('name')}"] = schema
        yield from dict.fromkeys(f"{kind}: {problem}" for problem in _problems(cel.tokens(text), types))


def _is_object(tokens: Sequence[cel.Token]) -> bool:
    """Return whether the expression is one of the objects, or one or the other by a condition."""
    words = [one.text for one in tokens[:-1]]
    if len(words) == 1:
        return words[0] in _OBJECTS
    return words[-4:-3] == ["?"] and words[-2] == ":" and {words[-3], words[-1]} <= set(_OBJECTS)


def _problems(tokens: Sequence[cel.Token], types: Types) -> Iterator[str]:
    """Return the problem of each path that begins with a name of `types`."""
    for at, token in enumerate(tokens):
        if token.kind != "name" or (at and tokens[at - 1].text == "."):
            continue
        name, after = token.text, at + 1
        if name == "variables" and tokens[after].text == ".":
            name, after = f"variables.{tokens[at + 2].text}", at + 3
        if name in types and (problem := _followed(tokens[after:], types[name])):
            yield problem


def _followed(tokens: Sequence[cel.Token], of: Schema) -> str:
    """Follow fields and items from a value of this type. Returns the first problem; empty if there is none."""
    at, schema = 0, of
    while tokens[at].text in (".", "["):
        is_field, name = tokens[at].text == ".", tokens[at + 1].text
        fields = schema.properties
        if is_field and tokens[at + 2].text == "(":
            ranges = fields is None or name not in _MACROS
            return "" if ranges else f"expression of type {schema.struct!r} cannot be range of a comprehension"
        if fields is None and schema.values is None and schema.items is None:
            return ""  # anything may be below it
        if fields is not None and (not is_field or name not in fields):
            return f"undefined field {name!r}" if is_field else f"found no matching overload for {schema.struct}[…]"
        below = fields[name] if fields is not None else schema.values or schema.items
        assert below is not None
        at, schema = at + 2 if is_field else _closed(tokens, at), below
    return ""


def _closed(tokens: Sequence[cel.Token], at: int) -> int:
    """Return the position behind the bracket that closes the one at `at`."""
    depth = 0
    while True:
        depth += {"[": 1, "]": -1}.get(tokens[at].text, 0)
        at += 1
        if not depth:
            return at
