"""A serving certificate in files, and how a new one gets in without a restart."""

import asyncio
from pathlib import Path

import structlog

from egpu.adapters.web import TLS
from egpu.errors import InvalidInput

POLL_SECONDS = 2.0

log = structlog.get_logger(__name__)


class FileCertificate:
    """Two PEM files, and that of the clients' authority if there is one, loaded again when any of them changes."""

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

    def _stamp(self) -> tuple[int, ...]:
        files = [self._certificate, self._key, *([] if self._tls.client_ca is None else [self._tls.client_ca])]
        try:
            return tuple(file.stat().st_mtime_ns for file in files)
        except OSError as error:
            raise InvalidInput("tls", f"cannot read {error.filename}: {error.strerror}") from error
