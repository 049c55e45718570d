"""The cards of the cluster as admission needs them: how large the largest is, and which kinds there are."""

from collections import Counter

import numpy as np

from egpu.adapters.kubernetes import Change
from egpu.api.objects import ElasticGPU, PhysicalGPU
from egpu.core.attributes import CardKind
from egpu.core.provisioners import CardTotals


class KnownCards:
    """Follows the published cards, so that a question costs the same however many there are."""

    def __init__(self) -> None:
        self._count: Counter[CardKind] = Counter()
        self._kinds: CardTotals | None = None

    def changed(self, change: Change[ElasticGPU]) -> None:
        """A card, or a slice, came, went or changed."""
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
        """Memory of the largest card; None while none is known."""
        return max((kind.memory_mib for kind in self._count), default=None)

    @property
    def kinds(self) -> CardTotals | None:
        """One card of each kind, arrays of shape (kinds,); None while none is known."""
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


def _kind(gpu: ElasticGPU | None) -> CardKind | None:
    """What matters of a card for how much a container takes of it."""
    card: PhysicalGPU | None = None if gpu is None else gpu.spec.physical_gpu
    if card is None:
        return None
    profiles = tuple(card.mig.profiles) if card.mig is not None else ()
    return CardKind("", card.memory_mib, tflops=tuple(sorted(card.tflops.items())), profiles=profiles)
