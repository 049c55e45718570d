"""The serving certificate in a Secret, replaced without a restart."""

import asyncio
import base64
import binascii

import structlog

from egpu_base.api.kubernetes import Secret
from egpu_base.errors import InvalidInput
from egpu_base.http.web import TLS
from egpu_base.kubernetes import Change, Client, Reflector

log = structlog.get_logger(__name__)


class SecretCertificate:
    """Waits for the Secret that the controller writes, and follows it."""

    def __init__(self, tls: TLS, client: Client, *, name: str, namespace: str) -> None:
        self._tls = tls
        self._reflector = Reflector(client, Secret, namespace=namespace, fields=f"metadata.name={name}")
        self._reflector.on_change(self._take)
        self._name = name
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        await self._reflector.run()

    def _take(self, change: Change[Secret]) -> None:
        if change.new is None or change.new.name != self._name:
            return
        data = change.new.data or {}
        try:
            self._tls.load(base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"]))
        except (KeyError, binascii.Error, InvalidInput) as error:
            log.warning("certificate in the Secret is not usable", secret=change.new.key, reason=str(error))
        else:
            self.loaded.set()
            log.info("certificate loaded", secret=change.new.key)
