"""ResourceSlices: the devices that a driver publishes."""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any, Final

from egpu_base.api.quantities import parse_quantity
from egpu_base.cel.types import SEMVER
from egpu_base.errors import InvalidQuantity
from egpu_sim.cluster.apiserver.kinds.devices import parts
from egpu_sim.cluster.apiserver.kinds.podspec import canonical
from egpu_sim.cluster.apiserver.kinds.resources import Rules
from egpu_sim.cluster.apiserver.status import Cause, forbidden_field, invalid, required
from egpu_sim.cluster.trees import Json, as_list, as_object, at, now, objects_at

DEVICES_LIMIT: Final = 128
ADVANCED_DEVICES_LIMIT: Final = 64
"""The limit of a slice in which any device has taints or consumes counters."""
COUNTER_SETS_LIMIT: Final = 8
PROPERTIES_LIMIT: Final = 32
"""Attributes and capacities of one device."""
TAINTS_LIMIT: Final = 16
CONSUMPTIONS_LIMIT: Final = 2
COUNTERS_LIMIT: Final = 32
VALUES_LIMIT: Final = 10
_VALUE_CHARACTERS: Final = 64
_VALUES: Final = ("bool", "int", "string", "version")
_LISTS: Final = ("bools", "ints", "strings", "versions")
_NODES: Final = ("nodeName", "nodeSelector", "allNodes")


class SliceRules(Rules):
    def defaults(self, obj: Json) -> None:
        for device in objects_at(obj, "spec", "devices"):
            for taint in objects_at(device, "taints"):
                taint.setdefault("timeAdded", now())
            for attribute in as_object(device.get("attributes")).values():
                for key in _LISTS:  # the gate DRAListTypeAttributes is off, so the server drops them
                    as_object(attribute).pop(key, None)
            for capacity in map(as_object, as_object(device.get("capacity")).values()):
                if "value" in capacity:
                    capacity["value"] = canonical(capacity["value"])

    def validate(self, obj: Json) -> list[Cause]:
        spec = as_object(obj.get("spec"))
        return [*_pool(spec), *_node_choice(spec), *_contents(spec)]

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        fixed = (("pool", "name"), ("driver",), ("nodeName",))
        changed = [path for path in fixed if at(old, "spec", *path) != at(new, "spec", *path)]
        causes = [invalid(f"spec.{'.'.join(path)}", at(new, "spec", *path), "field is immutable") for path in changed]
        return [*causes, *self.validate(new)]


def _pool(spec: Json) -> Iterator[Cause]:
    yield from parts.driver_name(spec.get("driver"), "spec.driver")
    pool = as_object(spec.get("pool"))
    yield from parts.pool_name(pool.get("name"), "spec.pool.name")
    count, generation = pool.get("resourceSliceCount") or 0, pool.get("generation") or 0
    if count <= 0:
        yield invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if generation < 0:
        yield invalid("spec.pool.generation", generation, "must be greater than or equal to zero")


def _node_choice(spec: Json) -> Iterator[Cause]:
    kinds = (*_NODES, "perDeviceNodeSelection")
    chosen = [f"`{key}`" for key in kinds if spec.get(key)]
    for key in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(key) is False:
            yield invalid(f"spec.{key}", False, "must be either unset or set to true")
    if spec.get("nodeName") == "":
        yield invalid("spec.nodeName", "", "must be either unset or set to a non-empty string")
    terms = as_list(at(spec, "nodeSelector", "nodeSelectorTerms"))
    if spec.get("nodeSelector") is not None and len(terms) != 1:
        yield invalid("spec.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term")
    message = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    if not chosen:
        yield required("spec", message)
    elif len(chosen) > 1:
        yield invalid("spec", f"{{{', '.join(chosen)}}}", f"{message}, but multiple fields are set")


def _contents(spec: Json) -> Iterator[Cause]:
    devices, counter_sets = objects_at(spec, "devices"), objects_at(spec, "sharedCounters")
    if devices and counter_sets:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    advanced = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    limit = ADVANCED_DEVICES_LIMIT if advanced else DEVICES_LIMIT
    check = partial(_device, per_device=bool(spec.get("perDeviceNodeSelection")))
    yield from parts.each(devices, "spec.devices", limit, check, "name")
    yield from parts.each(counter_sets, "spec.sharedCounters", COUNTER_SETS_LIMIT, _counter_set, "name")


def _counter_set(one: Json, field: str) -> Iterator[Cause]:
    yield from parts.label(one.get("name"), f"{field}.name") if one.get("name") else [required(f"{field}.name")]
    yield from _counters(one, field)


def _counters(owner: Json, field: str) -> Iterator[Cause]:
    counters = as_object(owner.get("counters"))
    if not counters:
        yield required(f"{field}.counters")
    elif len(counters) > COUNTERS_LIMIT:
        yield parts.too_many(f"{field}.counters", len(counters), COUNTERS_LIMIT)
    for name, counter in counters.items():
        yield from parts.label(name, f"{field}.counters")
        yield from _is_amount(as_object(counter).get("value"), f"{field}.counters[{name}].value")


def _consumption(one: Json, field: str) -> Iterator[Cause]:
    name = one.get("counterSet")
    yield from parts.label(name, f"{field}.counterSet") if name else [required(f"{field}.counterSet")]
    yield from _counters(one, field)


