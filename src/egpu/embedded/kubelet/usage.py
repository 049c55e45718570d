"""What containers use now: processor time over a moment, and memory of their own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpu.embedded.kubelet.runtime import look
from egpu.embedded.kubelet.worker import PodWorker

WINDOW_SECONDS = 1.0
"""Over which processor time is measured. Nothing is measured while nobody asks."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class _Sample:
    parent: int
    ticks: int
    """Of processor time since it started."""


async def measure(workers: Mapping[str, PodWorker]) -> dict[str, Any]:
    """By pod uid, then container: `cpu_nanocores`, and `memory_bytes` that are not shared with files."""
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
    """Every process of this machine, by pid."""
    found: dict[int, _Sample] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found[int(stat.parent.name)] = _Sample(int(fields[1]), int(fields[11]) + int(fields[12]))
    return found


def _tree(samples: Mapping[int, _Sample], root: int) -> list[int]:
    """A process that is there, its children, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for pid, sample in samples.items():
        children.setdefault(sample.parent, []).append(pid)
    found = [root] if root in samples else []
    for pid in found:
        found += children.get(pid, [])
    return found


def _memory_bytes(pid: int) -> int:
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE_BYTES
