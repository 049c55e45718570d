"""Faults of a cluster, one after the other in a random order that follows from a seed: what is struck must recover, and
nothing else may notice.

    killed     a component, or the API server, at any moment; agents and kubelets of any node; all agents at once
    paused     a component, or the API server, for up to two seconds
    rolled     an agent, as an upgrade of its DaemonSet replaces it
    refused    requests of our components to the API server, with 409, 410, 429 and 500, before anything is done
    cut        every watch
    deposed    the extender that leads: its Lease is another's, until the next one takes it back
    set        a component's clock, by an hour to either side, and back again
    rotated    the certificates of webhook, extender and pool, and the authorities of webhook and pool

Not killed are shims: their executors end with them, which is what they are for. And an agent is struck only while all
agents are ready, as in a rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Final

import httpx2

from egpu.adapters.pool.security import Role
from egpu.apps.controller import ControllerConfig
from egpu.apps.extender import ExtenderConfig
from egpu.laptop.cluster import NAMESPACE, PKI, Cluster
from egpu.laptop.credentials import LOOPBACK
from egpu_base.api.kubernetes import Lease, Secret
from egpu_base.system.files import write_atomically
from egpu_base.tls.certificates import Certificates, issue
from egpu_sim.cluster.apiserver import status
from egpu_sim.cluster.apiserver.access.authorization import Wanted
from egpu_sim.cluster.apiserver.calls import User
from support import rotation
from support.settable_clock import SettableClock
from support.waiting import until

KILLED: Final = ("extender", "controller", "webhook", "agent", "kubelet")
PAUSED: Final = (*KILLED, "shim")
LONGEST_PAUSE_SECONDS: Final = 2.0
JUMP_SECONDS: Final = 3600
LONGEST_AWAY_SECONDS: Final = 3.0
"""Of the API server: as long as its container takes to start again, and more."""
REFUSING_SECONDS: Final = 1.5
REFUSED_SHARE: Final = 0.4
LEASE: Final = ExtenderConfig.lease
WEBHOOK_TLS: Final = ControllerConfig.tls_secret


class Faults:
    """`strike` once a round; `struck` counts what was done."""

    def __init__(self, running: Cluster, seed: int, clock: SettableClock) -> None:
        self._running = running
        self._clock = clock
        self._rng = random.Random(seed)
        self._left: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self._refusing_until = 0.0
        self.struck: Counter[str] = Counter()
        self.refused: Counter[int] = Counter()
        """How many requests, by status."""
        running.server.listeners.append(self._refuse)

    def kinds(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """All of them, by name."""
        for kind in KILLED:
            yield f"kill {kind}", lambda kind=kind: self._kill(kind)
        for kind in PAUSED:
            yield f"pause {kind}", lambda kind=kind: self._pause(kind)
        for kind in PAUSED:
            yield f"set clock of {kind}", lambda kind=kind: self._set_clock(kind)
        yield "roll agent", self._roll
        yield "kill every agent", self._kill_agents
        yield "pause API server", self._pause_api
        yield "kill API server", self._kill_api
        yield "refuse requests", self._refuse_for_a_while
        yield "cut watches", self._cut
        yield "depose extender", self._depose
        yield "rotate webhook's certificate", lambda: self._rotate("tls.crt")
        yield "rotate webhook's authority", lambda: self._rotate("ca.key")
        yield "rotate extender's certificate", self._rotate_extender
        yield "rotate pool's certificates", self._rotate_pool
        yield "rotate pool's authority", self._rotate_pool_authority

    async def strike(self) -> str:
        """The next fault; returns what it was. Each kind comes as often as any other."""
        if not self._left:
            self._left = list(self.kinds())
            self._rng.shuffle(self._left)
        name, fault = self._left.pop()
        if name.endswith("agent"):
            await until(self._agents_ready, "every agent is ready")
        await fault()
        self.struck[name] += 1
        return name

    def close(self) -> None:
        self._running.server.listeners.remove(self._refuse)

    def _one(self, kind: str) -> str:
        return self._rng.choice(sorted(name for name in self._running.fleet.children if name.split("-")[0] == kind))

    async def _agents_ready(self) -> bool:
        urls = [url for name, url in self._running.ready_urls.items() if name.startswith("agent-")]
        async with httpx2.AsyncClient(trust_env=False) as http:
            try:
                answers = [await http.get(url) for url in urls]
            except httpx2.HTTPError:
                return False
        return all(answer.status_code == 200 for answer in answers)

    async def _kill(self, kind: str) -> None:
        self._running.fleet.children[self._one(kind)].kill()

    async def _pause(self, kind: str) -> None:
        pid = self._running.fleet.children[self._one(kind)].pid
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self._rng.uniform(0.3, LONGEST_PAUSE_SECONDS))
            os.kill(pid, signal.SIGCONT)

    async def _set_clock(self, kind: str) -> None:
        pid = self._running.fleet.children[self._one(kind)].pid
        if pid is not None:
            self._clock.set(pid, self._rng.choice((-1, 1)) * JUMP_SECONDS)
            await asyncio.sleep(self._rng.uniform(0.3, LONGEST_PAUSE_SECONDS))
            self._clock.set(pid, 0)

    async def _kill_agents(self) -> None:
        for name, child in self._running.fleet.children.items():
            if name.startswith("agent-"):
                child.kill()

    async def _depose(self) -> None:
        """It finds out when it renews, or before it next binds. The cluster's only controller asks nobody."""
        async with self._running.client() as client:
            await client.patch(Lease, LEASE, {"spec": {"holderIdentity": "another"}}, namespace=NAMESPACE)

    async def _rotate(self, part: str) -> None:
        """What it has is good no longer; the controller looks when it starts, and else once a minute."""
        async with self._running.client() as client:
            await client.patch(Secret, WEBHOOK_TLS, {"data": {part: ""}}, namespace=NAMESPACE)
        await self._kill("controller")

    async def _rotate_extender(self) -> None:
        """As the controller does it. Its authority is kube-scheduler's too, and somebody carries it there."""
        files = self._running.components.credentials.directory
        names = ("ca.crt", "ca.key", "tls.crt", "tls.key", "client.crt", "client.key")
        held = Certificates(*((files / name).read_bytes() for name in names))
        fresh = issue([LOOPBACK], now=datetime.now(UTC), previous=held, client="kube-scheduler")
        write_atomically(files / "tls.key", fresh.key, mode=0o600)
        write_atomically(files / "tls.crt", fresh.certificate, mode=0o600)

    async def _rotate_pool(self) -> None:
        rotation.renewed(self._running.state_dir / PKI, self._bearers())

    async def _rotate_pool_authority(self) -> None:
        """Step by step, with connections made after each."""
        for _ in rotation.new_authority(self._running.state_dir / PKI, self._bearers()):
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))

    def _bearers(self) -> list[tuple[Role, str]]:
        return [("server", node) for node in self._running.node_names]

    async def _roll(self) -> None:
        await self._running.fleet.children[self._one("agent")].roll()

    async def _pause_api(self) -> None:
        # It runs in this event loop, and the scheduler with it.
        asyncio.get_running_loop().call_soon(time.sleep, self._rng.uniform(0.3, LONGEST_PAUSE_SECONDS))
        await asyncio.sleep(0)

    async def _kill_api(self) -> None:
        await self._running.server.kill(away_seconds=self._rng.uniform(0.0, LONGEST_AWAY_SECONDS))

    async def _refuse_for_a_while(self) -> None:
        self._refusing_until = time.monotonic() + REFUSING_SECONDS

    async def _cut(self) -> None:
        self._running.server.cut_watches()

    def _refuse(self, user: User, wanted: Wanted, allowed: bool) -> None:
        """Called before a request is carried out. Raises RequestRefused."""
        ours = user.name.rpartition(":")[2].startswith("elastic-gpu-")
        if not ours or time.monotonic() > self._refusing_until or self._rng.random() > REFUSED_SHARE:
            return
        busy = status.refused(429, "TooManyRequests", "the server is currently unable to handle the request")
        possible = [status.internal("etcdserver: request timed out"), busy]
        if wanted.verb in ("list", "watch"):
            possible.append(status.expired("too old resource version"))
        if wanted.verb in ("update", "patch"):
            possible.append(status.modified(wanted.group, wanted.resource, wanted.name))
        refusal = self._rng.choice(possible)
        self.refused[refusal.code] += 1
        raise refusal
