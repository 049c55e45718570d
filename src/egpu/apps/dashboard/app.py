"""Puts a dashboard together and runs it."""

import structlog
from starlette.concurrency import run_in_threadpool

from egpu.adapters.kubernetes import Client
from egpu.adapters.listening import Listen, bound, open_socket
from egpu.adapters.monitoring import serve_monitoring
from egpu.apps.dashboard.config import DashboardConfig
from egpu.apps.dashboard.knowledge import Knowledge
from egpu.apps.dashboard.server import DashboardServer
from egpu.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)


class Dashboard:
    """Every part of one. The client comes from outside, so that tests can give another."""

    def __init__(self, config: DashboardConfig, client: Client) -> None:
        self.config = config
        self.knowledge = Knowledge(client, config)
        self._client = client
        self.address: Listen | None = None
        """Where it listens, once it does."""

    def not_ready(self) -> str | None:
        """Why it shows nothing yet; None when it does."""
        return self.knowledge.not_ready()

    async def run(self, supervisor: Supervisor) -> None:
        """Until the supervisor stops. Raises InvalidInput for a bad configuration."""
        sock = open_socket(Listen.parse(self.config.listen))
        self.address = bound(sock)
        server = DashboardServer(self._client, self.knowledge, secure=not self.address.loopback)
        log.info("listening", address=str(self.address))
        # In a thread, as files are sent: what that takes would be loaded by the first answer, and takes longer than it.
        app = await run_in_threadpool(server.app)
        supervisor.add("http", serve_monitoring(app, sock))
        supervisor.add("knowledge", self.knowledge.run())
        await supervisor.run()


async def run(config: DashboardConfig) -> None:
    """Runs a dashboard until SIGTERM or SIGINT. Raises what makes it useless to go on."""
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        await Dashboard(config, client).run(Supervisor())
