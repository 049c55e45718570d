"""The remote pair against its parts in the same run: bare rings, batched sends, ping-pongs, loopback, memcpy.

The programs under test are C. One measures calls of `libcuda.so.1` over a lease, or the bare part (remote_client.c);
the other measures calls of our runtime and of carried libraries beside the driver's (runtime_client.c). Each round
measures everything once, with compared cases one right after the other, because processors of virtual machines change
their distance. Figures and ratios are medians of the rounds. Single calls are compared on an executor whose driver does
nothing (remote_null.c), as the other side of a bare ping-pong does nothing, either. A proxy that delays every byte
makes longer links. TLS goes through two relays and a daemon's listener on this machine, and all of these, the program
and its GPU share its processors.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Report, median
from egpu.adapters import native
from egpu.adapters.pool import authority, messages
from egpu.adapters.pool.bridge import Bridge, Target
from egpu.adapters.pool.connection import Connection
from egpu.adapters.pool.listener import Listener
from egpu.adapters.slices.pages import MEMORY_UNLIMITED, PPM, DevicePolicy, Mode, create_usage, write_policy
from egpu.core.provisioners.preparation import RUNTIMES
from egpu_sim.machines.machine import Machine
from support.remote_gpu import remote
from support.simulated_gpu import environment, machine

ROOT: Final = Path(__file__).resolve().parents[1]

DELAYS_US: Final = {50: 0.97, 200: 0.93}
LIBRARY_GOAL: Final = 1.3
"""The allowed cost of a library's call without result, relative to a driver's call of the same length."""
RUNTIME_GOAL_NS: Final = 15.0
"""The allowed addition of a runtime call to its driver call."""
RUNTIME_CALLS: Final = {"launch": "cudaLaunchKernel", "copy": "cudaMemcpyAsync", "query": "cudaStreamQuery"}
SHARE_PERCENT: Final = 30
SHARE_GOAL_POINTS: Final = 3.0
START_TRIPS: Final = 4
DEATH_SECONDS: Final = 2.0
Figures = dict[str, float]


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return everything as plain values."""
    found: dict[str, list[Figures]] = {}
    rounds, scale = (1, "0.1") if report.options.quick else (5, "0.3")
    with tempfile.TemporaryDirectory(prefix="egpu-bench-") as scratch, machine(Path(scratch), "A100-80G", 1) as sim:
        program, over, nothing = _build(Path(scratch))
        for number in range(rounds):
            for name, measure in _cases(sim, nothing, program, over, scale).items():
                report.progress(f"round {number + 1} of {rounds}: {name}")
                found.setdefault(name, []).append(measure(Path(scratch) / f"{number}-{name.replace(' ', '-')}"))
        report.progress("start-up and death")
        trips = _trips(sim, program, Path(scratch))
        deaths = {name: _deaths(sim, program, Path(scratch), name, rounds) for name in ("shm", "tcp")}
        shares = {name: _shares(sim, Path(scratch), name, rounds) for name in ("local", "shm", "tcp")}
    rows = _rows(report, found)
    report.table("remote GPU", ("", "ours", "baseline", "", "ratio"), rows)
    report.verdict("start-up of a small program, round trips", str(trips), f"≤ {START_TRIPS}", trips <= START_TRIPS)
    for name, seconds in deaths.items():
        longest = max(seconds)
        what = f"{name}: a killed executor is an error in the client, after"
        report.verdict(what, f"{longest:.3f} s", f"≤ {DEATH_SECONDS:g} s", longest <= DEATH_SECONDS)
    for name, percents in shares.items():
        error = max(abs(percent - SHARE_PERCENT) for percent in percents)
        report.verdict(
            f"{name}: error of a {SHARE_PERCENT} % share over one second, the worst",
            f"{error:.1f} points", f"≤ {SHARE_GOAL_POINTS:g}", error <= SHARE_GOAL_POINTS,
        )  # fmt: skip
    return {"runs": found, "share_percent": shares, "death_seconds": deaths, "start_round_trips": trips}


@dataclass(frozen=True)
class Nothing:
    """The stand-in for a machine whose driver does nothing."""

    driver_dir: Path


def _build(folder: Path) -> tuple[Path, Path, Nothing]:
    """Build the measuring programs, and a driver that does nothing, also as cuBLAS."""
    driver = folder / "nothing/libcuda.so.1"
    driver.parent.mkdir()
    programs = [folder / "remote_client", folder / "runtime_client"]
    for program in programs:
        source = ROOT / f"benchmarks/{program.name}.c"
        subprocess.run(["cc", "-O2", "-o", program, source, "-ldl", "-lpthread"], check=True)
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", driver, ROOT / "benchmarks/remote_null.c"], check=True)
    driver.with_name("libcublas.so.13").symlink_to(driver)
    runtime = "libcudart.so.13"
    driver.with_name(runtime).symlink_to(native.path(RUNTIMES[runtime]))
    return programs[0], programs[1], Nothing(driver.parent)


