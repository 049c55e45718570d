"""Certificates of webhook and extender in Secrets, renewed in time, and the webhook's authority in both webhook
configurations.

The order matters: the configurations get the new authority before any webhook can load a certificate from it (the
bundle has the old one too). So the API server trusts the webhook at every moment. The installation owns the
configurations; the controller changes only the authority in them."""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple
from datetime import UTC, datetime

import structlog

from egpu.api.webhooks import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from egpu.apps.controller import webhooks
from egpu.apps.controller.config import ControllerConfig
from egpu_base.api.kubernetes import Secret
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import AlreadyExists, Conflict, ElasticGPUError
from egpu_base.kubernetes import Client
from egpu_base.tls.certificates import Certificates, issue, renewal_reason

CHECK_SECONDS = 60.0
RETRY_SECONDS = 2.0
EXTENDER_NAME = "elastic-gpu-extender"
"""The name in the extender's certificate, whatever its address: kube-scheduler is configured to expect it."""
SCHEDULER_NAME = "kube-scheduler"
_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key", "client.crt", "client.key")
"""The keys of a Secret, in the order of the fields of Certificates."""

Configuration = MutatingWebhookConfiguration | ValidatingWebhookConfiguration
Distribute = Callable[[bytes], Awaitable[None]]
"""A function that gives an authority to the clients that must trust it."""

log = structlog.get_logger(__name__)


class IssuedSecret:
    """One Secret with an authority, a server's certificate and, if `client` names one, a client's."""

    def __init__(self, client: Client, key: tuple[str, str], *, hosts: Sequence[str], issued_to: str = "") -> None:
        """`key`: namespace and name; `issued_to`: the client's name."""
        self._client = client
        self._namespace, self._name = key
        self._hosts = hosts
        self._issued_to = issued_to

    async def reconcile(self, distribute: Distribute | None = None) -> Certificates:
        """Return the Secret's new content. Raises Conflict and other retryable errors."""
        secret = await self._client.find(Secret, self._name, namespace=self._namespace)
        held = None if secret is None else _read(secret)
        now = datetime.now(UTC)
        reason = "no certificates yet"
        if held is not None:
            reason = renewal_reason(held, self._hosts, now=now, client=self._issued_to)
            if reason is None:
                return held
        fresh = issue(self._hosts, now=now, previous=held, client=self._issued_to)
        if secret is not None and distribute is not None:
            await distribute(fresh.ca_bundle)
        await self._store(secret, fresh)
        log.info("certificates issued", secret=self._name, hosts=self._hosts, reason=reason)
        return fresh

    async def _store(self, secret: Secret | None, certificates: Certificates) -> None:
        parts = zip(_KEYS, astuple(certificates), strict=True)
        data = {key: base64.b64encode(value).decode() for key, value in parts if value}
        name, namespace = self._name, self._namespace
        if secret is not None:
            patch = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": data}
            await self._client.patch(Secret, name, patch, namespace=namespace)
            return
        new = Secret(
            metadata=ObjectMeta(name=name, namespace=namespace, labels=webhooks.MANAGED),
            type="kubernetes.io/tls",
            data=data,
        )
        try:
            await self._client.create(Secret, new)
        except AlreadyExists as error:
            raise Conflict(f"secret {name}: it was created meanwhile") from error


class OurCertificates:
    """All certificates of the installation. `run` checks them once a minute; `ready` is set after the first success."""

    def __init__(self, client: Client, config: ControllerConfig) -> None:
        self._client = client
        namespace = config.namespace
        self._webhook: IssuedSecret | None = None
        if config.webhook_service:
            hosts = webhooks.hosts(config.webhook_service, namespace)
            self._webhook = IssuedSecret(client, (namespace, config.tls_secret), hosts=hosts)
        self._extender: IssuedSecret | None = None
        if config.extender_tls_secret:
            key = namespace, config.extender_tls_secret
            self._extender = IssuedSecret(client, key, hosts=[EXTENDER_NAME], issued_to=SCHEDULER_NAME)
        self.ready = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                await self.reconcile()
            except ElasticGPUError as error:
                log.warning("certificates not ready", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.ready.set()
                await asyncio.sleep(CHECK_SECONDS)

    async def reconcile(self) -> None:
        """Update the Secrets and both configurations. Raises Conflict and other retryable errors."""
        if self._extender is not None:
            await self._extender.reconcile()
        if self._webhook is not None:
            held = await self._webhook.reconcile(self._distribute)
            await self._distribute(held.ca_bundle)

    async def _distribute(self, ca_bundle: bytes) -> None:
        """Write the authority into the webhook configurations. Raises NotFound if one is not installed."""
        encoded = base64.b64encode(ca_bundle).decode()
        kinds: Sequence[type[Configuration]] = (MutatingWebhookConfiguration, ValidatingWebhookConfiguration)
        for kind in kinds:
            found: Configuration = await self._client.get(kind, webhooks.NAME)
            operations = [
                operation
                for place, hook in enumerate(found.webhooks)
                if hook.client_config.ca_bundle != encoded
                for operation in (
                    {"op": "test", "path": f"/webhooks/{place}/name", "value": hook.name},
                    {"op": "add", "path": f"/webhooks/{place}/clientConfig/caBundle", "value": encoded},
                )
            ]
            if operations:
                await self._client.patch_json(kind, webhooks.NAME, operations)
                log.info("webhook authority written into the configuration", kind=kind.__name__)


def _read(secret: Secret) -> Certificates:
    """Return the Secret's content, readable or not. Missing parts are empty, so `renewal_reason` reports them."""
    data = secret.data or {}

    def part(key: str) -> bytes:
        try:
            return base64.b64decode(data.get(key, ""))
        except binascii.Error:
            return b""

    return Certificates(*map(part, _KEYS))
