"""The configuration of a simulated kubelet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

RUNS: Final = "run"
VOLUMES: Final = "volumes"
"""Folders of the kubelet directory, by pod: runs of its containers, and volumes that live as long as it."""


@dataclass(frozen=True)
class Listening:
    """A loopback port, the certificates that it shows, and the authority of its clients."""

    port: int
    certificate: Path
    key: Path
    client_ca: Path


@dataclass(frozen=True)
class KubeletConfig:
    """One simulated node.

    `driver_dir` is the driver directory of the node's simulated machine (see `egpu_sim.machines.machine`); None
    is a node without one, whose containers get no CUDA libraries. A crashed container waits `backoff_seconds`, doubled
    at each crash up to `backoff_limit_seconds`: far less than a real kubelet's 10 s to 5 min, so that people who try
    things do not wait. `seed` makes random choices repeatable. The runtime looks CDI devices up in `cdi_directories`,
    the last one first, and in none of the machine's own, whose cards are not this node's. `images` is the user's table
    of images, read at each start of a container. `listening` is for API servers of another project; ours needs no port.
    """

    node: str
    kubeconfig: Path
    kubelet_dir: Path
    driver_dir: Path | None = None
    cpu: str = "8"
    memory: str = "32Gi"
    pods: int = 110
    node_ip: str = "127.0.0.1"
    labels: dict[str, str] = field(default_factory=dict[str, str])
    backoff_seconds: float = 1.0
    backoff_limit_seconds: float = 60.0
    heartbeat_seconds: float = 10.0
    seed: int | None = None
    cdi_directories: tuple[Path, ...] = ()
    images: Path | None = None
    listening: Listening | None = None

    @property
    def run_dir(self) -> Path:
        """The directory of container runs, in memory, which a container runtime would keep."""
        return self.kubelet_dir / RUNS

    @property
    def volumes_dir(self) -> Path:
        """Volumes that live as long as their pod: `<pod>/<volume>`."""
        return self.kubelet_dir / VOLUMES

    def volume_dir(self, uid: str, name: str, *, medium: str) -> Path:
        """Return the directory of a pod's emptyDir, in memory for the medium Memory (no container is `.memory`)."""
        return (self.run_dir / uid / ".memory" if medium == "Memory" else self.volumes_dir / uid) / name

    @property
    def cgroup_root(self) -> Path:
        return self.kubelet_dir / "cgroup"

    def pod_group(self, uid: str) -> Path:
        """Return a pod's group, named as kubelet names it with cgroupfs."""
        return self.cgroup_root / "kubepods" / f"pod{uid}"

    @property
    def logs_dir(self) -> Path:
        """Logs: `<namespace>_<pod>_<uid>/<container>/<restart>.log`."""
        return self.kubelet_dir / "pods"
