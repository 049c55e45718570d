"""The cluster's cards for admission: the largest one, and the kinds."""

from collections import Counter
from collections.abc import Collection

import numpy as np

from egpu.api.objects import ElasticGPU, PhysicalGPU
from egpu.core.attributes import CardKind
from egpu.core.provisioners import CardTotals
from egpu_base.kubernetes import Change


class KnownCards:
    """Follows the published cards, so that each answer costs the same, whatever their number."""

    def __init__(self) -> None:
        self._count: Counter[CardKind] = Counter()
        self._models: Counter[str] = Counter()
        self._kinds: CardTotals | None = None

    def changed(self, change: Change[ElasticGPU]) -> None:
        """Take in a card or slice that came, went or changed."""
        self._models.update(_model(change.new))
        self._models.subtract(_model(change.old))
        before, after = _kind(change.old), _kind(change.new)
        if before == after:
            return
        if before is not None:
            self._count[before] -= 1
        if after is not None:
            self._count[after] += 1
        self._count = +self._count
        self._kinds = None

    @property
    def largest_mib(self) -> int | None:
        """The memory of the largest card; None while no card is known."""
        return max((kind.memory_mib for kind in self._count), default=None)

    @property
    def models(self) -> Collection[str]:
        """The models of all cards."""
        return [model for model, count in self._models.items() if count > 0]

    @property
    def kinds(self) -> CardTotals | None:
        """One card of each kind, arrays of shape (kinds,); None while no card is known."""
        if self._kinds is None and self._count:
            known = list(self._count)
            precisions = sorted({precision for kind in known for precision, _ in kind.tflops})
            self._kinds = CardTotals(
                np.array([kind.memory_mib for kind in known], dtype=np.int64),
                {name: np.array([dict(kind.tflops).get(name, 0.0) for kind in known]) for name in precisions},
                np.arange(len(known)),
                known,
            )
        return self._kinds


def _model(gpu: ElasticGPU | None) -> list[str]:
    return [] if gpu is None or gpu.spec.physical_gpu is None else [gpu.spec.physical_gpu.model]


def _kind(gpu: ElasticGPU | None) -> CardKind | None:
    """Return the properties of a card that decide how much a container takes of it."""
    card: PhysicalGPU | None = None if gpu is None else gpu.spec.physical_gpu
    if card is None:
        return None
    profiles = tuple(card.mig.profiles) if card.mig is not None else ()
    return CardKind("", card.memory_mib, tflops=tuple(sorted(card.tflops.items())), profiles=profiles)
