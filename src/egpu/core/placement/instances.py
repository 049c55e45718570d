"""Instances of MIG for the containers of one pod: which each takes of each card, and at last where each one is."""

from collections.abc import Mapping
from typing import Final

from egpu.api.allocation import ContainerDemand
from egpu.api.mig import InstancePlace
from egpu.core.arrays import FloatArray
from egpu.core.mig import WantedInstance, arrange, core_percent
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.search import CutCard
from egpu.core.provisioners import Needs

_READINESS: Final = 10
"""How many times as much as anything else it counts, between nodes, that an instance is there."""


def cut_cards(ledger: Ledger, row: int, width: int) -> list[CutCard | None]:
    """The cards of a row that are in MIG mode, by column; None for any other."""
    return [ledger.instances(row, column) if ledger.is_cut(row, column) else None for column in range(width)]


def wanted(needs: Needs, ledger: Ledger, row: int, width: int) -> tuple[WantedInstance | None, ...]:
    """Which instance a container takes of each card of a row; nothing where it takes none of any."""
    if needs.instances is None:
        return ()
    return tuple(needs.instances.get(int(ledger.kind[row, column])) for column in range(width))


def placed(
    demands: Mapping[str, ContainerDemand], ledger: Ledger, row: int, columns: Mapping[str, tuple[int, ...]]
) -> dict[str, InstancePlace]:
    """Where on its card is the instance of each container that gets one; `columns` are those chosen for them."""
    by_column: dict[int, dict[str, WantedInstance]] = {}
    for name, chosen in columns.items():
        instances = ledger.needs(demands[name], row).instances
        if instances is not None:
            for column in chosen:
                by_column.setdefault(column, {})[name] = instances[int(ledger.kind[row, column])]
    found: dict[str, InstancePlace] = {}
    for column, containers in by_column.items():
        places = arrange(*ledger.instances(row, column), list(containers.values()))
        assert places is not None, "there was a place for each when the card was chosen"
        found |= zip(containers, places, strict=True)
    return found


def ready_first(readiness: FloatArray | None, good: FloatArray) -> FloatArray:
    """How good nodes are, 0..1, where it comes first that the instances are there; as good as they were where
    `readiness` is None: none are asked for."""
    return good if readiness is None else (_READINESS * readiness + good) / (_READINESS + 1)


def amounts(ledger: Ledger, row: int, column: int, place: InstancePlace) -> tuple[int, int]:
    """Percent of the card's compute, and MiB, that an instance at this place of it is."""
    mig, _ = ledger.instances(row, column)
    profile = mig.profile(place.profile)
    assert profile is not None, "it was found among the card's own"
    return core_percent(mig.profiles, profile), profile.memory_mib
