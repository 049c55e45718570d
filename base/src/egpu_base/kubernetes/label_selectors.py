"""Label selectors: text to a predicate. Errors are ValueErrors that quote the text."""

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Predicate: TypeAlias = Callable[[Mapping[str, str]], bool]

_TERMS = re.compile(r",(?![^()]*\))")
_SET = re.compile(r"^(?P<key>[^\s!=(),]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_COMPARE = re.compile(r"^(?P<key>[^\s!=<>(),]+)\s*(?P<operator>==|=|!=|<|>)\s*(?P<value>[^\s!=<>(),]*)$")
_DOUBLED = re.compile(r"^[^\s!=<>(),]+\s*(?:==|=|!=|<|>)\s*(==|=|!=|!|<|>|\(|\))")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_EXISTS = re.compile(r"^(?P<absent>!?)\s*(?P<key>[^\s!=<>(),]+)$")


def label_selector(text: str) -> Predicate | None:
    """Parse `a=b,c!=d,e in (f,g),h,!i,j>1`; None when it selects everything."""
    terms = [_label_term(term.strip()) for term in _TERMS.split(text) if term.strip()]
    return all_of(terms)


def _label_term(term: str) -> Predicate:
    if match := _SET.match(term):
        values = [value.strip() for value in match["values"].split(",")]
        return membership(match["key"], frozenset(values), wanted=match["operator"] == "in")
    if match := _COMPARE.match(term):
        key, operator, value = match["key"], match["operator"], match["value"]
        if operator in "<>":
            return order(key, operator, value)
        return membership(key, frozenset({value}), wanted=operator != "!=")
    if match := _EXISTS.match(term):
        return presence(match["key"], wanted=not match["absent"])
    if match := _DOUBLED.match(term):
        raise ValueError(f"unable to parse requirement: found '{match[1]}', expected: identifier")
    raise ValueError(f"unable to parse requirement: {term!r}")


def membership(key: str, values: frozenset[str], *, wanted: bool) -> Predicate:
    if wanted:
        return lambda labels: key in labels and labels[key] in values
    return lambda labels: key not in labels or labels[key] not in values


def presence(key: str, *, wanted: bool) -> Predicate:
    return lambda labels: (key in labels) == wanted


def order(key: str, operator: str, value: str) -> Predicate:
    if not _WHOLE.fullmatch(value):
        raise ValueError(f"for 'Gt', 'Lt' operators, the value must be an integer, not {value!r}")
    bound = int(value)

    def matches(labels: Mapping[str, str]) -> bool:
        number = labels.get(key, "")
        return bool(_WHOLE.fullmatch(number)) and (int(number) > bound if operator == ">" else int(number) < bound)

    return matches


def all_of(terms: list[Predicate]) -> Predicate | None:
    if not terms:
        return None
    if len(terms) == 1:
        return terms[0]
    return lambda values: all(term(values) for term in terms)
