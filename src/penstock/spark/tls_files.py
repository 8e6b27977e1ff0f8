"""Checks that certificates and keys can be used, before gRPC gets them.

gRPC reports "empty address list" for a file without a certificate, and for a key that belongs to another
one. Does not check whether the server accepts the certificate.
"""

import ssl

from penstock.spark.options import OptionError


def check_authorities(ca_file: str) -> None:
    """Raises OptionError."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca_file)
    except ssl.SSLError:
        raise OptionError("tlsCaFile", "holds no certificate in PEM") from None


def check_own(certificate_file: str, key_file: str) -> None:
    """The certificate of the client and its key. Raises OptionError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # Without a password Python would ask for it, on a terminal that nobody sees.
        context.load_cert_chain(certificate_file, key_file, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OptionError("tlsKeyFile", "is the key of another certificate") from None
        reason = "one of them is not PEM, or the key has a password"
        both = f"cannot be used with tlsKeyFile: {reason}"
        raise OptionError("tlsCertificateFile", both) from None
