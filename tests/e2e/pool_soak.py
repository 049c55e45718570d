"""A pool under mixed load while pieces of it are killed: four programs at a time on two servers of two simulated cards.

    python tests/e2e/pool_soak.py --seconds 600 --seed 1 --out FILE

Time goes by in epochs. In each, programs run one after the other in four places while strikes (STRIKES) come at random;
then no more are started, and when the last has ended everything must be as it was before the first: leases, ledger,
processes, files, descriptors, memory of the cards. In the first half anything is struck; in the second the broker and
the daemons live on, so that their memory can be compared. All choices are drawn from one seed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from egpu.adapters.pool.client import PoolClient, parse_address
from egpu.adapters.pool.security import Credentials
from egpu.core.leasing.pool import SERVER_GRACE_SECONDS
from egpu_base.errors import ElasticGPUError
from egpu_sim.machines import machine as simulator
from support import kept_memory, local_pool, mixed_load, process_table, simulated_gpu
from support.cuttable_proxy import CuttableProxy
from support.ports import free_port
from support.waiting import DEADLINE_SECONDS

CLIENTS: Final = 4
CARDS: Final = 2
QUOTA_MIB: Final = 2048
SAMPLES: Final = ("vectoradd", "saxpy", "reduce", "matmul", "memory", "info")
STRIKES: Final = (
    "program", "client", "executor", "session", "relay", "cut data", "cut clients", "cut servers", "resize", "resize",
    "deadline", "daemon", "broker",
)  # fmt: skip
LASTING: Final = ("daemon", "broker")
"""Not in the second half: memory is compared within one life of a process."""
HURTING: Final = ("program", "client", "executor", "session", "deadline")
"""Whom these strike may end with an error. Nobody else may."""
WARM_UP_PROGRAMS: Final = 8
WAIT_FOR_VICTIM_SECONDS: Final = 5.0
LEAST_EPOCH_SECONDS: Final = 8.0
GROWTH_KIB: Final = 1024
GROWTH_KIB_PER_PROGRAM: Final = 2
"""How much more of its own memory a broker or a daemon may have at the end of the second half than at its beginning.
The second is for the 4,096 ended leases that a broker remembers; what leaks a connection leaks more."""
MOST_PROBLEMS: Final = 20
LOG_LINES: Final = 200
T = TypeVar("T")


@dataclass(eq=False)
class Run:
    """One `egpu run --pool`. `hurt`: what struck it."""

    number: int
    what: str
    gpus: int
    process: asyncio.subprocess.Process
    started: float
    lease: str = ""
    hurt: str = ""
    hurt_at: float = 0.0
    said: str = ""
    noted: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        return bool(self.lease) and not self.hurt


@dataclass(eq=False)
class Outage:
    """A daemon that was struck is not in the pool."""

    began: float
    ended: float = float("inf")

    def longer_than_grace(self, run: Run) -> bool:
        """Whether the broker took it for lost in the life of a program: on a busy machine a start takes its time."""
        until = min(self.ended, time.monotonic())
        return until - self.began > SERVER_GRACE_SECONDS and until > run.started


@dataclass
class Tally:
    """What was done and seen."""

    seed: int
    seconds: float = 0.0
    epochs: int = 0
    programs: Counter[str] = field(default_factory=Counter[str])
    ended: Counter[str] = field(default_factory=Counter[str])
    strikes: Counter[str] = field(default_factory=Counter[str])
    struck: list[str] = field(default_factory=list[str])
    """The last strikes, with their times."""
    most_leases: int = 0
    slowest: dict[str, float] = field(default_factory=dict[str, float])
    highest_rss_mib: dict[str, float] = field(default_factory=dict[str, float])
    settled: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    growth_kib: dict[str, Any] = field(default_factory=dict[str, Any])
    problems: list[str] = field(default_factory=list[str])
    logs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The end of what broker and daemons wrote, where there are problems."""

    def slow(self, what: str, seconds: float) -> None:
        self.slowest[what] = max(self.slowest.get(what, 0.0), round(seconds, 2))


