"""Users in the metadata: one record per user, named as the user, written durably.

Keeps the argon2id hash of the password, never the password. Knows nothing of logins; the calls that write
wait for the disk, so they do not belong on an event loop.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.broker.access.stored import change
from penstock.broker.errors import BrokerError, Code
from penstock.log.records import ABSENT, Edit, Metadata, Space

USERS: Final = "users"
COUNTERS: Final = "counters"
# The last id that a user got. Ids are never reused: a session of a deleted user never becomes one of a new
# user of the same name.
LAST_USER_ID: Final = "user"
# Names of users that the configuration has, and when they were seen there first: each is made once.
CONFIGURED: Final = "configured_users"

_logger = logging.getLogger(__name__)


class UserRecord(msgspec.Struct, frozen=True):
    """What is stored. A field that is added later needs a default. `password_number` grows with every
    change of the password, and ends the sessions that logged in with the one before."""

    id: int
    roles: tuple[str, ...]
    enabled: bool
    created_us: int
    updated_us: int
    hash: str
    password_number: int = 1

    def __repr__(self) -> str:
        return f"UserRecord(id={self.id}, roles={self.roles}, enabled={self.enabled})"


class UserTable:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._users = Space(metadata, USERS, UserRecord)
        self._counters = Space(metadata, COUNTERS, int)
        self._configured = Space(metadata, CONFIGURED, int)

    def rows(self) -> dict[str, UserRecord]:
        """All users by name, in order."""
        found = {}
        for record in self._metadata.list(USERS):
            try:
                found[record.name] = self._users.decode(record).value
            except msgspec.DecodeError:
                # This user cannot log in; all others can.
                _logger.error("user %r has an unreadable record and cannot log in", record.name)
        return found

    def was_used(self) -> bool:
        """Whether a user was ever stored, also if its record is gone."""
        return self._counters.get(LAST_USER_ID) is not None

    def was_configured(self, name: str) -> bool:
        return self._configured.get(name) is not None

    def note_configured(self, name: str, now_us: int) -> None:
        change(self._metadata, lambda: [self._configured.put(name, now_us)])

    def add(
        self, name: str, record: UserRecord, more: Callable[[], list[Edit]] = lambda: []
    ) -> UserRecord:
        """With a new id. Raises USER_EXISTS. `more`: edits of the same change."""
        added: list[UserRecord] = []

        def edits() -> list[Edit]:
            if self._users.get(name) is not None:
                raise BrokerError(Code.USER_EXISTS, f'user "{name}" already exists')
            last = self._counters.get(LAST_USER_ID)
            user_id, counted = (last.value, last.version) if last is not None else (0, ABSENT)
            added[:] = [msgspec.structs.replace(record, id=user_id + 1)]
            return [
                self._users.put(name, added[0], ABSENT),
                self._counters.put(LAST_USER_ID, user_id + 1, counted),
                *more(),
            ]

        change(self._metadata, edits)
        return added[0]

    def add_configured(self, name: str, record: UserRecord) -> UserRecord:
        """The same for one of the configuration."""
        return self.add(name, record, lambda: [self._configured.put(name, record.created_us)])

    def replace(self, name: str, record: UserRecord) -> None:
        """Raises UNKNOWN_USER when the user is gone, or another one by now."""

        def edits() -> list[Edit]:
            return [self._users.put(name, record, self._version(name, record.id))]

        change(self._metadata, edits)

    def remove(self, name: str, user_id: int) -> None:
        """Raises UNKNOWN_USER."""

        def edits() -> list[Edit]:
            return [self._users.delete(name, self._version(name, user_id))]

        change(self._metadata, edits)

    def _version(self, name: str, user_id: int) -> int:
        found = self._users.get(name)
        if found is None or found.value.id != user_id:
            raise unknown_user(name)
        return found.version


def unknown_user(name: str) -> BrokerError:
    return BrokerError(Code.UNKNOWN_USER, f'user "{name}" not found')
