"""The certificates of scheduler and extender. On a real cluster the controller makes them, and an administrator copies
kube-scheduler's. The simulated cluster makes them before either starts."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from egpu.apps.extender.scheduler_config import SERVER_NAME
from egpu_base.tls.certificates import issue, store

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ExtenderCredentials:
    """Certificate files in one directory."""

    directory: Path

    def config(self) -> dict[str, Path]:
        names = {"tls_cert": "tls.crt", "tls_key": "tls.key", "client_ca": "ca.crt"}
        return {field: self.directory / name for field, name in names.items()}

    def flags(self) -> tuple[str, ...]:
        given = {f"--{field.replace('_', '-')}": str(path) for field, path in self.config().items()}
        return tuple(part for pair in given.items() for part in pair)

    def client_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.directory / "ca.crt")
        context.load_cert_chain(self.directory / "client.crt", self.directory / "client.key")
        return context


def extender_credentials(directory: Path) -> ExtenderCredentials:
    """Make new certificates that only their owner can read."""
    store(directory, issue([LOOPBACK, SERVER_NAME], now=datetime.now(UTC), client="kube-scheduler"))
    return ExtenderCredentials(directory)
