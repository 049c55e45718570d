"""vGPU: fixed profiles, equal parts of a card or sizes that a class names, limited as vCUDA's slices are.

A profile 1/N is 100 // N percent of a card's compute and memory. The card is not partitioned, so profiles have no
places: all sets fit, in any order, that are at most one card together. If the class sets *equal-size* mode, only
profiles of one size share a card.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.vocabularies import BY_NAME, BY_RESOURCE, VGPU_PROFILES, VGPUS
from egpu.core.provisioners.base import Profile
from egpu.core.provisioners.vcuda import VCUDA
from egpu_base.api.quantities import format_mib, parse_count, parse_memory_mib
from egpu_base.errors import InvalidDemand, InvalidQuantity

SCHEDULER: Final = "vgpuScheduler"
"""Class parameter: how a card's vGPUs share compute time, in the words of NVIDIA's vGPU; "fixed-share" by default."""
FIXED_SHARE: Final = "fixed-share"
"""A vGPU gets its part of the card's time, and no more."""
EQUAL_SHARE: Final = "equal-share"
"""A vGPU gets an equal part of the time among those that compute now: more than its own while others are idle."""
BEST_EFFORT: Final = "best-effort"
"""A vGPU gets whatever is free, without a limit or a guarantee."""

MODE: Final = "vgpuMode"
"""Class parameter: the sizes that may share a card, in the words of NVIDIA's vGPU; "mixed-size" by default."""
MIXED_SIZE: Final = "mixed-size"
"""Share cards with other sizes, of classes in this mode."""
EQUAL_SIZE: Final = "equal-size"
"""Share cards with the same size only."""

PROFILES: Final = "vgpuProfiles"
"""Class parameter: named sizes, such as "small: 10 %, 4Gi; large: 50 %, 20Gi": compute and memory of a card."""
MOST_PROFILES: Final = 32
_PROFILE: Final = re.compile(r"([a-z][a-z0-9-]{0,30}[a-z0-9]|[a-z])\s*:\s*([0-9]+)\s*%\s*,\s*(\S+)", re.ASCII)


class VGPU(VCUDA):
    name = names.VGPU
    aliases = ("vgpu.provisioner.elasticgpu.io",)
    oversubscribes = False  # memory is fixed
    parks = False
    bursts = False  # `vgpuScheduler` says who may use idle time
    resizable = False
    parameters: ClassVar = {SCHEDULER: (BEST_EFFORT, EQUAL_SHARE, FIXED_SHARE), MODE: (EQUAL_SIZE, MIXED_SIZE)}
    texts: ClassVar = (PROFILES,)

    def problem(self, demand: ContainerDemand) -> str | None:
        if BY_NAME[demand.vocabulary].parts or demand.vocabulary == VGPU_PROFILES.name:
            return None
        return f"{self.name} provides fixed profiles; ask for one of " + ", ".join(one.cards for one in VGPUS)

    def profiles(self, parameters: Mapping[str, str]) -> Mapping[str, Profile]:
        written = [part for part in parameters.get(PROFILES, "").split(";") if part.strip()]
        if len(written) > MOST_PROFILES:
            raise InvalidDemand(f"parameters[{PROFILES}]", f"has {len(written)} profiles; the most is {MOST_PROFILES}")
        found: dict[str, Profile] = {}
        for part in written:
            resource, profile = _profile(part.strip())
            if resource in found:
                raise InvalidDemand(f"parameters[{PROFILES}]", f"{resource} is defined twice")
            found[resource] = profile
        return found

    def of_class(self, demand: ContainerDemand, parameters: Mapping[str, str]) -> ContainerDemand:
        if demand.exclusive:
            return demand
        size = ""
        if parameters.get(MODE) == EQUAL_SIZE:
            parts = BY_NAME[demand.vocabulary].parts
            size = f"1/{parts}" if parts else f"{demand.core} % and {format_mib(demand.memory_mib)}"
        scheduler = parameters.get(SCHEDULER)
        core = 0 if scheduler == BEST_EFFORT else demand.core
        core_limit = 100 if scheduler == EQUAL_SHARE else 0 if scheduler else demand.core_limit
        return replace(demand, core=core, core_limit=core_limit, alike=size)


def _profile(text: str) -> tuple[str, Profile]:
    """Parse "small: 10 %, 4Gi" into a resource name and its profile."""
    field, example = f"parameters[{PROFILES}]", "write NAME: PERCENT %, MEMORY, such as small: 10 %, 4Gi"
    said = _PROFILE.fullmatch(text)
    if said is None:
        raise InvalidDemand(field, f"{text!r} is not a profile; {example}")
    resource = f"{names.VGPU}-{said[1]}"
    if resource in BY_RESOURCE:
        raise InvalidDemand(field, f"{resource} already is a resource name; use another name")
    try:
        core, memory_mib = parse_count(said[2], field=field), parse_memory_mib(said[3], field=field)
    except InvalidQuantity as error:
        raise InvalidDemand(field, f"{text!r}: {error.reason}; {example}") from error
    if core >= 100 or not memory_mib:
        raise InvalidDemand(field, f"{text!r} is not a part of a card; for a whole card use {names.VGPU}-1")
    return resource, Profile(core, memory_mib)
