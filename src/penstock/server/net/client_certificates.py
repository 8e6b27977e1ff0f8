"""Whom a client's certificate stands for: from its names to a user or an API key.

The handshake has checked the certificate. Here its names are read, by the rule of `tls.client_user`, after
the table of `tls.client_users`. A name gives rights only where an enabled user or a key has it; what it may
do is looked up with each request, as for everybody else. Checks no signatures and opens no sockets.
"""

from typing import Final, NamedTuple

from cryptography import x509

from penstock.broker.access.access import Access, Principal

# A name of a user or a key is shorter; a certificate may hold anything.
MAX_SHOWN_CHARACTERS: Final = 100


class Identity(NamedTuple):
    """The names of a certificate. `subject`: RFC 4514, the most specific part first."""

    subject: str
    common_name: str | None
    alternatives: tuple[str, ...]

    @property
    def shown(self) -> str:
        text = self.subject or ", ".join(self.alternatives) or "without a name"
        return text[:MAX_SHOWN_CHARACTERS]


def identity_of(certificate: bytes) -> Identity | None:
    """Of a certificate in DER form; None for one that cannot be read."""
    try:
        read = x509.load_der_x509_certificate(certificate)
        commons = read.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        subject = read.subject.rfc4514_string()
        alternatives = _alternatives(read)
    except (ValueError, TypeError):
        return None
    # With several the wrong one could be meant.
    common = str(commons[0].value) if len(commons) == 1 else None
    return Identity(subject, common, alternatives)


def _alternatives(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    kinds = (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier)
    return tuple(one.value for one in found if isinstance(one, kinds))


class CertificateUsers:
    """`rule`: off, cn, san or dn."""

    def __init__(self, rule: str, table: dict[str, str]) -> None:
        self._rule = rule
        self._table = table

    @property
    def is_on(self) -> bool:
        return self._rule != "off" or bool(self._table)

    def names(self, identity: Identity) -> tuple[str, ...]:
        """The users that it may stand for, the first that exists counts. One of the table stands alone."""
        own = [identity.subject, *identity.alternatives]
        if identity.common_name is not None:
            own.append(identity.common_name)
        for name in own:
            if name in self._table:
                return (self._table[name],)
        if self._rule == "cn":
            return () if identity.common_name is None else (identity.common_name,)
        if self._rule == "san":
            return identity.alternatives
        return (identity.subject,) if self._rule == "dn" else ()

    def principal(self, access: Access, certificate: bytes) -> Principal | None:
        """None: the certificate stands for nobody."""
        identity = identity_of(certificate) if certificate and self.is_on else None
        names = () if identity is None else self.names(identity)
        return next(filter(None, (_principal(access, name) for name in names)), None)


def _principal(access: Access, name: str) -> Principal | None:
    """A user that is enabled, or a key that was made; not those that everybody has."""
    user = access.users.all().get(name)
    if user is not None:
        return access.users.principal(name) if user.enabled else None
    key = access.named(name)
    if key is None or (key.key_id is None and not key.mark):
        return None
    return key
