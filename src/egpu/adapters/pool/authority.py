"""The pool's own certificate authority: made once, kept wherever its operator likes, and not needed by running
programs. Certificates name a role and a machine or user (`egpu.adapters.pool.security`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from egpu.adapters.pool.security import ROLES, Credentials, Role
from egpu_base.errors import CorruptData, InvalidInput
from egpu_base.system.files import write_atomically
from egpu_base.tls.certificates import CLOCK_SKEW

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365


def issue(directory: Path, role: Role, name: str, *, days: int = CERTIFICATE_DAYS) -> Credentials:
    """Issue a certificate for ROLE/NAME from the authority in `directory`, which is made if needed.

    Writes ROLE-NAME.crt and ROLE-NAME.key beside ca.crt and ca.key. Raises InvalidInput, CorruptData.
    """
    common = f"{role}/{name}"
    if role not in ROLES or not name or len(common) > 64 or "/" in name or not name.isprintable():
        raise InvalidInput("name", f"{common!r} is not ROLE/NAME (roles: {', '.join(ROLES)}; 64 characters at most)")
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (directory / "ca.key").exists():
        _make_authority(directory)
    try:
        ca = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
        ca_key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise CorruptData(f"cannot read the authority in {directory}: {error}") from error
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise CorruptData(f"{directory}/ca.key is not a key of ours")
    key = ec.generate_private_key(ec.SECP256R1())
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(common, ca.subject, key.public_key(), days)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    made = Credentials(
        ca=directory / "ca.crt", certificate=directory / f"{role}-{name}.crt", key=directory / f"{role}-{name}.key"
    )
    assert made.certificate is not None
    assert made.key is not None
    write_atomically(made.key, _pem(key), mode=0o600, durable=True)
    write_atomically(made.certificate, certificate.public_bytes(serialization.Encoding.PEM), durable=True)
    return made


def _make_authority(directory: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("elastic-gpu pool authority")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder("elastic-gpu pool authority", name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_atomically(directory / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM), durable=True)
    write_atomically(directory / "ca.key", _pem(key), mode=0o600, durable=True)


def _builder(subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
