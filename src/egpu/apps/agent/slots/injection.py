"""How a slot reaches its container: as a CDI device where kubelet and its runtime know those, else as paths.

Which, is read from the Node object; what it does not show (containerd 1.7 knows CDI when its configuration says so) is
for the administrator to say.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from egpu.api.kubernetes import NodeSystemInfo
from egpu.errors import Unavailable

log = structlog.get_logger(__name__)

Mode = Literal["auto", "always", "never"]

KUBELET: Final = (1, 31)
"""Passes on CDI names of device plugins without being told to."""
RUNTIMES: Final = {"containerd": (2, 0), "cri-o": (1, 28), "egpu": (1, 0)}
"""The first versions that look up CDI names of kubelet's requests without being told to; egpu is the embedded one."""


@dataclass(frozen=True)
class Choice:
    cdi: bool
    reason: str

    def __str__(self) -> str:
        return f"{'CDI' if self.cdi else 'paths'}: {self.reason}"


def choose(mode: Mode, node: NodeSystemInfo) -> Choice:
    """What to do on a node, and why. Words of its versions that cannot be read count as too old."""
    if mode != "auto":
        return Choice(mode == "always", f"--cdi {mode}")
    runtime, _, version = node.container_runtime_version.partition("://")
    if _version(node.kubelet_version) < KUBELET:
        return Choice(False, f"kubelet {node.kubelet_version} is older than 1.31")
    if runtime not in RUNTIMES:
        return Choice(False, f"whether {runtime or 'the runtime'} knows CDI is not known; if it does, --cdi always")
    if _version(version) < RUNTIMES[runtime]:
        needed = ".".join(map(str, RUNTIMES[runtime]))
        told = f"{runtime} {version} is older than {needed}; if its configuration has CDI on, --cdi always"
        return Choice(False, told)
    return Choice(True, f"kubelet {node.kubelet_version}, {runtime} {version}")


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


class Injection:
    """The choice for this node. Unless it is given there is none before `learn`, and kubelet hears of no slots."""

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
        """Choose by what the Node object says; returns the choice in words.

        Raises Unavailable: it says nothing yet, and we would have to know.
        """
        if self._mode == "auto" and not node.kubelet_version:
            raise Unavailable("kubelet has not said its version yet")
        choice = choose(self._mode, node)
        if choice != self._choice:
            log.info("slots reach containers", by=str(choice))
        self._choice = choice
        self._known.set()
        return str(choice)

    async def known(self) -> None:
        await self._known.wait()
