"""Assembles a dashboard and runs it."""

import structlog
from starlette.concurrency import run_in_threadpool

from egpu.apps.dashboard.config import DashboardConfig
from egpu.apps.dashboard.knowledge import Knowledge
from egpu.apps.dashboard.server import DashboardServer
from egpu_base.http.listening import Listen, bound, open_socket
from egpu_base.kubernetes import Client
from egpu_base.monitoring import serve_monitoring
from egpu_base.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)


class Dashboard:
    """All parts of one dashboard. The client is a parameter so that tests can replace it."""

    def __init__(self, config: DashboardConfig, client: Client) -> None:
        self.config = config
        self.knowledge = Knowledge(client, config)
        self._client = client
        self.address: Listen | None = None
        """The address, once it listens."""

    def not_ready(self) -> str | None:
        """Return why it shows nothing yet, or None."""
        return self.knowledge.not_ready()

    async def run(self, supervisor: Supervisor) -> None:
        """Run until the supervisor stops. Raises InvalidInput for a bad configuration."""
        sock = open_socket(Listen.parse(self.config.listen))
        self.address = bound(sock)
        server = DashboardServer(self._client, self.knowledge, secure=not self.address.loopback)
        log.info("listening", address=str(self.address))
        # In a thread, as for files: otherwise the first answer would load what this needs, which takes longer than
        # the answer.
        app = await run_in_threadpool(server.app)
        supervisor.add("http", serve_monitoring(app, sock))
        supervisor.add("knowledge", self.knowledge.run())
        await supervisor.run()


async def run(config: DashboardConfig) -> None:
    """Run a dashboard until SIGTERM or SIGINT. Raises errors that end it."""
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        await Dashboard(config, client).run(Supervisor())
