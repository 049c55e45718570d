"""The pool as its users run it: `egpu broker`, `egpu serve` and `egpu run --pool` as processes, the real executor."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters import native
from egpu.adapters.pool import authority, executors
from egpu.core.leases import TTL_SECONDS
from egpu.errors import NativeMissing
from patience import PATIENCE_SECONDS


def _built() -> bool:
    try:
        return bool(native.path("egpu-executor") and native.path("remote/libcuda.so.1"))
    except NativeMissing:
        return False


pytestmark = pytest.mark.skipif(not _built(), reason="the executor and the remote client are not built")


def sample(name: str) -> str:
    return str(native.path(f"samples/egpu-sample-{name}"))


def until(holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "still not so"
        time.sleep(0.02)


@dataclass
class World:
    """A broker and its servers, each a process."""

    directory: Path
    port: int
    tls: Path | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)

    def flags(self, role: str, name: str) -> list[str]:
        if self.tls is None:
            return ["--secret-file", str(self.directory / "secret")]
        made = authority.issue(self.tls, role, name)  # type: ignore[arg-type]
        return ["--tls-ca", str(made.ca), "--tls-cert", str(made.certificate), "--tls-key", str(made.key)]

    def start(self, name: str, *command: str) -> None:
        self.commands[name] = [sys.executable, "-m", "egpu", *command]
        self.again(name)

    def again(self, name: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(self.commands[name], stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def broker(self) -> None:
        self.start("broker", "broker", "--listen", f"127.0.0.1:{self.port}", *self.flags("broker", "b"))
        self.servers()

    def serve(self, name: str, gpus: int = 1) -> None:
        self.start(
            name, "serve", "--broker", f"127.0.0.1:{self.port}", "--name", name, "--simulate", "A100-80G",
            "--gpus", str(gpus), "--state-dir", str(self.directory / name), *self.flags("server", name),
        )  # fmt: skip
        until(lambda: any(one["server"] == name and one["connected"] for one in self.servers()))

    def egpu(self, *command: str, who: str = "op", check: bool = True) -> subprocess.CompletedProcess[str]:
        role = "admin" if who == "op" else "client"
        return subprocess.run(
            [sys.executable, "-m", "egpu", *command, *self.flags(role, who)],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=check,
        )  # fmt: skip

    def get(self, what: str) -> list[dict[str, Any]] | None:
        done = self.egpu("get", what, "--pool", f"127.0.0.1:{self.port}", "-o", "json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def servers(self) -> list[dict[str, Any]]:
        found: list[list[dict[str, Any]]] = []
        until(lambda: (answer := self.get("servers")) is not None and not found.append(answer))
        return found[0]

    def leases(self) -> list[dict[str, Any]]:
        return self.get("leases") or []

    def run_command(self, command: Sequence[str], *options: str, who: str = "ann") -> list[str]:
        return [
            sys.executable, "-m", "egpu", "run", "--pool", f"127.0.0.1:{self.port}", "--core", "50", "--memory",
            "2GiB", *options, *self.flags("client", who), "--", *command,
        ]  # fmt: skip

    def run(self, command: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.run_command(command, *options), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )

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
            for pid in executors.processes_of(directory):
                os.kill(pid, signal.SIGKILL)


def _world(tls: bool) -> Iterator[World]:
    directory = Path(f"/tmp/egpu-e2e-{os.getpid()}-{time.monotonic_ns() % 10**7}")
    directory.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = World(directory, port, directory / "pki" if tls else None)
    try:
        if not tls:
            (directory / "secret").touch(0o600)
            (directory / "secret").write_text("0123456789abcdef" * 2)
        world.broker()
        world.serve("one")
        world.serve("two")
        yield world
    finally:
        world.close()
        for server in ("one", "two"):
            with contextlib.suppress(Exception):
                from egpu.adapters import simulator  # noqa: PLC0415

                simulator.destroy(simulator.open_machine(directory / server / "machine"))
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield from _world(tls=False)


@pytest.fixture(scope="module")
def secure() -> Iterator[World]:
    yield from _world(tls=True)


@pytest.mark.parametrize("name", ["vectoradd", "saxpy", "reduce", "matmul"])
def test_samples_give_the_right_answers_on_the_pool(world: World, name: str) -> None:
    done = world.run([sample(name)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(": ok")
    until(lambda: world.leases() == [])


FAR = """
import egpu.adapters.pool.bridge as bridge
bridge._connectable = lambda path: False  # as on another machine: its sockets are not to be seen
from egpu.cli import main
main()
"""


@pytest.mark.parametrize("name", ["vectoradd", "matmul"])
def test_samples_give_the_right_answers_from_elsewhere_through_mutual_tls(secure: World, name: str) -> None:
    command = secure.run_command([sample(name)])
    command[1:3] = ["-c", FAR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(": ok")
    until(lambda: secure.leases() == [])


def test_memory_stops_exactly_at_the_limit(world: World) -> None:
    done = world.run([sample("memory")])
    assert f"given {2 << 30} bytes" in done.stdout
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout
    assert done.returncode == 0, done.stderr


def test_cards_of_two_servers_are_ordinals_of_one_program(world: World) -> None:
    done = world.run([sample("info")], "--gpus", "2", "-o", "json")
    assert "2 devices" in done.stdout
    summary = json.loads(done.stderr.splitlines()[-1])
    assert sorted(card["server"] for card in summary["cards"]) == ["one", "two"]
    assert done.stdout.index(summary["cards"][0]["uuid"]) < done.stdout.index(summary["cards"][1]["uuid"])


def test_a_command_that_uses_no_gpu_takes_no_lease_and_its_status_is_passed_on(world: World) -> None:
    done = world.run(["sh", "-c", "exit 7"], "-o", "json")
    assert done.returncode == 7
    assert json.loads(done.stderr.splitlines()[-1])["lease"] is None


def test_what_does_not_fit_is_said_and_the_program_gets_an_error_not_a_hang(world: World) -> None:
    done = world.run([sample("info")], "--gpus", "3")
    assert done.returncode != 0
    assert "no place for 3" in done.stderr
    assert world.leases() == []


HOLDING = """
import sys
from cuda.bindings import driver as d
def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
held = []
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "take":
        code, pointer = d.cuMemAlloc(1 << 30)
        if code.name == "CUDA_SUCCESS":
            held.append(pointer)
        print(code.name, flush=True)
    elif line.strip() == "free":
        ok(d.cuMemFree(held.pop()))
        print("freed", flush=True)
    elif line.strip() == "sync":
        print(d.cuCtxSynchronize()[0].name, flush=True)
