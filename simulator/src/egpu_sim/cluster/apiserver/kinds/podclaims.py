"""A pod's claims of dynamic resource allocation: their validation in the spec of a pod or a template."""

from collections.abc import Iterator
from typing import Final

from egpu_sim.cluster.apiserver.kinds.names import SUBDOMAIN_RULE, is_subdomain, label_problem
from egpu_sim.cluster.apiserver.status import Cause, duplicate, invalid, required
from egpu_sim.cluster.trees import Json, objects_at

_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")
_ONE: Final = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
_BOTH: Final = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"


def validate(spec: Json, path: str) -> Iterator[Cause]:
    names: set[str] = set()
    for index, claim in enumerate(objects_at(spec, "resourceClaims")):
        field, name = f"{path}.resourceClaims[{index}]", str(claim.get("name") or "")
        if not name:
            yield required(f"{field}.name")
        elif name in names:
            yield duplicate(f"{field}.name", name)
        else:
            yield from label_problem(f"{field}.name", name)
        names.add(name)
        sources = [key for key in _SOURCES if claim.get(key) is not None]
        if len(sources) != 1:
            yield invalid(field, claim, _BOTH if sources else _ONE)
        for key in sources:
            if not is_subdomain(str(claim[key])):
                yield invalid(f"{field}.{key}", claim[key], SUBDOMAIN_RULE)
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(objects_at(spec, kind)):
            yield from _container(container, f"{path}.{kind}[{index}].resources.claims", names)


def _container(container: Json, field: str, names: set[str]) -> Iterator[Cause]:
    seen: set[tuple[str, str]] = set()
    for index, claim in enumerate(objects_at(container, "resources", "claims")):
        name, request = str(claim.get("name") or ""), str(claim.get("request") or "")
        where = f"{field}[{index}]"
        if not name:
            yield required(where)
            continue
        if (name, request) in seen or (request and (name, "") in seen):
            yield duplicate(where, f"{name}/{request}" if request else name)
        seen.add((name, request))
        if name not in names:
            yield Cause("FieldValueNotFound", where, f'Not found: "{name}"')
