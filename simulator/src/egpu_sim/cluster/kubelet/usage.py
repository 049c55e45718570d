"""Present usage of containers: processor time over a moment, and memory of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from egpu_base.system import proc
from egpu_sim.cluster.kubelet.runtime import look
from egpu_sim.cluster.kubelet.worker import PodWorker

WINDOW_SECONDS = 1.0
"""The moment over which processor time is measured, only on demand."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class _Sample:
    parent: int
    ticks: int
    """Processor time since its start."""


async def measure(workers: Mapping[str, PodWorker]) -> dict[str, Any]:
    """Measure by pod uid, then container: `cpu_nanocores`, and `memory_bytes` that are not shared with files."""
    before = await asyncio.to_thread(_samples)
    await asyncio.sleep(WINDOW_SECONDS)
    after = await asyncio.to_thread(_samples)
    found: dict[str, Any] = {}
    for uid, worker in workers.items():
        for record in (*worker.inits, *worker.apps):
            last = record.last
            running = look(last.directory) if last is not None else None
            if running is None:
                continue
            tree = _tree(after, running.pid)
            ticks = sum(after[pid].ticks - (before[pid].ticks if pid in before else 0) for pid in tree)
            found.setdefault(uid, {})[record.name] = {
                "cpu_nanocores": int(max(0, ticks) * 10**9 / _TICKS_PER_SECOND / WINDOW_SECONDS),
                "memory_bytes": sum(map(_memory_bytes, tree)),
            }
    return {"window_seconds": WINDOW_SECONDS, "pods": found}


def _samples() -> dict[int, _Sample]:
    """Return every process of this machine, by pid."""
    found: dict[int, _Sample] = {}
    for pid in proc.pids():
        if fields := proc.stat(pid):
            found[pid] = _Sample(int(fields[1]), int(fields[11]) + int(fields[12]))
    return found


def _tree(samples: Mapping[int, _Sample], root: int) -> list[int]:
    """Return a present process, its children, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for pid, sample in samples.items():
        children.setdefault(sample.parent, []).append(pid)
    found = [root] if root in samples else []
    for pid in found:
        found += children.get(pid, [])
    return found


def _memory_bytes(pid: int) -> int:
    _, resident, shared, *_ = map(int, proc.read(pid, "statm").split() or (0, 0, 0))
    return (resident - shared) * _PAGE_BYTES
