# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default
"""What a card in MIG mode can be cut into, and what it is cut into: as its driver says it, and as allocations name it.

Memory slices are the driver's unit of places on a card: an instance takes `size` of them from `start` on, and no two
instances have one in common. NVIDIA's MIG user guide, "Concepts"; nvmlDeviceGetGpuInstancePossiblePlacements.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from egpu.api.wire import Wire, camel

MAX_SLICES: Final = 32
"""Memory slices of a card; those of today have 8 at most."""
_Slice = Annotated[int, Meta(ge=0, le=MAX_SLICES - 1)]
_Size = Annotated[int, Meta(ge=1, le=MAX_SLICES)]


class InstanceProfile(Wire, frozen=True, kw_only=True):
    """A kind of instance that the card can be cut into."""

    name: Annotated[str, Meta(min_length=1, max_length=32)]
    """As the driver has it: 1g.10gb, 1g.10gb+me."""
    compute: Annotated[int, Meta(ge=1, le=MAX_SLICES)]
    """Slices of compute."""
    memory_mib: Annotated[int, Meta(ge=1)]
    """MiB of memory."""
    size: _Size
    """Slices of memory, which are what places are counted in."""
    starts: Annotated[tuple[_Slice, ...], Meta(max_length=MAX_SLICES)] = ()
    """The slices of memory at which one may begin."""
    most: Annotated[int, Meta(ge=1)] = 1
    """How many of it a card can have."""


class InstancePlace(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, rename=camel
):
    """An instance by what it is and where it is on its card."""

    profile: Annotated[str, Meta(min_length=1, max_length=32)]
    """Its profile's name."""
    start: _Slice
    """Its first slice of memory."""
    size: _Size
    """How many it has."""

    @property
    def mask(self) -> int:
        """Its slices of memory as bits."""
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        return f"{self.profile} at {self.start}"


class Mig(Wire, frozen=True, kw_only=True):
    """A card in MIG mode."""

    profiles: list[InstanceProfile] = []
    """What it can be cut into."""
    own: list[InstancePlace] = []
    """Instances that this node's agent made."""
    others: list[InstancePlace] = []
    """Instances that somebody else made: given out as they are, and never destroyed."""
    used: list[InstancePlace] = []
    """Instances of either kind on which programs run that no container of this node's started: not given out, and not
    destroyed, until those have ended."""

    def profile(self, name: str) -> InstanceProfile | None:
        return next((one for one in self.profiles if one.name == name), None)
