"""What administrators do with keys, users and topic rules, for every door.

A door asks the table of rights first, on the event loop; these calls wait for the disk and belong in a
thread. Each takes who asks, for the log, the audit trail, and what nobody may do to their own account.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from penstock.broker.access.access import Access, Principal
from penstock.broker.access.key_info import check_name
from penstock.broker.access.topic_rules import TopicRule
from penstock.broker.access.user_table import UserRecord
from penstock.broker.access.users import REQUIRED, check_password
from penstock.broker.audit import events
from penstock.broker.errors import BrokerError, Code

OWN_ACCOUNT: Final = "cannot delete your own account"

_logger = logging.getLogger(__name__)


class Trail(Protocol):
    """Where changes are recorded (broker/audit/trail.py)."""

    def changed_aside(
        self, principal: Principal, kind: str, resource: str, details: Mapping[str, object]
    ) -> None: ...


class Accounts:
    """`most_users` and `most_rules` give the limits of the configuration as they are now."""

    def __init__(
        self,
        access: Access,
        most_users: Callable[[], int],
        most_rules: Callable[[], int],
        trail: Trail | None = None,
    ) -> None:
        self._trail = trail
        self._access = access
        self._users = access.users
        self._rules = access.rules
        self._most_users = most_users
        self._most_rules = most_rules
        # Whether somebody else may manage keys is looked at and acted on in one step.
        self._changing = threading.Lock()

    def _record(self, by: Principal, kind: str, resource: str, **details: object) -> None:
        if self._trail is not None:
            self._trail.changed_aside(by, kind, resource, details)

    # --- keys -------------------------------------------------------------------------------------

    def create_key(self, by: Principal, name: str, role: str, topics: Sequence[str]) -> str:
        """Gives the secret, which can never be read again."""
        secret = self._access.create_key(name, role, topics)
        self._record(by, events.KEY_CREATED, name, role=role, topics=", ".join(topics))
        return secret

    def revoke_key(self, by: Principal, name: str, *, force: bool = False) -> None:
        self._access.revoke_key(name, force=force)
        self._record(by, events.KEY_REVOKED, name)

    # --- users ------------------------------------------------------------------------------------

    def create_user(
        self, by: Principal, name: str, password: str, roles: Sequence[str]
    ) -> UserRecord:
        if not name or not password:
            raise BrokerError(Code.INVALID_REQUEST, REQUIRED)
        check_name("user", name)
        if self._access.has_key_named(name):
            raise BrokerError(Code.USER_EXISTS, f"an API key is named {name!r} already")
        self._users.create(name, password, roles, self._most_users())
        record = self._users.get(name)
        _logger.info("user %r created (%s) by %s", name, _words(record.roles), by.name)
        if self._access.development_key:
            _logger.warning("dev-key still works until the server restarts")
        self._record(by, events.USER_CREATED, name, roles=_words(record.roles))
        return record

    def create_configured_user(
        self, by: Principal, name: str, roles: Sequence[str], hashed: Callable[[], str]
    ) -> bool:
        """A user of the configuration. False when there is such a one, or was one."""
        check_name("user", name)
        if self._access.has_key_named(name):
            raise BrokerError(Code.USER_EXISTS, f"an API key is named {name!r} already")
        made = self._users.create_configured(name, roles, hashed)
        if made:
            _logger.info("user %r created (%s) by the configuration", name, _words(roles))
            self._record(by, events.USER_CREATED, name, roles=_words(roles))
        return made

    def update_user(
        self,
        by: Principal,
        name: str,
        roles: Sequence[str] | None = None,
        enabled: bool | None = None,
    ) -> UserRecord:
        """None leaves it as it is."""
        with self._changing:
            before = self._users.get(name)
            admin = "admin" in (before.roles if roles is None else roles)
            if not admin or not (before.enabled if enabled is None else enabled):
                self._access.require_other_admin(name)
            self._users.update(name, roles, enabled)
            record = self._users.get(name)
        state = "enabled" if record.enabled else "disabled"
        _logger.info("user %r is %s (%s), by %s", name, state, _words(record.roles), by.name)
        self._record(by, events.USER_CHANGED, name, roles=_words(record.roles), state=state)
        return record

    def delete_user(self, by: Principal, name: str) -> None:
        if by.user_id is not None and by.name == name:
            raise BrokerError(Code.INVALID_REQUEST, OWN_ACCOUNT)
        with self._changing:
            self._access.require_other_admin(name)
            self._users.delete(name)
        _logger.info("user %r deleted by %s", name, by.name)
        self._record(by, events.USER_DELETED, name)

    def set_password(self, by: Principal, name: str, password: str) -> Principal:
        """Ends all sessions of the user. Gives the principal of the new password, so that the session that
        changed its own can go on."""
        check_password(password)
        self._users.set_password(name, password)
        _logger.info("the password of user %r was changed by %s", name, by.name)
        self._record(by, events.PASSWORD_CHANGED, name)
        return self._users.principal(name)

    # --- topic rules ------------------------------------------------------------------------------

    def set_rule(self, by: Principal, topic: str, rule: TopicRule) -> TopicRule:
        self._rules.set(topic, rule, self._most_rules())
        _logger.info("the rule of topic %r was set by %s", topic, by.name)
        stored = self._rules.get(topic) or rule
        users, roles = ", ".join(stored.users), ", ".join(stored.roles)
        self._record(by, events.RULE_SET, topic, public=stored.public, users=users, roles=roles)
        return stored

    def delete_rule(self, by: Principal, topic: str) -> bool:
        """False when there was none."""
        found = self._rules.delete(topic)
        if found:
            _logger.info("the rule of topic %r was deleted by %s", topic, by.name)
            self._record(by, events.RULE_DELETED, topic)
        return found


def _words(roles: Sequence[str]) -> str:
    return ", ".join(roles) or "no role"
