"""Label and field selectors: text to a predicate. Errors are ValueErrors that quote the text."""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from egpu.embedded.apiserver.objects import Json, as_list, as_object

Predicate: TypeAlias = Callable[[Mapping[str, str]], bool]

_TERMS = re.compile(r",(?![^()]*\))")
_SET = re.compile(r"^(?P<key>[^\s!=(),]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s!=<>(),]+)\s*(?P<operator>==|=|!=|<|>)\s*(?P<value>[^\s!=<>(),]*)$")
_DOUBLED = re.compile(r"^[^\s!=<>(),]+\s*(?:==|=|!=|<|>)\s*(==|=|!=|!|<|>|\(|\))")
_EXISTS = re.compile(r"^(?P<absent>!?)\s*(?P<key>[^\s!=<>(),]+)$")


def label_selector(text: str) -> Predicate | None:
    """Parse `a=b,c!=d,e in (f,g),h,!i,j>1`; None when it selects everything."""
    terms = [_label_term(term.strip()) for term in _TERMS.split(text) if term.strip()]
    return _all(terms)


def _label_term(term: str) -> Predicate:
    if match := _SET.match(term):
        values = [value.strip() for value in match["values"].split(",")]
        return _membership(match["key"], frozenset(values), wanted=match["operator"] == "in")
    if match := _COMPARE.match(term):
        key, operator, value = match["key"], match["operator"], match["value"]
        if operator in "<>":
            return _order(key, operator, value)
        return _membership(key, frozenset({value}), wanted=operator != "!=")
    if match := _EXISTS.match(term):
        return _presence(match["key"], wanted=not match["absent"])
    if match := _DOUBLED.match(term):
        raise ValueError(f"unable to parse requirement: found '{match[1]}', expected: identifier")
    raise ValueError(f"unable to parse requirement: {term!r}")


def _membership(key: str, values: frozenset[str], *, wanted: bool) -> Predicate:
    if wanted:
        return lambda labels: key in labels and labels[key] in values
    return lambda labels: key not in labels or labels[key] not in values


def _presence(key: str, *, wanted: bool) -> Predicate:
    return lambda labels: (key in labels) == wanted


def _order(key: str, operator: str, value: str) -> Predicate:
    try:
        bound = int(value)
    except ValueError as error:
        raise ValueError(f"for 'Gt', 'Lt' operators, the value must be an integer, not {value!r}") from error

    def matches(labels: Mapping[str, str]) -> bool:
        try:
            number = int(labels[key])
        except (KeyError, ValueError):
            return False
        return number > bound if operator == ">" else number < bound

    return matches


def _all(terms: list[Predicate]) -> Predicate | None:
    if not terms:
        return None
    if len(terms) == 1:
        return terms[0]
    return lambda values: all(term(values) for term in terms)


def object_selector(selector: Json) -> Predicate | None:
    """A `metav1.LabelSelector` (matchLabels, matchExpressions) as webhooks carry it; None selects everything."""
    terms = [
        _membership(key, frozenset({str(value)}), wanted=True)
        for key, value in as_object(selector.get("matchLabels")).items()
    ]
    for expression in map(as_object, as_list(selector.get("matchExpressions"))):
        key, operator = str(expression.get("key")), expression.get("operator")
        values = frozenset(map(str, as_list(expression.get("values"))))
        match operator:
            case "In" | "NotIn":
                terms.append(_membership(key, values, wanted=operator == "In"))
            case "Exists" | "DoesNotExist":
                terms.append(_presence(key, wanted=operator == "Exists"))
            case _:
                raise ValueError(f"{operator!r} is not a valid label selector operator")
    return _all(terms)


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