class Soak:
    """`open` it, `run` it, `close` it; what was wrong is in `tally.problems`."""

    def __init__(self, pool: local_pool.LocalPool, seed: int) -> None:
        self.pool = pool
        self.chance = random.Random(seed)
        self.tally = Tally(seed)
        self.mark = f"EGPU_TEST_SOAK={os.getpid()}-{time.monotonic_ns()}"
        self.servers = tuple(f"soak-{os.getpid()}-{number}" for number in (1, 2))
        self.program = pool.directory / "mixed_load.py"
        self.runtime = pool.directory / "run"
        self.running: set[Run] = set()
        self.away: set[str] = set()
        self.outages: list[Outage] = []
        self.repairs: set[asyncio.Task[None]] = set()
        self.numbers = 0
        self.bag: list[str] = []
        self.missed: set[str] = set()
        self.files: set[str] = set()
        self.descriptors: dict[str, int] = {}

    # --- the place ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        pool = self.pool
        self.runtime.mkdir()
        (pool.directory / "tmp").mkdir()
        self.program.write_text(mixed_load.PROGRAM)
        name, _, value = self.mark.partition("=")
        pool.environment.update(
            {name: value, "XDG_RUNTIME_DIR": str(self.runtime), "TMPDIR": str(pool.directory / "tmp")}
        )
        await asyncio.to_thread(pool.broker)
        self.to_broker = {who: CuttableProxy(free_port(), pool.port) for who in ("clients", "servers")}
        for way in self.to_broker.values():
            await way.open()
        self.to_server: dict[str, CuttableProxy] = {}
        for server in self.servers:
            port = free_port()
            way = self.to_server[server] = CuttableProxy(free_port(), port)
            await way.open()
            more = ("--listen", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{way.port}", "--link-mbps", "1000")
            broker = f"127.0.0.1:{self.to_broker['servers'].port}"
            await asyncio.to_thread(pool.serve, server, CARDS, *more, broker=broker)
        flags = pool.flags("admin", "op")
        self.credentials = Credentials(ca=Path(flags[1]), certificate=Path(flags[3]), key=Path(flags[5]))

    async def close(self) -> None:
        for task in self.repairs:
            task.cancel()
        await asyncio.gather(*self.repairs, return_exceptions=True)
        for way in (*self.to_broker.values(), *self.to_server.values()):
            await way.close()
        await asyncio.to_thread(self.pool.close)
        for one in self.mine():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)

    def mine(self) -> list[process_table.Process]:
        return process_table.of_place(self.pool.directory, self.mark)

    def problem(self, text: str) -> None:
        if len(self.tally.problems) < MOST_PROBLEMS:
            self.tally.problems.append(f"{datetime.now(UTC):%H:%M:%S}: {text}")
        for path in self.pool.directory.glob("*.log"):
            self.tally.logs[path.stem] = path.read_text(errors="replace").splitlines()[-LOG_LINES:]

    async def ask(self, question: Callable[[PoolClient], Awaitable[T]]) -> T:
        """Raises ElasticGPUError while no broker answers."""
        client = await PoolClient.connect(parse_address(f"127.0.0.1:{self.pool.port}"), self.credentials)
        try:
            return await question(client)
        finally:
            await client.close()

    # --- the load -----------------------------------------------------------------------------------------------------

    def next_program(self) -> tuple[str, list[str], list[str], bool]:
        """(what, command, options, whether it is far from its cards) of the next program."""
        chance = self.chance
        gpus = chance.choice((1, 1, 1, 2, 2, 3))
        options = ["--gpus", str(gpus), "--core", str(chance.choice((5, 10, 20))), "--memory", f"{QUOTA_MIB}MiB"]
        options += ["--pool", f"127.0.0.1:{self.to_broker['clients'].port}"]
        far = chance.random() < 0.5
        if chance.random() < 0.3:
            name = chance.choice(SAMPLES)
            return name, [local_pool.sample(name)], options, far
        works = chance.sample(mixed_load.WORKS, chance.randrange(3, 7))
        works += ["cards"] if gpus > 1 else []
        works += ["child"] if chance.random() < 0.2 else []
        seed = str(chance.randrange(1 << 30))
        return "mixed", [sys.executable, str(self.program), seed, *works], options, far

    async def place_of_a_client(self, until: Callable[[], bool]) -> None:
        """One program after the other."""
        while not until():
            what, command, options, far = self.next_program()
            number = self.numbers = self.numbers + 1
            words = self.pool.run_command(command, *options)
            if far:
                words[1:3] = ["-c", local_pool.FAR]
            process = await asyncio.create_subprocess_exec(
                *words, env={**os.environ, **self.pool.environment, "EGPU_TEST_RUN": str(number)},
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            gpus = int(options[1])
            run = Run(number, f"{what} {'far' if far else 'near'}", gpus, process, time.monotonic())
            self.running.add(run)
            self.tally.programs[run.what] += 1
            try:
                await self.follow(run)
            finally:
                self.running.discard(run)

    async def follow(self, run: Run) -> None:
        """To its end and that of everything it started: they hold its output open."""
        assert run.process.stdout is not None
        said = asyncio.create_task(run.process.stdout.read())
        ended = asyncio.create_task(self.ended(run))
        while not (said.done() and ended.done()):
            since = run.hurt_at or run.started
            left = since + DEADLINE_SECONDS * (1 if run.hurt else 2) - time.monotonic()
            if left <= 0:
                await self.hangs(run, said, ended)
                return
            await asyncio.wait([one for one in (said, ended) if not one.done()], timeout=min(left, 0.5))
        run.said = said.result().decode(errors="replace")
        if run.hurt:
            self.tally.slow(f"end of a program after: {run.hurt}", time.monotonic() - run.hurt_at)
        else:
            self.tally.slow("a program that nothing struck", time.monotonic() - run.started)
        self.judge(run)

    async def ended(self, run: Run) -> None:
        assert run.process.stderr is not None
        async for line in run.process.stderr:
            text = line.decode(errors="replace").rstrip()
            run.noted.append(text)
            if not run.lease and (found := re.search(r"\blease (lease-[0-9a-f]+): ", text)):
                run.lease = found[1]
                self.tally.slow("a program's start to its lease", time.monotonic() - run.started)
        await run.process.wait()

    async def hangs(self, run: Run, *tasks: asyncio.Task[Any]) -> None:
        listed = [one for one in self.mine() if self.is_of(one, run)]
        states = "; ".join(f"{one.pid} {one.state} {one.command[:80]} {_stacks(one.pid)}" for one in listed)
        self.problem(f"{self.about(run)} does not end: {states}")
        for one in listed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def judge(self, run: Run) -> None:
        status, notes = run.process.returncode, " | ".join(run.noted[-6:])
        last = (run.said.rstrip().splitlines() or [""])[-1]
        right = status == 0 and (_done(last) if run.what.startswith("mixed") else ": ok" in last or "NVML" in last)
        about = f"{self.about(run)} ended with {status}: {last[-300:]} | {notes[-600:]}"
        if '"wrong"' in last or "Traceback" in notes:
            self.problem(about)
        elif run.hurt:
            self.tally.ended["struck, and finished" if right else "struck, with an error"] += 1
            if status == 0 and not right:
                self.problem(f"success without an answer: {about}")
        elif right:
            self.tally.ended["right"] += 1
        elif self.had_no_place(run):
            self.tally.ended["had no place while a daemon was away"] += 1
        else:
            self.problem(about)

    def had_no_place(self, run: Run) -> bool:
        """It began nothing: it needs both servers, and one was away for longer than anybody waits for it."""
        refused = not run.lease and any(line.startswith("no lease: no room for ") for line in run.noted)
        return refused and run.gpus > CARDS and any(one.longer_than_grace(run) for one in self.outages)

    def about(self, run: Run) -> str:
        hurt = f", struck by {run.hurt}" if run.hurt else ""
        return f"program {run.number} ({run.what}, {run.gpus} cards, {run.lease or 'no lease'}{hurt})"

    def is_of(self, process: process_table.Process, run: Run) -> bool:
        with contextlib.suppress(OSError):
            return f"EGPU_TEST_RUN={run.number}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(
                b"\0"
            )
        return False

    # --- strikes ------------------------------------------------------------------------------------------------------

    async def strike_at_random(self, kinds: tuple[str, ...], until: Callable[[], bool], pause: float) -> None:
        """Each kind as often as any other, in a random order."""
        while not until():
            await asyncio.sleep(self.chance.uniform(0.2, 1.8) * pause)
            self.bag = [kind for kind in self.bag if kind in kinds]
            if not self.bag:
                again = [kind for kind in kinds if kind in self.missed]
                self.bag = [*self.chance.sample(kinds, len(kinds)), *again]
                self.missed.clear()
            kind = self.bag.pop()
            if await self.strike_soon(kind, until):
                self.tally.strikes[kind] += 1
                self.tally.struck = [*self.tally.struck[-LOG_LINES:], f"{datetime.now(UTC):%H:%M:%S} {kind}"]
            else:
                self.missed.add(kind)  # nobody was there: in the next round before others

    async def strike_soon(self, kind: str, until: Callable[[], bool]) -> bool:
        """Once there is something to strike, if there is before long."""
        waiting = time.monotonic() + WAIT_FOR_VICTIM_SECONDS
        struck = await self.strike(kind)
        while not struck and not until() and time.monotonic() < waiting:
            await asyncio.sleep(0.05)
            struck = await self.strike(kind)
        return struck

    async def strike(self, kind: str) -> bool:
        """Whether there was something to strike."""
        match kind:
            case "cut data":
                return self.to_server[self.chance.choice(self.servers)].cut() > 0
            case "cut clients" | "cut servers":
                return self.to_broker[kind.removeprefix("cut ")].cut() > 0
            case "relay":
                return self.kill_relay()
            case "broker":
                return self.restart("broker")
            case "daemon":
                return self.restart(self.chance.choice(self.servers))
            case _:
                return await self.strike_a_program(kind)

    async def strike_a_program(self, kind: str) -> bool:
        """Whether one held a lease."""
        holding = sorted((run for run in self.running if run.holds), key=lambda run: run.number)
        if not holding:
            return False
        run = self.chance.choice(holding)
        if kind == "resize":
            memory = self.chance.randrange(1024, mixed_load.MOST_MIB + 1)
            self.repair(self.resize(run, "--memory", f"{memory}MiB", "--core", str(self.chance.randrange(5, 21))))
            return True
        if kind == "deadline":
            self.hurt(run, kind)
            self.repair(self.resize(run, "--memory", "16MiB", "--within", "0.2"))
            return True
        pids = await asyncio.to_thread(lambda: list(self.victims(kind, run)))
        if not pids:
            return False
        self.hurt(run, kind)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.chance.choice(pids), signal.SIGKILL)
        return True

    def hurt(self, run: Run, kind: str) -> None:
        assert kind in HURTING
        run.hurt, run.hurt_at = kind, time.monotonic()

    def victims(self, kind: str, run: Run) -> Iterator[int]:
        if kind == "client":
            yield run.process.pid
        elif kind == "program":
            for one in self.mine():
                command = one.command.split()
                ours = str(self.program) in command[1:2] or "/samples/egpu-sample-" in (command or [""])[0]
                if ours and self.is_of(one, run):
                    yield one.pid
        else:
            for directory in self.pool.directory.glob(f"*/leases/{run.lease}"):
                with contextlib.suppress(OSError, ValueError):
                    parent = int((directory / "pid").read_text().split()[0])
                    yield from [parent] if kind == "executor" else process_table.children(parent)

    def kill_relay(self) -> bool:
        daemons = {self.pool.processes[server].pid for server in self.servers}
        relays = [one.pid for one in self.mine() if one.parent in daemons and "egpu-relay" in one.command]
        if relays:
            os.kill(self.chance.choice(relays), signal.SIGKILL)
        return bool(relays)

    def restart(self, name: str) -> bool:
        if name in self.away:
            return False
        self.away.add(name)
        self.pool.kill(name)
        outage = Outage(time.monotonic())
        if name in self.servers:
            self.outages.append(outage)

        async def again() -> None:
            await asyncio.sleep(self.chance.uniform(0, 1.5))
            self.pool.again(name)
            began = time.monotonic()
            self.away.discard(name)
            await self.eventually(self.connected, f"{name} started again")
            outage.ended = time.monotonic()
            self.tally.slow("a daemon's start until it is back in the pool", time.monotonic() - began)

        self.repair(again())
        return True

    async def connected(self) -> str:
        servers = await self.ask(lambda client: client.servers())
        missing = {*self.servers} - {one.server for one in servers if one.connected} - self.away
        return f"not connected: {sorted(missing)}" if missing else ""

    def repair(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.repairs.add(task)
        task.add_done_callback(self.repairs.discard)

    async def resize(self, run: Run, *options: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "egpu", "resize", run.lease, *options, "--pool", f"127.0.0.1:{self.pool.port}",
            *self.pool.flags("admin", "op"), env={**os.environ, **self.pool.environment},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, errors = await process.communicate()
        text = errors.decode(errors="replace").strip()
        if process.returncode == 0:
            self.tally.ended["resized"] += 1
        elif process.returncode == 1 and "Traceback" not in text:
            # The program has ended meanwhile, the broker is away, or there is no room: it says so.
            reasons = ("no lease", "ended", "for this lease", "not known yet", "did not put", "does not answer")
            why = next((one for one in reasons if one in text), text[-100:])
            self.tally.ended[f"not resized: {why}"] += 1
        else:
            self.problem(f"egpu resize {' '.join(options)} ended with {process.returncode}: {text[-600:]}")

    # --- between epochs -----------------------------------------------------------------------------------------------

    async def eventually(self, wrong: Callable[[], Awaitable[str]], what: str) -> None:
        """Until nothing is wrong any more; it is a problem if that does not come to pass."""
        began = time.monotonic()
        while True:
            try:
                found = await wrong()
            except ElasticGPUError as error:
                found = str(error)
            if not found:
                return
            if time.monotonic() - began > DEADLINE_SECONDS:
                self.problem(f"{what}: {found}")
                return
            await asyncio.sleep(0.1)

    async def settle(self) -> dict[str, process_table.Level]:
        """Everything is as it was before the first program; what each process holds then."""
        began = time.monotonic()
        await asyncio.gather(*list(self.repairs))
        # What a killed `egpu run` has left is removed by the next one.
        assert (await self.run_once(["true"])) == 0
        await self.eventually(self.not_free, "after everything has ended the pool is not free")
        await self.eventually(self.too_many, "processes are left")
        await self.eventually(self.cards_in_use, "memory of cards is not given back")
        if self.files:
            await self.eventually(self.new_files, "files are left")
        self.files = self.files or self.listed()
        if self.descriptors:
            await self.eventually(self.open_descriptors, "descriptors are left open")
        found = {name: process_table.level(process.pid) for name, process in self.pool.processes.items()}
        for server in self.servers:
            for relay in self.relays(server):
                found[f"{server} relay"] = process_table.level(relay.pid)
        self.descriptors = self.descriptors or {
            name: found[name].descriptors - len(self.relays(name)) for name in self.pool.processes
        }
        self.tally.slow("settling", time.monotonic() - began)
        self.tally.settled.append(
            {"programs": self.numbers, "pid": {n: p.pid for n, p in self.pool.processes.items()}}
            | {name: {"ownKiB": one.own_kib, "descriptors": one.descriptors} for name, one in found.items()}
        )
        return found

    async def run_once(self, command: list[str]) -> int:
        words = self.pool.run_command(command)
        process = await asyncio.create_subprocess_exec(*words, env={**os.environ, **self.pool.environment})
        return await process.wait()

    async def not_free(self) -> str:
        leases = await self.ask(lambda client: client.leases())
        if leases:
            return f"leases {[(one.lease, one.state, one.holder[:60]) for one in leases]}"
        for one in await self.ask(lambda client: client.servers()):
            if not one.connected or one.leases or (one.core_free, one.memory_free_mib) != (one.core, one.memory_mib):
                return str(one)
        return await self.connected()

    def relays(self, server: str) -> list[process_table.Process]:
        daemon = self.pool.processes[server].pid
        return [one for one in self.mine() if one.parent == daemon and "egpu-relay" in one.command]

    async def too_many(self) -> str:
        expected = {process.pid for process in self.pool.processes.values()}
        relays = {self.relays(server)[0].pid for server in self.servers if self.relays(server)}
        left = [one for one in self.mine() if one.pid not in expected | relays]
        return "; ".join(f"{one.pid} (of {one.parent}, {one.state}) {one.command[:200]}" for one in left)

    async def cards_in_use(self) -> str:
        asking = (
            "n.nvmlInit(); say([n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(i)).used "
            "for i in range(n.nvmlDeviceGetCount())])"
        )
        for server in self.servers:
            machine = simulator.open_machine(self.pool.directory / server / "machine")
            used = await asyncio.to_thread(simulated_gpu.run, machine, asking)
            if used != [0] * CARDS:
                return f"{server}: {used} bytes"
        return ""

    def listed(self) -> set[str]:
        """Every path of the place, but images of modules, which are kept for the callers' next programs; and in shared
        memory, where a daemon that starts again may make its machine anew."""
        places = [self.pool.directory / server for server in self.servers]
        shared = [str(path) for path in Path("/dev/shm").iterdir() if f"soak-{os.getpid()}-" in path.name]
        machines = [str(simulator.open_machine(place / "machine").state) for place in places]
        found = process_table.files(*places, self.runtime, self.pool.directory / "tmp")
        kept = tuple(str(place / "images") for place in places)
        return {path for path in found if not path.startswith(kept)} | {*shared} - {*machines}

    async def new_files(self) -> str:
        return ", ".join(sorted(self.listed() - self.files)[:10])

    async def open_descriptors(self) -> str:
        more: list[str] = []
        for name, before in self.descriptors.items():
            pid = self.pool.processes[name].pid
            now = process_table.level(pid).descriptors
            # A relay is started when it is first needed, and takes one.
            if now > before + (name in self.servers):
                more.append(f"{name}: {now}, were {before}: {_open(pid)}")
        return "; ".join(more)

    async def watch(self) -> None:
        """The most that was there at once, while it runs."""
        while True:
            await asyncio.sleep(0.5)
            together = 0.0
            highest = self.tally.highest_rss_mib
            for one in await asyncio.to_thread(self.mine):
                with contextlib.suppress(OSError):
                    kind = next((n for n, p in self.pool.processes.items() if p.pid == one.pid), _kind(one.command))
                    mib = process_table.level(one.pid).resident_kib / 1024
                    together += mib
                    kind = kind.replace(f"soak-{os.getpid()}", "daemon")
                    highest[kind] = round(max(highest.get(kind, 0.0), mib), 1)
            highest["all together"] = round(max(highest.get("all together", 0.0), together), 1)
            self.tally.most_leases = max(self.tally.most_leases, sum(bool(run.lease) for run in self.running))

    # --- all of it ----------------------------------------------------------------------------------------------------

    async def epoch(self, until: Callable[[], bool], kinds: tuple[str, ...] = (), pause: float = 1.0) -> None:
        places = [self.place_of_a_client(until) for _ in range(CLIENTS)]
        strikes = [self.strike_at_random(kinds, until, pause)] if kinds else []
        await asyncio.gather(*places, *strikes)
        await self.settle()
        self.tally.epochs += 1

    async def run(self, seconds: float) -> Tally:
        """Raises nothing for what goes wrong: that is in the tally."""
        watching = asyncio.create_task(self.watch())
        began = time.monotonic()
        try:
            await self.epoch(lambda: self.numbers >= WARM_UP_PROGRAMS)
            warm = time.monotonic()  # a busy machine takes its time for that
            pause = min(1.0, seconds / 60)
            halves = ((STRIKES, 0.5), (tuple(kind for kind in STRIKES if kind not in LASTING), 1.0))
            first = 0
            for kinds, share in halves:
                first = len(self.tally.settled)
                late = warm + share * seconds + 2 * DEADLINE_SECONDS
                while not self.tally.problems and (
                    time.monotonic() - warm < share * seconds
                    or ({*kinds} - {*self.tally.strikes} and time.monotonic() < late)
                ):
                    end = time.monotonic() + max(LEAST_EPOCH_SECONDS, seconds / 30)
                    await self.epoch(lambda end=end: time.monotonic() > end or bool(self.tally.problems), kinds, pause)
                self.bag.clear()
            self.compare(self.tally.settled[first - 1 :])
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self.tally.seconds = round(time.monotonic() - began, 1)
        return self.tally

    def compare(self, settled: list[dict[str, Any]]) -> None:
        """The memory of those that lived through the second half: a leak goes on growing, an allocator does not."""
        third = max(1, len(settled) // 3)
        programs = settled[-1]["programs"] - settled[0]["programs"]
        for name in ("broker", *self.servers):
            own = [one[name]["ownKiB"] for one in settled]
            before, after = statistics.median(own[:third]), statistics.median(own[-third:])
            allowed = GROWTH_KIB + GROWTH_KIB_PER_PROGRAM * programs
            self.tally.growth_kib[name] = {
                "from": before, "to": after, "programs": programs, "perProgram": round(_slope(settled, name), 3),
            }  # fmt: skip
            if after - before > allowed:
                self.problem(f"{name} grew from {before} to {after} KiB over {programs} programs; {allowed} is allowed")


def _slope(settled: list[dict[str, Any]], name: str) -> float:
    """KiB a program: the median of the slopes between any two (Theil and Sen), which a single jump does not move."""
    slopes = [
        (later[name]["ownKiB"] - earlier[name]["ownKiB"]) / (later["programs"] - earlier["programs"])
        for place, earlier in enumerate(settled)
        for later in settled[place + 1 :]
        if later["programs"] > earlier["programs"]
    ]
    return statistics.median(slopes) if slopes else 0.0


def _done(last: str) -> bool:
    try:
        return "done" in json.loads(last)
    except ValueError:
        return False


def _kind(command: str) -> str:
    for name in ("egpu-relay", "egpu-executor", "egpu-session", "egpu-enter", "egpu-sample", "mixed_load"):
        if name in command.split(" --", maxsplit=1)[0]:
            return name
    return "egpu run" if " run --pool" in command else "other"


def _stacks(pid: int) -> str:
    with contextlib.suppress(OSError):
        return " ".join(Path(path, "wchan").read_text() for path in Path(f"/proc/{pid}/task").iterdir())
    return ""


def _open(pid: int) -> list[str]:
    found: list[str] = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(path))
    return sorted(found)


async def soak(seconds: float, seed: int) -> Tally:
    """All of it, in a place of its own."""
    with local_pool.local_pool(tls=True) as pool:
        made = Soak(pool, seed)
        try:
            await made.open()
            return await made.run(seconds)
        finally:
            await made.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=600.0)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    kept_memory.keep_nothing()
    text = json.dumps(vars(asyncio.run(soak(given.seconds, given.seed))), indent=2)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
