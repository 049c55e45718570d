# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default
"""The possible and existing instances of a card in MIG mode, as its driver reports them and as allocations name them.

Memory slices are the driver's unit of places on a card: an instance takes `size` of them from `start` on, and no two
instances share one. NVIDIA's MIG user guide, "Concepts"; nvmlDeviceGetGpuInstancePossiblePlacements.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from egpu_base.api.wire import Wire, camel

MAX_SLICES: Final = 32
"""Memory slices of a card; today's cards have at most 8."""
_Slice = Annotated[int, Meta(ge=0, le=MAX_SLICES - 1)]
_Size = Annotated[int, Meta(ge=1, le=MAX_SLICES)]


class InstanceProfile(Wire, frozen=True, kw_only=True):
    """A kind of instance that the card can have."""

    name: Annotated[str, Meta(min_length=1, max_length=32)]
    """The driver's name of the profile: 1g.10gb, 1g.10gb+me."""
    compute: Annotated[int, Meta(ge=1, le=MAX_SLICES)]
    """Compute slices of an instance."""
    memory_mib: Annotated[int, Meta(ge=1)]
    """Memory of an instance, in MiB."""
    size: _Size
    """Memory slices of an instance, the unit of places."""
    starts: Annotated[tuple[_Slice, ...], Meta(max_length=MAX_SLICES)] = ()
    """The memory slices at which an instance may begin."""
    most: Annotated[int, Meta(ge=1)] = 1
    """The most instances of this profile on one card."""


class InstancePlace(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, rename=camel
):
    """An instance: its profile, and its place on the card."""

    profile: Annotated[str, Meta(min_length=1, max_length=32)]
    """The name of the profile."""
    start: _Slice
    """The first memory slice."""
    size: _Size
    """The number of memory slices."""

    @property
    def mask(self) -> int:
        """The memory slices as bits."""
        return ((1 << self.size) - 1) << self.start

    def __str__(self) -> str:
        return f"{self.profile} at {self.start}"


class Mig(Wire, frozen=True, kw_only=True):
    """A card in MIG mode."""

    profiles: list[InstanceProfile] = []
    """The kinds of instances that the card can have."""
    own: list[InstancePlace] = []
    """Instances that this node's agent created."""
    others: list[InstancePlace] = []
    """Instances that others created: allocated as they are, and never destroyed."""
    used: list[InstancePlace] = []
    """Instances in use by programs of no container of this node: not allocated or destroyed until these end."""

    def profile(self, name: str) -> InstanceProfile | None:
        return next((one for one in self.profiles if one.name == name), None)
