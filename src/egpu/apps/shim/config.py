"""What a shim is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.executors.confinement import UNGROUPED, ConfinementConfig


@dataclass(frozen=True)
class ShimConfig:
    """`kubelet_dir` and `state_dir` are the agent's. `driver_dir` is a simulated machine's, None for this machine's own
    driver."""

    kubelet_dir: Path = Path("/var/lib/kubelet")
    state_dir: Path = Path("/var/lib/elasticgpu")
    driver_dir: Path | None = None
    confinement: ConfinementConfig = UNGROUPED
    image_cache_mib: int | None = None
