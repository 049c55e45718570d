"""The part of a ResourceClaim that our components keep, which is limited in size.

Anyone who may create claims can create many, each with a megabyte of configuration for drivers, which takes ten times
as much as objects. We keep what decides about cards, and read a claim again before we write to it.
"""

from typing import Any, Final, TypeVar

from msgspec.structs import replace

from egpu.api import names
from egpu.core.selectors import MAX_CHARACTERS
from egpu_base.api.devices import (
    AllocationConfiguration,
    CelSelector,
    ClaimConfiguration,
    DeviceClaim,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    OpaqueConfiguration,
    ResourceClaim,
)
from egpu_base.api.wire import packed_bytes

MOST_BYTES: Final = 32 * 1024
"""The size of a claim's part, packed, beyond which it is not served. A usual one has 1 KiB."""
MOST_PARAMETERS: Final = 1024
"""The size of one configuration for our driver, packed. A valid one has at most 300 bytes."""
TOO_LARGE: Final = f"{names.GROUP}/too-large"
"""An annotation of our copy only: the claim asks for too much text to be kept."""
_TOO_LONG: Final[dict[str, Any]] = {f"(more than {MOST_PARAMETERS} bytes)": ""}
"""In place of a long configuration. Its reader names the field, and refuses it as unknown."""
_SOME: Final[list[dict[str, Any]]] = [{}]
"""In place of what only has to be there."""
_OURS: Final = f"{names.GROUP}/"

Configured = TypeVar("Configured", ClaimConfiguration, AllocationConfiguration)


def kept_claim(claim: ResourceClaim) -> ResourceClaim:
    """Return a claim without parts that decide nothing about our cards. One that is still large keeps its allocation,
    so that it counts, and the classes that it asks for, with the annotation TOO_LARGE."""
    metadata = replace(claim.metadata, annotations=_own(claim.annotations))
    if packed_bytes(metadata) > MOST_BYTES:  # otherwise with all labels: a team's bill is by label
        metadata = replace(metadata, labels=_own(claim.metadata.labels or {}))
    devices, allocation = claim.spec.devices, claim.status.allocation
    asked = DeviceClaim(
        requests=[_request(one) for one in devices.requests or ()] or None,
        constraints=_SOME if devices.constraints else None,
        config=_configured(devices.config) or None,
    )
    if allocation is not None:
        given = replace(allocation.devices, config=_configured(allocation.devices.config) or None)
        allocation = replace(allocation, devices=given)
    status = replace(claim.status, allocation=allocation, devices=None)
    if packed_bytes((metadata, asked)) > MOST_BYTES:
        marked = {TOO_LARGE: ""}
        metadata = replace(metadata, annotations=marked, labels=None, finalizers=None, owner_references=None)
        asked = DeviceClaim(requests=[_least(one) for one in asked.requests or ()] or None)
    return replace(claim, metadata=metadata, spec=replace(claim.spec, devices=asked), status=status)


def _request(request: DeviceRequest) -> DeviceRequest:
    exactly = request.exactly
    if exactly is not None:
        exactly = replace(exactly, selectors=_selectors(exactly))
    return DeviceRequest(name=request.name, exactly=exactly)


def _selectors(request: ExactDeviceRequest) -> list[DeviceSelector] | None:
    """Return the selectors; an expression that is too long to be served is cut, and stays too long."""
    size, found = 0, list[DeviceSelector]()
    for one in request.selectors or ():
        text = one.cel.expression if one.cel is not None else ""
        found.append(DeviceSelector(cel=CelSelector(expression=text[: MAX_CHARACTERS + 1])))
        size += len(text)
        if size > MAX_CHARACTERS:
            break
    return found or None


def _least(request: DeviceRequest) -> DeviceRequest:
    """Return what tells for whose devices a request is."""
    if request.exactly is None:
        return request
    exactly = ExactDeviceRequest(device_class_name=request.exactly.device_class_name)
    return DeviceRequest(name=request.name, exactly=exactly)


def _configured(parts: list[Configured] | None) -> list[Configured]:
    """Return the configuration for our driver."""
    return [
        replace(one, opaque=_opaque(one.opaque))
        for one in parts or ()
        if one.opaque is not None and one.opaque.driver == names.DRIVER
    ]


def _opaque(opaque: OpaqueConfiguration) -> OpaqueConfiguration:
    return opaque if packed_bytes(opaque.parameters) <= MOST_PARAMETERS else replace(opaque, parameters=_TOO_LONG)


def _own(texts: dict[str, str]) -> dict[str, str] | None:
    return {key: text for key, text in texts.items() if key.startswith(_OURS)} or None
