"""The one table of operations and the right that each of them needs. Every door asks it.

    broker.require(principal, Operation.PUBLISH, "orders.new")      # raises BrokerError

A door (a protocol, Flight, HTTP) has its own names for what it does. It maps each of them to an
operation of this table, and decides nothing by itself. tests/conformance/rights/ calls all of them with
every role and compares the outcome with this table; docs/rights.md shows it.

The rule: a principal may do what its role allows, on topics that match its patterns, and may read and write
the topics that a topic rule grants it (topic_rules.py). A rule takes nothing away. Topics whose names begin
with `_` are internal: nobody publishes to them, deletes or purges them, admins read them, lists hide them.

Knows no keys and no logins (access.py) and no protocol.
"""

from collections.abc import Iterable
from enum import Enum, unique
from typing import Final, Literal

Action = Literal["read", "write", "admin"]
# none: every peer that can connect. login: every peer that the door accepts; what such an operation shows
# depends on the rights of the principal.
Right = Literal["none", "login", "read", "write", "admin"]

ROLE_ACTIONS: Final[dict[str, frozenset[str]]] = {
    "admin": frozenset({"read", "write", "admin"}),
    "user": frozenset({"read", "write"}),
    "writer": frozenset({"write"}),
    "reader": frozenset({"read"}),
    "guest": frozenset(),
}
# Those that a user may have, each with others; `user` is writer and reader.
USER_ROLES: Final = ("admin", "writer", "reader", "guest")
# What topic rules can grant.
GRANTED: Final = frozenset({"read", "write"})

INTERNAL_PREFIX: Final = "_"


@unique
class Scope(Enum):
    """On what an operation needs its right."""

    SERVER = "the server"  # admin here means: for all topics
    TOPIC = "the topic"
    GROUP = "every topic of the group"
    ANY_TOPIC = "any topic"  # only the role counts; other operations check the topics


@unique
class Operation(Enum):
    """The right, its object, and the text of a refusal ("ops may not <words> 'name'").

    `needs_key`: the result belongs to one principal, so the one that all unknown peers share may not.
    """

    LOG_IN = ("none", Scope.SERVER, "log in")
    CHECK_HEALTH = ("none", Scope.SERVER, "ask for the health of the server")
    READ_METRICS = ("none", Scope.SERVER, "read metrics")
    KEEP_ALIVE = ("login", Scope.SERVER, "ping")
    LIST_CALLS = ("login", Scope.SERVER, "list calls")
    LIST_TOPICS = ("login", Scope.SERVER, "list topics")
    LIST_GROUPS = ("login", Scope.SERVER, "list groups")
    LIST_TENANTS = ("login", Scope.SERVER, "list tenants")
    DESCRIBE_TOPIC = ("read", Scope.TOPIC, "look at topic")
    READ_RECORDS = ("read", Scope.TOPIC, "read topic")
    SUBSCRIBE = ("read", Scope.TOPIC, "subscribe to topic")
    POLL = ("read", Scope.TOPIC, "poll messages of topic")
    ACKNOWLEDGE = ("read", Scope.TOPIC, "acknowledge messages of topic")
    READ_OFFSETS = ("read", Scope.TOPIC, "read offsets of groups on topic")
    READ_DEAD_LETTERS = ("read", Scope.TOPIC, "read the dead letters of topic")
    DESCRIBE_CLUSTER = ("read", Scope.ANY_TOPIC, "look at the cluster")
    READ_SCHEMAS = ("read", Scope.ANY_TOPIC, "look at schemas")
    LIST_DELAYED = ("read", Scope.ANY_TOPIC, "list delayed messages")
    VALIDATE_MESSAGE = ("read", Scope.ANY_TOPIC, "validate messages")
    COMMIT_OFFSETS = ("read", Scope.TOPIC, "commit offsets of groups on topic")
    PUBLISH = ("write", Scope.TOPIC, "publish to topic")
    READ_CACHE = ("read", Scope.TOPIC, "read cache")
    WRITE_CACHE = ("write", Scope.TOPIC, "write to cache")
    CREATE_TOPIC = ("write", Scope.TOPIC, "create topic")
    CREATE_CACHE = ("write", Scope.TOPIC, "create cache")
    STAGE_RECORDS = ("write", Scope.TOPIC, "stage records for topic", True)
    CANCEL_DELAYED = ("write", Scope.ANY_TOPIC, "cancel delayed messages")
    USE_TRANSACTIONS = ("write", Scope.ANY_TOPIC, "use transactions", True)
    OPEN_TRANSACTION = ("write", Scope.ANY_TOPIC, "begin transactions")
    END_TRANSACTION = ("write", Scope.ANY_TOPIC, "end transactions")
    CHANGE_TOPIC = ("admin", Scope.TOPIC, "change topic")
    PURGE_TOPIC = ("admin", Scope.TOPIC, "purge topic")
    DELETE_TOPIC = ("admin", Scope.TOPIC, "delete topic")
    DELETE_CACHE = ("admin", Scope.TOPIC, "delete cache")
    CHANGE_TENANT = ("admin", Scope.TOPIC, "change tenant")
    REPLAY_DEAD_LETTER = ("admin", Scope.TOPIC, "replay dead letters of topic")
    PURGE_DEAD_LETTERS = ("admin", Scope.TOPIC, "purge the dead letters of topic")
    RESET_GROUP = ("admin", Scope.TOPIC, "reset groups on topic")
    DELETE_GROUP = ("admin", Scope.GROUP, "delete group")
    REGISTER_SCHEMA = ("admin", Scope.SERVER, "register schemas")
    CHANGE_SCHEMA = ("admin", Scope.SERVER, "change schemas")
    DELETE_SCHEMA = ("admin", Scope.SERVER, "delete schemas")
    CHANGE_CLUSTER = ("admin", Scope.SERVER, "change the cluster")
    END_ANY_TRANSACTION = ("admin", Scope.SERVER, "end the transactions of others")
    LIST_KEYS = ("admin", Scope.SERVER, "list API keys")
    CREATE_KEY = ("admin", Scope.SERVER, "create API keys")
    REVOKE_KEY = ("admin", Scope.SERVER, "revoke API keys")
    LIST_ROLES = ("login", Scope.SERVER, "list roles")
    LIST_USERS = ("admin", Scope.SERVER, "list users")
    CREATE_USER = ("admin", Scope.SERVER, "create users")
    CHANGE_USER = ("admin", Scope.SERVER, "change users")
    DELETE_USER = ("admin", Scope.SERVER, "delete users")
    CHANGE_OWN_PASSWORD = ("login", Scope.SERVER, "change the password of its own account")
    CHANGE_PASSWORD = ("admin", Scope.SERVER, "change the passwords of others")
    LIST_RULES = ("admin", Scope.SERVER, "list topic rules")
    CHANGE_RULE = ("admin", Scope.SERVER, "change topic rules")
    READ_AUDIT = ("admin", Scope.SERVER, "read the audit trail")

    def __init__(self, right: Right, scope: Scope, words: str, needs_key: bool = False) -> None:
        self.right = right
        self.scope = scope
        self.words = words
        self.needs_key = needs_key


