"""Settings of an agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.executors.confinement import UNGROUPED, ConfinementConfig
from egpu.adapters.pool.security import Credentials
from egpu.apps.agent.slots.injection import Mode
from egpu_base.errors import InvalidInput
from egpu_base.kubelet.cdi import DIRECTORIES

#: More containers than this never share one card. kubelet is told every slot: 64 cards of 64 stay under 200 kB.
SLOTS_PER_CARD = 48
MAX_SLOTS = 16_384


@dataclass(frozen=True)
class AgentConfig:
    """`kubeconfig` None means in-cluster or the user's own. Missing directories are created.

    `device_root` is the directory of `nvidia<minor>`; a simulated node has its own, and `nvml_library` is its own NVML.
    `cgroup_root` is the directory of kubelet's control groups, by which a driver may limit memory. `listen` serves
    /healthz, /readyz and /metrics; port 0 takes a free one.

    `pool_pki` has ca.crt, server-NODE.crt and server-NODE.key, as written by `egpu certificate server NODE`, and makes
    the node a member of the pool. Other nodes' agents connect to `pool_listen`, which is published as `pool_advertise`
    (default: the listening address). `pool_link_mbps` 0 takes the kernel's value for the fastest interface.

    `mount_usage`: container-writable files of slots get a file system each, which cannot grow; kubelet must see the
    agent's mounts. `vocabularies` are the enabled optional ones; the node also publishes its cards in their names.
    `cdi`: slots are CDI devices (auto: if kubelet and runtime support them), written into the last of
    `cdi_directories`; NVIDIA's are searched in all of them. `sharing_dir`: how `egpu run` and `egpu serve` of this
    machine are found, so that their slices have windows beside those of the slots. `shim`: the node has a shim
    (`egpu.apps.shim`), which answers kubelet and is the parent of executors, confined by its own settings; else both
    belong to this process, and end with it. `hardware_metrics`: publish temperature and the like, for nodes without
    DCGM. `library_path`: further folders of NVIDIA's libraries for executors. `mps_shm_mib`: the size of the /dev/shm
    that a card's MPS daemon shares with its programs, mounted as the files of slots are; 0: they share none.
    `parking_memory_mib`: the node's own memory for slices that are parked for others (None: half of it).
    `daemon_set`: NAMESPACE/NAME of the agent's own, whose removal ends what the node offers."""

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
    library_path: tuple[Path, ...] = ()
    mount_usage: bool = False
    cdi: Mode = "auto"
    cdi_directories: tuple[Path, ...] = DIRECTORIES
    sharing_dir: Path | None = None
    shim: bool = False
    hardware_metrics: bool = False
    mps_shm_mib: int = 0
    parking_memory_mib: int | None = None
    daemon_set: str = ""

    def slots(self, cards: int) -> int:
        """Return the number of slots of a node with so many cards: at least one card's if the pool's cards serve it."""
        return min(MAX_SLOTS, max(cards, int(self.pool_pki is not None)) * self.slots_per_card)

    @property
    def slots_dir(self) -> Path:
        return self.state_dir / "slots"


def pool_credentials(config: AgentConfig) -> Credentials | None:
    """Return this node's certificate of the pool, or None if it does not take part. Raises InvalidInput if files are
    missing."""
    if config.pool_pki is None:
        return None
    files = ("ca.crt", f"server-{config.node}.crt", f"server-{config.node}.key")
    ca, certificate, key = (config.pool_pki / file for file in files)
    missing = [str(path) for path in (ca, certificate, key) if not path.is_file()]
    if missing:
        made = f"egpu certificate server {config.node}"
        raise InvalidInput("pool-pki", f"{missing[0]} does not exist; run `{made}` where the pool's authority is kept")
    return Credentials(ca=ca, certificate=certificate, key=key)
