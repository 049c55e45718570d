"""The protocol between a node's agent and its shim (`egpu.apps.shim`), all below STATE_DIR/shim, for root alone.

offer    the shim's answers to kubelet: a file that the agent writes and the shim reads
amounts  what the agent published, for the shim to take back if the agent is killed
orders   executors, started and ended as the agent orders, and MPS servers: a socket, on which the shim listens

STATE_DIR/shim/
  offer.json      the offer
  amounts.json    the names of published amounts, and amounts.lock while an agent lives
  agent.sock      the agent's device plugin: asked by the shim whenever a container is about to start
  orders.sock     orders for executors
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.adapters.shim.amounts import PublishedAmounts
from egpu_base.system.private import private_directory

__all__ = ["MPS_FOLDER", "PublishedAmounts", "ShimDirectory"]

MPS_FOLDER: Final = "mps"
"""The folder with a directory for each card that has an MPS server (`egpu.apps.agent.cards.mps_servers`)."""


@dataclass(frozen=True)
class ShimDirectory:
    """The names in the directory."""

    path: Path

    @classmethod
    def of(cls, state_dir: Path) -> ShimDirectory:
        """Return the one of an agent's state directory, made if needed. Raises NotPrivate, Unavailable."""
        path = private_directory(state_dir / "shim")
        path.chmod(0o700)
        return cls(path)

    @property
    def offer(self) -> Path:
        return self.path / "offer.json"

    @property
    def amounts(self) -> Path:
        return self.path / "amounts.json"

    @property
    def agent_socket(self) -> Path:
        return self.path / "agent.sock"

    @property
    def orders_socket(self) -> Path:
        return self.path / "orders.sock"
