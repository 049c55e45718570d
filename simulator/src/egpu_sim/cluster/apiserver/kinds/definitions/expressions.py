"""Rules in CEL (`x-kubernetes-validations`), as far as a definition can be refused for them: shape, names, and worst
cost.

They are checked, not evaluated. Costs are estimates of the same order as the real server's: an unbounded list counts as
the longest that fits into a request.
"""

from collections.abc import Iterator
from typing import Final

from egpu_sim.cluster.apiserver.kinds.definitions.expression_types import Refused, examined
from egpu_sim.cluster.apiserver.kinds.definitions.structural import children
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, required, unsupported
from egpu_sim.cluster.trees import Json, as_object, encode, objects_at

RULES: Final = "x-kubernetes-validations"
RULE_LIMIT: Final = 10_000_000
SCHEMA_LIMIT: Final = 100_000_000
"""Limits of the cost of one rule, and of all rules of a schema (Kubernetes' limits)."""
REQUEST_BYTES: Final = 3 * 1024 * 1024

_TEXT: Final[Json] = {"type": "string", "maxLength": 253}
_ENVELOPE: Final[Json] = {
    "apiVersion": _TEXT,
    "kind": _TEXT,
    "metadata": {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}},
}
"""Names beside an object's own fields, for a rule at the root of an object or of an embedded one."""

_REASONS: Final = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"]


def validate(schema: Json, path: str) -> list[Cause]:
    costs: list[tuple[str, float]] = []
    causes = list(_walk({**schema, "x-kubernetes-embedded-resource": True}, path, 1.0, costs))
    total = sum(cost for _, cost in costs)
    if total > SCHEMA_LIMIT:
        message = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        dearest = sorted(costs, key=lambda found: -found[1])[:4]
        causes += [forbidden_field(where, message) for where, cost in dearest if cost > SCHEMA_LIMIT / 100]
        whole = f"{RULES} estimated rule cost total for entire OpenAPIv3 schema"
        causes.append(forbidden_field(path, _over(whole, total, SCHEMA_LIMIT)))
    return causes


def _walk(schema: Json, path: str, times: float, costs: list[tuple[str, float]]) -> Iterator[Cause]:
    """Walk a schema. `times`: how often its place can be in one object."""
    seen = schema
    if schema.get("x-kubernetes-embedded-resource"):
        seen = {**schema, "properties": {**as_object(schema.get("properties")), **_ENVELOPE}}
    for index, rule in enumerate(objects_at(schema, RULES)):
        where = f"{path}.{RULES}[{index}]"
        wrong = list(_shape(rule, where))
        yield from wrong or _one(rule, seen, f"{where}.rule", times, costs)
    for key, child, where in children(schema, path):
        more = times if key == "properties" else times * longest(schema)
        yield from _walk(child, where, more, costs)


def longest(schema: Json) -> float:
    """Return the most items of a list, or entries of a map."""
    limit = schema.get("maxItems" if schema.get("type") == "array" else "maxProperties")
    return float(limit) if isinstance(limit, int) else float(REQUEST_BYTES // 3)


def _shape(rule: Json, path: str) -> Iterator[Cause]:
    text, message = str(rule.get("rule") or "").strip(), str(rule.get("message") or "")
    if not text:
        yield required(f"{path}.rule", "rule is not specified")
    elif message and not message.strip():
        yield invalid(f"{path}.message", message, "message must be non-empty if specified")
    elif "\n" in message.strip():
        yield invalid(f"{path}.message", message, "message must not contain line breaks")
    elif "\n" in text and not message:
        yield required(f"{path}.message", "message must be specified if rule contains line breaks")
    if (reason := rule.get("reason")) is not None and reason not in _REASONS:
        yield unsupported(f"{path}.reason", reason, _REASONS)


def _one(rule: Json, schema: Json, path: str, times: float, costs: list[tuple[str, float]]) -> Iterator[Cause]:
    text = str(rule["rule"])
    try:
        cost = times * examined(text, schema)
    except Refused as refused:
        shown = {
            "Rule": text,
            "Message": rule.get("message") or "",
            "MessageExpression": rule.get("messageExpression") or "",
            "Reason": rule.get("reason"),
            "FieldPath": rule.get("fieldPath") or "",
            "OptionalOldSelf": rule.get("optionalOldSelf"),
        }
        as_go = encode(shown).decode().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
        where = f"compilation failed: ERROR: <input>:1:{refused.position + 1}: {refused}"
        picture = f"\n | {text}\n | {'.' * refused.position}^"
        yield Cause("FieldValueInvalid", path, f"Invalid value: {as_go}: {where}{picture}")
        return
    costs.append((path, cost))
    if cost > RULE_LIMIT:
        yield forbidden_field(path, _over("estimated rule cost", cost, RULE_LIMIT))


def _over(what: str, cost: float, limit: int) -> str:
    factor = cost / limit
    shown = "more than 100x" if factor > 100 else f"{factor:f}x" if factor < 1.5 else f"{factor:.1f}x"
    return (
        f"{what} exceeds budget by factor of {shown} (try simplifying the rule, or adding maxItems, maxProperties, and "
        "maxLength where arrays, maps, and strings are declared)"
    )
