"""A plan of MIG instances for a job mix, as if the cards were empty, the large instances first.

First fit in decreasing size; `egpu.core.mig.arrange` fills each card exactly. It is not optimal over all cards: that is
bin packing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from egpu.api.mig import InstancePlace, InstanceProfile, Mig
from egpu.core.mig import WantedInstance, arrange, smallest


@dataclass(frozen=True)
class InstanceAsked:
    """The request of one container: a profile by name, or amounts (percent of a card's compute, MiB)."""

    profile: str = ""
    core: int = 0
    memory_mib: int = 0

    def on(self, profiles: Sequence[InstanceProfile]) -> InstanceProfile | None:
        """Return the profile that fits the request; None if there is none."""
        if not self.profile:
            return smallest(profiles, self.core, self.memory_mib)
        return next((one for one in profiles if one.name == self.profile), None)

    def __str__(self) -> str:
        return self.profile or f"{self.core} % and {self.memory_mib} MiB"


@dataclass(frozen=True)
class GeometryPlan:
    """A plan. `cards`: the instances of each card, by the names of `plan`; `left`: unmet requests, counted."""

    cards: Mapping[str, tuple[InstancePlace, ...]]
    left: Mapping[str, int]


def plan(cards: Mapping[str, Mig], asked: Sequence[InstanceAsked]) -> GeometryPlan:
    """Return instances for each card that serve as many requests of `asked` as fit."""
    empty = {name: Mig(profiles=card.profiles) for name, card in cards.items()}
    wanted: dict[str, list[WantedInstance]] = {name: [] for name in cards}
    left = Counter[str]()
    for one in sorted(asked, key=lambda each: _size(each, cards), reverse=True):
        for name, card in empty.items():
            profile = one.on(card.profiles)
            if profile is None:
                continue
            more = [*wanted[name], WantedInstance(profile.name)]
            if arrange(card, (), more) is not None:
                wanted[name] = more
                break
        else:
            left[str(one)] += 1
    placed = {name: arrange(empty[name], (), wanted[name]) or () for name in cards}
    return GeometryPlan(
        {name: tuple(sorted(places, key=lambda place: place.start)) for name, places in placed.items()}, left
    )


def _size(asked: InstanceAsked, cards: Mapping[str, Mig]) -> tuple[int, int]:
    """Return the memory and compute slices of a request, on the card where it takes most."""
    found = [profile for card in cards.values() if (profile := asked.on(card.profiles)) is not None]
    return max(((one.size, one.compute) for one in found), default=(0, 0))
