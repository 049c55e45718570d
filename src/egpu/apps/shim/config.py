"""Settings of a shim."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.executors.confinement import UNGROUPED, ConfinementConfig


@dataclass(frozen=True)
class ShimConfig:
    """`kubelet_dir` and `state_dir` are the agent's. `driver_dir` has the driver of executors, None for this machine's
    own; `library_path` are further folders of NVIDIA's libraries."""

    kubelet_dir: Path = Path("/var/lib/kubelet")
    state_dir: Path = Path("/var/lib/elasticgpu")
    driver_dir: Path | None = None
    library_path: tuple[Path, ...] = ()
    confinement: ConfinementConfig = UNGROUPED
    image_cache_mib: int | None = None
