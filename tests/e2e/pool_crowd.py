"""Many leases at once, each with its executor: how long that takes, and what it costs.

    python tests/e2e/pool_crowd.py --leases 1000 --out FILE

Two servers of simulated cards are filled with leases of a percent or two and 64 MiB until as many are held as were
asked for; then all are given back.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from egpu.adapters.pool.client import PoolClient, parse_address
from egpu.adapters.pool.messages import Granted
from egpu.adapters.pool.security import Credentials
from egpu_base.errors import DoesNotFit, Unavailable
from support import local_pool, process_table
from support.waiting import DEADLINE_SECONDS

MEMORY_MIB: Final = 64
MOST_CARDS: Final = 16
SERVERS: Final = ("crowd-1", "crowd-2")
AT_ONCE: Final = 64
PER_HOLDER: Final = 50


@dataclass
class Crowd:
    """What came of it. Seconds and MiB; `held` is what the machine had while all leases were held."""

    leases: int
    cards: int
    granting_seconds: float = 0.0
    grant_median_seconds: float = 0.0
    grant_slowest_seconds: float = 0.0
    refusal: str = ""
    renewing_seconds: float = 0.0
    listing_seconds: float = 0.0
    releasing_seconds: float = 0.0
    idle_processors: dict[str, float] = field(default_factory=dict[str, float])
    """Of a second, by process, while all are held and nothing happens."""
    before_mib: dict[str, float] = field(default_factory=dict[str, float])
    held_mib: dict[str, float] = field(default_factory=dict[str, float])
    after_mib: dict[str, float] = field(default_factory=dict[str, float])
    executor_own_mib: float = 0.0
    left: list[str] = field(default_factory=list[str])


class Hall:
    """A broker and two servers with room for `leases`."""

    def __init__(self, pool: local_pool.LocalPool, leases: int) -> None:
        self.pool = pool
        self.core = 2 if leases <= 50 * MOST_CARDS * len(SERVERS) else 1
        self.each = -(-leases // (100 // self.core * len(SERVERS)))
        self.crowd = Crowd(leases, cards=self.each * len(SERVERS))

    async def run(self) -> Crowd:
        await asyncio.to_thread(self.pool.broker)
        for server in SERVERS:
            await asyncio.to_thread(self.pool.serve, server, self.each)
        self.credentials = Credentials(secret_file=self.pool.directory / "secret")
        client = await PoolClient.connect(parse_address(f"127.0.0.1:{self.pool.port}"), self.credentials)
        try:
            await self.fill(client)
            await self.look(client)
            await self.full(client)
            await self.empty(client)
        finally:
            await client.close()
        return self.crowd

    async def fill(self, client: PoolClient) -> None:
        self.crowd.before_mib = self.memory()
        gate, took = asyncio.Semaphore(AT_ONCE), list[float]()

        async def one(number: int) -> Granted:
            async with gate:
                began = time.monotonic()
                granted = await self.acquire(client, number)
                took.append(time.monotonic() - began)
                return granted

        began = time.monotonic()
        self.granted = await asyncio.gather(*(one(number) for number in range(self.crowd.leases)))
        self.crowd.granting_seconds = round(time.monotonic() - began, 2)
        self.crowd.grant_median_seconds = round(statistics.median(took), 3)
        self.crowd.grant_slowest_seconds = round(max(took), 3)

    async def acquire(self, client: PoolClient, number: int) -> Granted:
        return await client.acquire(
            request=f"r{number}", holder=f"pod:{number // PER_HOLDER}", cards=1, core=self.core, memory_mib=MEMORY_MIB
        )

    async def look(self, client: PoolClient) -> None:
        """While all are held."""
        began = time.monotonic()
        listed = await client.leases()
        self.crowd.listing_seconds = round(time.monotonic() - began, 3)
        assert {one.lease for one in listed} == {one.lease.lease for one in self.granted}
        servers = await client.servers()
        assert sum(one.core - one.core_free for one in servers) == self.crowd.leases * self.core
        assert sum(one.memory_mib - one.memory_free_mib for one in servers) == self.crowd.leases * MEMORY_MIB
        running = self.executors()
        assert len(running) == self.crowd.leases
        own = [process_table.level(pid).own_kib / 1024 for pid in running]
        self.crowd.executor_own_mib = round(statistics.median(own), 2)
        self.crowd.held_mib = self.memory()
        began = time.monotonic()
        await asyncio.gather(*(client.renew(one.lease.lease) for one in self.granted))
        self.crowd.renewing_seconds = round(time.monotonic() - began, 2)
        before, began = self.processors(), time.monotonic()
        await asyncio.sleep(3)
        seconds = time.monotonic() - began
        self.crowd.idle_processors = {
            name: round((after - before[name]) / seconds, 3) for name, after in self.processors().items()
        }

    async def full(self, client: PoolClient) -> None:
        """What is beyond the room is refused, and why is said. A broker that started a moment ago says that later."""
        until = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < until and not self.crowd.refusal:
            try:
                beyond = await client.acquire(
                    request="beyond", holder="pod:beyond", cards=1, core=100, memory_mib=MEMORY_MIB
                )
            except DoesNotFit as error:
                self.crowd.refusal = str(error)
            except Unavailable:
                await asyncio.sleep(0.2)
            else:
                await client.release(beyond.lease.lease)
                return

    async def empty(self, client: PoolClient) -> None:
        began = time.monotonic()
        await asyncio.gather(*(client.release(one.lease.lease) for one in self.granted))
        while time.monotonic() - began < DEADLINE_SECONDS + self.crowd.leases / 10:
            servers = await client.servers()
            if not await client.leases() and all(one.core_free == one.core for one in servers):
                break
            await asyncio.sleep(0.05)
        self.crowd.releasing_seconds = round(time.monotonic() - began, 2)
        self.crowd.left = [
            *(str(path) for path in self.pool.directory.glob("*/leases/*")),
            *(f"process {pid}" for pid in self.executors()),
        ]
        self.crowd.after_mib = self.memory()

    def executors(self) -> list[int]:
        return [
            one.pid
            for one in process_table.of_place(self.pool.directory, "EGPU_TEST_CROWD=none")
            if "egpu-executor" in one.command and not process_table.is_called(one.pid, "egpu-images")
        ]

    def memory(self) -> dict[str, float]:
        return {
            name: round(process_table.level(process.pid).own_kib / 1024, 1)
            for name, process in self.pool.processes.items()
        }

    def processors(self) -> dict[str, float]:
        """Seconds of processor time that each has used."""
        tick = os.sysconf("SC_CLK_TCK")
        used: dict[str, float] = {}
        for name, process in self.pool.processes.items():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            used[name] = (int(fields[11]) + int(fields[12])) / tick
        return used


async def crowd(leases: int) -> Crowd:
    """All of it, in a place of its own."""
    with local_pool.local_pool(tls=False) as pool:
        return await Hall(pool, leases).run()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--leases", type=int, default=1000)
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    found: dict[str, Any] = vars(asyncio.run(crowd(given.leases)))
    text = json.dumps(found, indent=2)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
