"""ResourceClaims, their templates, and device classes."""

import uuid
from collections.abc import Iterator, Set
from functools import partial
from typing import Final

from egpu_sim.cluster.apiserver.kinds.devices import parts
from egpu_sim.cluster.apiserver.kinds.podspec import canonical
from egpu_sim.cluster.apiserver.kinds.resources import Rules
from egpu_sim.cluster.apiserver.status import Cause, duplicate, forbidden_field, invalid, required, unsupported
from egpu_sim.cluster.dynamic.kinds import RESERVED_LIMIT
from egpu_sim.cluster.trees import Json, as_list, as_object, at, metadata, objects_at

REQUESTS_LIMIT: Final = 32
RESULTS_LIMIT: Final = 32
CONSTRAINTS_LIMIT: Final = 32
ALTERNATIVES_LIMIT: Final = 8
_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)
_ONE_KIND: Final = "exactly one of `exactly` or `firstAvailable` is required"


class ClaimRules(Rules):
    def defaults(self, obj: Json) -> None:
        set_defaults(as_object(obj.setdefault("spec", {})))
        for result in objects_at(obj, "status", "allocation", "devices", "results"):
            _canonical(as_object(result.get("consumedCapacity")))

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {}

    def prepare_update(self, old: Json, new: Json) -> None:
        """Drop the states of devices together with the allocation."""
        status = as_object(new.get("status"))
        if at(old, "status", "allocation") is not None and status.get("allocation") is None:
            status.pop("devices", None)

    def validate(self, obj: Json) -> list[Cause]:
        return list(validate_spec(as_object(obj.get("spec")), "spec"))

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        return _immutable(old, new)

    def validate_status_update(self, old: Json, new: Json) -> list[Cause]:
        return list(_validate_status(old, new))


class TemplateRules(Rules):
    def defaults(self, obj: Json) -> None:
        set_defaults(as_object(as_object(obj.setdefault("spec", {})).setdefault("spec", {})))

    def validate(self, obj: Json) -> list[Cause]:
        return list(validate_spec(as_object(at(obj, "spec", "spec")), "spec.spec"))

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        return _immutable(old, new)


class ClassRules(Rules):
    def defaults(self, obj: Json) -> None:
        obj.setdefault("spec", {})

    def validate(self, obj: Json) -> list[Cause]:
        spec = as_object(obj.get("spec"))
        configs = objects_at(spec, "config")
        checked = parts.each(configs, "spec.config", parts.CONFIGURATIONS_LIMIT, parts.configuration)
        return [*parts.selectors(spec, "spec"), *checked]


def _immutable(old: Json, new: Json) -> list[Cause]:
    if old.get("spec") == new.get("spec"):
        return []
    return [invalid("spec", new.get("spec"), "field is immutable")]


# ---------------------------------------------------------------------- requests


def set_defaults(spec: Json) -> None:
    """Fill in the real server's defaults of a claim's spec, in place."""
    for request in objects_at(as_object(spec.setdefault("devices", {})), "requests"):
        exactly = [as_object(request["exactly"])] if isinstance(request.get("exactly"), dict) else []
        for one in (*exactly, *objects_at(request, "firstAvailable")):
            if not one.get("allocationMode"):
                one["allocationMode"] = "ExactCount"
            if one["allocationMode"] == "ExactCount" and not one.get("count"):
                one["count"] = 1
            _canonical(as_object(at(one, "capacity", "requests")))


def _canonical(amounts: Json) -> None:
    amounts.update({name: canonical(value) for name, value in amounts.items()})


def validate_spec(spec: Json, path: str) -> Iterator[Cause]:
    devices, field = as_object(spec.get("devices")), f"{path}.devices"
    names = request_names(devices)
    requests = objects_at(devices, "requests")
    yield from parts.each(requests, f"{field}.requests", REQUESTS_LIMIT, _request, "name")
    constraints = objects_at(devices, "constraints")
    check = partial(_constraint, names=names)
    yield from parts.each(constraints, f"{field}.constraints", CONSTRAINTS_LIMIT, check)
    check = partial(_claim_configuration, names=names)
    yield from parts.each(objects_at(devices, "config"), f"{field}.config", parts.CONFIGURATIONS_LIMIT, check)


def request_names(devices: Json) -> frozenset[str]:
    """Return the names that constraints, configuration and results may use: `request`, and `request/alternative`."""
    found: set[str] = set()
    for request in objects_at(devices, "requests"):
        name = str(request.get("name"))
        found |= {name, *(f"{name}/{one.get('name')}" for one in objects_at(request, "firstAvailable"))}
    return frozenset(found)


def _request(request: Json, field: str) -> Iterator[Cause]:
    yield from parts.label(request.get("name"), f"{field}.name")
    alternatives, exactly = objects_at(request, "firstAvailable"), request.get("exactly")
    if exactly is None and not alternatives:
        yield required(field, _ONE_KIND)
    elif exactly is not None and alternatives:
        yield invalid(field, None, f"{_ONE_KIND}, but multiple fields are set")
    elif alternatives:
        where = f"{field}.firstAvailable"
        yield from parts.each(alternatives, where, ALTERNATIVES_LIMIT, _alternative, "name")
    else:
        yield from _wanted(as_object(exactly), f"{field}.exactly")


def _alternative(one: Json, field: str) -> Iterator[Cause]:
    yield from parts.label(one.get("name"), f"{field}.name")
    yield from _wanted(one, field)


