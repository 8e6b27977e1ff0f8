"""Who may do what: API keys and users, the principals behind them, roles and topic rules.

    access = Access(engine.metadata, config.keys, development_key=False, anonymous=Principal(...))
    access.login(key, done)                  # calls done(principal or None), now or after a slow hash
    access.login_as(name, password, done)    # the same for a user, or for a key by its name
    access.permits(principal, Operation.PUBLISH, "orders.new")
    access.still_valid(principal)            # False once the key was revoked

Keys (key_ring.py) come from the configuration and from the metadata, users (users.py) and topic rules
(topic_rules.py) from the metadata. How logins wait is in logins.py.

`login`, `allowed` and `still_valid` belong to the event loop; the calls that change or list keys wait for
the disk and belong in a thread; both may run at the same time.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from penstock.broker.access import keys
from penstock.broker.access.key_info import ALL_TOPICS, ConfiguredKey, KeyInfo, check_key
from penstock.broker.access.key_ring import DEVELOPMENT_KEY, KeyRing
from penstock.broker.access.logins import Logins
from penstock.broker.access.principal import Origin, Principal
from penstock.broker.access.rights import (
    GRANTED,
    ROLE_ACTIONS,
    Action,
    Operation,
    Scope,
    combined_role,
    is_closed,
    is_internal,
    role_gives,
    roles_of,
)
from penstock.broker.access.topic_rules import TopicRules
from penstock.broker.access.users import Users
from penstock.broker.errors import BrokerError, Code
from penstock.log.records import Metadata
from penstock.names import MAX_NAME_BYTES

# Size of the cache of `allowed`: at up to 0.5 KiB an entry this is 8 MiB.
MAX_CACHED_ANSWERS: Final = 16_384
# Principals with the addresses that they were seen at: half a KiB each.
MAX_PLACED: Final = 4_096

# Where a principal is looked for, and what a key is made of.
__all__ = ["ALL_TOPICS", "DEVELOPMENT_KEY", "Access", "KeyInfo", "Principal", "check_key"]

_logger = logging.getLogger(__name__)


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


def _call_now(function: Callable[[], None]) -> None:
    function()


class Access:
    """See the module text. `post` runs a function on the event loop, from another thread."""

    def __init__(
        self,
        metadata: Metadata | None,
        configured: Sequence[ConfiguredKey],
        *,
        development_key: bool,
        anonymous: Principal,
        post: Callable[[Callable[[], None]], object] = _call_now,
        clock_us: Callable[[], int] = _wall_clock_us,
        random_bytes: keys.RandomBytes = os.urandom,
    ) -> None:
        self.anonymous = anonymous
        # By protocol: the principal of its connections before they log in, if not `anonymous`.
        self._act_as: dict[str, Principal] = {}
        self._told_open_login = False
        self._at: dict[tuple[Principal, bytes, Origin], Principal] = {}
        self.development_key = development_key
        self._clock_us = clock_us
        self._changing = threading.Lock()  # one change of keys, users and rules at a time
        self._answers: dict[tuple[tuple[str, ...], str], bool] = {}
        # Grows with every change of keys, users and rules, after the change: tells whether an answer that
        # was kept holds.
        self.version = 0
        self.ring = KeyRing(
            metadata,
            configured,
            development_key=development_key,
            changing=self._changing,
            changed=self._changed,
            random_bytes=random_bytes,
        )
        self.users = Users(metadata, self._changing, self._changed, clock_us, random_bytes)
        self.rules = TopicRules(metadata, self._changing, self._changed)
        self.logins = Logins(self.ring, self.users, post)

    def reconfigure(self, configured: Sequence[ConfiguredKey]) -> None:
        """Replaces the keys of the configuration. Principals whose key is gone or has other rights now
        become invalid at once. Raises BrokerError for an invalid hash; then nothing is changed."""
        self.ring.reconfigure(configured)

    def _changed(self) -> None:
        """Under the lock of changes."""
        self.version += 1

    def close(self) -> None:
        """Stop the thread of the slow hashes; logins that still wait for it get no answer."""
        self.logins.close()

    # ---- logging in ------------------------------------------------------------------------------

    def login(
        self,
        key: str,
        done: Callable[[Principal | None], None],
        *,
        wanted: Callable[[], bool] = lambda: True,
        address: str = "",
    ) -> None:
        """Calls `done` with the principal of the key, or with None if the key is unknown or revoked.
        Does not block.

        `done` is nearly always called before this call returns. Only a key that needs the slow hash is
        answered later, through `post`. One thread computes all slow hashes: a second one would take
        the processor from the event loop, and twice the memory. Addresses take turns, see
        slow_logins.py. That thread calls `wanted` before each hash; a login that is no longer wanted
        is dropped without an answer.
        """
        self.logins.login(key, done, wanted, address)

    def login_as(
        self,
        name: str,
        password: str,
        done: Callable[[Principal | None], None],
        *,
        wanted: Callable[[], bool] = lambda: True,
        address: str = "",
    ) -> None:
        """As `login`, with a name: that of a user, or of a key with the key as the password. A key needs no
        name. None also for a user that is disabled."""
        self.logins.login_as(name, password, done, wanted, address)

    def login_is_open(self) -> bool:
        """Whether any login is welcome, because there is no user, and no key but that of development. It
        gives no rights; the log says so once."""
        if self.has_logins:
            return False
        if not self._told_open_login:
            self._told_open_login = True
            _logger.warning(
                "a client logged in with a name and password that nobody checks:"
                " there are no users and no API keys"
            )
        return True

    def still_valid(self, principal: Principal) -> bool:
        """False once the key of this principal was revoked, or its user is disabled, is deleted or has
        another password. Costs one or two dictionary look-ups."""
        if principal.user_id is not None:
            return self.users.of(principal) is not None
        return self.ring.still_valid(principal)

    def why_invalid(self, principal: Principal) -> str:
        """One line, for a principal that is no longer valid."""
        if principal.user_id is None:
            return f"the key {principal.name!r} is revoked"
        user = self.users.all().get(principal.name)
        if user is None or user.id != principal.user_id:
            return f"the user {principal.name!r} is deleted"
        if not user.enabled:
            return f"the user account {principal.name!r} is disabled"
        return f"the user {principal.name!r} has another password now; log in again"

    def act_as(self, protocol: str, principal: Principal) -> None:
        """Sets the principal of the connections of a protocol without a login."""
        self._act_as[protocol] = principal

    def without_login(self, protocol: str) -> Principal:
        """The principal of a connection of this protocol that has not logged in."""
        return self._act_as.get(protocol, self.anonymous)

    def at(self, principal: Principal, origin: Origin) -> Principal:
        """The principal with the place that its requests come from. The same object for equal ones, as long
        as it is remembered: what is kept for a principal (grants.py) is kept for all its connections."""
        found = self._at.get((principal, principal.mark, origin))
        if found is None:
            if len(self._at) >= MAX_PLACED:
                self._at.clear()
            found = replace(principal, origin=origin)
            self._at[principal, principal.mark, origin] = found
        return found

    def named(self, name: str) -> Principal | None:
        """The principal of this name, for listeners whose protocol has no login."""
        if name == self.anonymous.name:
            return self.anonymous
        return self.ring.named(name)

    # ---- rights ----------------------------------------------------------------------------------

    def allowed(self, principal: Principal, action: Action, topic: str) -> bool:
        """Whether the role allows the action and a pattern of the principal fits the topic, or a topic rule
        grants it.

        The topic "" stands for the server as a whole (its keys, say): only principals for all
        topics may act on that. Patterns are case-sensitive; `*` matches any text, including `/` and `.`.
        """
        return self._role_allows(principal, action, topic) or (
            action in GRANTED
            and principal != self.anonymous
            and self.rules.grant(principal.name, self.roles(principal), topic)
        )

    def role(self, principal: Principal) -> str:
        """The role that it has now. A user may have got another one since the login."""
        if principal.user_id is None:
            return principal.role
        user = self.users.of(principal)
        return combined_role(user.roles) if user is not None else "guest"

    def roles(self, principal: Principal) -> tuple[str, ...]:
        """The same as topic rules name them."""
        if principal.user_id is None:
            return roles_of(principal.role)
        user = self.users.of(principal)
        return user.roles if user is not None else ()

    def _role_allows(self, principal: Principal, action: Action, topic: str) -> bool:
        if not role_gives(self.role(principal), action, topic):
            return False
        rules = principal.rules
        if not rules or rules == ALL_TOPICS:
            return True
        answer = self._answers.get((rules, topic))
        if answer is None:
            answer = any(fnmatchcase(topic, rule) for rule in rules)
            self._remember_answer(rules, topic, answer)
        return answer

    def permits(
        self, principal: Principal, operation: Operation, name: str = "", topics: Sequence[str] = ()
    ) -> bool:
        """Whether the table of rights lets the principal do this.

        `name` is that of the topic or group; `topics` are those that a group has offsets on.
        """
        right = operation.right
        if right == "none":
            return True
        if right == "login":
            return True
        if operation.needs_key and principal == self.anonymous:
            return False
        scope = operation.scope
        if scope is Scope.TOPIC:
            return not is_closed(operation, name) and self.allowed(principal, right, name)
        if scope is Scope.SERVER:
            return self.allowed(principal, right, "")
        return self._has_right(principal, right) and all(
            self.allowed(principal, right, topic) for topic in topics
        )

    def _has_right(self, principal: Principal, right: str) -> bool:
        """On any topic."""
        return right in ROLE_ACTIONS.get(self.role(principal), ()) or (
            right in GRANTED and self._is_granted_any(principal)
        )

    def _is_granted_any(self, principal: Principal) -> bool:
        return principal != self.anonymous and self.rules.grant_any(
            principal.name, self.roles(principal)
        )

    def has_rights(self, principal: Principal) -> bool:
        """Whether there may be a topic that the principal can use; False once it is no longer valid."""
        return self.still_valid(principal) and (
            bool(ROLE_ACTIONS.get(self.role(principal))) or self._is_granted_any(principal)
        )

    def shows(
        self, principal: Principal, topic: str, actions: Sequence[Action] = ("read", "write")
    ) -> bool:
        """Whether a list shows the topic: the principal may do one of these with it."""
        return not is_internal(topic) and any(
            self.allowed(principal, action, topic) for action in actions
        )

    def _remember_answer(self, rules: tuple[str, ...], topic: str, answer: bool) -> None:
        if len(topic) > MAX_NAME_BYTES:
            return  # no topic can have this name, and it may be 64 KiB long
        if len(self._answers) >= MAX_CACHED_ANSWERS:
            self._answers = {}
        self._answers[rules, topic] = answer

    # ---- keys ------------------------------------------------------------------------------------

    @property
    def has_logins(self) -> bool:
        """Whether a user or a key can log in now, other than that of development."""
        return bool(self.ring) or bool(self.users)

    @property
    def has_stored_logins(self) -> bool:
        """Whether a key or a user was ever stored here, also if it is gone by now."""
        return self.ring.were_used or self.users.were_used

    @property
    def has_admin(self) -> bool:
        """Whether somebody may manage keys and users, beside the development key."""
        return self._other_admins((), "")

    def has_key_named(self, name: str) -> bool:
        """One that is valid now."""
        return self.ring.has_name(name)

    def create_key(self, name: str, role: str, topics: Sequence[str] = ALL_TOPICS) -> str:
        """Make a key, durable on return. The secret is returned here and can never be read again.

        Raises BrokerError (KEY_EXISTS, INVALID_REQUEST) and the errors of the metadata.
        """
        self.ring.require_table()
        rules = tuple(topics)
        check_key(name, role, rules)
        if name in self.users:
            raise BrokerError(Code.KEY_EXISTS, f"a user is named {name!r} already")
        secret = self.ring.create(name, role, rules, self._clock_us())
        _logger.info("API key %r created (%s, topics %s)", name, role, ", ".join(rules))
        if self.development_key:
            _logger.warning("%s still works until the server restarts", DEVELOPMENT_KEY)
        return secret

    def revoke_key(self, name: str, *, force: bool = False) -> None:
        """Make a stored key useless, at once on open connections too; durable on return.

        Without `force` the last key that may manage keys is kept (LAST_ADMIN_KEY).
        """

        def check(leaving: dict[int, Principal]) -> None:
            if not force and self._last_admin(leaving):
                raise BrokerError(
                    Code.LAST_ADMIN_KEY,
                    f"API key {name!r} is the last that may manage keys: create another admin key"
                    " for all topics first, or revoke it with --force (HTTP: ?force=true)",
                )

        self.ring.revoke(name, self._clock_us(), check)
        _logger.info("API key %r revoked", name)

    def _last_admin(self, leaving: dict[int, Principal]) -> bool:
        """Whether nobody who may manage keys would be left without these keys."""
        if not any(self.permits(who, Operation.CREATE_KEY) for who in leaving.values()):
            return False
        return not self._other_admins(leaving, "")

    def require_other_admin(self, user: str) -> None:
        """Raises LAST_ADMIN_KEY when nobody would be left who may manage keys and users."""
        if self._is_admin(user) and not self._other_admins((), user):
            text = (
                f"user {user!r} is the last who may manage keys and users; make another one first"
            )
            raise BrokerError(Code.LAST_ADMIN_KEY, text)

    def _is_admin(self, user: str) -> bool:
        record = self.users.all().get(user)
        return record is not None and record.enabled and "admin" in record.roles

    def _other_admins(self, key_ids: Collection[int], user: str) -> bool:
        """Whether somebody may manage keys beside these keys and this user. The development key does not
        count: it is gone after the next start."""
        known = self.ring.principals(key_ids)
        return any(self.permits(who, Operation.CREATE_KEY) for who in known) or any(
            self._is_admin(name) for name in self.users.all() if name != user
        )

    def list_keys(self) -> list[KeyInfo]:
        """All keys by name, the revoked ones too."""
        return self.ring.list()
