"""What a node's agent and its shim (`egpu.apps.shim`) say to each other, all of it below STATE_DIR/shim, root's alone.

offer    what the shim answers kubelet with: a file, which the agent writes and the shim reads
orders   executors, started and ended as the agent orders, and MPS servers: a socket, on which the shim listens

STATE_DIR/shim/
  offer.json      the offer
  agent.sock      the agent's device plugin: asked by the shim whenever a container is about to start
  orders.sock     orders for executors
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.adapters.private import private_directory

MPS_FOLDER: Final = "mps"
"""Of the state directory: a directory for each card that has an MPS server (`egpu.apps.agent.cards.mps`)."""


@dataclass(frozen=True)
class ShimDirectory:
    """The names in it."""

    path: Path

    @classmethod
    def of(cls, state_dir: Path) -> ShimDirectory:
        """That of an agent's state directory, made where there is none. Raises NotPrivate, Unavailable."""
        path = private_directory(state_dir / "shim")
        path.chmod(0o700)
        return cls(path)

    @property
    def offer(self) -> Path:
        return self.path / "offer.json"

    @property
    def agent_socket(self) -> Path:
        return self.path / "agent.sock"

    @property
    def orders_socket(self) -> Path:
        return self.path / "orders.sock"
