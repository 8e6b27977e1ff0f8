"""TLS on a connection that is already open: bytes in, bytes out, no sockets.

The first bytes of a connection are read before its protocol is known, and the start_tls of an event loop
cannot take bytes that were read already. Python's SSLObject over memory can, and works the
same on every loop.
"""

import ssl
from typing import Final

from penstock.errors import PenstockError

# The largest TLS record; one read of the SSLObject never gives more.
RECORD_BYTES: Final = 16 * 1024


class TlsFileError(PenstockError):
    """The certificate, its key or the client CA cannot be used."""

    paths: str
    reason: str

    line = "TLS: cannot use {paths}: {reason}"


def server_context(
    certificate: str,
    key: str,
    client_ca: str | None,
    *,
    optional: bool = False,
    client_crl: str | None = None,
) -> ssl.SSLContext:
    """TLS 1.2 and later. With a client CA, clients must show a certificate signed by it; `optional`: they
    may show none. `client_crl`: a file with revoked ones."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without this OpenSSL would ask for a password on the terminal, which a service does not have.
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsFileError(f"{certificate} and {key}", _reason(error)) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ValueError) as error:
            raise TlsFileError(client_ca, _reason(error)) from error
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
        # A resumed session would bring a certificate that nobody checks again.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        if client_crl is not None:
            _refuse_revoked(context, client_crl)
    return context


def _refuse_revoked(context: ssl.SSLContext, client_crl: str) -> None:
    try:
        context.load_verify_locations(client_crl)
    except (OSError, ValueError) as error:
        raise TlsFileError(client_crl, _reason(error)) from error
    if not context.cert_store_stats()["crl"]:
        raise TlsFileError(client_crl, "no list of revoked certificates in PEM form is in it")
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def why_refused(error: ssl.SSLError) -> str:
    """For a log line: what was wrong with the handshake or with the certificate of the peer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    return error.reason or "broken by the peer"


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one without a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM, or certificate and key do not belong together"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class TlsPipe:
    """The server's end of one TLS connection. `feed` raises ssl.SSLError when the peer breaks it."""

    __slots__ = ("_incoming", "_object", "_outgoing", "ended", "established")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        self.ended = False  # the peer has closed its side

    def feed(self, data: bytes) -> bytes:
        """Takes encrypted input and returns the plain text; `pending` may have something to send."""
        self._incoming.write(data)
        if not self.established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.established = True
        parts: list[bytes] = []
        try:
            while part := self._object.read(RECORD_BYTES):
                parts.append(part)
            self.ended = True
        except ssl.SSLWantReadError:
            return b"".join(parts)
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(parts)

    def peer_certificate(self) -> bytes:
        """The one that the peer has shown and the handshake has checked, in DER form; empty: none."""
        return self._object.getpeercert(binary_form=True) or b""

    def encrypt(self, data: bytes) -> bytes:
        """All of it: a memory BIO takes whatever comes."""
        self._object.write(data)
        return self._outgoing.read()

    def pending(self) -> bytes:
        """What the protocol itself has to send: handshake, alerts."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """Closes the server's side. Does not wait for the peer's answer."""
        try:
            self._object.unwrap()
        except (ssl.SSLError, ValueError):
            # Want-read is the usual case: the peer has not answered yet.
            return self._outgoing.read()
        return self._outgoing.read()
