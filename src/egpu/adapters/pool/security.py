"""Authentication: mutual TLS with names in certificates, or a shared secret on loopback.

Certificates come from the pool's own authority. The common name defines the rights of its bearer:

    server/NAME     report as the server NAME, take data connections
    client/NAME     take leases, and speak for its own
    admin/NAME      see, resize and revoke every lease
    broker/NAME     the broker itself

Without TLS everything stays on loopback, and every reader of the secret's file is fully trusted: on a laptop, these are
one user's own processes. The secret itself is never sent (`egpu.adapters.pool.proof`).
"""

from __future__ import annotations

import os
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from egpu_base.errors import InvalidInput, Refused

if TYPE_CHECKING:  # the web server behind it is slow to load, for every command line
    from egpu_base.http.listening import Listen

Role = Literal["server", "client", "admin", "broker"]
ROLES: Final[tuple[Role, ...]] = ("server", "client", "admin", "broker")
SECRET_BYTES: Final = 32
MAX_SECRET_CHARACTERS: Final = 4096
TLS_OPTIONS: Final = "--tls-ca, --tls-cert and --tls-key"
LOCAL_PEER: Final = "admin/local"
"""The name of every caller that proves to know the secret."""


@dataclass(frozen=True)
class Credentials:
    """Either the three files of mutual TLS, or the file of the shared secret."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    secret_file: Path | None = None

    def __post_init__(self) -> None:
        given = [self.ca, self.certificate, self.key]
        if any(given) and not all(given):
            raise InvalidInput("tls", f"give {TLS_OPTIONS} together")
        if not any(given) and self.secret_file is None:
            raise InvalidInput("tls", f"give {TLS_OPTIONS}, or --secret-file (loopback only)")
        if any(given) and self.secret_file is not None:
            raise InvalidInput("secret-file", "TLS uses the certificate as identity; leave --secret-file out")

    @property
    def tls(self) -> bool:
        return self.ca is not None

    def check_address(self, listen: Listen) -> None:
        """Raise InvalidInput for a plain connection beyond this machine."""
        if not self.tls and not listen.loopback:
            raise InvalidInput("address", f"{listen} is not loopback: use mutual TLS for it ({TLS_OPTIONS})")

    def secret(self) -> str:
        """Return the shared secret, "" with TLS. Raises InvalidInput when it is unreadable, another user's, or readable
        by others: with it they could pass for the broker."""
        if self.secret_file is None:
            return ""
        try:
            # Opened once, and checked while open: the file of a name may change in between.
            with self.secret_file.open(encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                if status.st_uid not in (os.geteuid(), 0):
                    raise InvalidInput("secret-file", f"{self.secret_file} belongs to user {status.st_uid}, not to us")
                if status.st_mode & 0o077:
                    raise InvalidInput("secret-file", f"{self.secret_file} can be read by others; chmod 600 it")
                text = file.read(MAX_SECRET_CHARACTERS).strip()
        except UnicodeDecodeError as error:
            raise InvalidInput("secret-file", f"{self.secret_file} is not text") from error
        except OSError as error:
            reason = f"cannot read {self.secret_file}: {error.strerror}"
            remedy = f"give the pool's own (`egpu broker` makes it), or for a pool with TLS {TLS_OPTIONS}"
            raise InvalidInput("secret-file", f"{reason}; {remedy}") from error
        if len(text) < 16:
            raise InvalidInput("secret-file", f"{self.secret_file} has {len(text)} characters; use at least 16")
        return text

    def server_context(self) -> ssl.SSLContext | None:
        """Return the listener's TLS: only certificates of the pool's authority are accepted. Raises InvalidInput."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext | None:
        """Return the caller's TLS. `peer_of` checks names, so certificates need not list addresses."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        if context is not None:
            context.check_hostname = False
        return context

    def _context(self, protocol: int) -> ssl.SSLContext | None:
        if self.ca is None or self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(cafile=self.ca)
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput("tls", f"cannot use {self.ca}, {self.certificate} and {self.key}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
        return context


def create_secret(path: Path) -> None:
    """Make a new secret in a new file that only its owner can read; keep an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(SECRET_BYTES) + "\n")


def certified(name: str) -> str:
    """Return a caller's name by the common name of its certificate: ROLE/NAME. Raises Refused for any other name, and
    for one that could be mistaken for something else in a text."""
    role, _, rest = name.partition("/")
    if role not in ROLES or not rest or "/" in rest or not name.isprintable():
        raise Refused(f"the certificate's common name is {name!r}, not ROLE/NAME with a role of {', '.join(ROLES)}")
    return name


def common_name(certificate: dict[str, Any]) -> str:
    for group in certificate.get("subject", ()):
        for key, value in group:
            if key == "commonName":
                return str(value)
    return ""


def check_role(peer: str, *roles: Role) -> None:
    """Raise Refused when `peer` has none of these roles."""
    if peer != LOCAL_PEER and peer.partition("/")[0] not in roles:
        raise Refused(f"{peer} may not do that; it needs the role {' or '.join(roles)}")


def may_speak_for(peer: str, owner: str) -> bool:
    """Return whether `peer` may act on the leases of `owner`."""
    return peer == owner or peer.partition("/")[0] == "admin"