def _device(device: Json, field: str, *, per_device: bool) -> Iterator[Cause]:
    yield from parts.label(device.get("name"), f"{field}.name")
    attributes, capacities = as_object(device.get("attributes")), as_object(device.get("capacity"))
    if len(attributes) + len(capacities) > PROPERTIES_LIMIT:
        count, limit = len(attributes) + len(capacities), PROPERTIES_LIMIT
        yield invalid(field, count, f"the total number of attributes and capacities must not exceed {limit}")
    for name, attribute in attributes.items():
        yield from parts.qualified(name, f"{field}.attributes")
        yield from _attribute(as_object(attribute), f"{field}.attributes[{name}]")
    for name, capacity in capacities.items():
        yield from parts.qualified(name, f"{field}.capacity")
        shared = bool(device.get("allowMultipleAllocations"))
        yield from _capacity(as_object(capacity), f"{field}.capacity[{name}]", shared=shared)
    yield from parts.each(objects_at(device, "taints"), f"{field}.taints", TAINTS_LIMIT, parts.taint)
    consumed = objects_at(device, "consumesCounters")
    yield from parts.each(consumed, f"{field}.consumesCounters", CONSUMPTIONS_LIMIT, _consumption, "counterSet")
    chosen = [f"`{key}`" for key in _NODES if device.get(key)]
    if per_device and len(chosen) != 1:
        message = (
            "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set "
            "to true in the ResourceSlice spec"
        )
        yield invalid(field, f"{{{', '.join(chosen)}}}", message) if chosen else required(field, message)
    elif chosen and not per_device:
        message = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in "
            "the ResourceSlice spec"
        )
        yield invalid(field, None, message)


def _attribute(attribute: Json, field: str) -> Iterator[Cause]:
    given = [key for key in _VALUES if attribute.get(key) is not None]
    if len(given) != 1:
        yield invalid(field, attribute if given else "", "exactly one value must be specified")
    for key in ("string", "version"):
        value = attribute.get(key)
        if key == "version" and isinstance(value, str) and not SEMVER.fullmatch(value):
            yield invalid(f"{field}.version", value, "must be a string compatible with semver.org spec 2.0.0")
        if isinstance(value, str) and len(value) > _VALUE_CHARACTERS:
            yield parts.too_long(f"{field}.{key}", _VALUE_CHARACTERS)


# ---------------------------------------------------------------------- capacities


def _is_amount(value: Any, field: str) -> Iterator[Cause]:
    try:
        parse_quantity(value)
    except InvalidQuantity as error:
        yield invalid(field, value, error.reason)


def _capacity(capacity: Json, field: str, *, shared: bool) -> Iterator[Cause]:
    yield from (wrong := list(_is_amount(capacity.get("value"), f"{field}.value")))
    policy = capacity.get("requestPolicy")
    if policy is None or wrong:
        return
    if not shared:
        yield forbidden_field(f"{field}.requestPolicy", "allowMultipleAllocations must be true")
        return
    try:
        yield from _policy(as_object(policy), f"{field}.requestPolicy", most=parse_quantity(capacity["value"]))
    except InvalidQuantity as error:
        yield invalid(f"{field}.requestPolicy", policy, error.reason)


def _policy(policy: Json, field: str, *, most: Fraction) -> Iterator[Cause]:
    """Check a policy of requests. Raises InvalidQuantity for an amount that is none."""
    values, bounds = as_list(policy.get("validValues")), policy.get("validRange")
    if values and bounds is not None:
        message = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        yield forbidden_field(field, message)
    elif (values or bounds is not None) and policy.get("default") is None:
        kind = "validValues" if values else "validRange"
        yield required(f"{field}.default", f"required when {kind} is defined")
    elif values:
        yield from _valid_values(values, policy["default"], f"{field}.validValues", most=most)
    elif bounds is not None:
        yield from _valid_range(as_object(bounds), policy["default"], f"{field}.validRange", most=most)


def _valid_values(values: list[Any], default: Any, field: str, *, most: Fraction) -> Iterator[Cause]:
    if len(values) > VALUES_LIMIT:
        yield parts.too_many(field, len(values), VALUES_LIMIT)
    amounts = [parse_quantity(value) for value in values]
    for index, amount in enumerate(amounts):
        if index and amount < amounts[index - 1]:
            yield invalid(f"{field}[{index}]", values[index], "values must be sorted in ascending order")
        if amount > most:
            yield invalid(f"{field}[{index}]", values[index], f"option is larger than capacity value: {most}")
    if parse_quantity(default) not in amounts:
        yield invalid(field, default, "default value is not valid according to the requestPolicy")


def _valid_range(bounds: Json, default: Any, field: str, *, most: Fraction) -> Iterator[Cause]:
    if bounds.get("min") is None:
        yield required(f"{field}.min", "required when validRange is defined")
        return
    least, usual = parse_quantity(bounds["min"]), parse_quantity(default)
    if least > most:
        yield invalid(f"{field}.min", bounds["min"], f"min is larger than capacity value: {most}")
    if usual < least:
        yield invalid(f"{field}.min", default, f"default is less than min: {bounds['min']}")
    upper = None if bounds.get("max") is None else parse_quantity(bounds["max"])
    if upper is not None:
        if least > upper:
            yield invalid(f"{field}.max", bounds["min"], f"min is larger than max: {bounds['max']}")
        if upper > most:
            yield invalid(f"{field}.max", bounds["max"], f"max is larger than capacity value: {most}")
        if usual > upper:
            yield invalid(f"{field}.max", default, f"default is more than max: {bounds['max']}")
    if bounds.get("step") is not None:
        step = parse_quantity(bounds["step"])
        if least + step > most:
            message = f"one step {least + step} is larger than capacity value: {most}"
            yield invalid(f"{field}.step", bounds["step"], message)
        for value in filter(None, (default, bounds.get("max"))):
            if step and (parse_quantity(value) - least) % step:
                message = f"value is not a multiple of a given step ({bounds['step']}) from ({bounds['min']})"
                yield invalid(f"{field}.step", value, message)
