"""Certificates for the webhook and the extender: an authority of our own, a serving certificate from it, an optional
client's, and the time to renew each.

The serving certificate lives SERVING_DAYS and is renewed when a third of that is left. The authority lives CA_DAYS and
is renewed a year before its end. While an authority is being replaced, the bundle holds the old and the new one, so
that a server with the old certificate is trusted until it reloads. A client's certificate lives as long as its
authority, because a person carries it to the client by hand.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from egpu_base.errors import CorruptData
from egpu_base.system.files import write_atomically

CA_DAYS = 3650
CA_RENEW_DAYS = 365
SERVING_DAYS = 90
CLOCK_SKEW = timedelta(days=1)
"""Certificates are valid from before their making: a machine's clock may be hours off until it is set."""
MAX_BUNDLED = 2


@dataclass(frozen=True)
class Certificates:
    """PEM texts. `ca_bundle` holds the current authority first, then the one it replaced, if any."""

    ca_bundle: bytes
    ca_key: bytes
    certificate: bytes
    key: bytes
    client_certificate: bytes = b""
    client_key: bytes = b""


def issue(
    hosts: Sequence[str], *, now: datetime, previous: Certificates | None = None, client: str = ""
) -> Certificates:
    """Issue certificates for `hosts` (DNS names and IP addresses). Keep the previous authority, and the previous
    certificate of `client` (a common name; "" for none), while the authority is good. An authority that cannot sign any
    more is still trusted beside the new one, because its certificates are in use.
    """
    authority, bundle = _held_authority(previous, now)
    if authority is None:
        authority = _new_authority(now)
        bundle = [authority[0], *bundle][:MAX_BUNDLED]
    ca, ca_key = authority
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    serving = _builder(_name(hosts[0]), ca.subject, now, now + timedelta(days=SERVING_DAYS))
    clients = b"", b""
    if client:
        held = None if previous is None else (previous.client_certificate, previous.client_key)
        if held is not None and _client_reason(*held, ca) is None:
            clients = held
        else:
            clients = _sign(_builder(_name(client), ca.subject, now, _end(ca)), ca_key, ExtendedKeyUsageOID.CLIENT_AUTH)
    return Certificates(
        b"".join(one.public_bytes(serialization.Encoding.PEM) for one in bundle),
        _pem(ca_key),
        *_sign(serving.add_extension(names, critical=False), ca_key, ExtendedKeyUsageOID.SERVER_AUTH),
        *clients,
    )


def store(directory: Path, made: Certificates) -> None:
    """Write certificates of a server and its client as files that only their owner can read."""
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


_Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _held_authority(held: Certificates | None, now: datetime) -> tuple[_Authority | None, list[x509.Certificate]]:
    """Return the authority that signs on, None if a new one is needed, and the authorities trusted until now."""
    if held is None:
        return None, []
    try:
        trusted = [one for one in x509.load_pem_x509_certificates(held.ca_bundle) if _end(one) > now]
    except ValueError:
        return None, []
    try:
        authority = _authority(held)
    except CorruptData:
        return None, trusted
    return (None if _end(authority[0]) - now < timedelta(days=CA_RENEW_DAYS) else authority), trusted


def _sign(
    builder: x509.CertificateBuilder, ca_key: ec.EllipticCurvePrivateKey, usage: x509.ObjectIdentifier
) -> tuple[bytes, bytes]:
    """Return the certificate and its new key, as PEM texts."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        builder.public_key(key.public_key())
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def renewal_reason(certificates: Certificates, hosts: Sequence[str], *, now: datetime, client: str = "") -> str | None:
    """Return why these certificates must be replaced now, or None. The arguments are those of `issue`."""
    try:
        ca, _ = _authority(certificates)
        serving = x509.load_pem_x509_certificate(certificates.certificate)
        key = serialization.load_pem_private_key(certificates.key, None)
        names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, CorruptData, x509.ExtensionNotFound) as error:
        return f"they cannot be read: {error}"
    if key.public_key() != serving.public_key():
        return "the key is not the certificate's"
    try:
        serving.verify_directly_issued_by(ca)
    except Exception:
        return "the certificate is not the authority's"
    if missing := [host for host in hosts if _general_name(host) not in list(names)]:
        return f"the certificate does not name {', '.join(missing)}"
    if _end(serving) - now < timedelta(days=SERVING_DAYS / 3):
        return f"the certificate ends at {_end(serving):%Y-%m-%d}"
    if _end(ca) - now < timedelta(days=CA_RENEW_DAYS):
        return f"the authority ends at {_end(ca):%Y-%m-%d}"
    return _client_reason(certificates.client_certificate, certificates.client_key, ca) if client else None


def _client_reason(certificate: bytes, key: bytes, ca: x509.Certificate) -> str | None:
    """Return why a client's certificate is unusable, or None."""
    try:
        held = x509.load_pem_x509_certificate(certificate)
        if serialization.load_pem_private_key(key, None).public_key() != held.public_key():
            return "the key is not the client certificate's"
        held.verify_directly_issued_by(ca)
    except Exception as error:
        return f"the client's certificate cannot be used: {error}"
    return None


def _authority(certificates: Certificates) -> _Authority:
    """Read the authority. Raises CorruptData."""
    try:
        ca = x509.load_pem_x509_certificates(certificates.ca_bundle)[0]
        key = serialization.load_pem_private_key(certificates.ca_key, None)
    except (ValueError, TypeError, IndexError) as error:
        raise CorruptData(f"certificate authority: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
        raise CorruptData("certificate authority: the key is not the certificate's")
    return ca, key


def _new_authority(now: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("elastic-gpu authority")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, now, now + timedelta(days=CA_DAYS))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _builder(subject: x509.Name, issuer: x509.Name, now: datetime, end: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _end(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
