"""The self-signed certificate: for this machine's names, kept, renewed before its end."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from penstock.server.net.quic.certificates import (
    CERTIFICATE_FILE,
    KEY_FILE,
    VALID_DAYS,
    CertificateUnusable,
    fingerprint,
    kept_certificate,
    self_signed,
)

NOW_S = 1_800_000_000.0
DAY_S = 86_400


def test_it_is_for_this_machine() -> None:
    made = self_signed(NOW_S)
    loaded = x509.load_pem_x509_certificate(made.chain)
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    addresses = names.get_values_for_type(x509.IPAddress)
    assert [str(one) for one in addresses] == ["127.0.0.1", "::1"]


def test_it_is_kept(tmp_path: Path) -> None:
    first = kept_certificate(str(tmp_path / "data"), NOW_S)
    assert kept_certificate(str(tmp_path / "data"), NOW_S + DAY_S) == first
    assert (tmp_path / "data" / KEY_FILE).stat().st_mode & 0o077 == 0
    assert len(fingerprint(first)) == 32 * 3 - 1


def test_it_is_renewed_before_its_end(tmp_path: Path) -> None:
    first = kept_certificate(str(tmp_path), NOW_S)
    assert kept_certificate(str(tmp_path), NOW_S + (VALID_DAYS - 31) * DAY_S) == first
    assert kept_certificate(str(tmp_path), NOW_S + (VALID_DAYS - 29) * DAY_S) != first


def test_half_a_pair_is_made_anew(tmp_path: Path) -> None:
    first = kept_certificate(str(tmp_path), NOW_S)
    (tmp_path / CERTIFICATE_FILE).unlink()
    second = kept_certificate(str(tmp_path), NOW_S)
    assert second != first
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / CERTIFICATE_FILE, tmp_path / KEY_FILE)


def test_a_damaged_pair_is_named(tmp_path: Path) -> None:
    kept_certificate(str(tmp_path), NOW_S)
    (tmp_path / KEY_FILE).write_bytes(self_signed(NOW_S).key)
    with pytest.raises(CertificateUnusable, match="do not belong together"):
        kept_certificate(str(tmp_path), NOW_S)
    (tmp_path / CERTIFICATE_FILE).write_bytes(b"nothing")
    with pytest.raises(CertificateUnusable, match="remove both files"):
        kept_certificate(str(tmp_path), NOW_S)
