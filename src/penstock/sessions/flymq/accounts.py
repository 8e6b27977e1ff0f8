"""Users, topic rules, passwords and roles: 0x73 to 0x7D.

On this wire writer and reader are called producer and consumer, and a topic rule an ACL. Both names are
understood. What a request changes is durable before its answer, and requests behind it wait for that.
"""

from collections.abc import Callable, Iterable
from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import ROLE_ACTIONS, USER_ROLES, combined_role
from penstock.broker.access.topic_rules import DEFAULT_PUBLIC, TopicRule
from penstock.broker.access.user_table import UserRecord
from penstock.broker.access.users import check_password
from penstock.broker.errors import BrokerError, Code
from penstock.sessions.base import OVER
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.wire.flymq import administration as a
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.layout import Message

SECOND_US: Final = 1_000_000
# Our roles by their names on this wire.
WIRE_ROLES: Final = {
    "admin": "admin",
    "writer": "producer",
    "reader": "consumer",
    "guest": "guest",
}
OUR_ROLES: Final = {wire: ours for ours, wire in WIRE_ROLES.items()}
DESCRIPTIONS: Final = {
    "admin": "Full access to all operations",
    "writer": "Write-only access (produce messages)",
    "reader": "Read-only access (consume messages)",
    "guest": "Access to public topics only",
}
PERMISSIONS: Final[tuple[str, ...]] = ("read", "write", "admin")
WRONG_PASSWORD: Final = "invalid current password"


def wire_roles(roles: Iterable[str]) -> list[str]:
    return [WIRE_ROLES[role] for role in roles]


def permissions(role: str) -> list[str]:
    """Of one of the broker's roles."""
    return [one for one in PERMISSIONS if one in ROLE_ACTIONS[role]]


def _our_roles(roles: Iterable[str]) -> list[str]:
    return [OUR_ROLES.get(role, role) for role in roles]


# --- users ----------------------------------------------------------------------------------------


def create_user(session: Conversation, call: Call, request: a.UserRequest) -> None:
    """A new user is enabled, whatever the request says, as for the existing server."""
    by, roles = session.principal, _our_roles(request.roles)

    def make() -> a.User:
        record = session.port.accounts.create_user(by, request.user, request.password, roles)
        return a.User(request.user, wire_roles(record.roles), [], True, 0, 0)

    session.reply_aside(call, make)


def update_user(session: Conversation, call: Call, request: a.UserRequest) -> None:
    """Replaces roles and state. No roles are none, and a missing last byte disables the user."""
    by, roles = session.principal, _our_roles(request.roles)
    accounts = session.port.accounts
    _change(
        session,
        call,
        request.user,
        lambda: accounts.update_user(by, request.user, roles, request.enabled),
    )


def delete_user(session: Conversation, call: Call, request: a.UserName) -> None:
    by, accounts = session.principal, session.port.accounts
    _change(session, call, request.user, lambda: accounts.delete_user(by, request.user))


def list_users(session: Conversation, call: Call, request: m.Nothing) -> None:
    users = session.port.access.users.all()
    session.reply_aside(
        call, lambda: a.Users([_user(name, record, []) for name, record in users.items()])
    )


def get_user(session: Conversation, call: Call, request: a.UserName) -> None:
    record = session.port.access.users.get(request.user)
    allowed = permissions(combined_role(record.roles))
    session.reply(call, _user(request.user, record, allowed))


def _user(name: str, record: UserRecord, allowed: list[str]) -> a.User:
    created_s, updated_s = record.created_us // SECOND_US, record.updated_us // SECOND_US
    return a.User(name, wire_roles(record.roles), allowed, record.enabled, created_s, updated_s)


# --- passwords ------------------------------------------------------------------------------------


def change_password(session: Conversation, call: Call, request: a.UserRequest) -> None:
    """The own one needs the current password. The session goes on with the new one; all others of the user
    have to log in again."""
    check_password(request.password)
    if not is_own(session.principal, request):
        by, accounts = session.principal, session.port.accounts
        _change(
            session,
            call,
            request.user,
            lambda: accounts.set_password(by, request.user, request.password),
        )
        return
    session.blocking = True

    def checked(found: Principal | None) -> None:
        if session.state == OVER:
            return
        session.blocking = False
        if found is not None and found.user_id == session.principal.user_id:
            _set_own_password(session, call, request)
            return
        session.refuse_later(call, BrokerError(Code.INVALID_REQUEST, WRONG_PASSWORD))
        session.count_failed_login()

    session.port.login_as(
        request.user,
        request.old_password,
        session.guarded(checked),
        wanted=lambda: session.state != OVER,
        origin=session.origin,
    )


def is_own(principal: Principal, request: Message) -> bool:
    """Whether a request is about the account of the user who asks."""
    return principal.user_id is not None and getattr(request, "user", None) == principal.name


def _set_own_password(session: Conversation, call: Call, request: a.UserRequest) -> None:
    by = session.principal

    def make() -> Principal:
        return session.port.accounts.set_password(by, request.user, request.password)

    def made(principal: Principal) -> m.Ok:
        session.principal = principal
        return m.Ok(True, request.user)

    session.reply_with(call, make, made)


# --- topic rules ----------------------------------------------------------------------------------


def set_rule(session: Conversation, call: Call, request: a.SetRule) -> None:
    rule = TopicRule(request.public, tuple(request.users), tuple(_our_roles(request.roles)))
    by, accounts = session.principal, session.port.accounts
    _change(session, call, request.topic, lambda: accounts.set_rule(by, request.topic, rule))


def delete_rule(session: Conversation, call: Call, request: m.Topic) -> None:
    """One that is not there is deleted already."""
    by, accounts = session.principal, session.port.accounts
    _change(session, call, request.topic, lambda: accounts.delete_rule(by, request.topic))


def get_rule(session: Conversation, call: Call, request: m.Topic) -> None:
    rule = session.port.access.rules.get(request.topic)
    if rule is None:
        session.reply(call, a.Rule(request.topic, False, False, DEFAULT_PUBLIC, [], []))
        return
    users, roles = list(rule.users), wire_roles(rule.roles)
    session.reply(call, a.Rule(request.topic, True, rule.public, False, users, roles))


def list_rules(session: Conversation, call: Call, request: m.Nothing) -> None:
    rules = session.port.access.rules.all()

    def make() -> a.Rules:
        rows = [
            a.RuleRow(topic, True, rule.public, list(rule.users), wire_roles(rule.roles))
            for topic, rule in rules.items()
        ]
        return a.Rules(rows, DEFAULT_PUBLIC)

    session.reply_aside(call, make)


def list_roles(session: Conversation, call: Call, request: m.Nothing) -> None:
    rows = [a.Role(WIRE_ROLES[one], permissions(one), DESCRIPTIONS[one]) for one in USER_ROLES]
    session.reply(call, a.Roles(rows))


def _change(session: Conversation, call: Call, message: str, change: Callable[[], object]) -> None:
    """Answered with success and the name of what was changed, when it is durable."""

    def make() -> m.Ok:
        change()
        return m.Ok(True, message)

    session.reply_aside(call, make)
