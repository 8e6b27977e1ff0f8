"""Who may do what: API keys and users, the principals behind them, roles and topic rules.

    access = Access(engine.metadata, config.keys, development_key=False, anonymous=Principal(...))
    access.login(key, done)                  # calls done(principal or None), now or after a slow hash
    access.login_as(name, password, done)    # the same for a user, or for a key by its name
    access.permits(principal, Operation.PUBLISH, "orders.new")
    access.still_valid(principal)            # False once the key was revoked

Keys come from the configuration and from the metadata. Only salted hashes of them are kept, see
keys.py. Users (users.py) and topic rules (topic_rules.py) come from the metadata. Does not count failed
logins and does not close connections: sessions and the server do that.

`login`, `allowed` and `still_valid` belong to the event loop; the calls that change or list keys wait for
the disk and belong in a thread; both may run at the same time.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Final

from penstock.broker.access import keys
from penstock.broker.access.key_info import (
    ALL_TOPICS,
    MAX_NAME_CHARS,
    ConfiguredKey,
    KeyInfo,
    check_key,
)
from penstock.broker.access.key_table import KeyTable, StoredKey
from penstock.broker.access.principal import Principal
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
from penstock.broker.access.slow_logins import LoginQueue, SlowLogin
from penstock.broker.access.topic_rules import TopicRules
from penstock.broker.access.users import Users
from penstock.broker.errors import BrokerError, Code
from penstock.log.records import Metadata
from penstock.names import MAX_NAME_BYTES

# The well-known key of a server that only its own machine can reach.
DEVELOPMENT_KEY: Final = "dev-key"

# Size of the cache of `allowed`: at up to 0.5 KiB an entry this is 8 MiB.
MAX_CACHED_ANSWERS: Final = 16_384
# Wrong keys that are refused without the slow hash (a client that retries forever): 100 bytes each.
MAX_KNOWN_WRONG: Final = 4_096

# Where a principal is looked for, and what a key is made of.
__all__ = ["ALL_TOPICS", "DEVELOPMENT_KEY", "Access", "KeyInfo", "Principal", "check_key"]

_logger = logging.getLogger(__name__)


class _Candidate:
    """A key that can log in. Without a repr that could show its hash."""

    __slots__ = ("digest", "principal", "salt")

    def __init__(self, principal: Principal, salt: bytes, digest: bytes) -> None:
        self.principal = principal
        self.salt = salt
        self.digest = digest


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
        self.development_key = development_key
        # What may be shown of them; their secrets are not kept.
        self._configured = tuple(
            KeyInfo(key.name, key.role, key.topics, None, None, "configuration")
            for key in configured
        )
        self._post = post
        self._clock_us = clock_us
        self._random_bytes = random_bytes
        self._changing = threading.Lock()  # one change of the keys at a time
        self._table = KeyTable(metadata) if metadata is not None else None
        # Replaced as a whole, never changed: a login in another thread sees the old or the new one.
        self._stored: dict[int, _Candidate] = {}
        self._fixed: tuple[_Candidate, ...] = ()
        self._slow: tuple[tuple[Principal, str], ...] = ()
        self._verified: dict[str, _Candidate] = {}  # by name: slow keys seen once
        self._known_wrong: set[bytes] = set()
        self._wrong_salt = random_bytes(keys.SALT_BYTES)
        self._worker: ThreadPoolExecutor | None = None
        self._slow_logins = LoginQueue()
        self._answers: dict[tuple[tuple[str, ...], str], bool] = {}
        # Grows with every change of keys, users and rules, after the change: tells whether an answer that
        # was kept holds.
        self.version = 0
        self.users = Users(metadata, self._changing, self._changed, clock_us, random_bytes)
        self.rules = TopicRules(metadata, self._changing, self._changed)
        # Marks of keys that the configuration had and has no longer, or not with this secret or these
        # rights.
        self._withdrawn: frozenset[bytes] = frozenset()
        self._load_configured(configured)
        self._load_stored()

    def reconfigure(self, configured: Sequence[ConfiguredKey]) -> None:
        """Replaces the keys of the configuration. Principals whose key is gone or has other rights now
        become invalid at once. Raises BrokerError for an invalid hash; then nothing is changed."""
        with self._changing:
            self._reconfigure(configured)

    def _reconfigure(self, configured: Sequence[ConfiguredKey]) -> None:
        before = self._configured_marks()
        self._load_configured(configured)
        self._configured = tuple(
            KeyInfo(key.name, key.role, key.topics, None, None, "configuration")
            for key in configured
        )
        self._verified = {}
        self._known_wrong = set()
        self._withdrawn = (self._withdrawn | before) - self._configured_marks()
        self.version += 1

    def _changed(self) -> None:
        """Under the lock of changes."""
        self.version += 1

    def _configured_marks(self) -> frozenset[bytes]:
        principals = [candidate.principal for candidate in self._fixed]
        principals += [principal for principal, _ in self._slow]
        return frozenset(principal.mark for principal in principals if principal.mark)

    def close(self) -> None:
        """Stop the thread of the slow hashes; logins that still wait for it get no answer."""
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

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
        condensed = keys.condense(key)
        found = self._find(condensed)
        if found is not None or not self._needs_slow_hash(condensed):
            done(found)
            return
        self._wait_in_turn(SlowLogin(key, condensed, done, wanted, address))

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
        found = self._find(keys.condense(password))
        if found is not None and name in ("", found.name):
            done(found)
            return

        def named(who: Principal | None) -> None:
            done(who if who is not None and name in ("", who.name) else None)

        slow_key = not name or any(principal.name == name for principal, _ in self._slow)
        if slow_key or not self.users:
            self.login(password, named, wanted=wanted, address=address)
            return
        if len(name) > MAX_NAME_CHARS:
            done(
                None
            )  # nobody has this name, and it may be 64 KiB long: too much to remember as suspect
            return
        known, found = self.users.find(name, password)
        if known:
            done(found)
        else:
            self._wait_in_turn(SlowLogin(password, b"", done, wanted, address, name))

    def _wait_in_turn(self, login: SlowLogin) -> None:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "penstock-login")
        self._slow_logins.put(login)
        self._worker.submit(self._login_slowly)

    def still_valid(self, principal: Principal) -> bool:
        """False once the key of this principal was revoked, or its user is disabled, is deleted or has
        another password. Costs one or two dictionary look-ups."""
        if principal.user_id is not None:
            return self.users.of(principal) is not None
        if principal.key_id is None:
            return principal.mark not in self._withdrawn
        return principal.key_id in self._stored

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

    def named(self, name: str) -> Principal | None:
        """The principal of this name, for listeners whose protocol has no login."""
        if name == self.anonymous.name:
            return self.anonymous
        known = [candidate.principal for candidate in (*self._fixed, *self._stored.values())]
        known += [principal for principal, _ in self._slow]
        return next((principal for principal in known if principal.name == name), None)

    def _find(self, condensed: bytes) -> Principal | None:
        found = None
        for candidates in (self._fixed, self._stored.values(), self._verified.values()):
            # All keys are compared, also after a match, so that the time does not reveal which one matched.
            for candidate in candidates:
                digest = keys.salted_digest(condensed, candidate.salt)
                if keys.same(digest, candidate.digest):
                    found = candidate.principal
        return found

    def _needs_slow_hash(self, condensed: bytes) -> bool:
        return bool(self._slow) and self._wrong_digest(condensed) not in self._known_wrong

    def _find_slowly(self, key: str, condensed: bytes) -> Principal | None:
        """Raises SlowHashFailed."""
        found = None
        slow = self._slow
        for principal, text in slow:
            if keys.matches_slow_hash(key, text):
                found = principal
        with self._changing:
            if slow is not self._slow:
                return (
                    None  # the configuration was replaced meanwhile: this key has to be tried again
                )
            if found is None:
                self._remember_wrong(condensed)
            else:
                # From now on the fast hash recognises the key, in memory only.
                self._verified = {**self._verified, found.name: self._candidate(found, condensed)}
        return found

    def _login_slowly(self) -> None:
        """Called once for each login in the queue, so the queue is never empty here."""
        login = self._slow_logins.take()
        if login is None or not login.wanted():
            return
        # It may have been tried while this login waited for its turn.
        known, found = self._known_by_now(login)
        if not known:
            try:
                found = self._try_slowly(login)
            except keys.SlowHashFailed as error:
                # Not remembered as wrong: the hash could not be computed.
                _logger.error("a login was refused: %s", error)
            self._slow_logins.tried(login.address, right=found is not None, user=login.user)
        try:
            self._post(lambda: login.done(found))
        except RuntimeError:
            _logger.debug("a login was answered after the event loop had ended")

    def _known_by_now(self, login: SlowLogin) -> tuple[bool, Principal | None]:
        if login.user is not None:
            return self.users.find(login.user, login.key)
        found = self._find(login.condensed)
        return found is not None or not self._needs_slow_hash(login.condensed), found

    def _try_slowly(self, login: SlowLogin) -> Principal | None:
        if login.user is not None:
            return self.users.find_slowly(login.user, login.key)
        return self._find_slowly(login.key, login.condensed)

    def _remember_wrong(self, condensed: bytes) -> None:
        if len(self._known_wrong) >= MAX_KNOWN_WRONG:
            self._known_wrong = set()
        self._known_wrong.add(self._wrong_digest(condensed))

    def _wrong_digest(self, condensed: bytes) -> bytes:
        # Salted per process: an entry of the set reveals nothing about other keys.
        return keys.salted_digest(condensed, self._wrong_salt)

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
        return bool(self._configured or self._stored or self.users)

    @property
    def has_stored_logins(self) -> bool:
        """Whether a key or a user was ever stored here, also if it is gone by now."""
        keys_were_used = self._table is not None and self._table.was_used()
        return keys_were_used or self.users.were_used

    @property
    def has_admin(self) -> bool:
        """Whether somebody may manage keys and users, beside the development key."""
        return self._other_admins((), "")

    def has_key_named(self, name: str) -> bool:
        """One that is valid now."""
        stored = (kept.principal.name for kept in self._stored.values())
        return name in stored or any(key.name == name for key in self._configured)

    def create_key(self, name: str, role: str, topics: Sequence[str] = ALL_TOPICS) -> str:
        """Make a key, durable on return. The secret is returned here and can never be read again.

        Raises BrokerError (KEY_EXISTS, INVALID_REQUEST) and the errors of the metadata.
        """
        table = self._require_table()
        rules = tuple(topics)
        check_key(name, role, rules)
        if any(key.name == name for key in self._configured):
            raise BrokerError(Code.KEY_EXISTS, f"the configuration has an API key named {name!r}")
        if name in self.users:
            raise BrokerError(Code.KEY_EXISTS, f"a user is named {name!r} already")
        secret = keys.make_key(self._random_bytes)
        salt = self._random_bytes(keys.SALT_BYTES)
        digest = keys.salted_digest(keys.condense(secret), salt)
        with self._changing:
            row = table.add(name, role, rules, self._clock_us(), salt, digest)
            self._stored = {**self._stored, row.key_id: _stored_candidate(row)}
            self.version += 1
        _logger.info("API key %r created (%s, topics %s)", name, role, ", ".join(rules))
        if self.development_key:
            _logger.warning("%s still works until the server restarts", DEVELOPMENT_KEY)
        return secret

    def revoke_key(self, name: str, *, force: bool = False) -> None:
        """Make a stored key useless, at once on open connections too; durable on return.

        Without `force` the last key that may manage keys is kept (LAST_ADMIN_KEY).
        """
        table = self._require_table()
        with self._changing:
            # First in memory: if the disk fails, the key is unusable at least until a restart.
            found = [i for i, kept in self._stored.items() if kept.principal.name == name]
            if not found and any(key.name == name for key in self._configured):
                raise BrokerError(
                    Code.INVALID_REQUEST,
                    f"API key {name!r} is in the configuration; remove it there and restart",
                )
            if not force and self._last_admin(found):
                raise BrokerError(
                    Code.LAST_ADMIN_KEY,
                    f"API key {name!r} is the last that may manage keys: create another admin key"
                    " for all topics first, or revoke it with --force (HTTP: ?force=true)",
                )
            self._stored = {i: kept for i, kept in self._stored.items() if i not in found}
            self.version += 1
            table.revoke(name, self._clock_us())
        _logger.info("API key %r revoked", name)

    def _last_admin(self, leaving: Sequence[int]) -> bool:
        """Whether nobody who may manage keys would be left without these keys."""
        stored = [self._stored[i].principal for i in leaving]
        if not any(self.permits(who, Operation.CREATE_KEY) for who in stored):
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

    def _other_admins(self, key_ids: Sequence[int], user: str) -> bool:
        """Whether somebody may manage keys beside these keys and this user. The development key does not
        count: it is gone after the next start."""
        known = [kept.principal for i, kept in self._stored.items() if i not in key_ids]
        known += [Principal(key.name, key.role, key.topics) for key in self._configured]
        return any(self.permits(who, Operation.CREATE_KEY) for who in known) or any(
            self._is_admin(name) for name in self.users.all() if name != user
        )

    def list_keys(self) -> list[KeyInfo]:
        """All keys by name, the revoked ones too."""
        found = list(self._configured)
        rows: Iterable[StoredKey] = self._table.rows() if self._table is not None else ()
        found += [
            KeyInfo(row.name, row.role, row.topics, row.created_us, row.revoked_us, "stored")
            for row in rows
        ]
        return sorted(found, key=lambda key: key.name)

    def _require_table(self) -> KeyTable:
        if self._table is None:
            raise BrokerError(
                Code.INVALID_REQUEST, "this server stores no API keys; use [[keys]] instead"
            )
        return self._table

    def _load_configured(self, configured: Sequence[ConfiguredKey]) -> None:
        fixed = []
        slow = []
        if self.development_key:
            principal = Principal(DEVELOPMENT_KEY, "admin")
            fixed.append(self._candidate(principal, keys.condense(DEVELOPMENT_KEY)))
        for key in configured:
            everything = repr((key.name, key.role, key.topics, key.secret, key.hash))
            mark = self._wrong_digest(keys.condense(everything))
            principal = Principal(key.name, key.role, key.topics, None, mark)
            if key.secret is not None:
                fixed.append(self._candidate(principal, keys.condense(key.secret)))
            elif key.hash is not None and keys.is_slow_hash(key.hash):
                slow.append((principal, key.hash))
            else:
                raise BrokerError(
                    Code.INVALID_SETTINGS,
                    f"the hash of API key {key.name!r} in the configuration is no argon2id hash; "
                    "make one with penstock key hash",
                )
        self._fixed = tuple(fixed)
        self._slow = tuple(slow)

    def _load_stored(self) -> None:
        rows = self._table.rows() if self._table is not None else []
        self._stored = {
            row.key_id: _stored_candidate(row) for row in rows if row.revoked_us is None
        }

    def _candidate(self, principal: Principal, condensed: bytes) -> _Candidate:
        salt = self._random_bytes(keys.SALT_BYTES)
        return _Candidate(principal, salt, keys.salted_digest(condensed, salt))


def _stored_candidate(row: StoredKey) -> _Candidate:
    principal = Principal(row.name, row.role, row.topics, row.key_id)
    return _Candidate(principal, row.salt, row.digest)