"""


@contextlib.contextmanager
def holding(
    world: World, *options: str, far: bool = False
) -> Iterator[tuple[subprocess.Popen[str], Callable[[str], str]]]:
    """A program that holds a lease and does what it is told."""
    command = world.run_command([sys.executable, "-c", HOLDING], *options)
    if far:
        command[1:3] = ["-c", FAR]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    def tell(word: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(word + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    try:
        line = process.stdout.readline().strip()
        assert line == "ready", process.stderr.read() if process.stderr else ""
        yield process, tell
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        until(lambda: world.leases() == [])


@pytest.mark.parametrize("far", [False, True], ids=["shared memory", "mutual TLS"])
def test_a_live_lease_grows_and_shrinks_and_ends_where_it_was_not_given_back(
    world: World, secure: World, far: bool
) -> None:
    here = secure if far else world
    with holding(here, far=far) as (process, tell):
        (lease,) = here.leases()
        assert [tell("take") for _ in range(3)] == ["CUDA_SUCCESS", "CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]
        pool = ("--pool", f"127.0.0.1:{here.port}")
        here.egpu("resize", lease["lease"], "--memory", "3GiB", "--core", "70", *pool)
        assert [tell("take"), tell("take")] == ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]
        done = here.egpu("resize", lease["lease"], "--memory", "1GiB", *pool)
        assert "still uses more memory" in done.stderr
        (shrunk,) = here.leases()
        assert (shrunk["memoryMiB"], shrunk["overLimit"], shrunk["corePercent"]) == (1024, True, 70)
        assert tell("take") == "CUDA_ERROR_OUT_OF_MEMORY"
        assert [tell("free"), tell("free")] == ["freed", "freed"]
        until(lambda: not here.leases()[0]["overLimit"])
        assert tell("take") == "CUDA_ERROR_OUT_OF_MEMORY", "exactly its new limit is in use"

        here.egpu("resize", lease["lease"], "--memory", "512MiB", "--within", "1", *pool)
        until(lambda: here.leases() == [])
        assert tell("sync") in ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_UNKNOWN")
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(PATIENCE_SECONDS)
        assert "the lease was taken away: over_limit" in process.stderr.read()  # type: ignore[union-attr]


def test_a_killed_client_s_slice_is_back_in_the_pool(world: World) -> None:
    with holding(world) as (process, tell):
        assert tell("take") == "CUDA_SUCCESS"
        process.kill()
        until(lambda: world.held_lease_directories() == [], TTL_SECONDS / 2)  # noticed, not timed out


def test_a_killed_executor_is_an_error_and_not_a_hang_and_others_go_on(world: World) -> None:
    with holding(world) as (_, tell):
        (directory,) = world.held_lease_directories()
        with holding_other(world) as other:
            for pid in executors.processes_of(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            said = "CUDA_SUCCESS"
            while said == "CUDA_SUCCESS":  # the executor's session dies when the kernel has buried its parent
                said = tell("sync")
            assert said in ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_UNKNOWN")
            assert other("take") == "CUDA_SUCCESS"


@contextlib.contextmanager
def holding_other(world: World) -> Iterator[Callable[[str], str]]:
    process = subprocess.Popen(
        world.run_command([sys.executable, "-c", HOLDING]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def tell(word: str) -> str:
        stdin.write(word + "\n")
        stdin.flush()
        return stdout.readline().strip()

    try:
        assert stdout.readline().strip() == "ready"
        yield tell
    finally:
        process.kill()
        process.wait()
        stdin.close()
        stdout.close()


def test_a_lease_survives_broker_and_daemon_killed_and_started_again(world: World) -> None:
    with holding(world) as (_, tell):
        (before,) = world.leases()
        assert tell("take") == "CUDA_SUCCESS"
        for name in ("broker", "one", "two"):
            world.kill(name)
        assert tell("sync") == "CUDA_SUCCESS"
        for name in ("broker", "one", "two"):
            world.again(name)
        until(lambda: sum(one["connected"] for one in world.servers()) == 2)
        until(lambda: [one["lease"] for one in world.leases()] == [before["lease"]])
        time.sleep(2)  # longer than a holder has to come back
        assert [one["lease"] for one in world.leases()] == [before["lease"]]
        assert tell("take") == "CUDA_SUCCESS"
        assert tell("sync") == "CUDA_SUCCESS"


def test_a_deadline_of_a_shrunk_lease_is_kept_though_broker_and_daemons_are_killed(world: World) -> None:
    with holding(world) as (process, tell):
        (lease,) = world.leases()
        assert [tell("take"), tell("take")] == ["CUDA_SUCCESS"] * 2
        pool = ("--pool", f"127.0.0.1:{world.port}")
        done = world.egpu("resize", lease["lease"], "--memory", "1GiB", "--within", "3", *pool)
        assert "in 3 s the lease ends" in done.stderr
        for name in ("broker", "one", "two"):
            world.kill(name)
        for name in ("broker", "one", "two"):
            world.again(name)
        until(lambda: sum(one["connected"] for one in world.servers()) == 2)
        until(lambda: world.get("leases") == [])
        assert tell("sync") in ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_UNKNOWN")
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(PATIENCE_SECONDS)
        assert "the lease was taken away: over_limit" in process.stderr.read()  # type: ignore[union-attr]
