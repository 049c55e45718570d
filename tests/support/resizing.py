"""Programs that say what they see of their slice while it is resized, and what must agree about a slice then."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpu.adapters.executors.record import RECORD
from egpu.adapters.slices import pages
from egpu.api import names
from egpu.api.allocation import ContainerAllocation, decode_allocation
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.apps.agent.slots.directories import (
    EXECUTOR_POLICY_FILE,
    EXECUTOR_USAGE_FILE,
    OWNER_FILE,
    POLICY_FILE,
    USAGE_FILE,
)
from egpu.laptop.cluster import Cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Client

MIB = 1024 * 1024

PROGRAM = r"""
import ctypes, os, sys, time
wanted, said = sys.argv[1], sys.argv[2]
cuda = ctypes.CDLL("libcuda.so.1")
def ok(code):
    if code:
        raise SystemExit(f"CUDA error {code}")
context, pieces = ctypes.c_void_p(), []
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
while True:
    try:
        target = int(open(wanted).read())
    except (OSError, ValueError):
        target = 0
    while len(pieces) > target:
        ok(cuda.cuMemFree_v2(pieces.pop()))
    while len(pieces) < target:
        piece = ctypes.c_void_p()
        if cuda.cuMemAlloc_v2(ctypes.byref(piece), ctypes.c_size_t(64 << 20)):
            break
        pieces.append(piece)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ok(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    with open(said + ".new", "w") as file:
        file.write(f"{total.value >> 20} {free.value >> 20} {len(pieces)}")
    os.rename(said + ".new", said)
    time.sleep(0.02)
"""
"""Holds as many pieces of 64 MiB as its file says, if it gets them, and writes what it sees 50 times a second."""


@dataclass(frozen=True)
class Seen:
    """By a program: MiB in all and free, and pieces of 64 MiB that it has."""

    total_mib: int
    free_mib: int
    pieces: int


class Program:
    """A container that runs PROGRAM; `directory` is where it is told and says things."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._script = directory / "program.py"
        self._script.write_text(PROGRAM)
        self._wanted, self._said = directory / f"{name}.wanted", directory / f"{name}.said"

    def hold(self, pieces: int) -> None:
        self._wanted.write_text(str(pieces))

    def seen(self) -> Seen | None:
        try:
            return Seen(*map(int, self._said.read_text().split()))
        except (OSError, ValueError):
            return None

    def pod(self, limits: dict[str, str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
        command = [sys.executable, str(self._script), str(self._wanted), str(self._said)]
        container = {"name": "app", "image": "any", "command": command, "resources": {"limits": limits}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "annotations": annotations or {}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"},
        }


async def given(client: Client, name: str) -> ContainerAllocation | None:
    """What the container of a pod has by its annotation."""
    text = (await client.get(Pod, name, namespace="default")).annotations.get(names.ALLOCATION)
    return None if text is None else decode_allocation(text).containers["app"]


async def disagreement(running: Cluster, client: Client, program: Program, claim: str = "") -> str:
    """What does not agree about the slice of a program: its annotation, claim and claim's slices, page and what the
    program sees. Empty where all is settled."""
    pod = await client.get(Pod, program.name, namespace="default")
    container = decode_allocation(pod.annotations[names.ALLOCATION]).containers["app"]
    (share,) = container.cards
    if container.held:
        return f"{container.held} is still held"
    if claim:
        found = await client.get(ElasticGPUClaim, claim, namespace="default")
        held = found.status.allocation
        if held is None or held.container.cards != container.cards or held.container.held:
            return f"the claim says {held}"
        sizes = [
            (gpu.spec.slice.core, gpu.spec.slice.memory_mib)
            for gpu in await client.list(ElasticGPU)
            if gpu.spec.slice is not None and gpu.spec.claim_ref is not None and gpu.spec.claim_ref.uid == found.uid
        ]
        if sizes != [(share.core, share.memory_mib)]:
            return f"the claim's slices are {sizes}"
    page = page_of(running, pod)
    if page != (share.core, share.memory_mib):
        return f"the page says {page}, the allocation {share.core} %, {share.memory_mib} MiB"
    seen = program.seen()
    if seen is None or seen.total_mib != share.memory_mib:
        return f"the program sees {seen}, of {share.memory_mib} MiB"
    return ""


def line_of(running: Cluster, pod: Pod) -> pages.DevicePolicy | None:
    """The policy page's line that holds a pod now, wherever it is."""
    for slot in _slots(running, pod):
        page = slot / (EXECUTOR_POLICY_FILE if (slot / EXECUTOR_POLICY_FILE).exists() else POLICY_FILE)
        if page.exists():
            (line,) = pages.read_policy(page).devices
            return line
    return None


def page_of(running: Cluster, pod: Pod) -> tuple[int, int] | None:
    """Percent and MiB of the policy page that holds a pod now."""
    line = line_of(running, pod)
    return None if line is None else (line.core_ppm // 10_000, line.memory_limit_bytes // MIB)


def gpu_ns_of(running: Cluster, pod: Pod) -> int:
    """How long the card has worked for a pod, by its usage page; 0 before it has one."""
    for slot in _slots(running, pod):
        page = slot / (EXECUTOR_USAGE_FILE if (slot / EXECUTOR_USAGE_FILE).exists() else USAGE_FILE)
        if page.exists():
            return pages.UsageReader(page).read().devices[0].gpu_ns
    return 0


def _slots(running: Cluster, pod: Pod) -> Iterator[Path]:
    """Directories that say that they are the pod's."""
    # os.walk passes over a directory that is removed meanwhile; Path.rglob raises.
    found = (Path(at) / name for at, _, files in os.walk(running.state_dir / "nodes") for name in files)
    for file in found:
        record = _record(file) if file.name in (OWNER_FILE, RECORD) else None
        owner = {} if record is None else record.get("owner", record)
        if pod.uid in (owner.get("podUid"), owner.get("uid")):
            yield file.parent


def _record(file: Path) -> dict[str, Any] | None:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None  # just being replaced
