"""Names of tenants, of their namespaces, and of what is in these.

    tenant      acme
    namespace   acme/default
    stream      acme/default/orders       a topic of this name
    cache       acme/default/sessions     a scope of the cache

A part has no `/` in it. Knows nothing of what exists.
"""

from enum import Enum, unique
from typing import Final

from penstock.broker.access.rights import is_internal
from penstock.broker.errors import BrokerError, Code
from penstock.names import flaw

SEPARATOR: Final = "/"


@unique
class Kind(Enum):
    """How many parts its name has, and the form that an error shows."""

    TENANT = (1, "tenant")
    NAMESPACE = (2, "tenant/namespace")
    STREAM = (3, "tenant/namespace/stream")
    CACHE = (3, "tenant/namespace/cache")

    def __init__(self, parts: int, form: str) -> None:
        self.parts = parts
        self.form = form

    @property
    def word(self) -> str:
        return self.name.lower()


def joined(*parts: str) -> str | None:
    """The name of these parts; None for parts that no name can have."""
    if not all(parts) or any(SEPARATOR in part for part in parts):
        return None
    return SEPARATOR.join(parts)


def parts_of(name: str, kind: Kind) -> tuple[str, ...] | None:
    """None for what has another form."""
    parts = tuple(name.split(SEPARATOR))
    return parts if len(parts) == kind.parts and all(parts) else None


def parent_of(name: str) -> str:
    """The namespace of a stream or cache, the tenant of a namespace; empty for a tenant."""
    return name.rpartition(SEPARATOR)[0]


def check(name: str, kind: Kind) -> None:
    """Raises INVALID_REQUEST for a name that nobody may give."""
    reason = flaw(name)
    if reason is None and parts_of(name, kind) is None:
        reason = f"it has the form {kind.form}"
    if reason is None and is_internal(name):
        reason = "names that begin with _ belong to the server"
    if reason is not None:
        text = f"{name!r} is no name of a {kind.word}: {reason}"
        raise BrokerError(Code.INVALID_REQUEST, text)
