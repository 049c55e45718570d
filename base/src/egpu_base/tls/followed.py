"""A serving certificate in files, reloaded without a restart."""

import asyncio
from pathlib import Path

import structlog

from egpu_base.errors import InvalidInput
from egpu_base.http.web import TLS

POLL_SECONDS = 2.0

log = structlog.get_logger(__name__)


class FileCertificate:
    """Two PEM files, and that of the clients' authority if there is one, reloaded when any of them changes."""

    def __init__(self, tls: TLS, certificate: Path, key: Path) -> None:
        self._tls = tls
        self._certificate, self._key = certificate, key
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        """Load and follow the files. Raises InvalidInput for unusable files at the start, not later."""
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
                log.warning("the new certificate is unusable; keeping the old one", reason=str(error))

    def _stamp(self) -> tuple[int, ...]:
        files = [self._certificate, self._key, *([] if self._tls.client_ca is None else [self._tls.client_ca])]
        try:
            return tuple(file.stat().st_mtime_ns for file in files)
        except OSError as error:
            raise InvalidInput("tls", f"cannot read {error.filename}: {error.strerror}") from error
