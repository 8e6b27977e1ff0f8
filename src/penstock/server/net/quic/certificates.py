"""The certificate of the QUIC listeners: that of the configuration, or one of our own making that is kept.

QUIC has no form without TLS, so a bare start makes a self-signed certificate for this machine's names
and keeps it in the data directory: clients that were told to trust it may go on doing so. Its
fingerprint is in the banner.
"""

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from penstock.errors import PenstockError
from penstock.server.net.quic.port import Certificate

NAMES: Final = ("localhost",)
ADDRESSES: Final = ("127.0.0.1", "::1")
# Beyond the life of most machines: whoever trusts it has pinned it, and nothing else would renew it.
VALID_DAYS: Final = 3650
# A clock of a client may be behind.
BEFORE_DAYS: Final = 1
CERTIFICATE_FILE: Final = "quic-certificate.pem"
KEY_FILE: Final = "quic-key.pem"
# A certificate that ends within this time is replaced at a start.
RENEW_DAYS: Final = 30


class CertificateUnusable(PenstockError):
    """The certificate that is kept cannot be used."""

    paths: str
    reason: str

    line = "QUIC: cannot use {paths}: {reason}; remove both files for a new certificate"


def self_signed(now_s: float) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Penstock")])
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    alternatives: list[x509.GeneralName] = [x509.DNSName(one) for one in NAMES]
    alternatives += [x509.IPAddress(ipaddress.ip_address(one)) for one in ADDRESSES]
    # Not a CA: clients take it as a root anyway when they are told to, and rustls refuses a CA as an
    # end entity.
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=BEFORE_DAYS))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        made.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def fingerprint(certificate: Certificate) -> str:
    """SHA-256 of the certificate as clients pin it: hexadecimal pairs with colons."""
    loaded = x509.load_pem_x509_certificates(certificate.chain)[0]
    return loaded.fingerprint(hashes.SHA256()).hex(":").upper()


def kept_certificate(directory: str, now_s: float) -> Certificate:
    """The one in the data directory; made at the first start, and when it is about to end. Waits for the
    disk. Raises CertificateUnusable or OSError."""
    chain_path, key_path = Path(directory, CERTIFICATE_FILE), Path(directory, KEY_FILE)
    if chain_path.exists() and key_path.exists():
        found = Certificate(chain_path.read_bytes(), key_path.read_bytes())
        if not _ends_soon(found, f"{chain_path} and {key_path}", now_s):
            return found
    made = self_signed(now_s)
    Path(directory).mkdir(parents=True, exist_ok=True)
    # The key first: a certificate without its key would be taken for a whole pair after a crash.
    _write(key_path, made.key)
    _write(chain_path, made.chain)
    return made


def _ends_soon(certificate: Certificate, paths: str, now_s: float) -> bool:
    try:
        loaded = x509.load_pem_x509_certificates(certificate.chain)[0]
        key = load_pem_private_key(certificate.key, None)
    except (ValueError, TypeError) as error:
        raise CertificateUnusable(paths, str(error)) from None
    if key.public_key() != loaded.public_key():
        raise CertificateUnusable(paths, "certificate and key do not belong together")
    return loaded.not_valid_after_utc.timestamp() - now_s < RENEW_DAYS * 86_400


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, and for this user only."""
    beside = path.with_suffix(".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def configured_certificate(chain_path: str, key_path: str) -> Certificate:
    """Raises OSError; whether the engine can use it, it says itself."""
    return Certificate(Path(chain_path).read_bytes(), Path(key_path).read_bytes())
