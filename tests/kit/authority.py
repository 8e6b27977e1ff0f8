"""A certificate authority for tests: signs certificates of clients and servers, and revokes them."""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM = serialization.Encoding.PEM


class Authority:
    """Its files are in a directory of their own. `ca`: the path of its certificate."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = str(directory / "ca.pem")
        Path(self.ca).write_bytes(self._certificate.public_bytes(PEM))
        self._revoked: list[int] = []
        self._serials: dict[str, int] = {}

    def issue(
        self,
        common_name: str,
        *,
        organization: str | None = None,
        names: Sequence[x509.GeneralName] = (),
    ) -> str:
        """The path of a file with a certificate and its key."""
        parts = [x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)]
        if organization is not None:
            parts.insert(0, x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, organization))
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(x509.Name(parts), self._name, key)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        self._serials[common_name] = certificate.serial_number
        path = self.directory / f"{common_name}.pem"
        private = key.private_bytes(
            PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(certificate.public_bytes(PEM) + private)
        return str(path)

    def server(self) -> str:
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        return self.issue("localhost", names=names)

    def revoke(self, *common_names: str) -> str:
        """The path of the list of all that are revoked."""
        self._revoked += [self._serials[name] for name in common_names]
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - timedelta(days=1))
            .next_update(now + timedelta(days=1))
        )
        for serial in self._revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(entry.revocation_date(now).build())
        path = self.directory / "crl.pem"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        return str(path)

    def client(
        self, certificate: str | None = None, version: ssl.TLSVersion | None = None
    ) -> ssl.SSLContext:
        """Trusts this authority, and shows a certificate if one is given."""
        context = ssl.create_default_context(cafile=self.ca)
        if certificate is not None:
            context.load_cert_chain(certificate)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
