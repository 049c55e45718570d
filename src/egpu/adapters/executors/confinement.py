"""The confinement of an executor: a control group, a user, a view of the files, Landlock.

    control group   host memory, processor time, processes (`egpu.adapters.executors.cgroups`)
    user            of its own, without privileges (`egpu.adapters.executors.users`); needs a view, through which it
                    reaches what lies in directories of the daemon's
    view            a mount namespace with the driver, its own slice and nothing else
    Landlock        the same list, enforced by the kernel for every access

The executor itself tests once which of them this machine supports; each executor then must have all of these.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from egpu.adapters import native
from egpu.adapters.executors import cgroups, users
from egpu.adapters.executors.libraries import is_simulated
from egpu.adapters.executors.users import User, Users
from egpu.api.allocation import CardShare
from egpu_base.errors import InvalidInput, NativeMissing, NotSupported

MIB: Final = 1024 * 1024
BASE_MEMORY_MIB: Final = 2048
"""Host memory of an executor, besides the host's part of GPU memory (managed memory, staging): rings, bulk areas and
replies of its 64 sessions, at most 26 MiB each (`native/executor/session/session.h`), and the driver's."""
MAX_PROCESSES: Final = 8192
"""For 64 sessions, each with the driver's threads and threads that wait for the GPU."""
NOWHERE: Final = "none"
LAYERS: Final = ("cgroup", "user", "view", "landlock")
EXECUTOR: Final = "egpu-executor"
DRIVER: Final = "libcuda.so.1"
CONTROL_DEVICES: Final = (
    "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "nvidia-caps-imex-channels",
)  # fmt: skip
_PROBE_SECONDS: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class ConfinementConfig:
    """`cgroup`: a delegated cgroup v2 directory; "" for the daemon's own, "none" for no groups at all.

    `memory_mib` of the host per executor (0: 2 GiB and as much as it has of GPU memory); `cpus` per executor (0: no
    cap, shared in proportion to the executors' compute); `users` FIRST-LAST of executors (""; `users.DEFAULT_RANGE`
    where the daemon is root; "none": they are who the daemon is). `network`: each executor has one of its own
    (`egpu.adapters.executors.networks`), where ranks of NCCL meet; without it they may not.
    """

    cgroup: str = ""
    memory_mib: int = 0
    cpus: float = 0.0
    users: str = ""
    network: bool = False


UNGROUPED: Final = ConfinementConfig(cgroup=NOWHERE)


class Holds(msgspec.Struct, frozen=True):
    """The kernel's support: `view` is "" or the reason for none, `landlock` its ABI, 0 for none. `movable`: whether
    this executor's sessions can move, 0 for no."""

    view: str
    landlock: int
    movable: int = 0


