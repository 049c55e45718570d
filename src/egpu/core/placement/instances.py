"""MIG instances for the containers of one pod: what each takes of each card, and its place."""

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
"""Weight of existing instances between nodes, relative to everything else."""


def cut_cards(ledger: Ledger, row: int, width: int) -> list[CutCard | None]:
    """Return the cards of a row that are in MIG mode, by column; None for any other."""
    return [ledger.instances(row, column) if ledger.is_cut(row, column) else None for column in range(width)]


def wanted(needs: Needs, ledger: Ledger, row: int, width: int) -> tuple[WantedInstance | None, ...]:
    """Return the instance that a container takes of each card of a row; empty if it takes none of any."""
    if needs.instances is None:
        return ()
    return tuple(needs.instances.get(int(ledger.kind[row, column])) for column in range(width))


def placed(
    demands: Mapping[str, ContainerDemand], ledger: Ledger, row: int, columns: Mapping[str, tuple[int, ...]]
) -> dict[str, InstancePlace]:
    """Return the place of each container's instance on its card; `columns` are the chosen cards."""
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
    """Return scores, 0..1, where existing instances come first; `good` if no instances are requested."""
    return good if readiness is None else (_READINESS * readiness + good) / (_READINESS + 1)


def amounts(ledger: Ledger, row: int, column: int, place: InstancePlace) -> tuple[int, int]:
    """Return percent of the card's compute, and MiB, of an instance at this place."""
    mig, _ = ledger.instances(row, column)
    profile = mig.profile(place.profile)
    assert profile is not None, "it was found among the card's own"
    return core_percent(mig.profiles, profile), profile.memory_mib
