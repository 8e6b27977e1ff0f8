"""Users: who there is, with which roles, and whose password it is.

A user has a name, a password (kept as argon2id), roles, and may be disabled. What changes here takes effect
at once on open connections: rights follow the record, and a principal stays valid only while its user is
there, is enabled, and has the password that it logged in with.

Holds all users in memory. Reads belong to any thread, changes to one that may wait for the disk. Knows no
queue (access.py) and no rights of the one who changes a user (accounts.py).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from penstock.broker.access import keys
from penstock.broker.access.principal import Principal
from penstock.broker.access.rights import USER_ROLES, combined_role
from penstock.broker.access.user_table import UserRecord, UserTable, unknown_user
from penstock.broker.errors import BrokerError, Code
from penstock.log.records import Metadata

# Wrong passwords that are refused without the slow hash (a client that retries forever): 100 bytes each.
MAX_KNOWN_WRONG: Final = 4_096
REQUIRED: Final = "username and password are required"


class Users:
    """`changing`: held during every change. `changed` is called under it, after each."""

    def __init__(
        self,
        metadata: Metadata | None,
        changing: threading.Lock,
        changed: Callable[[], None],
        clock_us: Callable[[], int],
        random_bytes: keys.RandomBytes,
    ) -> None:
        self._table = UserTable(metadata) if metadata is not None else None
        self._changing = changing
        self._changed = changed
        self._clock_us = clock_us
        self._random_bytes = random_bytes
        # Replaced as a whole, never changed: another thread sees the old or the new one.
        self._records: Mapping[str, UserRecord] = (
            self._table.rows() if self._table is not None else {}
        )
        self._names = {record.id: name for name, record in self._records.items()}
        # By id: the password that was right once, as a fast salted hash that never leaves the memory.
        self._verified: dict[int, tuple[int, bytes, bytes]] = {}
        self._known_wrong: set[bytes] = set()
        self._wrong_salt = random_bytes(keys.SALT_BYTES)
        # Passwords are hashed one at a time: more at once take the processor from the event loop.
        self._hashing = threading.Lock()
        self._nobodys_hash = ""

    # --- who there is -----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, name: str) -> bool:
        return name in self._records

    @property
    def were_used(self) -> bool:
        """Whether a user was ever stored here."""
        return self._table is not None and self._table.was_used()

    def all(self) -> Mapping[str, UserRecord]:
        return self._records

    def get(self, name: str) -> UserRecord:
        """Raises UNKNOWN_USER."""
        found = self._records.get(name)
        if found is None:
            raise unknown_user(name)
        return found

    def of(self, principal: Principal) -> UserRecord | None:
        """The user of a principal that is still valid."""
        name = self._names.get(principal.user_id or 0)
        found = None if name is None else self._records.get(name)
        if found is None or not found.enabled or found.id != principal.user_id:
            return None
        return found if found.password_number == principal.password_number else None

    def principal(self, name: str) -> Principal:
        """Raises UNKNOWN_USER."""
        return _principal(name, self.get(name))

    # --- passwords --------------------------------------------------------------------------------

    def find(self, name: str, password: str) -> tuple[bool, Principal | None]:
        """Whether it is known without the slow hash, and then whose password it is."""
        record = self._records.get(name)
        condensed = _condensed(name, record, password)
        if record is not None and record.id in self._verified:
            number, salt, digest = self._verified[record.id]
            if number == record.password_number and keys.same(
                keys.salted_digest(condensed, salt), digest
            ):
                return True, _principal(name, record) if record.enabled else None
        return keys.salted_digest(condensed, self._wrong_salt) in self._known_wrong, None

    def find_slowly(self, name: str, password: str) -> Principal | None:
        """With the slow hash, for names that do not exist too: the time tells nothing about names.

        Raises SlowHashFailed.
        """
        record = self._records.get(name)
        right = keys.matches_slow_hash(password, self._hash_of(record)) and record is not None
        condensed = _condensed(name, record, password)
        with self._changing:
            if self._records.get(name) is not record:
                return None  # changed meanwhile: this password has to be tried again
            if record is None or not right:
                self._remember_wrong(condensed)
                return None
            salt = self._random_bytes(keys.SALT_BYTES)
            verified = (record.password_number, salt, keys.salted_digest(condensed, salt))
            self._verified = {**self._verified, record.id: verified}
        return _principal(name, record) if record.enabled else None

    def _hash_of(self, record: UserRecord | None) -> str:
        if record is not None:
            return record.hash
        if not self._nobodys_hash:
            self._nobodys_hash = keys.hash_slowly("")
        return self._nobodys_hash

    def _remember_wrong(self, condensed: bytes) -> None:
        if len(self._known_wrong) >= MAX_KNOWN_WRONG:
            self._known_wrong = set()
        self._known_wrong.add(keys.salted_digest(condensed, self._wrong_salt))

    # --- changes ----------------------------------------------------------------------------------

    def create(self, name: str, password: str, roles: Sequence[str], most: int) -> None:
        """Durable on return. Raises USER_EXISTS, LIMIT_REACHED."""
        table = self._require_table()
        hashed = self._hashed(password)
        now_us = self._clock_us()
        record = UserRecord(0, checked_roles(roles), True, now_us, now_us, hashed)
        with self._changing:
            if name not in self._records and len(self._records) >= most:
                raise BrokerError(
                    Code.LIMIT_REACHED,
                    f"there are {len(self._records)} users and 1 more is over limits.users = {most};"
                    " delete some, or raise the limit",
                )
            self._keep(name, table.add(name, record))

    def create_configured(self, name: str, roles: Sequence[str], hashed: Callable[[], str]) -> bool:
        """Once for each name that the configuration has: not when there is such a user or was one.
        `hashed` gives the hash of the password."""
        table = self._require_table()
        if table.was_configured(name):
            return False
        now_us = self._clock_us()
        if name in self._records:
            table.note_configured(name, now_us)
            return False
        record = UserRecord(0, checked_roles(roles), True, now_us, now_us, hashed())
        with self._changing:
            self._keep(name, table.add_configured(name, record))
        return True

    def update(
        self, name: str, roles: Sequence[str] | None = None, enabled: bool | None = None
    ) -> None:
        """None leaves it as it is."""
        with self._changing:
            before = self.get(name)
            record = msgspec.structs.replace(
                before,
                roles=before.roles if roles is None else checked_roles(roles),
                enabled=before.enabled if enabled is None else enabled,
                updated_us=self._clock_us(),
            )
            self._replace(name, record)

    def set_password(self, name: str, password: str) -> None:
        """Sessions that logged in with the password before become invalid."""
        self.get(name)
        hashed = self._hashed(password)
        with self._changing:
            before = self.get(name)
            record = msgspec.structs.replace(
                before,
                hash=hashed,
                password_number=before.password_number + 1,
                updated_us=self._clock_us(),
            )
            self._replace(name, record)

    def delete(self, name: str) -> None:
        with self._changing:
            record = self.get(name)
            # First in memory: if the disk fails, the user can do nothing at least until a restart.
            self._keep(name, None)
            self._require_table().remove(name, record.id)

    def _replace(self, name: str, record: UserRecord) -> None:
        """What takes rights away takes effect in memory first, whatever the disk does."""
        if not record.enabled:
            self._keep(name, record)
        self._require_table().replace(name, record)
        self._keep(name, record)

    def _keep(self, name: str, record: UserRecord | None) -> None:
        records = {one: kept for one, kept in self._records.items() if one != name}
        if record is not None:
            records[name] = record
        self._records = dict(sorted(records.items()))
        self._names = {kept.id: one for one, kept in self._records.items()}
        self._verified = {
            user_id: kept for user_id, kept in self._verified.items() if user_id in self._names
        }
        self._changed()

    def _hashed(self, password: str) -> str:
        check_password(password)
        with self._hashing:
            return keys.hash_slowly(password)

    def _require_table(self) -> UserTable:
        if self._table is None:
            raise BrokerError(Code.INVALID_REQUEST, "this server stores no users")
        return self._table


def _principal(name: str, record: UserRecord) -> Principal:
    role = combined_role(record.roles)
    return Principal(name, role, (), None, b"", record.id, record.password_number)


def _condensed(name: str, record: UserRecord | None, password: str) -> bytes:
    """Of this user and this password of theirs: what is kept of it fits no other."""
    whose = repr((name, (record.id, record.password_number) if record is not None else None))
    return keys.condense(f"{whose}\n{password}")


def checked_roles(roles: Sequence[str]) -> tuple[str, ...]:
    """In the order of the table, each once. Raises INVALID_REQUEST for one that there is not."""
    for role in roles:
        if role not in USER_ROLES:
            text = f"role {role[:100]!r} is unknown; use {', '.join(USER_ROLES)}"
            raise BrokerError(Code.INVALID_REQUEST, text)
    return tuple(role for role in USER_ROLES if role in roles)


def check_password(password: str) -> None:
    if not password:
        raise BrokerError(Code.INVALID_REQUEST, REQUIRED)
    if len(password.encode("utf-8", "surrogatepass")) > keys.MAX_SLOW_KEY_BYTES:
        text = f"a password has at most {keys.MAX_SLOW_KEY_BYTES} bytes"
        raise BrokerError(Code.INVALID_REQUEST, text)
