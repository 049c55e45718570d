"""Puts an extender together and runs it: lease and fence, then lists, then service."""

import asyncio
import contextlib
import os
import socket as sockets
import uuid

import structlog

from egpu.adapters.certificate_files import FileCertificate
from egpu.adapters.kubernetes import Client, LeaseElection
from egpu.adapters.kubernetes.events import EventRecorder
from egpu.adapters.listening import Listen, bound, open_socket
from egpu.adapters.monitoring import Guard, serve_monitoring
from egpu.adapters.web import TLS, serve
from egpu.apps.extender.binding import Binder
from egpu.apps.extender.card_status import CardStatusWriter
from egpu.apps.extender.claim_writer import ClaimWriter, ImmediateClaims
from egpu.apps.extender.config import ExtenderConfig
from egpu.apps.extender.fence import Fence
from egpu.apps.extender.filtered import Filtered
from egpu.apps.extender.gangs import GangController
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.mix import JobMix
from egpu.apps.extender.placing import Placing
from egpu.apps.extender.preempting import Preemptor
from egpu.apps.extender.resizing import Resizer
from egpu.apps.extender.server import ExtenderServer
from egpu.apps.extender.view import View
from egpu.apps.extender.waking import Waker
from egpu.core.policies.registry import Policies
from egpu.errors import InvalidInput
from egpu.runtime.keeping import kept_for_good
from egpu.runtime.supervisor import Supervisor

PROBLEM_SECONDS = 5.0

log = structlog.get_logger(__name__)


class Extender:
    """Every part of one extender. The client comes from outside, so that tests can give another."""

    def __init__(self, config: ExtenderConfig, client: Client) -> None:
        self.config = config
        self.policies = policies = Policies.named(config.node_policy, config.card_policy)
        identity = f"{sockets.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.election = LeaseElection(client, name=config.lease, namespace=config.namespace, identity=identity)
        self.fence = Fence(client, self.election)
        self.view = View(client)
        metrics = Metrics(self.view)
        self.mix = JobMix(client, self.view.cache.ranking, lease=config.lease, namespace=config.namespace)
        self.writer = writer = ClaimWriter(client, self.view, self.fence)
        self.binder = Binder(client, self.view, self.fence, writer, policies)
        events = EventRecorder(client, component="elastic-gpu-extender")
        self.gangs = GangController(client, self.view, self.fence, events)
        self.immediate = ImmediateClaims(self.view, writer, policies, events, metrics)
        self.resizer = Resizer(client, self.view, writer, events)
        filtered = Filtered()
        self.waker = Waker(client, self.view, policies, metrics)
        self.preemptor = Preemptor(client, self.view, self.fence, policies, events=events, metrics=metrics)
        self.card_status = CardStatusWriter(client, self.view)
        self.placing = Placing(
            self.view,
            policies,
            filtered.note,
            lambda uid, _, fits: self.waker.answered(uid, room=bool(fits.any())),
        )
        self.server = ExtenderServer(self.placing, self.binder, filtered, metrics=metrics, not_ready=self.not_ready)
        self.guard = Guard(client)
        self.address: Listen | None = None
        """Where it listens for kube-scheduler, once it does."""
        self.health_address: Listen | None = None
        self._leading = False

    def not_ready(self) -> str | None:
        """Why no question can be answered now; None when it can."""
        return self.view.caches.not_ready() if self._leading else "another extender holds the lease"

    async def lead(self) -> None:
        """Takes over, lists everything *after* that, and writes placements until the lease is lost."""
        await self.election.acquire(wait=self.config.leader_elect)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.election.renew())
            await self.fence.take_over()
            with kept_for_good():
                group.create_task(self.view.caches.run())
                await self.view.caches.synced()
                await self.mix.load()
                self.view.cache.ranking.prepare(self.policies)
            self._leading = True
            group.create_task(self.mix.run())
            log.info("ready", nodes=len(self.view.cache.ledger.nodes()))
            group.create_task(self.immediate.loop.run())
            group.create_task(self.resizer.loop.run())
            group.create_task(self.binder.settle())
            group.create_task(self.writer.settle())
            group.create_task(self.gangs.run())
            group.create_task(self.waker.run())
            group.create_task(self.preemptor.run())
            group.create_task(self.card_status.run())
            group.create_task(self.report_problems())

    async def report_problems(self) -> None:
        """Over-commits and unreadable annotations are somebody's mistake: said once, as long as they last."""
        told: set[str] = set()
        while True:
            found = self.view.cache.problems()
            for problem in found:
                if problem not in told:
                    log.error("problem", what=problem)
            told = set(found)
            await asyncio.sleep(PROBLEM_SECONDS)

    async def run(self, supervisor: Supervisor) -> None:
        """Until the supervisor stops. Raises InvalidInput for a bad configuration, LeadershipLost when taken over."""
        tls, certificate = _tls(self.config)
        health = open_socket(Listen.parse(self.config.health_listen))
        sock = open_socket(Listen.parse(self.config.listen))
        self.address, self.health_address = bound(sock), bound(health)
        log.info("listening", address=str(self.address), health=str(self.health_address))
        supervisor.add("http", serve(self.server.posts(), [sock], tls=tls))
        supervisor.add("certificate", certificate.run())
        supervisor.add("health", serve_monitoring(self.server.monitoring_app(self.guard), health))
        supervisor.add("lead", self.lead())
        try:
            await supervisor.run()
        finally:
            if self._leading:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.election.release(), 1.0)


def _tls(config: ExtenderConfig) -> tuple[TLS, FileCertificate]:
    """Whoever reaches an extender can place pods, and every user of a machine reaches its loopback: only clients with a
    certificate are let in. Raises InvalidInput."""
    if config.tls_cert is None or config.tls_key is None or config.client_ca is None:
        raise InvalidInput(
            "tls", "give --tls-cert, --tls-key and --client-ca, whose certificate kube-scheduler must have"
        )
    tls = TLS(client_ca=config.client_ca)
    certificate = FileCertificate(tls, config.tls_cert, config.tls_key)
    tls.load_files(config.tls_cert, config.tls_key)
    return tls, certificate


async def run(config: ExtenderConfig) -> None:
    """Runs an extender until SIGTERM or SIGINT. Raises what makes it useless to go on."""
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        await Extender(config, client).run(Supervisor())
