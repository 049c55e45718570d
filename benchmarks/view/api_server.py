"""The API server of `benchmarks.extender` with a busier cluster:
`python -m benchmarks.view.api_server NODES PODS FOLDER`.

One in fifty of the pods, in several namespaces, waits: half of these for a request that no node can serve. The use of
the others is in the file `USAGE` of the folder, as a Prometheus would report it.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from benchmarks.extender.api_server import serve
from benchmarks.extender.world import KINDS, TOO_LARGE, World, waiting
from benchmarks.view.usage import USAGE, used

NAMESPACES: Final = ("vision", "speech", "search", "ads", "research", "default")
WAITING_OF: Final = 50


def busy(nodes: int, pods: int) -> World:
    """Return a world of so many nodes of eight cards, and pods."""
    wait = pods // WAITING_OF
    world = World(nodes, running=pods - wait, namespaces=NAMESPACES)
    for number in range(wait):
        kind = TOO_LARGE if number % 2 else KINDS[number // 2 % len(KINDS)]
        world.pods.append(waiting(f"waiting-{number}", kind, namespace=NAMESPACES[number % len(NAMESPACES)]))
    return world


if __name__ == "__main__":
    world, folder = busy(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3])
    (folder / USAGE).write_text("".join(used(world.pods)))
    asyncio.run(serve(world, folder))
