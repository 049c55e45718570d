"""A pod's topology spread constraints: their validation in the spec of a pod or a template."""

from collections.abc import Iterator
from typing import Any, Final

from egpu_sim.cluster.apiserver.kinds.names import qualified_name_problem
from egpu_sim.cluster.apiserver.status import Cause, duplicate, forbidden_field, invalid, required, unsupported
from egpu_sim.cluster.trees import Json, as_list, as_object, objects_at

_ACTIONS: Final = ["DoNotSchedule", "ScheduleAnyway"]
_POLICIES: Final = ["Honor", "Ignore"]
_POSITIVE: Final = "must be greater than zero"


def validate(spec: Json, path: str) -> Iterator[Cause]:
    seen: set[tuple[str, str]] = set()
    for index, one in enumerate(objects_at(spec, "topologySpreadConstraints")):
        field = f"{path}.topologySpreadConstraints[{index}]"
        yield from _constraint(one, field)
        key, action = str(one.get("topologyKey") or ""), str(one.get("whenUnsatisfiable") or "")
        if (key, action) in seen:
            yield duplicate(f"{field}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
        seen.add((key, action))


def _constraint(one: Json, field: str) -> Iterator[Cause]:
    if _not_positive(one.get("maxSkew") or 0):
        yield invalid(f"{field}.maxSkew", one.get("maxSkew") or 0, _POSITIVE)
    key, action = str(one.get("topologyKey") or ""), one.get("whenUnsatisfiable") or ""
    if not key:
        yield required(f"{field}.topologyKey", "can not be empty")
    elif (problem := qualified_name_problem(key)) is not None:
        yield invalid(f"{field}.topologyKey", key, problem)
    if action not in _ACTIONS:
        yield unsupported(f"{field}.whenUnsatisfiable", action, _ACTIONS)
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if one.get(policy) is not None and one[policy] not in _POLICIES:
            yield unsupported(f"{field}.{policy}", one[policy], _POLICIES)
    yield from _least_domains(one.get("minDomains"), action, f"{field}.minDomains")
    yield from _own_labels(one, f"{field}.matchLabelKeys")


def _least_domains(value: Any, action: str, field: str) -> Iterator[Cause]:
    if value is None:
        return
    if _not_positive(value):
        yield invalid(field, value, _POSITIVE)
    if action != "DoNotSchedule":
        only = "can only use minDomains if whenUnsatisfiable=DoNotSchedule"
        yield invalid(field, value, f"{only}, not {action}")


def _own_labels(one: Json, field: str) -> Iterator[Cause]:
    keys = as_list(one.get("matchLabelKeys"))
    if keys and one.get("labelSelector") is None:
        yield forbidden_field(field, "must not be specified when labelSelector is not set")
    selected = as_object(as_object(one.get("labelSelector")).get("matchLabels"))
    for index, key in enumerate(keys):
        if (problem := qualified_name_problem(str(key))) is not None:
            yield invalid(f"{field}[{index}]", key, problem)
        elif key in selected:
            yield invalid(f"{field}[{index}]", key, "exists in both matchLabelKeys and labelSelector")


def _not_positive(value: Any) -> bool:
    return isinstance(value, int) and value <= 0