# What the server keeps in internal topics was acknowledged, as delayed messages are: it alone removes it.
CLOSED_ON_INTERNAL: Final = frozenset({Operation.DELETE_TOPIC, Operation.PURGE_TOPIC})


def is_closed(operation: Operation, topic: str) -> bool:
    """Whether nobody may do it, because the topic is internal."""
    if operation.scope is not Scope.TOPIC or not is_internal(topic):
        return False
    return operation.right == "write" or operation in CLOSED_ON_INTERNAL


def combined_role(roles: Iterable[str]) -> str:
    """The one role that allows what these allow together."""
    actions = frozenset[str]().union(*(ROLE_ACTIONS[role] for role in roles))
    return next(role for role, allowed in ROLE_ACTIONS.items() if allowed == actions)


def roles_of(role: str) -> tuple[str, ...]:
    """As topic rules name them."""
    return ("writer", "reader") if role == "user" else (role,)


def is_internal(topic: str) -> bool:
    return topic.startswith(INTERNAL_PREFIX)


def role_gives(role: str, action: str, topic: str) -> bool:
    """What the role alone allows on this topic, or on the server (topic "")."""
    actions = ROLE_ACTIONS.get(role)
    if actions is None or action not in actions:
        return False
    return not is_internal(topic) or ("admin" in actions and action != "write")


def refusal(who: str, operation: Operation, name: str) -> str:
    """One line: the principal, the operation, its object, and the right that is missing."""
    if is_closed(operation, name):
        return (
            f"{who} may not {operation.words} {name!r}: that needs another name,"
            f" those that begin with {INTERNAL_PREFIX} belong to the server"
        )
    what = f"{who} may not {operation.words}"
    if operation.scope in (Scope.TOPIC, Scope.GROUP):
        what += f" {name!r}"
    return f"{what}: that needs {needed(operation)}"


def needed(operation: Operation) -> str:
    """The right in words; also the column of the documents."""
    if operation.right == "none":
        return "nothing"
    if operation.right == "login":
        return "a login"
    if operation.scope is Scope.SERVER:
        return f"the right {operation.right} on all topics"
    own_key = "an API key and " if operation.needs_key else ""
    return f"{own_key}the right {operation.right} on {operation.scope.value}"
