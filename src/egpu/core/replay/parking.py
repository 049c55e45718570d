"""The pods of a trace as slices that share the room of their cards, because they are idle for a part of their time.

A pod is such a slice if it asks for a part of one card with an amount of memory, and the trace says that it is idle at
times. It needs as much memory of its node as its slice has, for the time when it is parked. Its share of the compute
stays its own: parking shares memory.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from egpu.core.policies.fleet import Placement
from egpu.core.policies.shapes import Shape


def sharing(pods: Sequence[Shape], idle_percent: Sequence[int], resident_percent: int) -> list[Shape]:
    """Return the pods; those that are idle at times have `resident_percent` of their memory to themselves."""
    known: dict[Shape, Shape] = {}
    found: list[Shape] = []
    for pod, idle in zip(pods, idle_percent, strict=True):
        asked = pod
        if idle and pod.cards == 1 and pod.card_memory_mib and not pod.whole:
            memory_mib = pod.card_memory_mib
            resident_mib = -(-memory_mib * resident_percent // 100)
            ram_mib = pod.ram_mib + memory_mib
            asked = replace(pod, ram_mib=ram_mib, resident_mib=resident_mib, busy_percent=100 - idle)
        found.append(known.setdefault(asked, asked))
    return found


def contended_percent(running: Iterable[tuple[Shape, Placement]]) -> float:
    """Return how many of the cards with shared room have programs that together are busy for more than the whole time.
    These wait for each other."""
    busy: Counter[tuple[int, int]] = Counter()
    for shape, place in running:
        if shape.shared_mib:
            busy[place.row, place.cards[0]] += shape.busy_percent
    return 100 * sum(percent > 100 for percent in busy.values()) / max(len(busy), 1)
