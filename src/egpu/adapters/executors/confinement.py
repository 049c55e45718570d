"""What keeps an executor small: a control group of its own where there can be one, and an unprivileged user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.adapters.executors import cgroups
from egpu.api.allocation import CardShare
from egpu.errors import InvalidInput, NotSupported

MIB: Final = 1024 * 1024
BASE_MEMORY_MIB: Final = 2048
"""Host memory of an executor besides what its GPU memory may need on the host (managed memory, staging): rings and bulk
areas of its sessions, and what the driver takes."""
MAX_PROCESSES: Final = 8192
"""64 sessions, each with the driver's threads and those that wait for the GPU."""
NOWHERE: Final = "none"


@dataclass(frozen=True, kw_only=True)
class ConfinementConfig:
    """`cgroup`: a delegated cgroup v2 directory; "" for the daemon's own, "none" for no groups at all.

    `memory_mib` of the host per executor (0: 2 GiB and as much as it has of GPU memory); `cpus` per executor (0: no
    cap, shared in proportion to the executors' compute); `user` UID:GID of executors ("": the daemon's own).
    """

    cgroup: str = ""
    memory_mib: int = 0
    cpus: float = 0.0
    user: str = ""


UNCONFINED: Final = ConfinementConfig(cgroup=NOWHERE)


class Confinement:
    """What holds the executors of one daemon. `told` says it in words, for whoever asks."""

    def __init__(self, config: ConfinementConfig = UNCONFINED) -> None:
        """Takes the delegated hierarchy if there is one. Raises InvalidInput: what was asked for is not there."""
        self._config = config
        parts = config.user.split(":")
        if config.user and (len(parts) != 2 or not all(part.isdigit() and int(part) for part in parts)):
            raise InvalidInput("executor-user", f"{config.user!r} is not UID:GID with neither of them 0")
        self.hierarchy: cgroups.Hierarchy | None = None
        why = "not asked for"
        if config.cgroup != NOWHERE:
            try:
                self.hierarchy = cgroups.find(Path(config.cgroup) if config.cgroup else None)
            except NotSupported as error:
                if config.cgroup:
                    raise InvalidInput("cgroup", str(error)) from error
                why = str(error)
        limited = f"cgroup {self.hierarchy.root}" if self.hierarchy else f"no cgroup: {why}"
        self.told = f"{limited}; user {config.user or 'of the daemon'}"

    def keep_private(self, directory: Path) -> None:
        """Let nobody but us and our executors through it."""
        if self._config.user:
            os.chown(directory, -1, int(self._config.user.split(":")[1]))
            directory.chmod(0o710)
        else:
            directory.chmod(0o700)

    def let_write(self, file: Path) -> None:
        """Give our executors a file that nobody else can write."""
        if self._config.user:
            os.chown(file, *map(int, self._config.user.split(":")))

    def enter(self, name: str, cards: Sequence[CardShare]) -> list[str]:
        """Make the group of an executor; the arguments with which it goes there. Raises Unavailable."""
        arguments = ["--user", self._config.user] if self._config.user else []
        if self.hierarchy is None:
            return arguments
        return ["--cgroup", str(self.hierarchy.create(name, self.limits(cards)).path), *arguments]

    def limits(self, cards: Sequence[CardShare]) -> cgroups.Limits:
        """Of an executor with these shares."""
        config = self._config
        memory_mib = config.memory_mib or BASE_MEMORY_MIB + sum(card.memory_mib for card in cards)
        return cgroups.Limits(
            memory_bytes=memory_mib * MIB,
            cpu_weight=min(10_000, max(1, sum(card.core or 100 for card in cards))),
            cpus=config.cpus,
            processes=MAX_PROCESSES,
        )

    def end(self, name: str) -> None:
        """Kill what is in an executor's group and remove it. Raises Unavailable."""
        if self.hierarchy is not None:
            self.hierarchy.group(name).end()

    def sweep(self, prefix: str, kept: set[str]) -> None:
        """End the groups that an earlier run left. Raises Unavailable."""
        for group in self.hierarchy.groups(prefix) if self.hierarchy is not None else ():
            if group.path.name not in kept:
                group.end()


def group_name(directory: Path) -> str:
    """The control group of the executor in this directory: told apart from those of this daemon's other executors."""
    return f"{directory.parent.name}-{directory.name}"