def _wanted(one: Json, field: str) -> Iterator[Cause]:
    yield from parts.subdomain(one.get("deviceClassName"), f"{field}.deviceClassName")
    yield from parts.selectors(one, field)
    mode, count = one.get("allocationMode"), one.get("count") or 0
    if mode == "All":
        if count:
            yield invalid(f"{field}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode != "ExactCount":
        yield unsupported(f"{field}.allocationMode", mode, ["All", "ExactCount"])
    elif count <= 0:
        yield invalid(f"{field}.count", count, "must be greater than zero")
    tolerations = objects_at(one, "tolerations")
    yield from parts.each(tolerations, f"{field}.tolerations", parts.TOLERATIONS_LIMIT, parts.toleration)


def _reference(name: str, field: str, *, names: Set[str]) -> Iterator[Cause]:
    if name not in names:
        yield invalid(field, name, _REFERENCE)


def _constraint(constraint: Json, field: str, *, names: Set[str]) -> Iterator[Cause]:
    yield from parts.unique_names(
        constraint.get("requests"), f"{field}.requests", lambda name, where: _reference(name, where, names=names)
    )
    kinds = [kind for kind in ("matchAttribute", "distinctAttribute") if constraint.get(kind) is not None]
    if len(kinds) != 1:
        told = "" if not kinds else ", but multiple fields are set"
        yield required(field, f'exactly one of "matchAttribute" or "distinctAttribute" is required{told}')
    for kind in kinds[:1]:
        yield from parts.qualified(str(constraint[kind]), f"{field}.{kind}", with_domain=True)


def _claim_configuration(config: Json, field: str, *, names: Set[str]) -> Iterator[Cause]:
    yield from parts.unique_names(
        config.get("requests"), f"{field}.requests", lambda name, where: _reference(name, where, names=names)
    )
    yield from parts.configuration(config, field)


# ---------------------------------------------------------------------- status


def _validate_status(old: Json, new: Json) -> Iterator[Cause]:
    """Check a new status: an allocation never changes, but it may be removed."""
    status, before = as_object(new.get("status")), as_object(old.get("status"))
    reserved, allocation = objects_at(status, "reservedFor"), status.get("allocation")
    yield from parts.each(reserved, "status.reservedFor", RESERVED_LIMIT, _consumer, "uid")
    yield from _device_statuses(objects_at(status, "devices"), as_object(allocation))
    if reserved and allocation is None:
        yield forbidden_field("status.reservedFor", "may not be specified when `allocated` is not set")
    elif metadata(new).get("deletionTimestamp"):
        known = objects_at(before, "reservedFor")
        if any(one not in known for one in reserved):
            message = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
            yield forbidden_field("status.reservedFor", message)
    if allocation is None:
        return
    if before.get("allocation") is None:
        yield from _allocation(as_object(allocation), request_names(as_object(at(new, "spec", "devices"))))
    elif before["allocation"] != allocation:
        yield invalid("status.allocation", allocation, "field is immutable")


def _consumer(one: Json, field: str) -> Iterator[Cause]:
    for key in ("resource", "name", "uid"):
        if not one.get(key):
            yield required(f"{field}.{key}")


def _allocation(allocation: Json, names: Set[str]) -> Iterator[Cause]:
    field = "status.allocation.devices"
    results, configs = (objects_at(allocation, "devices", key) for key in ("results", "config"))
    yield from parts.each(results, f"{field}.results", RESULTS_LIMIT, partial(_result, names=names))
    for index, config in enumerate(configs):
        if config.get("source") not in ("FromClaim", "FromClass"):
            yield unsupported(f"{field}.config[{index}].source", config.get("source"), ["FromClaim", "FromClass"])
        yield from _claim_configuration(config, f"{field}.config[{index}]", names=names)


def _result(result: Json, field: str, *, names: Set[str]) -> Iterator[Cause]:
    yield from _reference(str(result.get("request") or ""), f"{field}.request", names=names)
    yield from parts.driver_name(result.get("driver"), f"{field}.driver")
    yield from parts.pool_name(result.get("pool"), f"{field}.pool")
    yield from parts.label(result.get("device"), f"{field}.device")
    if "shareID" in result and not _is_uid(str(result["shareID"])):
        message = (
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase "
            "hexadecimal characters"
        )
        yield invalid(f"{field}.shareID", result["shareID"], message)


def _is_uid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def device_key(device: Json) -> str:
    """Return the key of an allocated device: driver, pool, device, and its share."""
    return "/".join(str(device.get(key) or "") for key in ("driver", "pool", "device", "shareID")).rstrip("/")


def _device_statuses(devices: list[Json], allocation: Json) -> Iterator[Cause]:
    allocated = {device_key(one) for one in objects_at(allocation, "devices", "results")}
    seen: set[str] = set()
    for index, device in enumerate(devices):
        field, key = f"status.devices[{index}]", device_key(device)
        yield from parts.driver_name(device.get("driver"), f"{field}.driver")
        yield from parts.pool_name(device.get("pool"), f"{field}.pool")
        yield from parts.label(device.get("device"), f"{field}.device")
        if key not in allocated:
            yield invalid(field, key, "must be an allocated device in the claim")
        if key in seen:
            yield duplicate(field, key)
        seen.add(key)
        if len(as_list(device.get("conditions"))) > 8:
            yield parts.too_many(f"{field}.conditions", len(as_list(device.get("conditions"))), 8)
        if device.get("data") is not None:
            yield from parts.raw_object(device["data"], f"{field}.data", parts.PARAMETERS_BYTES)
