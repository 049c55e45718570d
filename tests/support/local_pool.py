"""A pool of real processes: `egpu broker`, `egpu serve` and `egpu run --pool`, with executors on simulated cards."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from egpu.adapters import native
from egpu.adapters.executors.leftovers import processes_of
from egpu.adapters.pool import authority
from egpu.adapters.pool.security import Credentials
from egpu.cli.output import Table
from egpu.cli.pool import credentials, leases_table, servers_table
from egpu_base.errors import ElasticGPUError, NativeMissing
from egpu_sim.machines import machine as simulator
from support import forked_commands
from support.ports import free_port
from support.waiting import DEADLINE_SECONDS, wait_until

FAR = """
import egpu.adapters.pool.bridge as bridge
bridge._connectable = lambda path: False  # as on another machine: its sockets are not to be seen
from egpu.cli import main
main()
"""
"""What `python -c` runs in place of `python -m egpu` for a program that is elsewhere."""


def built() -> bool:
    try:
        return bool(native.path("egpu-executor") and native.path("remote/libcuda.so.1"))
    except NativeMissing:
        return False


def sample(name: str) -> str:
    return str(native.path(f"samples/egpu-sample-{name}"))


@dataclass
class LocalPool:
    """A broker and its servers, each a process."""

    directory: Path
    port: int
    tls: Path | None = None
    processes: dict[str, forked_commands.Running] = field(default_factory=dict)
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """What its processes have in theirs beside ours."""
    _issued: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def flags(self, role: str, name: str) -> list[str]:
        if self.tls is None:
            return ["--secret-file", str(self.directory / "secret")]
        if (role, name) not in self._issued:
            made = authority.issue(self.tls, role, name)  # type: ignore[arg-type]
            files = ["--tls-ca", str(made.ca), "--tls-cert", str(made.certificate), "--tls-key", str(made.key)]
            self._issued[role, name] = files
        return self._issued[role, name]

    def start(self, name: str, *command: str) -> None:
        self.commands[name] = command
        self.again(name)

    def again(self, name: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = forked_commands.popen(
                self.commands[name], stdout=log, stderr=log, env={**os.environ, **self.environment}
            )

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def broker(self) -> None:
        self.start("broker", "broker", "--listen", f"127.0.0.1:{self.port}", *self.flags("broker", "b"))
        self.servers()

    def serve(self, name: str, gpus: int = 1, *more: str, broker: str = "") -> None:
        self.start(
            name, "serve", "--broker", broker or f"127.0.0.1:{self.port}", "--name", name, "--simulate", "A100-80G",
            "--gpus", str(gpus), "--state-dir", str(self.directory / name), *self.flags("server", name), *more,
        )  # fmt: skip
        wait_until(lambda: any(one["server"] == name and one["connected"] for one in self.servers()))

    def egpu(self, *command: str, who: str = "op", check: bool = True) -> subprocess.CompletedProcess[str]:
        role = "admin" if who == "op" else "client"
        return forked_commands.run(
            [*command, *self.flags(role, who)], env=os.environ, timeout=DEADLINE_SECONDS, check=check
        )

    def get(self, table: Callable[[str, Credentials], Table]) -> Sequence[Mapping[str, Any]] | None:
        """Return the records of `egpu get`, without a process for each look. None if the broker does not answer."""
        given = self.flags("admin", "op")
        files = {option: Path(file) for option, file in zip(given[::2], given[1::2], strict=True)}
        asking = credentials(*map(files.get, ("--secret-file", "--tls-ca", "--tls-cert", "--tls-key")))
        try:
            return table(f"127.0.0.1:{self.port}", asking).records
        except typer.Exit:
            return None

    def servers(self) -> Sequence[Mapping[str, Any]]:
        found: list[Sequence[Mapping[str, Any]]] = []
        wait_until(lambda: (answer := self.get(servers_table)) is not None and not found.append(answer))
        return found[0]

    def leases(self) -> Sequence[Mapping[str, Any]]:
        return self.get(leases_table) or []

    def run_command(self, command: Sequence[str], *options: str, who: str = "ann") -> list[str]:
        return [
            sys.executable, "-m", "egpu", "run", "--pool", f"127.0.0.1:{self.port}", "--core", "50", "--memory",
            "2GiB", *options, *self.flags("client", who), "--", *command,
        ]  # fmt: skip

    def run(self, command: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
        _, _, _, *arguments = self.run_command(command, *options)
        return forked_commands.run(arguments, env=os.environ, timeout=DEADLINE_SECONDS)

    def held_lease_directories(self) -> list[Path]:
        return [path for path in self.directory.glob("*/leases/lease-*") if path.is_dir()]

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(8)
            process.kill()
        for directory in self.directory.glob("*/leases/*"):
            for pid in processes_of(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for machine in self.directory.glob("*/machine"):
            with contextlib.suppress(ElasticGPUError):
                simulator.destroy(simulator.open_machine(machine))


@contextlib.contextmanager
def local_pool(*, tls: bool) -> Generator[LocalPool]:
    """A pool in a directory of its own, with a short path: sockets are made below it. Nothing is started yet."""
    directory = Path(f"/tmp/egpu-e2e-{os.getpid()}-{time.monotonic_ns() % 10**7}")
    directory.mkdir()
    pool = LocalPool(directory, free_port(), directory / "pki" if tls else None)
    try:
        if not tls:
            (directory / "secret").touch(0o600)
            (directory / "secret").write_text("0123456789abcdef" * 2)
        yield pool
    finally:
        pool.close()
        shutil.rmtree(directory, ignore_errors=True)
