"""API keys in the metadata: one record per key, named as the key, written durably.

Keeps hashes only. Knows nothing of logins; the calls that write wait for the disk, so they do not
belong on an event loop.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.broker.access.stored import change
from penstock.broker.errors import BrokerError, Code
from penstock.log.records import ABSENT, Edit, Kept, Metadata, Space

# Every login is compared with every key: 1,000 of them take about 1 ms of the event loop.
MAX_ACTIVE_KEYS: Final = 1_000
# Revoked keys stay in the list for later questions; the oldest are removed.
MAX_REVOKED_KEYS: Final = 1_000

KEYS: Final = "keys"
COUNTERS: Final = "counters"
# The last id that a key got. Ids are never reused, so that a session of a revoked key stays revoked.
LAST_KEY_ID: Final = "key"

_logger = logging.getLogger(__name__)


class KeyRecord(msgspec.Struct, frozen=True):
    """What is stored. A field that is added later needs a default."""

    id: int
    role: str
    topics: tuple[str, ...]
    created_us: int
    revoked_us: int | None
    salt: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class StoredKey:
    key_id: int
    name: str
    role: str
    topics: tuple[str, ...]
    created_us: int
    revoked_us: int | None
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)


class KeyTable:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._keys = Space(metadata, KEYS, KeyRecord)
        self._counters = Space(metadata, COUNTERS, int)

    def rows(self) -> list[StoredKey]:
        """All keys, the revoked ones too, by name."""
        return [_stored(one.name, one.value) for one in self._kept()]

    def was_used(self) -> bool:
        """Whether a key was ever stored, also if its record is gone."""
        return self._counters.get(LAST_KEY_ID) is not None

    def _kept(self) -> list[Kept[KeyRecord]]:
        found = []
        for record in self._metadata.list(KEYS):
            try:
                found.append(self._keys.decode(record))
            except msgspec.DecodeError:
                # This key cannot be used for a login; all others can.
                _logger.error("API key %r has an unreadable record and is not used", record.name)
        return found

    def add(
        self,
        name: str,
        role: str,
        topics: tuple[str, ...],
        created_us: int,
        salt: bytes,
        digest: bytes,
    ) -> StoredKey:
        """Raises KEY_EXISTS; a revoked key of the same name gives way to the new one."""
        added: list[KeyRecord] = []

        def edits() -> list[Edit]:
            kept = self._kept()
            last = self._counters.get(LAST_KEY_ID)
            key_id, counted = (last.value, last.version) if last is not None else (0, ABSENT)
            added[:] = [KeyRecord(key_id + 1, role, topics, created_us, None, salt, digest)]
            return [
                *self._too_old(kept, name),
                self._keys.put(name, added[0], _version_to_replace(kept, name)),
                self._counters.put(LAST_KEY_ID, key_id + 1, counted),
            ]

        change(self._metadata, edits)
        return _stored(name, added[0])

    def _too_old(self, kept: list[Kept[KeyRecord]], name: str) -> list[Edit]:
        """Removes the oldest revoked keys above the limit."""
        revoked = [one for one in kept if one.value.revoked_us is not None and one.name != name]
        revoked.sort(key=lambda one: one.value.revoked_us or 0, reverse=True)
        return [self._keys.delete(one.name) for one in revoked[MAX_REVOKED_KEYS:]]

    def revoke(self, name: str, revoked_us: int) -> None:
        """Raises UNKNOWN_KEY if there is no valid key of this name."""

        def edits() -> list[Edit]:
            found = self._keys.get(name)
            if found is None or found.value.revoked_us is not None:
                raise BrokerError(Code.UNKNOWN_KEY, f"no API key named {name!r} to revoke")
            revoked = msgspec.structs.replace(found.value, revoked_us=revoked_us)
            return [self._keys.put(name, revoked, found.version)]

        change(self._metadata, edits)


def _version_to_replace(kept: list[Kept[KeyRecord]], name: str) -> int:
    """What the record of a new key replaces: nothing, or that of a revoked one."""
    active = [one for one in kept if one.value.revoked_us is None]
    if any(one.name == name for one in active):
        raise BrokerError(Code.KEY_EXISTS, f"an API key named {name!r} already exists")
    if len(active) >= MAX_ACTIVE_KEYS:
        raise BrokerError(
            Code.INVALID_REQUEST,
            f"there are {len(active)} API keys already, {MAX_ACTIVE_KEYS} at most; revoke one",
        )
    versions = [one.version for one in kept if one.name == name]
    return versions[0] if versions else ABSENT


def _stored(name: str, record: KeyRecord) -> StoredKey:
    return StoredKey(
        record.id,
        name,
        record.role,
        record.topics,
        record.created_us,
        record.revoked_us,
        record.salt,
        record.digest,
    )
