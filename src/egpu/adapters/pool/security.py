"""Who may speak: mutual TLS with names in certificates, or a shared secret on loopback.

Certificates come from the pool's own authority. The common name says what its bearer may do:

    server/NAME     report as the server NAME, take data connections
    client/NAME     take leases, and speak for its own
    admin/NAME      see, resize and revoke every lease
    broker/NAME     the broker itself

Without TLS everything stays on loopback, and whoever can read the secret's file is trusted with everything: that is the
laptop, where this is one user's own processes. The secret itself is never sent (`egpu.adapters.pool.proof`).
"""

from __future__ import annotations

import os
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from egpu.errors import InvalidInput, Refused

if TYPE_CHECKING:  # the web server behind it is slow to load, and every command line comes by here
    from egpu.adapters.listening import Listen

Role = Literal["server", "client", "admin", "broker"]
ROLES: Final[tuple[Role, ...]] = ("server", "client", "admin", "broker")
SECRET_BYTES: Final = 32
MAX_SECRET_CHARACTERS: Final = 4096
LOCAL_PEER: Final = "admin/local"
"""Who everybody is that proves to know the secret."""


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
            raise InvalidInput("tls", "--tls-ca, --tls-cert and --tls-key go together")
        if not any(given) and self.secret_file is None:
            raise InvalidInput("tls", "give --tls-ca, --tls-cert and --tls-key, or --secret-file (loopback only)")
        if any(given) and self.secret_file is not None:
            raise InvalidInput("secret-file", "with TLS the certificate says who one is; leave the secret away")

    @property
    def tls(self) -> bool:
        return self.ca is not None

    def check_address(self, listen: Listen) -> None:
        """Raises InvalidInput for a plain connection beyond this machine."""
        if not self.tls and not listen.loopback:
            raise InvalidInput("address", f"{listen} is not loopback: only mutual TLS goes there (--tls-ca, …)")

    def secret(self) -> str:
        """The shared secret, "" with TLS. Raises InvalidInput when it cannot be read, is another user's, or can be read
        by others: who knows it could pass for the broker."""
        if self.secret_file is None:
            return ""
        try:
            # Opened once, and asked of what is open: the file behind a name may change in between.
            with self.secret_file.open(encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                if status.st_uid not in (os.geteuid(), 0):
                    raise InvalidInput("secret-file", f"{self.secret_file} is user {status.st_uid}'s, not ours")
                if status.st_mode & 0o077:
                    raise InvalidInput("secret-file", f"{self.secret_file} can be read by others; chmod 600 it")
                text = file.read(MAX_SECRET_CHARACTERS).strip()
        except UnicodeDecodeError as error:
            raise InvalidInput("secret-file", f"{self.secret_file} is not text") from error
        except OSError as error:
            reason = f"cannot read {self.secret_file}: {error.strerror}"
            remedy = "name the pool's; `egpu broker` makes one where it starts, if there is none"
            raise InvalidInput("secret-file", f"{reason}; {remedy}") from error
        if len(text) < 16:
            raise InvalidInput(
                "secret-file", f"{self.secret_file} holds {len(text)} characters; at least 16 are needed"
            )
        return text

    def server_context(self) -> ssl.SSLContext | None:
        """For whoever listens: only certificates of the pool's authority are let in. Raises InvalidInput."""
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client_context(self) -> ssl.SSLContext | None:
        """For whoever connects. Names are checked by `peer_of`, so certificates need not list addresses."""
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
    """A new secret in a new file that only its owner reads; one that is there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(SECRET_BYTES) + "\n")


def certified(name: str) -> str:
    """Who a caller is by the common name of its certificate: ROLE/NAME. Raises Refused for any other name, and for one
    that could pass for something else where it is written down."""
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
    """Raises Refused when `peer` has none of these roles."""
    if peer != LOCAL_PEER and peer.partition("/")[0] not in roles:
        raise Refused(f"{peer} may not do that; {' or '.join(roles)} may")


def may_speak_for(peer: str, owner: str) -> bool:
    """Whether `peer` may act on what `owner` took."""
    return peer == owner or peer.partition("/")[0] == "admin"
