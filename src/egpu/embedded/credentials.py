"""The certificates by which scheduler and extender know each other. On a real cluster the controller makes them, and
somebody carries its own to kube-scheduler; here they are made before either starts."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from egpu.adapters.certificates import Certificates, issue
from egpu.adapters.files import write_atomically
from egpu.apps.extender.scheduler_config import SERVER_NAME

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ExtenderCredentials:
    """Files in one directory."""

    directory: Path

    def config(self) -> dict[str, Path]:
        """What an extender is told, by fields of its configuration."""
        names = {"tls_cert": "tls.crt", "tls_key": "tls.key", "client_ca": "ca.crt"}
        return {field: self.directory / name for field, name in names.items()}

    def flags(self) -> tuple[str, ...]:
        """Likewise, by flags."""
        given = {f"--{field.replace('_', '-')}": str(path) for field, path in self.config().items()}
        return tuple(part for pair in given.items() for part in pair)

    def client_context(self) -> ssl.SSLContext:
        """The scheduler's."""
        context = ssl.create_default_context(cafile=self.directory / "ca.crt")
        context.load_cert_chain(self.directory / "client.crt", self.directory / "client.key")
        return context


def extender_credentials(directory: Path) -> ExtenderCredentials:
    """New ones, which only their owner can read."""
    store(directory, issue([LOOPBACK, SERVER_NAME], now=datetime.now(UTC), client="kube-scheduler"))
    return ExtenderCredentials(directory)


def store(directory: Path, made: Certificates) -> None:
    """Write certificates of a server and of its client, which only their owner can read."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in (
        ("ca.crt", made.ca_bundle),
        ("ca.key", made.ca_key),
        ("tls.crt", made.certificate),
        ("tls.key", made.key),
        ("client.crt", made.client_certificate),
        ("client.key", made.client_key),
    ):
        write_atomically(directory / name, content, mode=0o600)
