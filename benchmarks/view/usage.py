"""The use of a made-up cluster's pods, as a Prometheus that has scraped their agents would report it."""

import random
from collections.abc import Iterable, Iterator
from typing import Final

from benchmarks.extender.world import CARD_MIB, Json
from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu_base.api.quantities import MIB_BYTES

USAGE: Final = "usage.prom"
"""The file's name."""


def used(pods: Iterable[Json]) -> Iterator[str]:
    """Yield the use of the pods, drawn with one seed; nothing for pods without cards."""
    draw = random.Random(1)
    for pod in pods:
        yield from _used(pod, draw)


def _used(pod: Json, draw: random.Random) -> Iterator[str]:
    meta = pod["metadata"]
    text = meta["annotations"].get(names.ALLOCATION)
    for container, given in decode_allocation(text).containers.items() if text else ():
        for share in given.cards:
            labels = f'namespace="{meta["namespace"]}",pod="{meta["name"]}",container="{container}"'
            memory = draw.randrange(CARD_MIB) * MIB_BYTES
            figures = {
                "memory_used_bytes": memory, "memory_peak_bytes": memory, "memory_refusals_total": 0,
                "core_used_ratio": draw.random(), "gpu_seconds_total": 4e4 * draw.random(),
                "throttled_seconds_total": 0.0, "idle_seconds": draw.choice((0.0, 1e3)), "age_seconds": 5e4,
            }  # fmt: skip
            for name, value in figures.items():
                yield f'elasticgpu_container_{name}{{{labels},device_uuid="{share.uuid}"}} {value}\n'
