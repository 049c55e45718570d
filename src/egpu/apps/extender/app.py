"""Assembles an extender and runs it: lease and fence first, then lists, then service."""

import asyncio
import contextlib
import os
import uuid

import structlog

from egpu.apps.extender.binder import Binder
from egpu.apps.extender.card_status import CardStatusWriter
from egpu.apps.extender.claim_writer import ClaimWriter, ImmediateClaims
from egpu.apps.extender.config import ExtenderConfig
from egpu.apps.extender.device_claim_writer import DeviceClaimWriter
from egpu.apps.extender.device_claims import PricedClaims
from egpu.apps.extender.fence import Fence
from egpu.apps.extender.filter_results import FilterResults
from egpu.apps.extender.gang_controller import GangController
from egpu.apps.extender.job_mix import JobMix
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.placing import Placing
from egpu.apps.extender.preemptor import Preemptor
from egpu.apps.extender.resizer import Resizer
from egpu.apps.extender.server import ExtenderServer
from egpu.apps.extender.view import View
from egpu.apps.extender.waker import Waker
from egpu.core.policies.registry import Policies
from egpu_base.errors import InvalidInput
from egpu_base.http.listening import Listen, bound, open_socket
from egpu_base.http.server import POST_VERSIONS
from egpu_base.http.web import TLS, serve
from egpu_base.kubernetes import Client, FollowingElection, LeaseElection
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.monitoring import Guard, serve_monitoring
from egpu_base.runtime.endless import EndlessTasks
from egpu_base.runtime.keeping import kept_for_good
from egpu_base.runtime.supervisor import Supervisor
from egpu_base.tls.followed import FileCertificate

PROBLEM_SECONDS = 5.0

log = structlog.get_logger(__name__)


class Extender:
    """All parts of one extender. The client is a parameter so that tests can replace it."""

    def __init__(self, config: ExtenderConfig, client: Client) -> None:
        self.config = config
        self.policies = policies = Policies.named(config.node_policy, config.card_policy)
        self.election = _election(config, client)
        self.fence = Fence(client, self.election)
        self.view = View(client)
        metrics = Metrics(self.view)
        self.mix = JobMix(client, self.view.cache.ranking, lease=config.lease, namespace=config.namespace)
        self.writer = writer = ClaimWriter(client, self.view, self.fence)
        self.binder = Binder(client, self.view, self.fence, writer, policies)
        events = EventRecorder(client, component="elastic-gpu-extender")
        self.gangs = GangController(client, self.view, self.fence, events)
        self.immediate = ImmediateClaims(self.view, writer, policies, events, metrics)
        self.device_writer = DeviceClaimWriter(client, self.view, self.fence)
        self.device_claims = PricedClaims(
            self.view, self.device_writer, policies, events, quotas=writer.quotas, metrics=metrics
        )
        self.resizer = Resizer(client, self.view, writer, events)
        filtered = FilterResults()
        self.preemptor = Preemptor(client, self.view, self.fence, policies, events=events, metrics=metrics)
        self.card_status = CardStatusWriter(client, self.view)
        self.placing = Placing(
            self.view,
            policies,
            filtered,
            lambda uid, _, fits: self.waker.answered(uid, room=bool(fits.any())),
        )
        self.waker = Waker(client, self.view, policies, metrics, self.placing.rests)
        self.server = ExtenderServer(self.placing, self.binder, filtered, metrics=metrics, not_ready=self.not_ready)
        self.stands_by = bool(config.follow)
        """Whether this extender waits for its turn beside a kube-scheduler that waits for its own."""
        self.guard = Guard(client)
        self.address: Listen | None = None
        """The address for kube-scheduler, once the extender listens."""
        self.health_address: Listen | None = None
        self._leading = False

    def not_ready(self) -> str | None:
        """Return why the extender cannot answer now, or None."""
        return self.view.not_ready() if self._leading else "another extender holds the lease"

    def unhealthy(self) -> str | None:
        """Return why this replica is not in order, or None; one that waits for its turn is."""
        return None if self.stands_by else self.not_ready()

    async def lead(self) -> None:
        """Take over, *then* list everything, and write placements until the lease is lost."""
        await self.election.acquire(wait=self.config.leader_elect or bool(self.config.follow))
        self.stands_by = False
        async with EndlessTasks() as group:
            group.start(self.election.renew())
            await self.fence.take_over()
            with kept_for_good():
                group.start(self.view.caches.run())
                await self.view.synced()
                await self.mix.load()
                self.view.cache.ranking.prepare(self.policies)
            self._leading = True
            group.start(self.mix.run())
            log.info("ready", nodes=len(self.view.cache.ledger.nodes()))
            group.start(self.immediate.loop.run())
            group.start(self.device_claims.loop.run())
            group.start(self.device_writer.settle())
            group.start(self.resizer.loop.run())
            group.start(self.binder.settle())
            group.start(self.writer.settle())
            group.start(self.gangs.run())
            group.start(self.waker.run())
            group.start(self.preemptor.run())
            group.start(self.card_status.run())
            group.start(self.report_problems())

    async def report_problems(self) -> None:
        """Log over-commits and unreadable annotations, each once while it lasts."""
        logged: set[str] = set()
        while True:
            found = self.view.cache.problems()
            for problem in found:
                if problem not in logged:
                    log.error("problem", what=problem)
            logged = set(found)
            await asyncio.sleep(PROBLEM_SECONDS)

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor stops. Raises InvalidInput (bad configuration), LeadershipLost (takeover)."""
        tls, certificate = _tls(self.config)
        health = open_socket(Listen.parse(self.config.health_listen))
        sock = open_socket(Listen.parse(self.config.listen))
        self.address, self.health_address = bound(sock), bound(health)
        log.info("listening", address=str(self.address), health=str(self.health_address))
        supervisor.add("http", serve(self.server.posts(), [sock], tls=tls))
        supervisor.add("certificate", certificate.run())
        supervisor.add("health", serve_monitoring(self.server.monitoring_app(self.guard, self.unhealthy), health))
        supervisor.add("lead", self.lead())
        try:
            await supervisor.run()
        finally:
            if self._leading:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.election.release(), 1.0)


def _election(config: ExtenderConfig, client: Client) -> LeaseElection:
    common = {"name": config.lease, "namespace": config.namespace}
    identity = f"{config.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    if not config.follow:
        return LeaseElection(client, **common, identity=identity)
    return FollowingElection(client, **common, identity=identity, followed=config.follow, host=config.host)


def _tls(config: ExtenderConfig) -> tuple[TLS, FileCertificate]:
    """Return TLS that admits only clients with a certificate. Raises InvalidInput.

    Whoever reaches an extender can place pods, and every user of a machine reaches its loopback."""
    if config.tls_cert is None or config.tls_key is None or config.client_ca is None:
        raise InvalidInput(
            "tls", "the extender needs --tls-cert, --tls-key and --client-ca (the CA of kube-scheduler's certificate)"
        )
    tls = TLS(client_ca=config.client_ca, versions=POST_VERSIONS)
    certificate = FileCertificate(tls, config.tls_cert, config.tls_key)
    tls.load_files(config.tls_cert, config.tls_key)
    return tls, certificate


async def run(config: ExtenderConfig) -> None:
    """Run an extender until SIGTERM or SIGINT. Raises errors that end it."""
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        await Extender(config, client).run(Supervisor())
