"""Child processes of the simulated cluster: started, watched, restarted, ended.

Every component runs as its own process, as on a real cluster, so that a test can kill any of them. Those in Python are
forks of one process that has imported their modules (`egpu_sim.cluster.forked`). A child that ends is restarted after a
short, growing pause. No child outlives the cluster: `stop` ends it, or the janitor (`egpu_sim.cluster.janitor`) if the
cluster is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from egpu_base.errors import Unavailable
from egpu_base.system.processes import Process, descendants, start_time
from egpu_sim.cluster.forked import ForkedProcess, ForkServer

log = structlog.get_logger(__name__)

RESTART_PAUSE_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Pauses before the 1st, 2nd, … restart in a row; the last one repeats."""

STEADY_SECONDS = 10.0
"""A child that ran this long is healthy again: its next pause is the first one."""

MOST_RESTARTS = 3
"""Restarts of one child while the cluster starts."""

STOP_GRACE_SECONDS = 6.0
"""Time from SIGTERM to SIGKILL. The apps promise to shut down within 5 s."""


@dataclass(frozen=True)
class ChildSpec:
    """A program to run. `argv[0]` is its path, or a Python module's name (`module`). Its output goes to `log_file`.
    `alone`: its children outlive it, as containers outlive kubelet; else its process tree ends with it, as a
    container's control group does. `careless`: it has nothing to save at its end, and is killed at once."""

    name: str
    argv: tuple[str, ...]
    log_file: Path
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    module: bool = False
    alone: bool = False
    careless: bool = False


class Child:
    """One process that is kept running."""

    def __init__(self, spec: ChildSpec, pid_dir: Path, forks: ForkServer | None) -> None:
        self.spec = spec
        self.restarts = 0
        self._pid_file = pid_dir / spec.name
        self._forks = forks
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._restarting = True

    @property
    def pid(self) -> int | None:
        """The running process's id, or None between two runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        await self._spawn()
        self._task = asyncio.create_task(self._keep_running(), name=f"child-{self.spec.name}")

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL after the grace period. Return when the process is gone."""
        self._stopping = True
        await self._terminate()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._pid_file.unlink(missing_ok=True)

    async def roll(self) -> None:
        """End it as a rolling update ends a DaemonSet's pod; it is restarted."""
        await self._terminate()

    async def _terminate(self) -> None:
        """Send SIGTERM, then SIGKILL after the grace period, to the process and its children."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        tree = self._tree()
        _signal(process, signal.SIGKILL if self.spec.careless else signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_GRACE_SECONDS)
        except TimeoutError:
            log.warning("child ignored SIGTERM", child=self.spec.name)
            _signal(process, signal.SIGKILL)
            await process.wait()
        _kill_all(tree)

    def kill(self) -> int | None:
        """Kill the process, as a fault. It is restarted. Return the killed pid, or None if none ran."""
        pid = self.pid
        if pid is not None and self._process is not None:
            _signal(self._process, signal.SIGSTOP)  # it starts nothing more
            tree = self._tree()
            _signal(self._process, signal.SIGKILL)
            _kill_all(tree)
        return pid

    def _tree(self) -> list[Process]:
        return descendants(self.pid) if self.pid is not None and not self.spec.alone else []

    async def _spawn(self) -> None:
        spec, env = self.spec, {**os.environ, **self.spec.env}
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        if spec.module:
            assert self._forks is not None, f"{spec.name} needs a fork server"
            self._process = await self._forks.spawn(spec.name, spec.argv, env=env, log_file=spec.log_file)
        else:
            self._process = await _execute(spec, env)
        self._pid_file.write_text(f"{self._process.pid} {start_time(self._process.pid)}\n")

    async def _keep_running(self) -> None:
        failures = 0
        while not self._stopping:
            assert self._process is not None
            began = time.monotonic()
            code = await self._process.wait()
            if self._stopping:
                return
            failures = 0 if time.monotonic() - began > STEADY_SECONDS else failures + 1
            pause = RESTART_PAUSE_SECONDS[min(failures, len(RESTART_PAUSE_SECONDS) - 1)]
            log.warning("child ended, starting it again", child=self.spec.name, code=code, pause_seconds=pause)
            await asyncio.sleep(pause)
            self.restarts += 1
            await self._spawn()


async def _execute(spec: ChildSpec, env: Mapping[str, str]) -> asyncio.subprocess.Process:
    with spec.log_file.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *spec.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            # This process handles a terminal's Ctrl-C: it stops children in order.
            start_new_session=True,
        )


class Fleet:
    """All children of one cluster, by name. `forks` is for the Python modules among them."""

    def __init__(self, pid_dir: Path, forks: ForkServer | None = None) -> None:
        pid_dir.mkdir(parents=True, exist_ok=True)
        self._pid_dir = pid_dir
        self._forks = forks
        self.children: dict[str, Child] = {}

    async def start(self, specs: Sequence[ChildSpec]) -> None:
        for spec in specs:
            if spec.name in self.children:
                raise ValueError(f"two children named {spec.name}")
            self.children[spec.name] = Child(spec, self._pid_dir, self._forks)
        await asyncio.gather(*(self.children[spec.name].start() for spec in specs))

    async def stop(self, names: Sequence[str] | None = None) -> None:
        """Stop the named children, or all of them."""
        chosen = list(self.children) if names is None else list(names)
        await asyncio.gather(*(self.children.pop(name).stop() for name in chosen))

    def check_steady(self) -> None:
        """Check the children while they start. Raises Unavailable, with the end of its log, for one that ends
        repeatedly."""
        for name, child in self.children.items():
            if child.restarts >= MOST_RESTARTS:
                tail = self.log_tail(name, lines=5)
                raise Unavailable(f"{name} keeps ending while the cluster starts; its log ends:\n{tail}")

    def log_tail(self, name: str, lines: int = 20) -> str:
        path = self.children[name].spec.log_file
        try:
            return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"


def _kill_all(tree: Sequence[Process]) -> None:
    for one in tree:
        if one.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)


def _signal(process: asyncio.subprocess.Process | ForkedProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
