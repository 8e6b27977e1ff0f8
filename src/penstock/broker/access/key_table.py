"""API keys in the metadata: the rows of table api_keys, written durably.

Keeps hashes only. Knows nothing of logins; the calls that write wait for the disk, so they do not
belong on an event loop.
"""

import logging
import sqlite3
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.broker.errors import BrokerError, Code
from penstock.log.metadata.store import MetadataStore

# Every login is compared with every key: 1,000 of them take about 1 ms of the event loop.
MAX_ACTIVE_KEYS: Final = 1_000
# Revoked keys stay in the list for whoever asks what happened; the oldest go.
MAX_REVOKED_KEYS: Final = 1_000
# A commit takes milliseconds. After this time the disk is in trouble and the caller must hear it.
CHANGE_TIMEOUT_S: Final = 30.0

_logger = logging.getLogger(__name__)


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
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def rows(self) -> list[StoredKey]:
        """All keys, the revoked ones too, by name."""
        found = self._metadata.query(
            "SELECT id, name, role, rules, created_us, revoked_us, salt, hash"
            " FROM api_keys ORDER BY name"
        )
        keys = []
        for key_id, name, role, rules, created_us, revoked_us, salt, digest in found:
            try:
                topics = msgspec.json.decode(rules, type=tuple[str, ...])
            except msgspec.DecodeError:
                # Nobody logs in with it; all others still can.
                _logger.error("API key %r has unreadable topic rules and is not used", name)
                continue
            keys.append(StoredKey(key_id, name, role, topics, created_us, revoked_us, salt, digest))
        return keys

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
        rules = msgspec.json.encode(topics).decode()

        def insert(database: sqlite3.Connection) -> int:
            database.execute(
                "DELETE FROM api_keys WHERE revoked_us IS NOT NULL AND (name = ? OR id NOT IN ("
                "SELECT id FROM api_keys WHERE revoked_us IS NOT NULL"
                " ORDER BY revoked_us DESC LIMIT ?))",
                (name, MAX_REVOKED_KEYS),
            )
            counts = "SELECT count(*), count(*) FILTER (WHERE name = ?) FROM api_keys"
            active, same_name = database.execute(
                f"{counts} WHERE revoked_us IS NULL", (name,)
            ).fetchone()
            if same_name:
                raise BrokerError(Code.KEY_EXISTS, f"an API key named {name!r} already exists")
            if active >= MAX_ACTIVE_KEYS:
                raise BrokerError(
                    Code.INVALID_REQUEST,
                    f"there are {active} API keys already, {MAX_ACTIVE_KEYS} at most; revoke one",
                )
            cursor = database.execute(
                "INSERT INTO api_keys (name, hash, salt, role, rules, created_us)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (name, digest, salt, role, rules, created_us),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

        key_id = self._metadata.submit(insert).result(CHANGE_TIMEOUT_S)
        return StoredKey(key_id, name, role, topics, created_us, None, salt, digest)

    def revoke(self, name: str, revoked_us: int) -> None:
        """Raises UNKNOWN_KEY when there is no such key that still works."""

        def update(database: sqlite3.Connection) -> None:
            changed = database.execute(
                "UPDATE api_keys SET revoked_us = ? WHERE name = ? AND revoked_us IS NULL",
                (revoked_us, name),
            ).rowcount
            if not changed:
                raise BrokerError(Code.UNKNOWN_KEY, f"no API key named {name!r} to revoke")

        self._metadata.submit(update).result(CHANGE_TIMEOUT_S)
