"""Calls of the HTTP API on users, their passwords, roles and the rules of topics.

Each asks the table of rights on the event loop, and changes in a thread: see broker/access/accounts.py.
Passwords come in and never go out.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.broker.access.access import Principal
from penstock.broker.access.rights import ROLE_ACTIONS, USER_ROLES, Operation
from penstock.broker.access.topic_rules import DEFAULT_PUBLIC, TopicRule
from penstock.broker.access.user_table import UserRecord
from penstock.broker.errors import BrokerError, Code
from penstock.server.http.api import Api, Json, Query, listed
from penstock.server.http.api_types import PasswordChange, RuleRequest, UserChange, UserRequest

WRONG_PASSWORD = "invalid current password"


def _names(found: Iterable[str]) -> Callable[[str | None, int], list[str]]:
    """Both kinds are in the order of their names."""
    names = list(found)

    def after(last: str | None, limit: int) -> list[str]:
        return [name for name in names if last is None or name > last][:limit]

    return after


# --- users ----------------------------------------------------------------------------------------


async def users(api: Api, who: Principal, query: Query) -> Json:
    api.broker.require(who, Operation.LIST_USERS)
    found = api.broker.access.users.all()
    return listed("users", query, _names(found), lambda name: _user(name, found[name]))


async def user(api: Api, who: Principal, name: str) -> Json:
    api.broker.require(who, Operation.LIST_USERS)
    return _user(name, api.broker.access.users.get(name))


async def create_user(api: Api, who: Principal, request: UserRequest) -> Json:
    api.broker.require(who, Operation.CREATE_USER)
    record = await asyncio.to_thread(
        api.broker.accounts.create_user, who, request.name, request.password, request.roles
    )
    return _user(request.name, record)


async def change_user(api: Api, who: Principal, name: str, request: UserChange) -> Json:
    """What is not given stays as it is."""
    api.broker.require(who, Operation.CHANGE_USER)
    record = await asyncio.to_thread(
        api.broker.accounts.update_user, who, name, request.roles, request.enabled
    )
    return _user(name, record)


async def delete_user(api: Api, who: Principal, name: str) -> None:
    api.broker.require(who, Operation.DELETE_USER)
    await asyncio.to_thread(api.broker.accounts.delete_user, who, name)


async def change_password(api: Api, who: Principal, name: str, request: PasswordChange) -> None:
    """The own one needs the current password too."""
    own = who.user_id is not None and who.name == name
    operation = Operation.CHANGE_OWN_PASSWORD if own else Operation.CHANGE_PASSWORD
    api.broker.require(who, operation)
    if own and not await _is_right(api, who, request.current):
        raise BrokerError(Code.INVALID_REQUEST, WRONG_PASSWORD)
    await asyncio.to_thread(api.broker.accounts.set_password, who, name, request.password)


async def _is_right(api: Api, who: Principal, password: str) -> bool:
    answer: asyncio.Future[Principal | None] = asyncio.get_running_loop().create_future()
    api.broker.login_as(
        who.name,
        password,
        lambda found: None if answer.done() else answer.set_result(found),
        lambda: not answer.done(),
        who.origin,
    )
    found = await answer
    return found is not None and found.user_id is not None


def _user(name: str, record: UserRecord) -> Json:
    return {
        "name": name,
        "roles": list(record.roles),
        "enabled": record.enabled,
        "created_us": record.created_us,
        "updated_us": record.updated_us,
    }


async def roles(api: Api, who: Principal) -> Json:
    api.broker.require(who, Operation.LIST_ROLES)
    return {"roles": [{"name": one, "rights": sorted(ROLE_ACTIONS[one])} for one in USER_ROLES]}


# --- the rules of topics --------------------------------------------------------------------------


async def rules(api: Api, who: Principal, query: Query) -> Json:
    api.broker.require(who, Operation.LIST_RULES)
    found = api.broker.access.rules.all()
    part = listed("acls", query, _names(found), lambda name: _rule(name, found[name]))
    return {**part, "default_public": DEFAULT_PUBLIC}


async def rule(api: Api, who: Principal, name: str) -> Json:
    api.broker.require(who, Operation.LIST_RULES)
    found = api.broker.access.rules.get(name)
    if found is None:
        raise BrokerError(Code.UNKNOWN_TOPIC, f"topic {name!r} has no rule")
    return _rule(name, found)


async def set_rule(api: Api, who: Principal, name: str, request: RuleRequest) -> Json:
    api.broker.require(who, Operation.CHANGE_RULE)
    wanted = TopicRule(request.public, request.users, request.roles)
    stored = await asyncio.to_thread(api.broker.accounts.set_rule, who, name, wanted)
    return _rule(name, stored)


async def delete_rule(api: Api, who: Principal, name: str) -> None:
    api.broker.require(who, Operation.CHANGE_RULE)
    if not await asyncio.to_thread(api.broker.accounts.delete_rule, who, name):
        raise BrokerError(Code.UNKNOWN_TOPIC, f"topic {name!r} has no rule")


def _rule(name: str, found: TopicRule) -> Json:
    fields: dict[str, Any] = msgspec.to_builtins(found)
    return {"topic": name, **fields}
