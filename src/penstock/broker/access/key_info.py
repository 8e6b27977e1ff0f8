"""What an API key is made of beside its secret, and which names, roles and patterns are good for one."""

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from penstock.broker.access.rights import ROLE_ACTIONS
from penstock.broker.errors import BrokerError, Code
from penstock.names import MAX_NAME_BYTES, flaw

ALL_TOPICS: Final = ("*",)

# A name appears in lists and log lines; a person must be able to type it.
MAX_NAME_CHARS: Final = 100
# Every rule is matched against every new topic; more rules are better written as one pattern.
MAX_RULES: Final = 100


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What may be shown of a key."""

    name: str
    role: str
    topics: tuple[str, ...]
    created_us: int | None  # None: from the configuration
    revoked_us: int | None
    source: Literal["stored", "configuration"]


class ConfiguredKey(Protocol):
    """A [[keys]] table: exactly one of `secret` and `hash` is set."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def topics(self) -> tuple[str, ...]: ...
    @property
    def secret(self) -> str | None: ...
    @property
    def hash(self) -> str | None: ...


def check_name(what: str, name: str) -> None:
    """Raise INVALID_REQUEST for the name of a key or a user that could not be shown or typed."""
    reason = flaw(name)
    if reason or not name.isprintable() or name != name.strip() or len(name) > MAX_NAME_CHARS:
        raise BrokerError(
            Code.INVALID_REQUEST,
            f"a {what} needs a name of 1 to {MAX_NAME_CHARS} printable characters without spaces "
            "at its ends" + (f": {reason}" if reason else ""),
        )


def check_key(name: str, role: str, topics: tuple[str, ...]) -> None:
    """Raise INVALID_REQUEST for a key that could not be used or shown."""
    check_name("key", name)
    if role not in ROLE_ACTIONS:
        raise BrokerError(
            Code.INVALID_REQUEST, f"role {role!r} is unknown; use {', '.join(ROLE_ACTIONS)}"
        )
    if not 0 < len(topics) <= MAX_RULES or not all(
        0 < len(pattern) <= MAX_NAME_BYTES and pattern.isprintable() for pattern in topics
    ):
        raise BrokerError(
            Code.INVALID_REQUEST,
            f"a key needs 1 to {MAX_RULES} topic patterns such as 'orders.*', "
            f"each of 1 to {MAX_NAME_BYTES} printable characters",
        )
