"""A storm of tenants on shared simulated cards, half of them hostile in ways chosen at random.

    python -m support.hostile_storm --tenants 50 --rounds 200 --seed 1        (in tests/, or by `make storm`)

Half of the tenants hold leases of a pool (`egpu broker`, `egpu serve`), half slices of a node's cards, five to a card,
each with a fifth of it. In every round each honest one must find in its memory what it left there, get exactly its
limit again, and have its kernels counted right; each hostile one attacks in one way. Then shares are taken in virtual
time (`hostile_shares`), leases and memory are counted, and the machine and the cluster's objects compared with what
they were.

All that is chosen in a round follows from the seed and the round's number: `--first-round` goes on where another run
stopped.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from egpu.adapters import native
from egpu.adapters.pool import authority
from egpu.adapters.pool.bridge import Bridge, fill
from egpu.adapters.pool.lease import HeldLease
from egpu.adapters.pool.security import Credentials
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu.api.allocation import CardShare
from egpu.apps.agent.slots.directories import Slots
from egpu.core.leasing.records import LeaseRequest
from egpu_base.errors import ElasticGPUError, TooSoon
from egpu_base.http.listening import Listen
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.machine import Machine
from support import host_snapshot, hostile_shares, hostile_strangers, kept_memory, pace, process_table, simulated_gpu
from support.hostile_api import Api, api
from support.hostile_files import damage
from support.hostile_programs import ATTACKS, FILE_ATTACKS, LIES, MIB, Tenant, honest, hostile
from support.local_pool import LocalPool, local_pool
from support.slices import LIBRARY, slot_record
from support.strangers import STRANGER
from support.waiting import DEADLINE_SECONDS, until

PER_CARD: Final = 5
CORE: Final = 100 // PER_CARD
LIMIT_MIB: Final = 8
"""Of each tenant: so little that all of it can be looked at in each round."""
CARDS_TIMED_A_ROUND: Final = 2
THREADS: Final = 64
MOST_PROBLEMS: Final = 20

USED: Final = """
n.nvmlInit()
cards = [n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount())]
say([n.nvmlDeviceGetMemoryInfo(card).used for card in cards])
"""

WATCH: Final = """
import asyncio, sys
from pathlib import Path
from egpu.adapters.cards.nvml import NvmlInventory
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.slots.directories import Slots
asyncio.run(MemoryReconciler(Slots(Path(sys.argv[1])), NvmlInventory(Path(sys.argv[2]))).run())
"""
"""What an agent does all the time for the slices of its node; `egpu serve` does it for leases."""

LOADING: Final = ("globals", "heaps")
"""Attacks that may succeed for a moment, when several hide each other's from the driver's account: then whoever has
more than its limit is ended."""

OUTSIDE: Final = (
    "flood",
    "no certificate",
    "theft of leases",
    "impostor",
    "hoarder",
    "wrong frames",
    "API",
    "local user",
)
"""Attacks that take no card."""


@dataclass(eq=False)
class Member:
    """One tenant of the storm: where its program finds its driver, and what holds its share."""

    name: str
    is_hostile: bool
    driver: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    credentials: Credentials | None = None
    lease: HeldLease | None = None
    """None: of a slice, or it has to wait for the next one, because the one before was ended for an overrun."""
    has_lost_it: bool = False
    bridge: Bridge | None = None
    slot: Path | None = None
    program: Tenant | None = None
    seed: int = 0
    mark: list[Any] = field(default_factory=list[Any])
    """The address of its memory, and the first bytes there."""

    def start(self) -> None:
        """Its program, and the first word of it."""
        code = hostile(LIMIT_MIB * MIB) if self.is_hostile else honest(LIMIT_MIB * MIB, self.seed)
        self.program = Tenant(self.driver, code, self.environment)

    def stop(self) -> None:
        if self.program is not None:
            self.program.__exit__()
            self.program = None


@dataclass
class Tally:
    """What was done, and what went wrong."""

    seed: int
    tenants: int
    rounds: int = 0
    seconds: float = 0.0
    attacks: Counter[str] = field(default_factory=Counter[str])
    honest_bytes: int = 0
    shares_measured: int = 0
    worst_share: float = 0.0
    """Of an honest tenant, in points beside its share."""
    restarts: int = 0
    overruns: int = 0
    """Who had more than its limit for a moment, and was ended."""
    waits: int = 0
    """Rounds in which somebody had no lease because its last one was ended so."""
    problems: list[str] = field(default_factory=list[str])

    def so_far(self) -> str:
        """In one line."""
        return (
            f"{self.seconds:.0f} s, {self.attacks.total()} attacks, "
            f"honest shares at worst {self.worst_share:.1f} points off, {len(self.problems)} problems"
        )


class Storm:
    """`storm()` makes one; `round` after `round`, what was wrong is in `tally.problems`."""

    def __init__(self, pool: LocalPool, machine: Machine, cluster: Api, world: Path, tally: Tally) -> None:
        self.pool, self.machine, self.cluster, self.world, self.tally = pool, machine, cluster, world, tally
        self.broker = Listen("127.0.0.1", pool.port)
        self.slots = Slots(pool.directory / "slots")
        self.members: list[Member] = []
        self.host: dict[str, str] = {}
        self.objects: list[Any] = []
        self.watch: subprocess.Popen[bytes] | None = None
        self.at = "while it opened"

    @property
    def servers(self) -> list[str]:
        return [name for name in self.pool.processes if name != "broker"]

    def problem(self, what: str) -> None:
        if len(self.tally.problems) < MOST_PROBLEMS:
            self.tally.problems.append(f"{self.at}: {what}")

    # --- tenants ------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        chance = random.Random(self.tally.seed)
        hostile_ones = set(chance.sample(range(self.tally.tenants), self.tally.tenants // 2))
        pki = self.pool.tls
        assert pki is not None
        for number in range(self.tally.tenants):
            name = f"tenant-{number}"
            member = Member(name, number in hostile_ones, self.pool.directory / name, seed=number)
            if number % 2:
                self._slice(member, number // 2)
            else:
                member.credentials = authority.issue(pki, "client", name)
                await self._lease(member)
            self.members.append(member)
        self._watch()
        for member in self.members:  # what others take while a module is loaded may be charged to it
            await self._start(member)
        self.objects = await self.cluster.state()
        self.host = await asyncio.to_thread(host_snapshot.host, self.pool.directory)

    def _watch(self) -> None:
        library = self.machine.driver_dir / "libnvidia-ml.so.1"
        with (self.pool.directory / "watch.log").open("wb") as told:
            self.watch = subprocess.Popen(
                [sys.executable, "-c", WATCH, self.pool.directory / "slots", library], stdout=told, stderr=told
            )

    def _slice(self, member: Member, number: int) -> None:
        card = self.machine.cards[number // PER_CARD]
        share = CardShare(uuid=card.uuid, index=card.index, minor=card.minor, core=CORE, memory_mib=LIMIT_MIB)

        def write(directory: Path) -> None:
            (directory / LIBRARY).symlink_to(native.path(LIBRARY))
            line = DevicePolicy(
                uuid=card.uuid, minor=card.minor, mode=Mode.CAP, core_ppm=CORE * 10_000,
                memory_limit_bytes=LIMIT_MIB * MIB,
            )  # fmt: skip
            write_policy(directory / "policy", [line])
            create_usage(directory / "usage")

        self.slots.replace(slot_record(self.slots, member.name, share), write)
        member.slot = self.slots.path(member.name)
        member.driver = self.machine.driver_dir
        member.environment = {"LD_PRELOAD": str(member.slot / LIBRARY), "CUDA_VISIBLE_DEVICES": str(card.index)}

    async def _lease(self, member: Member) -> None:
        assert member.credentials is not None
        member.driver.mkdir(exist_ok=True)
        if not (member.driver / "libcuda.so.1").exists():
            fill(member.driver)
        (member.driver / "lease0.sock").unlink(missing_ok=True)

        def on_ended(why: str) -> None:
            member.has_lost_it = True
            if not member.is_hostile:
                self.problem(f"{member.name} lost its lease: {why}")

        lease = HeldLease(
            self.broker, member.credentials, LeaseRequest(cards=1, core=CORE, memory_mib=LIMIT_MIB),
            holder=member.name, on_ended=on_ended,
        )  # fmt: skip
        await lease.take()
        member.lease, member.has_lost_it = lease, False
        member.bridge = Bridge(member.driver, member.credentials, member.lease.take)
        await member.bridge.open()

    async def _start(self, member: Member) -> None:
        member.start()
        assert member.program is not None
        try:
            said = await self._patiently(asyncio.to_thread(member.program.hear))
        except (AssertionError, TimeoutError) as error:
            self.problem(f"{member.name} ({'slice' if member.slot else 'lease'}) does not start: {error}")
            return
        if not member.is_hostile:
            self._take(member, said)

    async def _again(self, member: Member) -> None:
        """A hostile tenant that broke its own is given it anew, as its owner would."""
        self.tally.restarts += 1
        await asyncio.to_thread(member.stop)
        if member.slot is not None:
            usage = member.slot / "usage"
            if usage.is_dir():
                usage.rmdir()
            usage.unlink(missing_ok=True)
            create_usage(usage)
        else:
            if member.bridge is not None and member.lease is not None:
                await member.bridge.close()
                await member.lease.close()
                await until(self._room, "its lease is free again")
                member.lease = member.bridge = None
            try:
                await self._lease(member)
            except TooSoon:
                self.tally.waits += 1
                return
        await self._start(member)

    async def _room(self) -> bool:
        return len(await self._leases()) < sum(member.lease is not None for member in self.members)

    @staticmethod
    async def _patiently(waiting: Awaitable[Any]) -> Any:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await waiting

    # --- a round ------------------------------------------------------------------------------------------------------

    async def round(self, number: int) -> None:
        chance = random.Random(f"{self.tally.seed}/{number}")
        self.at = f"round {number}"
        turns = [self._attack(one, chance) if one.is_hostile else self._work(one) for one in self.members]
        await asyncio.gather(*turns)
        await asyncio.to_thread(self._time, number, chance)
        await self._count_leases()
        await asyncio.to_thread(self._count_memory, number)
        await self._compare()
        self.tally.rounds += 1

    async def _work(self, member: Member) -> None:
        assert member.program is not None
        try:
            self._take(member, await self._patiently(asyncio.to_thread(member.program.ask)))
        except (AssertionError, OSError, TimeoutError) as error:
            self.problem(f"{member.name}, honest, ended or hangs: {error!r}")

    def _take(self, member: Member, said: dict[str, Any]) -> None:
        member.mark = said["mark"]
        self.tally.honest_bytes += said["bytes"]
        for wrong in said["wrong"]:
            self.problem(f"{member.name}, honest, in a {'slice' if member.slot else 'lease'}: {wrong}")

    async def _attack(self, member: Member, chance: random.Random) -> None:
        ways = ATTACKS + ((*FILE_ATTACKS, *LIES) if member.slot is not None else ()) + OUTSIDE
        if member.program is None:
            ways = OUTSIDE
        if member.lease is None:
            ways = tuple(way for way in ways if way not in ("wrong frames", "theft of leases", "impostor", "hoarder"))
        way, own = chance.choice(ways), random.Random(chance.random())
        self.tally.attacks[way] += 1
        try:
            got = await self._patiently(
                self._outside(member, way, own) if way in OUTSIDE else self._inside(member, way, own)
            )
        except (AssertionError, OSError, TimeoutError, subprocess.TimeoutExpired) as error:
            # its own program's end is its own loss
            got = [] if member.program is not None and member.program.ended else [f"hangs: {error!r}"]
        for one in got:
            self.problem(f"{member.name}, hostile by {way}: {one}")
        if (
            member.program is None
            or member.program.ended
            or member.has_lost_it
            or way in ("damaged file", "forged account")
        ):
            await self._again(member)

    async def _inside(self, member: Member, way: str, chance: random.Random) -> list[str]:
        program = member.program
        assert program is not None
        if way == "damaged file":
            assert member.slot is not None
            damage(member.slot / "usage", chance)
            way = "greed"
        others: list[Any] = [one.mark for one in self.members if one.mark]
        if way in LIES:
            others = [str(one.slot) for one in self.members if one.slot is not None and not one.is_hostile]
        got = await asyncio.to_thread(program.ask, way, others)
        if got and way in LOADING:
            await until(lambda: program.ended or member.has_lost_it, f"{member.name} is ended for {got}")
            self.tally.overruns += 1
            return []
        return got

    async def _outside(self, member: Member, way: str, chance: random.Random) -> list[str]:
        ports = [self.broker.port, *await self._server_ports()]
        match way:
            case "flood":
                return await hostile_strangers.flood(ports, chance)
            case "no certificate":
                return await hostile_strangers.without_certificate(ports, chance)
            case "API":
                return await self.cluster.attack(chance)
            case "local user":
                return await asyncio.to_thread(self._local_user, chance)
            case "wrong frames":
                return await asyncio.to_thread(hostile_strangers.wrong_frames, member.driver / "lease0.sock", chance)
            case _:
                pass
        assert member.credentials is not None
        if way == "theft of leases":
            theirs = [one.lease.lease for one in self.members if one.lease and one.lease.lease and not one.is_hostile]
            return await hostile_strangers.thief(
                self.broker, member.credentials, chance.sample(theirs, min(3, len(theirs)))
            )
        if way == "impostor":
            return await hostile_strangers.impostor(self.broker, member.credentials, chance.choice(self.servers))
        return await hostile_strangers.hoarder(self.broker, member.credentials)

    async def _server_ports(self) -> list[int]:
        return [int(part.address.rpartition(":")[2]) for part in self._parts()]

    def _parts(self) -> list[Any]:
        held = (one.lease.lease for one in self.members if one.lease is not None)
        return [part for lease in held if lease is not None for part in lease.parts]

    def _local_user(self, chance: random.Random) -> list[str]:
        pki = self.pool.tls
        assert pki is not None
        leases = [path for server in self.servers for path in (self.pool.directory / server).glob("leases/lease-*")]
        slots = [one.slot for one in self.members if one.slot is not None]
        some = [*chance.sample(leases, min(2, len(leases))), *chance.sample(slots, min(2, len(slots)))]
        programs = [one.program.process.pid for one in self.members if one.program is not None]
        pids = [process.pid for process in self.pool.processes.values()]
        return hostile_strangers.local_user(
            secrets=[chance.choice(sorted(pki.glob("*.key"))), self.machine.state],
            files=[place / name for place in some for name in ("policy", "usage")],
            directories=[self.pool.directory, *some],
            pids=[*pids, *chance.sample(programs, min(2, len(programs)))],
        )

    # --- what must hold after it --------------------------------------------------------------------------------------

    def _time(self, number: int, chance: random.Random) -> None:
        """Shares of some cards' slices, in turn. Not of leases: see docs/internals/isolation.md."""
        slices = [one for one in self.members if one.slot is not None]
        cards = [slices[at : at + PER_CARD] for at in range(0, len(slices), PER_CARD)]
        for turn in range(min(CARDS_TIMED_A_ROUND, len(cards))):
            tenants = cards[(number * CARDS_TIMED_A_ROUND + turn) % len(cards)]
            sharers = [hostile_shares.Sharer(one.name, CORE, one.is_hostile) for one in tenants]
            place = self.pool.directory / f"pace-{turn}"
            for got in hostile_shares.shares(self.world, place, sharers, chance):
                if got.sharer.hostile:
                    continue
                self.tally.shares_measured += 1
                self.tally.worst_share = max(self.tally.worst_share, abs(got.off_by), key=abs)
                if abs(got.off_by) > hostile_shares.POINTS:
                    self.problem(f"{got.sharer.name}, honest, had {got.percent:.1f} of its {got.sharer.core} percent")
            shutil.rmtree(place)

    async def _leases(self) -> tuple[Any, ...]:
        pki = self.pool.tls
        assert pki is not None
        client = await hostile_strangers.connected(self.broker, authority.issue(pki, "admin", "op"))
        try:
            return await client.leases()
        finally:
            await client.close()

    def _count_memory(self, number: int) -> None:
        """No card holds more than its tenants' limits, as NVML says: of one machine in each round."""
        machines = [self.machine.directory, *(self.pool.directory / name / "machine" for name in self.servers)]
        used = simulated_gpu.run(simulator.open_machine(machines[number % len(machines)]), USED)
        for card, used_bytes in enumerate(used):
            if used_bytes > PER_CARD * LIMIT_MIB * MIB:
                self.problem(f"{used_bytes} bytes of card {card} of {machines[number % len(machines)]} are used")

    async def _count_leases(self) -> None:
        """No card gives more than it has, and every honest lease is what was granted."""
        core, held = Counter[str](), dict[str, Any]()
        for lease in await self._leases():
            held[lease.peer] = lease
            for card in lease.cards:
                core[card.share.uuid] += card.share.core
        for uuid, percent in core.items():
            if percent > 100:
                self.problem(f"card {uuid} is given away by {percent} percent")
        for member in self.members:
            if member.lease is None or member.is_hostile:
                continue
            lease = held.get(f"client/{member.name}")
            if lease is None or [(c.share.core, c.share.memory_mib) for c in lease.cards] != [(CORE, LIMIT_MIB)]:
                self.problem(f"{member.name}, honest, has the lease {lease}")

    async def _compare(self) -> None:
        for change in host_snapshot.changes(
            self.host, await asyncio.to_thread(host_snapshot.host, self.pool.directory)
        ):
            self.problem(f"the host: {change}")
        for left in await asyncio.to_thread(host_snapshot.left_by, {STRANGER}):
            self.problem(f"left on the host: {left}")
        if await self.cluster.state() != self.objects:
            self.problem("objects of the cluster changed")
        assert self.watch is not None
        for name, process in (*self.pool.processes.items(), ("the watch of slices", self.watch)):
            if process.poll() is not None:
                self.problem(f"{name} ended with {process.returncode}")

    # --- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(member.stop) for member in self.members))
        if self.watch is not None:
            self.watch.kill()
            await asyncio.to_thread(self.watch.wait)
        for member in self.members:
            if member.bridge is not None:
                await member.bridge.close()
            if member.lease is not None:
                with contextlib.suppress(ElasticGPUError):
                    await member.lease.close()


