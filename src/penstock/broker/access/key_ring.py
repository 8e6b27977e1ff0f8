"""The API keys that can log in: those of the configuration and those of the metadata.

Only salted hashes of them are kept, see keys.py. Knows no queue of logins (logins.py), no rights and no
users (access.py).

`find` belongs to the event loop; the calls that change or list keys wait for the disk and belong in a
thread; both may run at the same time.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from penstock.broker.access import keys
from penstock.broker.access.key_info import ConfiguredKey, KeyInfo
from penstock.broker.access.key_table import KeyTable, StoredKey
from penstock.broker.access.principal import Principal
from penstock.broker.errors import BrokerError, Code
from penstock.log.records import Metadata

# The well-known key of a server that only its own machine can reach.
DEVELOPMENT_KEY: Final = "dev-key"
# Wrong keys that are refused without the slow hash (a client that retries forever): 100 bytes each.
MAX_KNOWN_WRONG: Final = 4_096

_logger = logging.getLogger(__name__)


class _Candidate:
    """A key that can log in. Without a repr that could show its hash."""

    __slots__ = ("digest", "principal", "salt")

    def __init__(self, principal: Principal, salt: bytes, digest: bytes) -> None:
        self.principal = principal
        self.salt = salt
        self.digest = digest


class KeyRing:
    """`changing`: held during every change. `changed` is called under it, after each."""

    def __init__(
        self,
        metadata: Metadata | None,
        configured: Sequence[ConfiguredKey],
        *,
        development_key: bool,
        changing: threading.Lock,
        changed: Callable[[], None],
        random_bytes: keys.RandomBytes,
    ) -> None:
        self.development_key = development_key
        self._changing = changing
        self._changed = changed
        self._random_bytes = random_bytes
        self._table = KeyTable(metadata) if metadata is not None else None
        # What may be shown of them; their secrets are not kept.
        self.configured = _shown(configured)
        # Replaced as a whole, never changed: a login in another thread sees the old or the new one.
        self._stored: dict[int, _Candidate] = {}
        self._fixed: tuple[_Candidate, ...] = ()
        self._slow: tuple[tuple[Principal, str], ...] = ()
        self._verified: dict[str, _Candidate] = {}  # by name: slow keys seen once
        self._known_wrong: set[bytes] = set()
        self._wrong_salt = random_bytes(keys.SALT_BYTES)
        # Marks of keys that the configuration had and has no longer, or not with this secret or these
        # rights.
        self._withdrawn: frozenset[bytes] = frozenset()
        self._load_configured(configured)
        self._load_stored()

    # --- who there is -----------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether there is a key, other than that of development."""
        return bool(self.configured or self._stored)

    @property
    def were_used(self) -> bool:
        """Whether a key was ever stored here, also if it is gone by now."""
        return self._table is not None and self._table.was_used()

    def has_name(self, name: str) -> bool:
        """Whether a key that is valid now is named so."""
        stored = (kept.principal.name for kept in self._stored.values())
        return name in stored or any(key.name == name for key in self.configured)

    def still_valid(self, principal: Principal) -> bool:
        """Of the principal of a key: False once it was revoked."""
        if principal.key_id is None:
            return principal.mark not in self._withdrawn
        return principal.key_id in self._stored

    def named(self, name: str) -> Principal | None:
        known = [candidate.principal for candidate in (*self._fixed, *self._stored.values())]
        known += [principal for principal, _ in self._slow]
        return next((principal for principal in known if principal.name == name), None)

    def stored_as(self, name: str) -> dict[int, Principal]:
        """The stored keys of this name that are valid, by id."""
        return {
            key_id: kept.principal
            for key_id, kept in self._stored.items()
            if kept.principal.name == name
        }

    def principals(self, without: Collection[int] = ()) -> list[Principal]:
        """Of all keys but these, and that of development."""
        known = [kept.principal for key_id, kept in self._stored.items() if key_id not in without]
        return known + [Principal(key.name, key.role, key.topics) for key in self.configured]

    # --- whose key it is --------------------------------------------------------------------------

    def find(self, condensed: bytes) -> Principal | None:
        """Without the slow hash."""
        found = None
        for candidates in (self._fixed, self._stored.values(), self._verified.values()):
            # All keys are compared, also after a match, so that the time does not reveal which one matched.
            for candidate in candidates:
                digest = keys.salted_digest(condensed, candidate.salt)
                if keys.same(digest, candidate.digest):
                    found = candidate.principal
        return found

    def needs_slow_hash(self, condensed: bytes) -> bool:
        return bool(self._slow) and self._wrong_digest(condensed) not in self._known_wrong

    def has_slow(self, name: str) -> bool:
        """Whether a key that needs the slow hash is named so; without a name: whether there may be one."""
        return not name or any(principal.name == name for principal, _ in self._slow)

    def find_slowly(self, key: str, condensed: bytes) -> Principal | None:
        """Raises SlowHashFailed."""
        found = None
        slow = self._slow
        for principal, text in slow:
            if keys.matches_slow_hash(key, text):
                found = principal
        with self._changing:
            if slow is not self._slow:
                # The configuration was replaced meanwhile: this key has to be tried again.
                return None
            if found is None:
                self._remember_wrong(condensed)
            else:
                # From now on the fast hash recognises the key, in memory only.
                self._verified = {**self._verified, found.name: self._candidate(found, condensed)}
        return found

    def _remember_wrong(self, condensed: bytes) -> None:
        if len(self._known_wrong) >= MAX_KNOWN_WRONG:
            self._known_wrong = set()
        self._known_wrong.add(self._wrong_digest(condensed))

    def _wrong_digest(self, condensed: bytes) -> bytes:
        # Salted per process: an entry of the set reveals nothing about other keys.
        return keys.salted_digest(condensed, self._wrong_salt)

    # --- changes ----------------------------------------------------------------------------------

    def reconfigure(self, configured: Sequence[ConfiguredKey]) -> None:
        """Replaces the keys of the configuration. Principals whose key is gone or has other rights now
        become invalid at once. Raises BrokerError for an invalid hash; then nothing is changed."""
        with self._changing:
            before = self._configured_marks()
            self._load_configured(configured)
            self.configured = _shown(configured)
            self._verified = {}
            self._known_wrong = set()
            self._withdrawn = (self._withdrawn | before) - self._configured_marks()
            self._changed()

    def _configured_marks(self) -> frozenset[bytes]:
        principals = [candidate.principal for candidate in self._fixed]
        principals += [principal for principal, _ in self._slow]
        return frozenset(principal.mark for principal in principals if principal.mark)

    def create(self, name: str, role: str, topics: tuple[str, ...], created_us: int) -> str:
        """Durable on return. Raises KEY_EXISTS."""
        table = self.require_table()
        if any(key.name == name for key in self.configured):
            raise BrokerError(Code.KEY_EXISTS, f"the configuration has an API key named {name!r}")
        secret = keys.make_key(self._random_bytes)
        salt = self._random_bytes(keys.SALT_BYTES)
        digest = keys.salted_digest(keys.condense(secret), salt)
        with self._changing:
            row = table.add(name, role, topics, created_us, salt, digest)
            self._stored = {**self._stored, row.key_id: _stored_candidate(row)}
            self._changed()
        return secret

    def revoke(
        self, name: str, revoked_us: int, check: Callable[[dict[int, Principal]], None]
    ) -> None:
        """At once, durable on return. `check` may refuse it."""
        table = self.require_table()
        with self._changing:
            # First in memory: if the disk fails, the key is unusable at least until a restart.
            found = self.stored_as(name)
            if not found and any(key.name == name for key in self.configured):
                raise BrokerError(
                    Code.INVALID_REQUEST,
                    f"API key {name!r} is in the configuration; remove it there and restart",
                )
            check(found)
            self._stored = {i: kept for i, kept in self._stored.items() if i not in found}
            self._changed()
            table.revoke(name, revoked_us)

    def list(self) -> list[KeyInfo]:
        """All keys by name, the revoked ones too."""
        found = list(self.configured)
        rows: Iterable[StoredKey] = self._table.rows() if self._table is not None else ()
        found += [
            KeyInfo(row.name, row.role, row.topics, row.created_us, row.revoked_us, "stored")
            for row in rows
        ]
        return sorted(found, key=lambda key: key.name)

    def require_table(self) -> KeyTable:
        if self._table is None:
            raise BrokerError(
                Code.INVALID_REQUEST, "this server stores no API keys; use [[keys]] instead"
            )
        return self._table

    # --- loading ----------------------------------------------------------------------------------

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


def _shown(configured: Sequence[ConfiguredKey]) -> tuple[KeyInfo, ...]:
    return tuple(
        KeyInfo(key.name, key.role, key.topics, None, None, "configuration") for key in configured
    )


def _stored_candidate(row: StoredKey) -> _Candidate:
    principal = Principal(row.name, row.role, row.topics, row.key_id)
    return _Candidate(principal, row.salt, row.digest)
