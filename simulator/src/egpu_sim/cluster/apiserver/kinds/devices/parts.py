"""Rules that claims, classes and slices share: names, selectors and configuration."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from egpu_base.cel import grammar as cel
from egpu_sim.cluster.apiserver.kinds.names import SUBDOMAIN_RULE, is_subdomain, label_problem
from egpu_sim.cluster.apiserver.status import Cause, duplicate, invalid, required, unsupported
from egpu_sim.cluster.trees import Json, as_list, as_object, encode, objects_at

GROUP: Final = "resource.k8s.io"
CLAIMS: Final = "resourceclaims"
SELECTORS_LIMIT: Final = 32
CONFIGURATIONS_LIMIT: Final = 32
TOLERATIONS_LIMIT: Final = 16
PARAMETERS_BYTES: Final = 10 * 1024
_DRIVER_CHARACTERS: Final = 63
_ID_CHARACTERS: Final = 32
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDENTIFIER_RULE: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_EFFECTS: Final = ["NoExecute", "NoSchedule", "None"]


def too_long(field: str, limit: int) -> Cause:
    return Cause("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> Cause:
    return Cause("FieldValueTooMany", field, f"Too many: {count}: must have at most {limit} items")


def driver_name(value: object, field: str) -> list[Cause]:
    name = str(value or "")
    if not name:
        return [required(field)]
    causes = [too_long(field, _DRIVER_CHARACTERS)] if len(name) > _DRIVER_CHARACTERS else []
    return causes if is_subdomain(name.lower()) else [*causes, invalid(field, name, SUBDOMAIN_RULE)]


def subdomain(value: object, field: str) -> list[Cause]:
    name = str(value or "")
    if not name:
        return [required(field)]
    return [] if is_subdomain(name) else [invalid(field, name, SUBDOMAIN_RULE)]


def pool_name(value: object, field: str) -> list[Cause]:
    """Check the name of a pool: subdomains, separated by slashes."""
    if not value:
        return [required(field)]
    return [cause for part in str(value).split("/") for cause in subdomain(part, field)]


def label(value: object, field: str) -> list[Cause]:
    """Check the name of a request or a device."""
    return label_problem(field, str(value or ""))


def qualified(name: str, field: str, *, with_domain: bool = False) -> Iterator[Cause]:
    """Check the name of an attribute or a capacity: an identifier, with a domain unless it is the driver's."""
    domain, slash, identifier = name.rpartition("/")
    if slash:
        yield from driver_name(domain, field) if domain else [invalid(field, "", "the domain must not be empty")]
    if slash and not identifier:
        yield invalid(field, "", "the name must not be empty")
    else:
        if len(identifier) > _ID_CHARACTERS:
            yield too_long(field, _ID_CHARACTERS)
        if not _IDENTIFIER.fullmatch(identifier):
            yield invalid(field, identifier, _IDENTIFIER_RULE)
    if with_domain and not slash:
        yield invalid(field, name, "a fully qualified name must be a domain and a name separated by a slash")


def each(
    items: Sequence[Json], field: str, limit: int, check: Callable[[Json, str], Iterator[Cause]], key: str = ""
) -> Iterator[Cause]:
    """Check a list, up to its limit. `key`: the field that is unique in it."""
    if len(items) > limit:
        yield too_many(field, len(items), limit)
        return
    seen: set[str] = set()
    for index, item in enumerate(items):
        yield from check(item, f"{field}[{index}]")
        name = str(item.get(key))
        if key and name in seen:
            yield duplicate(f"{field}[{index}]", name)
        seen.add(name)


def selectors(owner: Json, field: str) -> Iterator[Cause]:
    yield from each(objects_at(owner, "selectors"), f"{field}.selectors", SELECTORS_LIMIT, _selector)


def _selector(selector: Json, field: str) -> Iterator[Cause]:
    if "cel" not in selector:
        yield required(f"{field}.cel")
        return
    expression = str(as_object(selector["cel"]).get("expression") or "")
    where = f"{field}.cel.expression"
    if len(expression) > cel.MAX_DEVICE_CHARACTERS:
        yield too_long(where, cel.MAX_DEVICE_CHARACTERS)
        return
    try:
        cel.compiled(expression, cel.DEVICE_VARIABLES)
    except cel.NotUnderstood as error:
        yield invalid(where, expression, f"compilation failed: in the simulated API server: {error}")


def configuration(config: Json, field: str) -> Iterator[Cause]:
    """Check a driver's opaque configuration."""
    if "opaque" not in config:
        yield required(f"{field}.opaque")
        return
    opaque = as_object(config["opaque"])
    yield from driver_name(opaque.get("driver"), f"{field}.opaque.driver")
    yield from raw_object(opaque.get("parameters"), f"{field}.opaque.parameters", PARAMETERS_BYTES)


def raw_object(value: object, field: str, limit: int) -> Iterator[Cause]:
    """Check a JSON object of any shape."""
    tree = as_object(value)
    if value is None:
        yield required(field)
    elif tree is not value:
        yield invalid(field, "<value omitted>", "must be a valid JSON object")
    elif len(encode(tree)) > limit:
        yield too_long(field, limit)


def toleration(one: Json, field: str) -> Iterator[Cause]:
    operator = one.get("operator") or "Equal"
    if operator not in ("Equal", "Exists"):
        yield unsupported(f"{field}.operator", operator, ["Equal", "Exists"])
    elif operator == "Exists" and one.get("value"):
        yield invalid(f"{field}.value", one["value"], "must be empty for operator `Exists`")
    if not one.get("key") and operator != "Exists":
        yield required(f"{field}.key")
    if one.get("effect") and one["effect"] not in _EFFECTS[:2]:
        yield unsupported(f"{field}.effect", one["effect"], _EFFECTS[:2])


def taint(one: Json, field: str) -> Iterator[Cause]:
    if not one.get("key"):
        yield required(f"{field}.key")
    if not one.get("effect"):
        yield required(f"{field}.effect")
    elif one["effect"] not in _EFFECTS:
        yield unsupported(f"{field}.effect", one["effect"], _EFFECTS)


def unique_names(names: object, field: str, check: Callable[[str, str], Iterator[Cause]]) -> Iterator[Cause]:
    """Check a set of names."""
    seen: set[str] = set()
    for index, name in enumerate(map(str, as_list(names))):
        yield from check(name, f"{field}[{index}]")
        if name in seen:
            yield duplicate(f"{field}[{index}]", name)
        seen.add(name)
