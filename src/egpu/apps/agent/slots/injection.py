"""Chooses how a slot reaches its container: as a CDI device if kubelet and runtime support it, else as paths.

The choice is read from the Node object. The administrator decides what it does not show (containerd 1.7 supports CDI
if its configuration enables it)."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from egpu_base.api.kubernetes import NodeSystemInfo
from egpu_base.errors import Unavailable

log = structlog.get_logger(__name__)

Mode = Literal["auto", "always", "never"]

KUBELET: Final = (1, 31)
"""The first kubelet that passes on CDI names of device plugins by default."""
RUNTIMES: Final = {"containerd": (2, 0), "cri-o": (1, 28), "egpu": (1, 0)}
"""The first versions that look up CDI names of kubelet's requests by default; egpu is the simulated one."""


@dataclass(frozen=True)
class Choice:
    cdi: bool
    reason: str

    def __str__(self) -> str:
        return f"{'CDI' if self.cdi else 'paths'}: {self.reason}"


def choose(mode: Mode, node: NodeSystemInfo) -> Choice:
    """Choose for a node, with the reason. Unreadable versions count as too old."""
    if mode != "auto":
        return Choice(mode == "always", f"--cdi {mode}")
    runtime, _, version = node.container_runtime_version.partition("://")
    if _version(node.kubelet_version) < KUBELET:
        return Choice(False, f"kubelet {node.kubelet_version} is older than 1.31")
    if runtime not in RUNTIMES:
        return Choice(
            False, f"it is not known whether {runtime or 'the runtime'} supports CDI; if it does, use --cdi always"
        )
    if _version(version) < RUNTIMES[runtime]:
        needed = ".".join(map(str, RUNTIMES[runtime]))
        reason = f"{runtime} {version} is older than {needed}; if its configuration enables CDI, use --cdi always"
        return Choice(False, reason)
    return Choice(True, f"kubelet {node.kubelet_version}, {runtime} {version}")


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


class Injection:
    """The choice for this node. Unless it is configured there is none before `learn`, and kubelet gets no slots."""

    def __init__(self, mode: Mode) -> None:
        self._mode: Mode = mode
        self._choice: Choice | None = None
        self._known = asyncio.Event()
        if mode != "auto":
            self.learn(NodeSystemInfo())

    @property
    def cdi(self) -> bool:
        return self._choice is not None and self._choice.cdi

    def learn(self, node: NodeSystemInfo) -> str:
        """Choose by the Node object, and return the choice in words.

        Raises Unavailable if the object does not say enough yet."""
        if self._mode == "auto" and not node.kubelet_version:
            raise Unavailable("kubelet has not reported its version yet")
        choice = choose(self._mode, node)
        if choice != self._choice:
            log.info("slots reach containers", by=str(choice))
        self._choice = choice
        self._known.set()
        return str(choice)

    async def known(self) -> None:
        await self._known.wait()
