"""The cards of the cluster as admission needs them: how large the largest is, and which kinds there are."""

from collections import Counter

import numpy as np

from egpu.adapters.kubernetes import Change
from egpu.api.objects import ElasticGPU, PhysicalGPU
from egpu.core.provisioners import CardTotals

_Kind = tuple[int, tuple[tuple[str, float], ...]]
"""Memory in MiB, and TFLOPS by precision."""


class KnownCards:
    """Follows the published cards, so that a question costs the same however many there are."""

    def __init__(self) -> None:
        self._count: Counter[_Kind] = Counter()
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
        return max((memory_mib for memory_mib, _ in self._count), default=None)

    @property
    def kinds(self) -> CardTotals | None:
        """One card of each kind, arrays of shape (kinds,); None while none is known."""
        if self._kinds is None and self._count:
            known = list(self._count)
            precisions = sorted({precision for _, tflops in known for precision, _ in tflops})
            self._kinds = CardTotals(
                np.array([memory_mib for memory_mib, _ in known], dtype=np.int64),
                {name: np.array([dict(tflops).get(name, 0.0) for _, tflops in known]) for name in precisions},
            )
        return self._kinds


def _kind(gpu: ElasticGPU | None) -> _Kind | None:
    card: PhysicalGPU | None = None if gpu is None else gpu.spec.physical_gpu
    return None if card is None else (card.memory_mib, tuple(sorted(card.tflops.items())))
