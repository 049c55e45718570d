"""Assembles a webhook server and runs it."""

import structlog

from egpu.apps.webhook.admission import Admission
from egpu.apps.webhook.certificate import SecretCertificate
from egpu.apps.webhook.config import WebhookConfig
from egpu.apps.webhook.server import make_app
from egpu_base.errors import InvalidInput
from egpu_base.http.listening import Listen, bound, open_socket
from egpu_base.http.web import TLS, serve
from egpu_base.kubernetes import Client
from egpu_base.monitoring import Guard, monitoring_app, serve_monitoring
from egpu_base.runtime.supervisor import Supervisor
from egpu_base.tls.followed import FileCertificate

log = structlog.get_logger(__name__)


class Webhook:
    """All parts of one webhook server. The client is a parameter so that tests can replace it."""

    def __init__(self, config: WebhookConfig, client: Client) -> None:
        self.config = config
        self.guard = Guard(client)
        self.tls = TLS()
        self.admission = Admission(
            client, users=config.users, vocabularies=config.vocabularies, schedulers=config.schedulers
        )
        self.certificate = _certificate(config, self.tls, client)

    def not_ready(self) -> str | None:
        """Return why nothing can be decided now, or None."""
        if not self.certificate.loaded.is_set():
            return "no certificate yet"
        return self.admission.caches.not_ready()

    async def admit(self) -> None:
        """Serve admission once there is a certificate and the caches are filled; until then connections wait."""
        sock = open_socket(Listen.parse(self.config.webhook_listen))
        await self.certificate.loaded.wait()
        await self.admission.caches.synced()
        log.info("ready", address=str(bound(sock)))
        app = make_app(mutate=self.admission.mutate, validate=self.admission.validate, not_ready=self.not_ready)
        await serve(app, [sock], tls=self.tls)

    async def run(self, supervisor: Supervisor) -> None:
        health = open_socket(Listen.parse(self.config.listen))
        log.info("listening", address=str(bound(health)))
        supervisor.add("health", serve_monitoring(monitoring_app(self.guard, self.not_ready), health))
        supervisor.add("certificate", self.certificate.run())
        supervisor.add("caches", self.admission.caches.run())
        supervisor.add("admission", self.admit())
        await supervisor.run()


def _certificate(config: WebhookConfig, tls: TLS, client: Client) -> FileCertificate | SecretCertificate:
    if config.tls_cert is not None and config.tls_key is not None:
        return FileCertificate(tls, config.tls_cert, config.tls_key)
    if config.tls_cert is not None or config.tls_key is not None:
        raise InvalidInput("tls", "use both --tls-cert and --tls-key, or neither")
    return SecretCertificate(tls, client, name=config.tls_secret, namespace=config.namespace)


async def run(config: WebhookConfig) -> None:
    """Run a webhook server until SIGTERM or SIGINT. Raises errors that end it."""
    async with Client.from_kubeconfig(config.kubeconfig) as client:
        await Webhook(config, client).run(Supervisor())
