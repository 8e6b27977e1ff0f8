"""AUTH and WHOAMI: logging in with an API key as the password, and its name or none as the user.

While the server has no key, any AUTH is answered with success and no roles, and the peer stays the
principal of those who do not log in. On this wire writer and reader are called producer and consumer.
"""

from typing import Final

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import ROLE_ACTIONS
from penstock.sessions.base import OVER
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import SDK

WRONG: Final = "invalid username or password"
# Which layout the answer to AUTH has cannot be seen from the request, so the user is told how to choose.
WRONG_OR_DIALECT: Final = f'{WRONG}; clients of the FlyMQ SDKs need flymq.dialect = "sdk" here'
# Our roles by their names on this wire.
WIRE_ROLES: Final[dict[str, list[str]]] = {
    "admin": ["admin"],
    "user": ["producer", "consumer"],
    "writer": ["producer"],
    "reader": ["consumer"],
}
PERMISSIONS: Final[tuple[str, ...]] = ("read", "write", "admin")


def log_in(session: Conversation, call: Call, request: m.Auth) -> None:
    session.blocking = True

    def done(found: Principal | None) -> None:
        _answer(session, call, request, found)

    session.port.login(
        request.password,
        done,
        wanted=lambda: session.state != OVER,
        address=session.stream.peer.rpartition(":")[0],
    )


def _answer(session: Conversation, call: Call, request: m.Auth, found: Principal | None) -> None:
    if session.state == OVER:
        return
    session.blocking = False
    if found is not None and request.user in ("", found.name):
        session.principal = found
        session.is_logged_in = True
        session.stream.logged_in()
        _welcome(session, call, found.name, WIRE_ROLES[found.role])
    elif session.port.login_is_open():
        _welcome(session, call, request.user, [])
    else:
        words = WRONG if session.dialect_is_fixed else WRONG_OR_DIALECT
        session.reply_later(call, m.AuthReply(False, words, "", []))
        if session.stream.login_failed() >= session.limits.failed_logins:
            session.counters.refused["failed logins"] += 1
            session.close()


def _welcome(session: Conversation, call: Call, user: str, roles: list[str]) -> None:
    if session.dialect == SDK and not roles:
        session.reply_later(call, m.SdkOpenAuthReply(True, user, [], "", ""))
    elif session.dialect == SDK:
        session.reply_later(call, m.SdkAuthReply(True, user, roles, ""))
    else:
        session.reply_later(call, m.AuthReply(True, "", user, roles))


def who_am_i(session: Conversation, call: Call, request: m.Nothing) -> None:
    principal = session.principal
    if not session.is_logged_in:
        session.reply(call, m.WhoAmI(False, "", [], []))
        return
    actions = ROLE_ACTIONS[principal.role]
    permissions = [one for one in PERMISSIONS if one in actions]
    roles = WIRE_ROLES[principal.role]
    session.reply(call, m.WhoAmI(True, principal.name, roles, permissions))
