"""Keeps the webhook reachable: a certificate in a Secret, renewed in time, and its authority in the configurations.

The order matters: the configurations get the new authority before any webhook can have loaded a certificate from it
(the bundle holds the old one too), so at no moment does the API server distrust the webhook.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from egpu.adapters.certificates import Certificates, issue, renewal_reason
from egpu.adapters.kubernetes import Client
from egpu.api.kubernetes import (
    MutatingWebhookConfiguration,
    Secret,
    ValidatingWebhookConfiguration,
    WebhookClientConfig,
)
from egpu.api.objects import ObjectMeta
from egpu.apps.controller import webhooks
from egpu.apps.controller.config import ControllerConfig
from egpu.errors import AlreadyExists, Conflict, CorruptData, ElasticGPUError

CHECK_SECONDS = 60.0
RETRY_SECONDS = 2.0
_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")
"""Of the Secret, in the order of the fields of Certificates."""

Configuration = MutatingWebhookConfiguration | ValidatingWebhookConfiguration

log = structlog.get_logger(__name__)


class WebhookCertificates:
    """`run` looks once a minute; `ready` is set after the first time that all was right."""

    def __init__(self, client: Client, config: ControllerConfig) -> None:
        self._client = client
        self._config = config
        self._hosts = webhooks.hosts(url=config.webhook_url, service=config.webhook_service, namespace=config.namespace)
        self.ready = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                await self.reconcile()
            except ElasticGPUError as error:
                log.warning("webhook certificates not in order", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.ready.set()
                await asyncio.sleep(CHECK_SECONDS)

    async def reconcile(self) -> None:
        """Brings the Secret and the two configurations into order. Raises Conflict and the like: come again."""
        secret = await self._client.find(Secret, self._config.tls_secret, namespace=self._config.namespace)
        held = None if secret is None else _read(secret)
        now = datetime.now(UTC)
        reason = "there are none" if held is None else renewal_reason(held, self._hosts, now=now)
        if reason is not None:
            try:
                fresh = issue(self._hosts, now=now, previous=held)
            except CorruptData:
                fresh = issue(self._hosts, now=now)
            if secret is not None:
                await self._configure(fresh.ca_bundle)
            await self._store(secret, fresh)
            log.info("webhook certificate issued", hosts=self._hosts, reason=reason)
            held = fresh
        assert held is not None
        await self._configure(held.ca_bundle)

    async def _store(self, secret: Secret | None, certificates: Certificates) -> None:
        data = {key: base64.b64encode(value).decode() for key, value in zip(_KEYS, astuple(certificates), strict=True)}
        name, namespace = self._config.tls_secret, self._config.namespace
        if secret is not None:
            patch = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": data}
            await self._client.patch(Secret, name, patch, namespace=namespace)
            return
        new = Secret(
            metadata=ObjectMeta(name=name, namespace=namespace, labels=webhooks.LABELS),
            type="kubernetes.io/tls",
            data=data,
        )
        try:
            await self._client.create(Secret, new)
        except AlreadyExists as error:
            raise Conflict(f"secret {name}: somebody else made it first") from error

    async def _configure(self, ca_bundle: bytes) -> None:
        config = self._config
        encoded = base64.b64encode(ca_bundle).decode()
        excluded = {*config.exclude_namespaces, config.namespace}

        def client_config(path: str) -> WebhookClientConfig:
            return webhooks.client_config(
                path, encoded, url=config.webhook_url, service=config.webhook_service, namespace=config.namespace
            )

        await self._apply(webhooks.mutating(client_config("/mutate"), sorted(excluded)))
        await self._apply(webhooks.validating(client_config("/validate"), sorted(excluded)))

    async def _apply(self, wanted: Configuration) -> None:
        """Creates it, or patches it where what we set differs; what the API server defaults is not a difference."""
        kind = type(wanted)
        found: Configuration | None = await self._client.find(kind, wanted.name)
        if found is None:
            await self._client.create(kind, wanted)
            log.info("webhook configuration made", kind=kind.__name__)
            return
        wanted_webhooks: list[Any] = msgspec.to_builtins(wanted.webhooks)
        if not _contains(msgspec.to_builtins(found.webhooks), wanted_webhooks):
            patch = {
                "metadata": {"resourceVersion": found.metadata.resource_version},
                "webhooks": wanted_webhooks,
            }
            await self._client.patch(kind, wanted.name, patch)
            log.info("webhook configuration brought up to date", kind=kind.__name__)


def _read(secret: Secret) -> Certificates:
    """What is in the Secret, readable or not; what is missing is empty, and `renewal_reason` finds it so."""
    data = secret.data or {}

    def part(key: str) -> bytes:
        try:
            return base64.b64decode(data.get(key, ""))
        except binascii.Error:
            return b""

    return Certificates(*map(part, _KEYS))


def _contains(found: Any, wanted: Any) -> bool:
    """Whether everything in `wanted` is in `found`, lists by position."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(_contains(found.get(key), value) for key, value in wanted.items())  # type: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)  # type: ignore[reportUnknownArgumentType]
            and all(map(_contains, found, wanted))  # type: ignore[reportUnknownArgumentType]
        )
    return found == wanted
