"""Who knocks at the doors, and what the table of rights lets each of them do.

`outcome` says it from the table alone, by the rule of the documents: a role gives rights, on topics that
the patterns of a key fit. The tests beside this file try it on a real server.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Literal

from kit.live_server import LiveServer

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import Operation, Scope
from penstock.broker.tenants.names import Kind

Outcome = Literal["allowed", "refused", "unauthenticated"]

# The documents' table of roles, written down a second time.
ROLES: Final[dict[str, set[str]]] = {
    "admin": {"read", "write", "admin"},
    "user": {"read", "write"},
    "writer": {"write"},
    "reader": {"read"},
    "guest": set(),
}
OWN: Final = "mine."
OTHER: Final = "other."

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Caller:
    """`role` None: nobody. `known`: has a key that the server knows. Limited ones have OWN topics only."""

    name: str
    role: str | None = None
    known: bool = True
    limited: bool = False

    def may(self, operation: Operation, topic: str) -> bool:
        if operation.right in ("none", "login"):
            return True
        if self.role is None or operation.right not in ROLES[self.role]:
            return False
        if operation.scope is Scope.ANY_TOPIC or not self.limited:
            return True
        return operation.scope is not Scope.SERVER and topic.startswith(OWN)


STRANGER: Final = Caller("no key", known=False)
WRONG: Final = Caller("wrong key", known=False)
KNOWN: Final = (
    *(Caller(role, role) for role in ROLES),
    Caller("limited-admin", "admin", limited=True),
    Caller("limited-user", "user", limited=True),
)
CALLERS: Final = (STRANGER, WRONG, *KNOWN)


def outcome(caller: Caller, operation: Operation, topic: str) -> Outcome:
    """At a door that lets nobody in without a key."""
    if not caller.known and operation.right != "none":
        return "unauthenticated"
    return "allowed" if caller.may(operation, topic) else "refused"


class Walk:
    """A server with a key for each caller, and fresh topics and groups to try things on."""

    def __init__(self, server: LiveServer, keys: dict[str, str]) -> None:
        self.server = server
        self.keys = keys

    def key(self, caller: Caller) -> str | None:
        if caller is STRANGER:
            return None
        return self.keys.get(caller.name, "no-key-of-this-server")

    def fresh(self, prefix: str) -> tuple[str, str]:
        """The names of a new topic with one record, and of a group that has read none of it."""
        number = next(_numbers)
        topic, group = f"{prefix}{number}", f"group-{number}"
        engine = self.server.server.engine

        def make() -> None:
            engine.create_topic(topic)

        self.server.call(make)
        self.server.settle(lambda: engine.commit_offset(group, topic, 0, 0))
        return topic, group

    def felix(self, tenant: str) -> None:
        """A tenant with a namespace `n`, and a stream `s` and a cache `c` in it."""
        broker = self.server.server.broker
        admin = Principal("maker", "admin")
        made = ((Kind.TENANT, ""), (Kind.NAMESPACE, "/n"), (Kind.CACHE, "/n/c"))
        for kind, rest in made:
            self.server.settle(
                lambda kind=kind, rest=rest: broker.tenants.create(admin, kind, tenant + rest)  # type: ignore[misc]
            )
        self.server.call(lambda: broker.engine.create_topic(f"{tenant}/n/s"))


def make_keys(server: LiveServer) -> dict[str, str]:
    create = server.server.broker.access.create_key
    return {
        caller.name: create(
            caller.name, caller.role or "", (f"{OWN}*",) if caller.limited else ("*",)
        )
        for caller in KNOWN
    }


@contextmanager
def walking(data: Path, **settings: str) -> Iterator[Walk]:
    """The second start is that of a server with stored keys: strangers may do nothing."""
    with LiveServer(data) as server:
        keys = make_keys(server)
    flags = {name.replace("__", "."): value for name, value in settings.items()}
    with LiveServer(data, flags) as server:
        yield Walk(server, keys)
