"""A probe in place of a server, because simulated nodes have no images: it says what a container has."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from egpu_base.kubernetes import Client
from support.waiting import until

_PROBE: Final = (Path(__file__).parents[1] / "cluster" / "probe.py").read_text()
SCRIPT: Final = f"""{_PROBE}
import os, time
print(json.dumps(dict(os.environ)))
print(json.dumps([line.split()[2] for line in open("/proc/self/mounts") if line.split()[1] == "/dev/shm"]), flush=True)
time.sleep(1000)
"""
SECONDS: Final = 120


class Said(NamedTuple):
    """What a container has: its cards as CUDA shows them, its variables, and the kinds of its shared memory."""

    cards: list[dict[str, Any]]
    variables: dict[str, str]
    shared_memory: list[str]


async def said(client: Client, pod: str, container: str) -> Said:
    """Wait until the probe has spoken."""
    lines: list[str] = []

    async def spoken() -> bool:
        path = f"/api/v1/namespaces/default/pods/{pod}/log"
        lines[:] = (await client.text(path, params={"container": container})).splitlines()
        return len(lines) >= len(Said._fields)

    await until(spoken, what=lambda: str(lines), seconds=SECONDS)
    return Said(*(json.loads(line) for line in lines[: len(Said._fields)]))
