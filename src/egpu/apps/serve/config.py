"""Settings of a node daemon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.executors.confinement import UNGROUPED, ConfinementConfig
from egpu.adapters.pool.security import Credentials


@dataclass(frozen=True)
class ServeConfig:
    """`broker` HOST:PORT; `listen` for data connections; `advertise` is its address for programs elsewhere (default:
    the listening address). `sharing_dir` is where it finds other processes that share the time of this machine's cards
    (None: it is alone). `driver_dir` and `nvml_library` are the driver's; None for this machine's own. `library_path`
    are further folders of NVIDIA's libraries.
    `link_mbps` 0: the speed of the machine's fastest interface. `parking_mib` of the machine's memory are for parked
    leases."""

    name: str
    broker: str
    credentials: Credentials
    state_dir: Path
    sharing_dir: Path | None = None
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    driver_dir: Path | None = None
    library_path: tuple[Path, ...] = ()
    nvml_library: Path | None = None
    link_mbps: int = 0
    inventory_seconds: float = 10.0
    report_seconds: float = 1.0
    watch_seconds: float = 0.02
    max_connections: int = 8192
    confinement: ConfinementConfig = UNGROUPED
    image_cache_mib: int | None = None
    parking_mib: int = 0

    @property
    def leases_dir(self) -> Path:
        return self.state_dir.absolute() / "leases"

    @property
    def cordoned_file(self) -> Path:
        """Exists while an administrator keeps new leases off this server's cards."""
        return self.state_dir.absolute() / "cordoned"

    @property
    def images_dir(self) -> Path:
        return self.state_dir.absolute() / "images"