def probe() -> Holds:
    """Test the kernel's support once. Without the executor nothing needs confinement."""
    try:
        return _tried(native.path(EXECUTOR), os.geteuid())
    except (NativeMissing, OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        return Holds(view=f"cannot test it: {error}", landlock=0)


@functools.cache
def _tried(executor: Path, _user: int) -> Holds:
    command = [str(executor), "--driver", DRIVER, "--probe"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=_PROBE_SECONDS)
    return msgspec.json.decode(done.stdout, type=Holds)


class Confinement:
    """The confinement of one daemon's executors. `told` describes it."""

    def __init__(self, config: ConfinementConfig = UNGROUPED) -> None:
        """Take the delegated hierarchy if there is one. Raises InvalidInput: a requested part is not available."""
        self._config = config
        self._first_last = None if config.users in ("", NOWHERE) else users.parse(config.users)
        self.holds = probe()
        self.hierarchy, group_told = self._find_hierarchy()
        self.users, users_told = self._find_users()
        held = (self.hierarchy is not None, self.users is not None, not self.holds.view, self.holds.landlock > 0)
        self.lacks = tuple(layer for layer, there in zip(LAYERS, held, strict=True) if not there)
        view = "a view of their own" if not self.holds.view else f"no view of their own: {self.holds.view}"
        landlock = f"Landlock {self.holds.landlock}" if self.holds.landlock else "no Landlock in this kernel"
        self.told = "; ".join((group_told, users_told, view, landlock))

    def _find_hierarchy(self) -> tuple[cgroups.Hierarchy | None, str]:
        asked = self._config.cgroup
        if asked == NOWHERE:
            return None, "no cgroup: not asked for"
        try:
            hierarchy = cgroups.find(Path(asked) if asked else None)
        except NotSupported as error:
            if asked:
                raise InvalidInput("cgroup", str(error)) from error
            return None, f"no cgroup: {error}"
        return hierarchy, f"cgroup {hierarchy.root}"

    def _find_users(self) -> tuple[Users | None, str]:
        if self._config.users == NOWHERE:
            return None, "no users of their own: not asked for"
        why = "they need a view to reach their files"
        if not self.holds.view:
            try:
                found = Users(*(self._first_last or users.parse(users.DEFAULT_RANGE)))
            except NotSupported as error:
                why = str(error)
            else:
                return found, f"users {found}"
        if self._config.users:
            raise InvalidInput("executor-users", why)
        return None, f"no users of their own: {why}"

    def take_user(self) -> User | None:
        """Take a user for one executor, to be closed after its start; None without users. Raises Unavailable."""
        return None if self.users is None else self.users.take()

    def enter(self, name: str, cards: Sequence[CardShare]) -> list[str]:
        """Make the group of an executor, and return the arguments to enter it. Raises Unavailable."""
        if self.hierarchy is None:
            return []
        return ["--cgroup", str(self.hierarchy.create(name, self.limits(cards)).path)]

    def show(self, driver_dir: Path | None, minors: Sequence[int]) -> list[str]:
        """Return the arguments that show an executor its driver and these cards. Raises Unavailable."""
        arguments = [] if self.holds.view else ["--view"]
        arguments += ["--landlock"] if self.holds.landlock else []
        if driver_dir is not None and is_simulated(driver_dir):
            state = driver_dir / "machine"
            if self.users is not None:
                self.users.admit(state.resolve())
            return [*arguments, "--device", str(state)]
        names = (*(f"nvidia{minor}" for minor in minors), *CONTROL_DEVICES)
        devices = [Path("/dev", name) for name in names]
        return [*arguments, *(word for device in devices if device.exists() for word in ("--device", str(device)))]

    @property
    def has_networks(self) -> bool:
        return self._config.network

    def limits(self, cards: Sequence[CardShare]) -> cgroups.Limits:
        """Return the limits of an executor with these shares."""
        config = self._config
        memory_mib = config.memory_mib or BASE_MEMORY_MIB + sum(card.memory_mib for card in cards)
        return cgroups.Limits(
            memory_bytes=memory_mib * MIB,
            cpu_weight=min(10_000, max(1, sum(card.core or 100 for card in cards))),
            cpus=config.cpus,
            processes=MAX_PROCESSES,
        )

    def kill(self, name: str) -> None:
        """Kill all in an executor's group, without waiting."""
        if self.hierarchy is not None:
            self.hierarchy.group(name).kill()

    def end(self, name: str) -> None:
        """Kill all in an executor's group and remove it. Raises Unavailable."""
        if self.hierarchy is not None:
            self.hierarchy.group(name).end()

    def sweep(self, prefix: str, kept: set[str]) -> None:
        """End the groups that an earlier run left. Raises Unavailable."""
        for group in self.hierarchy.groups(prefix) if self.hierarchy is not None else ():
            if group.path.name not in kept:
                group.end()


def group_name(directory: Path) -> str:
    """Return the name of the executor's control group, distinct from those of this daemon's other executors."""
    return f"{directory.parent.name}-{directory.name}"
