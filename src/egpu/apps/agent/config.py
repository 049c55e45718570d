"""What an agent is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.cdi import DIRECTORIES
from egpu.adapters.executors.confinement import UNGROUPED, ConfinementConfig
from egpu.apps.agent.slots.injection import Mode

#: More containers than this never share one card. kubelet is told every slot: 64 cards of 64 stay under 200 kB.
SLOTS_PER_CARD = 48
MAX_SLOTS = 16_384


@dataclass(frozen=True)
class AgentConfig:
    """`kubeconfig` None means in-cluster or the user's own. Directories are made when missing.

    `device_root` is where `nvidia<minor>` live; a simulated node has its own directory, and `nvml_library` its own
    NVML. `cgroup_root` is where kubelet's control groups are, by which a driver may limit memory.
    `listen` serves /healthz, /readyz and /metrics; port 0 takes a free one. `pool_pki` holds ca.crt,
    server-NODE.crt and server-NODE.key, as `egpu certificate server NODE` writes them, and makes the node take part in
    the pool: other nodes' agents come in at `pool_listen`, which they know as `pool_advertise` (default: where it
    listens); `pool_link_mbps` 0 is what the kernel says of the fastest interface. `mount_usage`: what containers may
    write of their slots is a file system of its own each, which cannot grow; kubelet has to see what the agent mounts.
    `vocabularies` are the optional ones that are turned on, in whose names the node publishes its cards too. `cdi`:
    slots are CDI devices (auto: where kubelet and runtime take those), written into the last of `cdi_directories`;
    NVIDIA's are looked for in all of them. `sharing_dir`: where `egpu run` and `egpu serve` of this machine are
    found, so that their slices have windows beside those of the slots. `shim`: the node has a
    shim (`egpu.apps.shim`), which answers kubelet and whose children executors are, held as it is told; else both are
    this process's, and end with it. `hardware_metrics`: temperature and the like are told of, for nodes without DCGM.
    `mps_shm`: what MPS control daemons have as /dev/shm, which their clients must share; None: nothing is shared.
    """

    node: str
    kubeconfig: Path | None = None
    kubelet_dir: Path = Path("/var/lib/kubelet")
    state_dir: Path = Path("/var/lib/elasticgpu")
    device_root: Path = Path("/dev")
    nvml_library: Path | None = None
    cgroup_root: Path = Path("/sys/fs/cgroup")
    node_ip: str = ""
    listen: str = "127.0.0.1:0"
    slots_per_card: int = SLOTS_PER_CARD
    inventory_seconds: float = 10.0
    sweep_seconds: float = 15.0
    publish_seconds: float = 60.0
    pool_pki: Path | None = None
    pool_listen: str = "127.0.0.1:0"
    pool_advertise: str = ""
    pool_link_mbps: int = 0
    vocabularies: tuple[str, ...] = ()
    confinement: ConfinementConfig = UNGROUPED
    image_cache_mib: int | None = None
    mount_usage: bool = False
    cdi: Mode = "auto"
    cdi_directories: tuple[Path, ...] = DIRECTORIES
    sharing_dir: Path | None = None
    shim: bool = False
    hardware_metrics: bool = False
    mps_shm: Path | None = None

    def slots(self, cards: int) -> int:
        """How many slots a node of so many cards has: one card's at least where the pool's cards serve."""
        return min(MAX_SLOTS, max(cards, int(self.pool_pki is not None)) * self.slots_per_card)

    @property
    def slots_dir(self) -> Path:
        return self.state_dir / "slots"
