"""Selectors of objects and of fields: data or text to a predicate. Errors are ValueErrors that quote the text."""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from egpu_base.kubernetes.label_selectors import Predicate, all_of, membership, order, presence
from egpu_sim.cluster.trees import Json, as_list, as_object


def object_selector(selector: Json) -> Predicate | None:
    """Compile a `metav1.LabelSelector` (matchLabels, matchExpressions); None selects everything."""
    terms = [
        membership(key, frozenset({str(value)}), wanted=True)
        for key, value in as_object(selector.get("matchLabels")).items()
    ]
    for expression in map(as_object, as_list(selector.get("matchExpressions"))):
        if expression.get("operator") in ("Gt", "Lt"):
            raise ValueError(f"{expression['operator']!r} is not a valid label selector operator")
        terms.append(requirement(expression))
    return all_of(terms)


def requirement(expression: Json) -> Predicate:
    """Compile one expression of a label selector, or of a node selector, which has Gt and Lt as well."""
    key, operator = str(expression.get("key")), expression.get("operator")
    values = list(map(str, as_list(expression.get("values"))))
    match operator:
        case "In" | "NotIn":
            return membership(key, frozenset(values), wanted=operator == "In")
        case "Exists" | "DoesNotExist":
            return presence(key, wanted=operator == "Exists")
        case "Gt" | "Lt":
            return order(key, ">" if operator == "Gt" else "<", values[0] if values else "")
        case _:
            raise ValueError(f"{operator!r} is not a valid label selector operator")


FieldPredicate: TypeAlias = Callable[[Json], bool]
FieldPaths: TypeAlias = Mapping[str, tuple[str, ...]]


def field_selector(text: str, fields: FieldPaths) -> FieldPredicate | None:
    """Parse `a.b=c,d.e!=f`; only the fields in `fields` (name → path in the object) are known to a kind."""
    terms: list[tuple[tuple[str, ...], str, bool]] = []
    for term in filter(None, map(str.strip, text.split(","))):
        match = re.match(r"^([^=!]+)(==|=|!=)(.*)$", term)
        if match is None:
            raise ValueError(f"invalid field selector {term!r}: expected name=value or name!=value")
        if match[1] not in fields:
            raise ValueError(f"field label not supported: {match[1]}")
        terms.append((fields[match[1]], match[3], match[2] != "!="))
    if not terms:
        return None

    def matches(obj: Json) -> bool:
        return all((_text(obj, path) == value) == wanted for path, value, wanted in terms)

    return matches


def _text(obj: Json, path: tuple[str, ...]) -> str:
    value: object = obj
    for key in path:
        value = as_object(value).get(key)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
