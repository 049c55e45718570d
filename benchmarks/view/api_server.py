"""The API server of `benchmarks.extender` with a busier cluster:
`python -m benchmarks.view.api_server NODES PODS FOLDER`.

Of the pods, of several namespaces, one in fifty waits: half of these for what no node has. What the others use is in
the file `USAGE` of the folder, as a Prometheus would tell it.
"""

import asyncio
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.extender.api_server import serve
from benchmarks.extender.world import CARD_MIB, KINDS, TOO_LARGE, Json, World, waiting
from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.api.quantities import MIB_BYTES

NAMESPACES: Final = ("vision", "speech", "search", "ads", "research", "default")
WAITING_OF: Final = 50
USAGE: Final = "usage.prom"


def busy(nodes: int, pods: int) -> World:
    """So many nodes of eight cards, and pods."""
    wait = pods // WAITING_OF
    world = World(nodes, running=pods - wait, namespaces=NAMESPACES)
    for number in range(wait):
        kind = TOO_LARGE if number % 2 else KINDS[number // 2 % len(KINDS)]
        world.pods.append(waiting(f"waiting-{number}", kind, namespace=NAMESPACES[number % len(NAMESPACES)]))
    return world


def used(pod: Json, draw: random.Random) -> Iterator[str]:
    """What a pod's agent tells of its slices; nothing of a pod that has none."""
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


if __name__ == "__main__":
    world, folder = busy(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3])
    draw = random.Random(1)
    (folder / USAGE).write_text("".join(line for pod in world.pods for line in used(pod, draw)))
    asyncio.run(serve(world, folder))
