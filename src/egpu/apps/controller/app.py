"""Assembles a controller and runs it."""

import asyncio
import contextlib
import os
import socket as sockets
import uuid

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from starlette.applications import Starlette

from egpu.apps.controller.certificates import OurCertificates
from egpu.apps.controller.claim_controller import ClaimController
from egpu.apps.controller.cluster_metrics import ClusterMetrics
from egpu.apps.controller.config import ControllerConfig
from egpu.apps.controller.withdrawal import Withdrawal
from egpu_base.http.listening import Listen, bound, open_socket
from egpu_base.kubernetes import Client, LeaseElection
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.monitoring import Guard, monitoring_app, serve_monitoring
from egpu_base.runtime.endless import EndlessTasks
from egpu_base.runtime.supervisor import Supervisor

LEASE = "elastic-gpu-controller"

log = structlog.get_logger(__name__)


class Controller:
    """All parts of one controller. The client is a parameter so that tests can replace it."""

    def __init__(self, config: ControllerConfig, client: Client) -> None:
        self.config = config
        self.guard = Guard(client)
        identity = f"{sockets.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.election = LeaseElection(client, name=LEASE, namespace=config.namespace, identity=identity)
        events = EventRecorder(client, component="elastic-gpu-controller")
        self.claims = ClaimController(client, events, namespace=config.namespace)
        self.withdrawal = Withdrawal(client, events, nodes=lambda: self.claims.nodes)
        self.certificates = OurCertificates(client, config)
        self._leading = False
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.metrics = ClusterMetrics(team_label=config.team_label)

    def not_ready(self) -> str | None:
        """Return why it does not work now, or None; a controller that waits for its turn is ready."""
        if not self._leading:
            return None if self.config.leader_elect else "starting"
        if not self.certificates.ready.is_set():
            return "the certificates are not ready yet"
        return self.claims.not_ready()

    def monitoring_app(self) -> Starlette:
        """Return health, and metrics for clients that may read them."""
        return monitoring_app(self.guard, self.not_ready, registry=self.registry, series=self.series)

    async def series(self) -> bytes:
        """Return the cluster's series; none from a replica that waits for its turn, which knows nothing. Written beside
        the work, because a view never changes."""
        view = self.claims.view() if self._leading else None
        return b"" if view is None else await asyncio.to_thread(self.metrics.page, view)

    async def lead(self) -> None:
        """Do the work until the lease is lost. Two controllers at once do no harm: every write carries the version of
        its decision."""
        if self.config.leader_elect:
            await self.election.acquire(wait=True)
        self._leading = True
        async with EndlessTasks() as group:
            if self.config.leader_elect:
                group.start(self.election.renew())
            group.start(self.certificates.run())
            group.start(self.claims.caches.run())
            await self.claims.listed()  # nothing counts as gone before everything was listed
            await self.series()  # all lines, so that the first scrape does not wait for them
            log.info("ready")
            claims = self.claims
            of_pods, of_classes = (claims.own_claims.loop, claims.remade_pods.loop), (claims.device_classes.loop,)
            for loop in (claims.claims, claims.gpus, claims.classes, *of_pods, *of_classes):
                group.start(loop.run())
            group.start(self.claims.sweep())
            group.start(self.withdrawal.run())

    async def run(self, supervisor: Supervisor) -> None:
        sock = open_socket(Listen.parse(self.config.listen))
        log.info("listening", address=str(bound(sock)))
        supervisor.add("health", serve_monitoring(self.monitoring_app(), sock))
        supervisor.add("lead", self.lead())
        try:
            await supervisor.run()
        finally:
            if self._leading and self.config.leader_elect:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.election.release(), 1.0)


async def run(config: ControllerConfig) -> None:
    """Run a controller until SIGTERM or SIGINT. Raises errors that end it."""
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        await Controller(config, client).run(Supervisor())
