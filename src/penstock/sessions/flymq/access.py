"""AUTH and WHOAMI: logging in as a user, or with an API key as the password and its name, or none.

While the server has no user and no key, any AUTH is answered with success and no roles, and the peer stays
the principal of those who do not log in.
"""

from typing import Final

from penstock.broker.access.access import Principal
from penstock.sessions.base import OVER
from penstock.sessions.flymq.accounts import permissions, wire_roles
from penstock.sessions.flymq.conversation import Call, Conversation
from penstock.wire.flymq import messages as m
from penstock.wire.flymq.frames import SDK

WRONG: Final = "invalid username or password"
# Which layout the answer to AUTH has cannot be seen from the request, so the user is told how to choose.
WRONG_OR_DIALECT: Final = f'{WRONG}; clients of the FlyMQ SDKs need flymq.dialect = "sdk" here'


def log_in(session: Conversation, call: Call, request: m.Auth) -> None:
    session.blocking = True

    def done(found: Principal | None) -> None:
        _answer(session, call, request, found)

    session.port.login_as(
        request.user,
        request.password,
        done,
        wanted=lambda: session.state != OVER,
        origin=session.origin,
        open_to_all=True,
    )


def _answer(session: Conversation, call: Call, request: m.Auth, found: Principal | None) -> None:
    if session.state == OVER:
        return
    session.blocking = False
    if found is not None:
        session.principal = found
        session.is_logged_in = True
        session.stream.logged_in()
        _welcome(session, call, found.name, wire_roles(session.port.access.roles(found)))
    elif session.port.login_is_open():
        _welcome(session, call, request.user, [])
    else:
        chosen = session.dialect_is_fixed or session.dialect == SDK
        words = WRONG if chosen else WRONG_OR_DIALECT
        session.reply_later(call, m.AuthReply(False, words, "", []))
        session.count_failed_login()


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
    access = session.port.access
    roles = wire_roles(access.roles(principal))
    allowed = permissions(access.role(principal))
    session.reply(call, m.WhoAmI(True, principal.name, roles, allowed))
