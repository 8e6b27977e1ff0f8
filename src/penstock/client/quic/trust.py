"""Which servers a QUIC client trusts.

A certificate is accepted if it is one of the file's own (a server's self-signed one, copied from its data
directory), or if an authority of the file signed it for the name that was dialled. Reads a file; opens no
connections.
"""

import re
import ssl
from dataclasses import dataclass
from typing import Final

from penstock.client.errors import ClientError

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

# How every certificate begins in its binary form.
DER_SEQUENCE: Final = b"\x30"


class UnusableTrustFile(ClientError):
    path: str
    reason: str

    line = "certificates to trust, {path}: {reason}"


@dataclass(frozen=True, slots=True)
class QuicTrust:
    """`ca`: a PEM file, with authorities or the server's own certificate; None: the authorities of this
    system. `server_name`: the name in the certificate, if it is not the host that is dialled. `insecure`:
    any certificate will do, and anybody on the way may read and change everything."""

    ca: str | None = None
    server_name: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Anchors:
    """What a trust comes to. `pem`: None for the system's."""

    pem: bytes | None
    own: frozenset[bytes]
    server_name: str
    insecure: bool


def load(trust: QuicTrust, host: str) -> Anchors:
    """Raises UnusableTrustFile."""
    name = trust.server_name or host
    if trust.ca is None or trust.insecure:
        return Anchors(None, frozenset(), name, trust.insecure)
    try:
        with open(trust.ca, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UnusableTrustFile(trust.ca, error.strerror or str(error)) from None
    found = _PEM.findall(content)
    if not found:
        raise UnusableTrustFile(trust.ca, "no certificate in PEM form is in it")
    try:
        own = frozenset(ssl.PEM_cert_to_DER_cert(one.decode("ascii")) for one in found)
    except ValueError:
        own = frozenset()
    if not own or not all(one.startswith(DER_SEQUENCE) for one in own):
        raise UnusableTrustFile(trust.ca, "a certificate in it is damaged")
    return Anchors(content, own, name, False)
