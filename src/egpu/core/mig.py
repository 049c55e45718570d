"""Where instances of MIG go on a card: placement arithmetic, pure, on what the card's driver says it can be cut into.

An instance that somebody holds, or uses without our books, cannot be moved, and neither can one that somebody else
made; what the agent made and nobody has gives way. So a set that is placed at once finds a place wherever there is one,
in whatever order it is asked for; what comes later has to go around what is there, and every instance is put where most
stays possible.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from egpu.api.mig import InstancePlace, InstanceProfile, Mig

MAX_TOGETHER: Final = 16
"""Instances asked for at once, on one card. No card has as many: a larger set fits nowhere."""

Sets = frozenset[tuple[int, ...]]
Geometry = tuple[tuple[int, ...], ...]
"""Per profile the slices of each of its places, as bits."""


class WantedInstance(NamedTuple):
    """One of a profile, or else of the first of those `larger` that has a place; `cut`: whether it may be made, or only
    given out as it is there."""

    profile: str
    cut: bool = True
    larger: tuple[str, ...] = ()


def taken(places: Sequence[InstancePlace]) -> int:
    """The slices of memory of all of them, as bits."""
    bits = 0
    for place in places:
        bits |= place.mask
    return bits


def overlapping(places: Sequence[InstancePlace]) -> bool:
    """Whether two of them have a slice of memory in common."""
    return taken(places).bit_count() != sum(place.size for place in places)


def arrange(
    mig: Mig, held: Sequence[InstancePlace], wanted: Sequence[WantedInstance]
) -> tuple[InstancePlace, ...] | None:
    """A place on the card for each of `wanted`, beside those `held`, or None: then there is none in any order."""
    if len(wanted) > MAX_TOGETHER:
        return None
    geometry = _geometry(mig)
    held = (*held, *(place for place in mig.used if place not in held))
    dead: set[tuple[int, tuple[str, ...]]] = set()
    """What is occupied, and by which profiles, where the rest is known to have no place."""

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
    """Where one can be, the smallest profile first, and of each the best place."""
    for name in (wanted.profile, *wanted.larger):
        yield from _places_of(mig, geometry, held, name, cut=wanted.cut)


def _places_of(
    mig: Mig, geometry: Geometry, held: Sequence[InstancePlace], name: str, *, cut: bool
) -> Iterator[InstancePlace]:
    """An instance that is there, then where most stays possible, and where the fewest free ones have to go."""
    profile = mig.profile(name)
    occupied = taken(held)
    if profile is None or sum(place.profile == profile.name for place in held) >= profile.most:
        return
    there = [place for place in (*mig.others, *mig.own) if not place.mask & occupied]
    found = [place for place in there if place.profile == profile.name]
    yield from sorted(found, key=lambda place: (-_room(geometry, occupied | place.mask), -place.start))
    if not cut:
        return
    # What others made and nobody holds stays, and counts for what a card can have of a profile.
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
    """Instances of the agent's that have to be destroyed before this one can be made; none where it is there."""
    if place in mig.own or place in mig.others:
        return ()
    return tuple(one for one in mig.own if one.mask & place.mask)


def what_it_takes(mig: Mig, place: InstancePlace) -> str:
    """What the agent does for it, in words."""
    if place in mig.own or place in mig.others:
        return "it is there"
    gone = " and ".join(map(str, in_the_way(mig, place)))
    return f"it is made, after {gone} is destroyed" if gone else "it is made"


def enough(profiles: Sequence[InstanceProfile], core: int, memory_mib: int) -> list[InstanceProfile]:
    """Those that have so many percent of the card's compute, and so many MiB, the smallest first."""
    found = [one for one in profiles if core_percent(profiles, one) >= core and one.memory_mib >= memory_mib]
    # The plain one before those that also have engines for media, of which a card has one.
    return sorted(found, key=lambda one: (one.size, one.compute, len(one.name), one.name))


def smallest(profiles: Sequence[InstanceProfile], core: int, memory_mib: int) -> InstanceProfile | None:
    """The first of `enough`; None where none has as much."""
    return next(iter(enough(profiles, core, memory_mib)), None)


def core_percent(profiles: Sequence[InstanceProfile], profile: InstanceProfile) -> int:
    """An instance's share of the compute of a card, percent, rounded down: a seventh is 14."""
    return 100 * profile.compute // max(one.compute for one in profiles)


# --- what stays possible ----------------------------------------------------------------------------------------------


def _geometry(mig: Mig) -> Geometry:
    return tuple(tuple(place.mask for place in _all(profile)) for profile in mig.profiles)


def _room(geometry: Geometry, occupied: int) -> int:
    """How many different sets of instances still fit."""
    return len(_sets(geometry, occupied))


@lru_cache(maxsize=1 << 14)
def _sets(geometry: Geometry, occupied: int) -> Sets:
    """Every set of instances that fits beside what is occupied: how many of each profile."""
    found = {(0,) * len(geometry)}
    for at, masks in enumerate(geometry):
        for mask in masks:
            if not mask & occupied:
                found |= {(*one[:at], one[at] + 1, *one[at + 1 :]) for one in _sets(geometry, occupied | mask)}
    return frozenset(found)
