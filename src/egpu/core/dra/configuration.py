"""The opaque configuration that classes and claims pass to our driver: a `SliceConfig`.

A class decides for its claims: a claim may set only what the class leaves open.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from egpu.api import names
from egpu.core.demand.kinds import WORK, is_latency
from egpu.core.provisioners import provisioner
from egpu.core.provisioners.oversubscription import memory_limit_percent
from egpu_base.api.devices import AllocationConfiguration, ClaimConfiguration, ClassConfiguration
from egpu_base.api.wire import camel
from egpu_base.errors import InvalidDemand, InvalidInput, NotSupported, UnknownProvisioner

KIND: Final = "SliceConfig"
FROM_CLASS: Final = "FromClass"
_KNOWN: Final = 1024
"""Configurations that are cached: nearly all claims of a class have the same."""
_MOST_KNOWN_BYTES: Final = 1024
"""The size of a cached one, packed. So no cache keeps long texts of others."""


class SliceConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename=camel
):
    """How a claim's slices are limited. Empty fields leave it to the claim, then to the defaults."""

    technology: str = ""
    """The provisioner, such as elasticgpu.io/vcuda (the default)."""
    compute_mode: Literal["", "cap", "share"] = ""
    """"cap": never above the share (the default); "share": may use idle compute."""
    work: Literal["", "batch", "latency"] = ""
    """"latency": on a shared card, launches come before those of others; "batch" is the default."""
    memory_oversubscription: str = ""
    """How much more than their memory programs may allocate, such as "1.5"."""
    api_version: Literal["", "elasticgpu.io/v1alpha1"] = ""
    kind: Literal["", "SliceConfig"] = ""

    @property
    def latency(self) -> bool:
        """Whether launches come before those of others. Raises InvalidInput for a technology without turns."""
        try:
            return is_latency({WORK: self.work}, provisioner(self.technology))
        except InvalidDemand as error:
            raise InvalidInput(WORK, error.reason) from error

    @property
    def memory_limit_percent(self) -> int:
        """What programs may allocate, in percent of their memory; 0: no more than that. Raises InvalidInput."""
        parameters = {"memoryOversubscription": self.memory_oversubscription} if self.memory_oversubscription else {}
        try:
            return memory_limit_percent(parameters, provisioner(self.technology))
        except InvalidDemand as error:
            raise InvalidInput("memoryOversubscription", error.reason) from error


def parse(parameters: Mapping[str, Any] | None, *, where: str) -> SliceConfig:
    """Read one configuration. Raises InvalidInput, naming `where` and the field."""
    try:
        found = msgspec.convert(dict(parameters or {}), SliceConfig)
    except msgspec.ValidationError as error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(SliceConfig))
        raise InvalidInput(where, f"{error}; a {KIND} of {names.API_VERSION} has the fields {known}") from error
    if (found.api_version, found.kind) != (names.API_VERSION, KIND):
        given = f"{found.api_version or 'no apiVersion'}, {found.kind or 'no kind'}"
        raise InvalidInput(where, f"it is {given}; write apiVersion: {names.API_VERSION} and kind: {KIND}")
    return found


def configuration(parts: Iterable[AllocationConfiguration], request: str) -> SliceConfig:
    """Return what holds for a request: the class first, then the claim for what the class leaves open.

    Raises InvalidInput for a field that is unknown or already set otherwise, NotSupported for a technology that claims
    cannot have.
    """
    listed = list(parts)
    packed = msgspec.msgpack.encode(listed)
    return _of_parts(listed, request) if len(packed) > _MOST_KNOWN_BYTES else _of_packed(packed, request)


@lru_cache(maxsize=_KNOWN)
def _of_packed(packed: bytes, request: str) -> SliceConfig:
    return _of_parts(msgspec.msgpack.decode(packed, type=list[AllocationConfiguration]), request)


def _of_parts(parts: Iterable[AllocationConfiguration], request: str) -> SliceConfig:
    fields: dict[str, str] = {}
    for part in sorted(parts, key=lambda part: part.source != FROM_CLASS):
        if part.opaque is None or part.opaque.driver != names.DRIVER:
            continue
        if part.requests and not {request, request.partition("/")[0]} & {*part.requests}:
            continue
        source = "the class" if part.source == FROM_CLASS else "the claim"
        where = f"configuration of request {request} by {source}"
        for name, value in _fields(parse(part.opaque.parameters, where=where)).items():
            if fields.setdefault(name, value) != value:
                raise InvalidInput(where, f"{name} is {value}, but {fields[name]} is set already; remove it")
    return _checked(msgspec.convert(fields, SliceConfig), request)


def problems(parts: Iterable[ClassConfiguration | ClaimConfiguration], *, field: str) -> list[tuple[str, str]]:
    """Return what our driver could not follow in the configuration of a class or of a claim, as (field, reason).
    `field`: where it stands. Another driver's configuration is not looked at."""
    found: list[tuple[str, str]] = []
    for number, part in enumerate(parts):
        if part.opaque is None or part.opaque.driver != names.DRIVER:
            continue
        where = f"{field}[{number}].opaque.parameters"
        try:
            _checked(parse(part.opaque.parameters, where=where), where)
        except InvalidInput as error:
            found.append((where if error.field == where else f"{where}.{error.field}", error.reason))
        except NotSupported as error:
            found.append((where, str(error)))
    return found


def _fields(config: SliceConfig) -> dict[str, str]:
    """Return the fields that are set."""
    return msgspec.convert(msgspec.to_builtins(config), dict[str, str])


def _checked(config: SliceConfig, request: str) -> SliceConfig:
    try:
        technology = provisioner(config.technology or names.VCUDA).name
    except UnknownProvisioner as error:
        raise InvalidInput(f"configuration of request {request}", str(error)) from error
    if technology not in names.CLAIM_TECHNOLOGIES.values():
        able = ", ".join(names.CLAIM_TECHNOLOGIES.values())
        raise NotSupported(f"request {request}: {technology} cannot serve ResourceClaims yet; use one of {able}")
    config = msgspec.structs.replace(config, technology=technology)
    _ = config.memory_limit_percent, config.latency
    return config