def _measure(program: Path, what: str, env: Mapping[str, str], scale: str) -> Figures:
    """Run the program once; it prints one JSON object."""
    done = subprocess.run(
        [program, what, scale], env=dict(env), capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(f"{what}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def _cases(
    sim: Machine, nothing: Nothing, program: Path, over: Path, scale: str
) -> dict[str, Callable[[Path], Figures]]:
    """Return the cases; `program` uses the driver, `over` the runtime and libraries over it."""
    steps = ((program, "calls"), (program, "client"), (over, "loop"))

    def all_of(env: Mapping[str, str]) -> Figures:
        return {key: value for who, what in steps for key, value in _measure(who, what, env, scale).items()}

    def local(_: Path) -> Figures:
        return all_of(environment(sim.driver_dir))

    def runtime(_: Path) -> Figures:
        return _measure(over, "calls", environment(nothing.driver_dir), scale)

    def bare(transport: str) -> Callable[[Path], Figures]:
        return lambda _: _measure(program, f"bare-{transport}", os.environ, scale)

    def far(transport: Any) -> Callable[[Path], Figures]:
        def once(folder: Path) -> Figures:
            with remote(sim, folder, transport) as (client, _, _):
                return all_of(environment(client))

        return once

    def alone(transport: Any) -> Callable[[Path], Figures]:
        def once(folder: Path) -> Figures:
            with remote(nothing, folder, transport) as (client, _, _):
                env = environment(client)
                return _measure(program, "calls", env, scale) | _measure(over, "library", env, scale)

        return once

    def delayed(delay_us: int) -> Callable[[Path], Figures]:
        def once(folder: Path) -> Figures:
            figures: Figures = {}
            with remote(sim, folder, "tcp") as (client, executor, _):
                for who, what in steps:
                    with _delay(program, executor.ready["port"], delay_us) as port:
                        (client / "lease.addr").write_text(f"127.0.0.1:{port}\n")
                        figures |= _measure(who, what, environment(client), scale)
            return figures

        return once

    def tls(folder: Path) -> Figures:
        with remote(sim, folder, "shm") as (client, _, _), _relayed(folder, client):
            return all_of(environment(client))

    return {
        "local": local,
        "runtime, no driver": runtime,
        "bare shm": bare("shm"),
        "shm, no driver": alone("shm"),
        "shm": far("shm"),
        "bare tcp": bare("tcp"),
        "tcp, no driver": alone("tcp"),
        "tcp": far("tcp"),
        **{f"tcp + {delay_us} us": delayed(delay_us) for delay_us in DELAYS_US},
        "relay, TLS": tls,
    }


@contextlib.contextmanager
def _delay(program: Path, port: int, delay_us: int) -> Generator[str]:
    """Run a proxy for `port` that adds to the round trip; yield its own port."""
    with subprocess.Popen([program, "delay", str(port), str(delay_us)], stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout
        try:
            yield proxy.stdout.readline().strip()
        finally:
            proxy.kill()


@contextlib.contextmanager
def _relayed(folder: Path, client: Path) -> Generator[None]:
    """Lead the lease of `client` through a bridge, TLS and a listener, as between two machines."""
    (client / "lease.sock").unlink()
    server, ann = (authority.issue(folder / "pki", role, "bench") for role in ("server", "client"))
    up, over = threading.Event(), threading.Event()

    async def come_in(connection: Connection, _: messages.Hello) -> None:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.connect(str(folder / "executor.sock"))
            await connection.hand_over(sock, last=messages.Welcome(name=connection.peer))

    async def serve() -> None:
        listener = Listener(server, "127.0.0.1:0", come_in, max_connections=64, relayed=True)
        await listener.open()
        part = messages.PartView(server="bench", address=str(listener.address), host="another", socket="", cards=1)

        async def take() -> Target:
            return Target("lease", (part,), "")

        bridge = Bridge(client, ann, take)
        await bridge.open()
        serving = asyncio.create_task(listener.serve())
        up.set()
        await asyncio.to_thread(over.wait)
        await bridge.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        if not up.wait(30):
            raise SystemExit("the relay does not start")
        yield
    finally:
        over.set()
        thread.join()


def _trips(sim: Machine, program: Path, folder: Path) -> int:
    """Count how often a small program waits for the executor until its first kernel is launched."""
    with remote(sim, folder / "start", "bridge") as (client, _, bridge):
        env = environment(client)
        with subprocess.Popen([program, "start"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as small:
            assert bridge
            assert small.stdout
            small.stdout.readline()
            trips = bridge.answers
            small.communicate(b"\n")
        return trips


def _deaths(sim: Machine, program: Path, folder: Path, transport: Any, rounds: int) -> list[float]:
    """Return seconds from the SIGKILL of the session's process to the error in a busy program."""
    found: list[float] = []
    for number in range(rounds):
        with (
            remote(sim, folder / f"death-{transport}-{number}", transport) as (client, executor, _),
            subprocess.Popen(
                [program, "outlive"], env=environment(client), stdout=subprocess.PIPE, text=True
            ) as asking,
        ):
            assert asking.stdout
            asking.stdout.readline()
            (session,) = executor.children()
            killed = time.monotonic()
            os.kill(session, signal.SIGKILL)
            found.append(float(asking.stdout.readline()) - killed)
    return found


def _shares(sim: Machine, folder: Path, way: str, rounds: int) -> list[float]:
    """Measure the part of the card's time that a program with SHARE_PERCENT of it gets, each over one second."""
    directory = folder / f"slice-{way}"
    directory.mkdir()
    policy = DevicePolicy(
        memory_limit_bytes=MEMORY_UNLIMITED,
        uuid=sim.cards[0].uuid,
        minor=sim.cards[0].minor,
        mode=Mode.CAP,
        core_ppm=PPM * SHARE_PERCENT // 100,
    )
    write_policy(directory / "policy", [policy])
    create_usage(directory / "usage")
    interposer = directory / "libegpu-interposer.so"
    interposer.symlink_to(native.path("libegpu-interposer.so"))
    spin = [str(native.path("samples/egpu-sample-spin")), "--json", "--seconds=1"]

    def spun(env: Mapping[str, str]) -> float:
        done = subprocess.run(spin, env=dict(env), capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout)["share_percent"]

    if way == "local":
        env = environment(sim.driver_dir, {"LD_PRELOAD": str(interposer)})
        return [spun(env) for _ in range(rounds)]
    transport: Any = way
    with remote(sim, folder / f"share-{way}", transport, "--slice", str(directory)) as (client, _, _):
        return [spun(environment(client)) for _ in range(rounds)]


def _rows(report: Report, found: Mapping[str, list[Figures]]) -> list[tuple[str, str, str, str, str]]:
    rows: list[tuple[str, str, str, str, str]] = []

    def row(name: str, what: str, key: str, base: str, base_key: str, unit: str, goal: float | None = None) -> None:
        ours, theirs = ([figures[k] for figures in found[n]] for n, k in ((name, key), (base, base_key)))
        ratio = median(mine / other for mine, other in zip(ours, theirs, strict=True))
        rows.append((f"{name}: {what}", f"{median(ours):,.2f}", f"{median(theirs):,.2f}", unit, f"{ratio:.2f}"))
        if goal is not None:
            slower = key.endswith("_ns")
            met = ratio <= goal if slower else ratio >= goal
            report.verdict(f"{name}: {what}", f"{ratio:.2f}", f"{'≤' if slower else '≥'} {goal:.2f}", met)

    def loops(name: str, goal: float | None = None) -> None:
        key = "steps_per_second"
        row(name, "training-like loop", key, "local", key, "steps/s", goal)
        row(name, "the same, runtime and cuBLAS", f"runtime_{key}", "local", f"runtime_{key}", "steps/s", goal)

    name = "runtime, no driver"
    for call, function in RUNTIME_CALLS.items():
        row(name, function, f"runtime_{call}_ns", name, f"{call}_ns", "ns")
        more = median(figures[f"runtime_{call}_ns"] - figures[f"{call}_ns"] for figures in found[name])
        goal_met = more <= RUNTIME_GOAL_NS
        report.verdict(f"{function} adds to the driver's", f"{more:.1f} ns", f"≤ {RUNTIME_GOAL_NS:g} ns", goal_met)
    for name, goal in (("shm", 1.5), ("tcp", 2.0)):
        bare = f"bare {name}"
        row(f"{name}, no driver", "asynchronous call", "async_ns", bare, "async_ns", "ns", goal)
        row(f"{name}, no driver", "synchronous call", "sync_ns", bare, "sync_ns", "ns", 1.15)
        alone = f"{name}, no driver"
        row(alone, "cublasSetMathMode beside an event's record", "set_ns", alone, "record_ns", "ns", LIBRARY_GOAL)
        row(alone, "cublasSaxpy beside a launch", "axpy_ns", alone, "launch_ns", "ns", LIBRARY_GOAL)
        row(name, "asynchronous call", "async_ns", "local", "async_ns", "ns")
        row(name, "synchronous call", "sync_ns", bare, "sync_ns", "ns")
        row(name, "copy to the device, 64 MiB", "in_gbps", bare, "copy_gbps", "GB/s", 0.90)
        row(name, "copy from the device, 64 MiB", "out_gbps", bare, "copy_gbps", "GB/s", 0.90)
        row(name, "pinned copy to the device", "pinned_in_gbps", bare, "copy_gbps", "GB/s", 0.90)
        loops(name, 0.97)
        row(name, "start-up of a small program", "start_ms", "local", "start_ms", "ms")
    for delay_us, goal in DELAYS_US.items():
        name = f"tcp + {delay_us} us"
        loops(name, goal)
        row(name, "synchronous call", "sync_ns", "tcp", "sync_ns", "ns")
    name = "relay, TLS"
    loops(name)
    row(name, "synchronous call", "sync_ns", "bare tcp", "sync_ns", "ns")
    row(name, "copy to the device, 64 MiB", "in_gbps", "bare tcp", "copy_gbps", "GB/s")
    row(name, "copy from the device, 64 MiB", "out_gbps", "bare tcp", "copy_gbps", "GB/s")
    return rows
