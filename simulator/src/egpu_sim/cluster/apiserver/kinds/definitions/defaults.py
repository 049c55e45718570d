"""Defaults must obey the schema: whole, of the right type, and without unknown fields."""

from collections.abc import Iterator

from egpu_sim.cluster.apiserver.kinds.definitions.structural import children
from egpu_sim.cluster.apiserver.kinds.schema import Findings, apply_defaults, compile_schema, prune
from egpu_sim.cluster.apiserver.kinds.schema import validate as check
from egpu_sim.cluster.apiserver.status import Cause, invalid
from egpu_sim.cluster.trees import Json, copy


def validate(schema: Json, path: str) -> list[Cause]:
    return list(_walk(schema, path))


def _walk(schema: Json, path: str) -> Iterator[Cause]:
    if schema.get("default") is not None:
        yield from _one(schema, f"{path}.default")
    for _, child, where in children(schema, path):
        yield from _walk(child, where)


def _one(schema: Json, path: str) -> Iterator[Cause]:
    value = copy({"value": schema["default"]})["value"]
    compiled = compile_schema(schema)
    findings = Findings()
    prune(compiled, value, findings)
    if findings.unknown:
        yield invalid(path, schema["default"], "must not have unknown fields")
        return
    apply_defaults(compiled, value)
    check(compiled, value, findings)
    for cause in findings.causes:
        yield Cause(cause.reason, f"{path}.{cause.field}" if cause.field else path, cause.message)
