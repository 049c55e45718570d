"""Placement of MIG instances on a card: pure arithmetic on the profiles that the card's driver reports.

Instances that are allocated, in use otherwise, or created by others stay. Instances that the agent created and nobody
holds give way. So a set that is placed at once finds places wherever they exist, in any order. Later instances go
around existing ones, and each goes where most other sets stay possible.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from egpu.api.mig import InstancePlace, InstanceProfile, Mig

MAX_TOGETHER: Final = 16
"""Instances requested at once on one card. No card has as many; a larger set fits nowhere."""

Sets = frozenset[tuple[int, ...]]
Geometry = tuple[tuple[int, ...], ...]
"""Per profile, the memory slices of each of its places, as bits."""


class WantedInstance(NamedTuple):
    """An instance of a profile, or of the first of the `larger` ones that has a place. `cut`: whether it may be
    created; otherwise only an existing one is used."""

    profile: str
    cut: bool = True
    larger: tuple[str, ...] = ()


def taken(places: Sequence[InstancePlace]) -> int:
    """Return the memory slices of all places, as bits."""
    bits = 0
    for place in places:
        bits |= place.mask
    return bits


def overlapping(places: Sequence[InstancePlace]) -> bool:
    """Return whether two of the places share a memory slice."""
    return taken(places).bit_count() != sum(place.size for place in places)


def arrange(
    mig: Mig, held: Sequence[InstancePlace], wanted: Sequence[WantedInstance]
) -> tuple[InstancePlace, ...] | None:
    """Return a place for each of `wanted`, beside those `held`; None if no order has places for all."""
    if len(wanted) > MAX_TOGETHER:
        return None
    geometry = _geometry(mig)
    held = (*held, *(place for place in mig.used if place not in held))
    dead: set[tuple[int, tuple[str, ...]]] = set()
    """Occupied slices and placed profiles for which the rest has no place."""

    def rest(placed: tuple[InstancePlace, ...]) -> tuple[InstancePlace, ...] | None:
        state = taken(placed), tuple(sorted(place.profile for place in placed))
        if len(placed) == len(wanted):
            return placed
        if state not in dead:
            one = wanted[len(placed)]
            for place in _places(mig, geometry, (*held, *placed), one):
                if (found := rest((*placed, place))) is not None:
                    return found
            dead.add(state)
        return None

    return rest(())


def _places(
    mig: Mig, geometry: Geometry, held: Sequence[InstancePlace], wanted: WantedInstance
) -> Iterator[InstancePlace]:
    """Yield the possible places, the smallest profile first, and of each the best place."""
    for name in (wanted.profile, *wanted.larger):
        yield from _places_of(mig, geometry, held, name, cut=wanted.cut)


def _places_of(
    mig: Mig, geometry: Geometry, held: Sequence[InstancePlace], name: str, *, cut: bool
) -> Iterator[InstancePlace]:
    """Yield existing instances, then places that keep most others possible and destroy the fewest free instances."""
    profile = mig.profile(name)
    occupied = taken(held)
    if profile is None or sum(place.profile == profile.name for place in held) >= profile.most:
        return
    there = [place for place in (*mig.others, *mig.own) if not place.mask & occupied]
    found = [place for place in there if place.profile == profile.name]
    yield from sorted(found, key=lambda place: (-_room(geometry, occupied | place.mask), -place.start))
    if not cut:
        return
    # Free instances that others created stay, and count for the card's maximum of a profile.
    foreign = [place for place in mig.others if not place.mask & occupied]
    if sum(place.profile == profile.name for place in (*held, *foreign)) >= profile.most:
        return
    fixed = occupied | taken(foreign)
    free = [place for place in _all(profile) if not place.mask & fixed and place not in found]
    gone = {place: sum(bool(one.mask & place.mask) for one in there) for place in free}
    yield from sorted(free, key=lambda place: (-_room(geometry, fixed | place.mask), gone[place], -place.start))


def _all(profile: InstanceProfile) -> list[InstancePlace]:
    return [InstancePlace(profile=profile.name, start=start, size=profile.size) for start in profile.starts]


def in_the_way(mig: Mig, place: InstancePlace) -> tuple[InstancePlace, ...]:
    """Return the agent's instances to destroy before this one can be created; none if it exists."""
    if place in mig.own or place in mig.others:
        return ()
    return tuple(one for one in mig.own if one.mask & place.mask)


def what_it_takes(mig: Mig, place: InstancePlace) -> str:
    """Return what the agent does to provide the instance, in words."""
    if place in mig.own or place in mig.others:
        return "it exists"
    gone = " and ".join(map(str, in_the_way(mig, place)))
    return f"it will be created after {gone} is destroyed" if gone else "it will be created"


def enough(profiles: Sequence[InstanceProfile], core: int, memory_mib: int) -> list[InstanceProfile]:
    """Return the profiles with at least this percentage of compute and this memory, the smallest first."""
    found = [one for one in profiles if core_percent(profiles, one) >= core and one.memory_mib >= memory_mib]
    # The plain profile comes before those with media engines, of which a card has one.
    return sorted(found, key=lambda one: (one.size, one.compute, len(one.name), one.name))


def smallest(profiles: Sequence[InstanceProfile], core: int, memory_mib: int) -> InstanceProfile | None:
    """Return the first of `enough`; None if there is none."""
    return next(iter(enough(profiles, core, memory_mib)), None)


def core_percent(profiles: Sequence[InstanceProfile], profile: InstanceProfile) -> int:
    """Return an instance's share of the card's compute in percent, rounded down: a seventh is 14."""
    return 100 * profile.compute // max(one.compute for one in profiles)


# --- what stays possible ----------------------------------------------------------------------------------------------


def _geometry(mig: Mig) -> Geometry:
    return tuple(tuple(place.mask for place in _all(profile)) for profile in mig.profiles)


def _room(geometry: Geometry, occupied: int) -> int:
    """Return how many different sets of instances still fit."""
    return len(_sets(geometry, occupied))


@lru_cache(maxsize=1 << 14)
def _sets(geometry: Geometry, occupied: int) -> Sets:
    """Return every set of instances that fits beside the occupied slices, as counts per profile."""
    found = {(0,) * len(geometry)}
    for at, masks in enumerate(geometry):
        for mask in masks:
            if not mask & occupied:
                found |= {(*one[:at], one[at] + 1, *one[at + 1 :]) for one in _sets(geometry, occupied | mask)}
    return frozenset(found)
