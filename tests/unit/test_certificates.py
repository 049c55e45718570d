"""The webhook's certificates: a real TLS client believes them, and they are renewed in time."""

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from egpu_base.errors import InvalidInput
from egpu_base.http.web import TLS
from egpu_base.tls.certificates import CA_DAYS, SERVING_DAYS, issue, renewal_reason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ["127.0.0.1", "webhook.system.svc"]


def handshake(ca: bytes, certificate: bytes, key: bytes, host: str) -> None:
    """A TLS handshake in memory. Raises ssl.SSLError when the client does not believe the server."""
    server = TLS()
    server.load(certificate, key)
    client = ssl.create_default_context(cadata=ca.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=host)
    two = server.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for side in (one, two):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    one.getpeercert()  # raises before the handshake is complete


@pytest.mark.parametrize("host", HOSTS)
def test_a_client_that_trusts_the_authority_accepts_every_named_host(host: str):
    made = issue(HOSTS, now=datetime.now(UTC))
    handshake(made.ca_bundle, made.certificate, made.key, host)
    with pytest.raises(ssl.SSLError):
        handshake(made.ca_bundle, made.certificate, made.key, "other.example")
    other = issue(HOSTS, now=datetime.now(UTC))
    with pytest.raises(ssl.SSLError):
        handshake(other.ca_bundle, made.certificate, made.key, host)


def test_renewal_keeps_the_authority_until_it_is_old_and_then_bundles_both():
    first = issue(HOSTS, now=NOW)
    assert renewal_reason(first, HOSTS, now=NOW + timedelta(days=SERVING_DAYS / 2)) is None
    late = NOW + timedelta(days=SERVING_DAYS * 0.7)
    assert "ends at" in (renewal_reason(first, HOSTS, now=late) or "")
    second = issue(HOSTS, now=late, previous=first)
    assert second.ca_bundle == first.ca_bundle
    very_late = NOW + timedelta(days=CA_DAYS - 300)
    third = issue(HOSTS, now=very_late, previous=second)
    bundle = x509.load_pem_x509_certificates(third.ca_bundle)
    assert len(bundle) == 2
    assert bundle[1] == x509.load_pem_x509_certificate(first.ca_bundle)
    assert renewal_reason(third, HOSTS, now=very_late) is None


def test_an_authority_that_cannot_sign_any_more_is_still_trusted() -> None:
    now = datetime.now(UTC)
    first = issue(HOSTS, now=now)
    lost = replace(first, ca_key=b"")
    second = issue(HOSTS, now=now, previous=lost)
    handshake(second.ca_bundle, first.certificate, first.key, HOSTS[0])
    handshake(second.ca_bundle, second.certificate, second.key, HOSTS[0])
    assert renewal_reason(second, HOSTS, now=now) is None
    unreadable = issue(HOSTS, now=now, previous=replace(first, ca_bundle=b"\x00"))
    assert len(x509.load_pem_x509_certificates(unreadable.ca_bundle)) == 1


@pytest.mark.parametrize("hours", [1, -1])
def test_what_was_made_by_a_clock_that_was_an_hour_off_is_believed(hours: int) -> None:
    made = issue(HOSTS, now=datetime.now(UTC) + timedelta(hours=hours))
    handshake(made.ca_bundle, made.certificate, made.key, HOSTS[0])


def test_anything_wrong_is_a_reason_to_renew():
    made, other = issue(HOSTS, now=NOW), issue(HOSTS, now=NOW)
    assert "cannot be read" in (renewal_reason(replace(made, certificate=b"x"), HOSTS, now=NOW) or "")
    assert "key" in (renewal_reason(replace(made, key=other.key), HOSTS, now=NOW) or "")
    swapped = replace(made, certificate=other.certificate, key=other.key)
    assert "authority" in (renewal_reason(swapped, HOSTS, now=NOW) or "")
    assert "new.example" in (renewal_reason(made, [*HOSTS, "new.example"], now=NOW) or "")


def test_unusable_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="missing"):
        TLS().load_files(tmp_path / "missing", tmp_path / "key")


def test_a_clients_certificate_is_kept_as_long_as_its_authority_is_good() -> None:
    now = datetime.now(UTC)
    first = issue(["extender"], now=now, client="kube-scheduler")
    assert renewal_reason(first, ["extender"], now=now, client="kube-scheduler") is None
    renewed = issue(["extender"], now=now + timedelta(days=80), previous=first, client="kube-scheduler")
    assert (renewed.client_certificate, renewed.client_key) == (first.client_certificate, first.client_key)
    assert renewed.certificate != first.certificate
    without = issue(["extender"], now=now)
    assert "client" in str(renewal_reason(without, ["extender"], now=now, client="kube-scheduler"))
    other = issue(["extender"], now=now, client="kube-scheduler")
    mixed = replace(first, client_certificate=other.client_certificate, client_key=other.client_key)
    assert "client" in str(renewal_reason(mixed, ["extender"], now=now, client="kube-scheduler"))