def _cards(tenants: int) -> int:
    return -(-tenants // PER_CARD)


@contextlib.asynccontextmanager
async def _place(tally: Tally) -> AsyncGenerator[Storm]:
    """A pool, a machine with cards, a cluster's API server; all of it gone in the end."""
    leases, slices = -(-tally.tenants // 2), tally.tenants // 2
    with local_pool(tls=True) as pool, simulated_gpu.machine(pool.directory, "T4", _cards(slices)) as machine:
        pool.directory.chmod(0o711)
        await asyncio.to_thread(pool.broker)
        cards = _cards(leases)
        parts = [cards] if cards == 1 else [cards // 2, cards - cards // 2]
        for name, count in zip(("one", "two"), parts, strict=False):
            await asyncio.to_thread(pool.serve, name, count)
        world = await asyncio.to_thread(pace.build, pool.directory)
        async with api(pool.directory / "api") as cluster:
            made = Storm(pool, machine, cluster, world, tally)
            try:
                await made.open()
                yield made
            finally:
                await made.close()


async def storm(tenants: int, rounds: int, seed: int, *, first_round: int = 1, show: bool = False) -> Tally:
    """All of it, to the end or to the first problem."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    tally, began = Tally(seed, tenants), time.monotonic()
    async with _place(tally) as made:
        place = made.pool.directory
        for number in range(first_round, first_round + rounds):
            await made.round(number)
            tally.seconds = round(time.monotonic() - began, 1)
            if show:
                print(f"round {number} of {first_round + rounds - 1}: {tally.so_far()}", flush=True)
            if tally.problems:
                break
    left = process_table.of_place(place, "EGPU_NONE=1")
    tally.problems += [f"in the end: process {one.pid} is left: {one.command[:200]}" for one in left]
    return tally


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tenants", type=int, default=50)
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    arguments.add_argument("--first-round", type=int, default=1)
    given = arguments.parse_args()
    kept_memory.keep_nothing()
    print(f"seed {given.seed}, {given.tenants} tenants, {given.rounds} rounds", flush=True)
    tally = asyncio.run(storm(given.tenants, given.rounds, given.seed, first_round=given.first_round, show=True))
    print(json.dumps(vars(tally), indent=2))
    raise SystemExit(bool(tally.problems))


if __name__ == "__main__":
    main()
