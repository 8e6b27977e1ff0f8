"""The identity behind a request: that of a key or a user, or the one set for a protocol without a login."""

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests come from: the door, and the address of the peer without its port."""

    door: str = ""
    address: str = ""


# Of the server itself.
NOWHERE: Final = Origin()


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity behind a request. `rules` are topic patterns; none means every topic. The role of a user
    is that of the login: what a user may do now, Access knows."""

    name: str
    role: str
    rules: tuple[str, ...] = ()
    key_id: int | None = None  # of the stored key; None for all others
    # Of a key of the configuration: changes with its secret and its rights, and reveals neither.
    mark: bytes = field(default=b"", compare=False, repr=False)
    user_id: int | None = None  # of the user; None for keys
    password_number: int = 0  # which of the user's passwords it logged in with
    # For the audit trail. It decides nothing.
    origin: Origin = field(default=NOWHERE, compare=False)
