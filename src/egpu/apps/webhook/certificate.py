"""Where the serving certificate comes from, and how a new one gets in without a restart."""

import asyncio
import base64
import binascii
from pathlib import Path

import structlog

from egpu.adapters.kubernetes import Change, Client, Reflector
from egpu.adapters.web import TLS
from egpu.api.kubernetes import Secret
from egpu.errors import InvalidInput

POLL_SECONDS = 2.0

log = structlog.get_logger(__name__)


class FileCertificate:
    """Two PEM files, loaded again when either changes."""

    def __init__(self, tls: TLS, certificate: Path, key: Path) -> None:
        self._tls = tls
        self._certificate, self._key = certificate, key
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        """Raises InvalidInput when the files cannot be used at the start; later the old certificate stays."""
        known = self._stamp()
        self._tls.load_files(self._certificate, self._key)
        self.loaded.set()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                if (now := self._stamp()) != known:
                    self._tls.load_files(self._certificate, self._key)
                    known = now
                    log.info("certificate loaded again", file=str(self._certificate))
            except InvalidInput as error:
                log.warning("new certificate not usable, the old one stays", reason=str(error))

    def _stamp(self) -> tuple[int, int]:
        try:
            return self._certificate.stat().st_mtime_ns, self._key.stat().st_mtime_ns
        except OSError as error:
            raise InvalidInput("tls", f"cannot read {error.filename}: {error.strerror}") from error


class SecretCertificate:
    """The Secret that the controller writes; waits for it, and follows it."""

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
            log.warning("certificate in the Secret not usable", secret=change.new.key, reason=str(error))
        else:
            self.loaded.set()
            log.info("certificate loaded", secret=change.new.key)
