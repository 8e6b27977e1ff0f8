"""The metadata of the embedded engine: named records (log/records.py) in one SQLite table.

Changes go through the group commits of sql.py, readers see what is durable, and the feed of a space is
told after the commit, in the order of the versions. Keeps no records in memory.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.log.errors import RecordConflict
from penstock.log.feeds import Feeds, Steps
from penstock.log.metadata.kinds import KINDS
from penstock.log.metadata.sql import Change, SqlStore
from penstock.log.metadata_errors import MetadataDamaged, MetadataTooNew
from penstock.log.records import (
    ABSENT,
    ANY,
    PRESENT,
    Delete,
    DeleteAll,
    Edit,
    Put,
    Record,
    RecordChange,
    Require,
    Watcher,
)

_NEXT_VERSION: Final = "UPDATE last_version SET version = version + 1 RETURNING version"
_VERSION_OF: Final = "SELECT version FROM records WHERE space = ? AND name = ?"
_PUT: Final = "INSERT OR REPLACE INTO records (space, name, version, value) VALUES (?, ?, ?, ?)"
_DELETE: Final = "DELETE FROM records WHERE space = ? AND name = ?"
_DELETE_ALL: Final = "DELETE FROM records WHERE space = ? AND name >= ? AND name < ? RETURNING name"
_GET: Final = "SELECT name, value, version FROM records WHERE space = ? AND name = ?"
_LIST: Final = (
    "SELECT name, value, version FROM records WHERE space = ? AND name >= ? AND name < ?"
    " ORDER BY name LIMIT ?"
)
# Sorts behind every name: UTF-8 has no such byte.
_BEHIND_ALL: Final = b"\xff"


class MetadataStore(SqlStore):
    """See records.Metadata. All methods may be called from any thread."""

    def __init__(
        self,
        path: str,
        *,
        post: Callable[[Callable[[], None]], object] | None = None,
        max_queued: int | None = None,
        make_space: Callable[[], bool] = lambda: False,
    ) -> None:
        self._feeds = Feeds()
        super().__init__(path, post=post, max_queued=max_queued, make_space=make_space)

    def get(self, space: str, name: str) -> Record | None:
        found = self.query(_GET, (space, name))
        return Record(*found[0]) if found else None

    def list(
        self, space: str, prefix: str = "", after: str | None = None, limit: int | None = None
    ) -> list[Record]:
        # The first name behind a name is that name with a NUL at its end.
        least = prefix if after is None else max(prefix, after + "\0")
        parameters = (space, least, _behind(prefix), -1 if limit is None else limit)
        return [Record(*row) for row in self.query(_LIST, parameters)]

    def change(self, edits: Sequence[Edit]) -> Change[int]:
        steps: Steps = []
        return self.submit(partial(_apply, edits, steps), partial(self._feed, steps))

    def watch(self, space: str, watcher: Watcher) -> None:
        self._feeds.watch(space, watcher)

    def unwatch(self, space: str, watcher: Watcher) -> None:
        self._feeds.unwatch(space, watcher)

    def _feed(self, steps: Steps, change: Change[int]) -> Iterator[None] | None:
        return self._feeds.tell(steps) if change.error is None else None


def _behind(prefix: str) -> object:
    """The least text that sorts behind all names with this prefix; a blob sorts behind every text."""
    stem = prefix
    while stem:
        code = ord(stem[-1]) + 1
        if code <= 0x10FFFF:
            # There are no characters from U+D800 to U+DFFF.
            return stem[:-1] + chr(0xE000 if code == 0xD800 else code)
        stem = stem[:-1]
    return _BEHIND_ALL


def _apply(edits: Sequence[Edit], steps: Steps, db: sqlite3.Connection) -> int:
    """Runs on the writer thread, in a savepoint: what it raises undoes all of it."""
    steps.clear()  # a group that had no space is run again
    (version,) = db.execute(_NEXT_VERSION).fetchone()
    for edit in edits:
        if isinstance(edit, DeleteAll):
            parameters = (edit.space, edit.prefix, _behind(edit.prefix))
            for (name,) in db.execute(_DELETE_ALL, parameters).fetchall():
                steps.append((edit.space, RecordChange(name, None, version)))
            continue
        _check(db, edit)
        if isinstance(edit, Put):
            db.execute(_PUT, (edit.space, edit.name, version, edit.value))
            steps.append((edit.space, RecordChange(edit.name, edit.value, version)))
        elif isinstance(edit, Delete) and db.execute(_DELETE, (edit.space, edit.name)).rowcount:
            steps.append((edit.space, RecordChange(edit.name, None, version)))
    return int(version)


def _check(db: sqlite3.Connection, edit: Put | Delete | Require) -> None:
    """Raises RecordConflict, or what the edit has for it."""
    if edit.expected == ANY:
        return
    row = db.execute(_VERSION_OF, (edit.space, edit.name)).fetchone()
    found = ABSENT if row is None else row[0]
    if found == edit.expected or (edit.expected == PRESENT and found != ABSENT):
        return
    if isinstance(edit, Require) and edit.otherwise is not None:
        raise edit.otherwise
    raise RecordConflict(edit.space, edit.name, edit.expected, found)


def check_metadata(path: str) -> str | None:
    """What is wrong with the metadata of a directory that nobody uses; None when it can be used.

    Looks at a copy: opening a database writes to it, or beside it. Checks every page and every record of
    the engine's own.
    """
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return "missing"
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as place:
        copy = os.path.join(place, os.path.basename(path))
        for suffix in ("", "-wal"):
            if os.path.exists(path + suffix):
                shutil.copyfile(path + suffix, copy + suffix)
        try:
            store = MetadataStore(copy)
        except MetadataDamaged as error:
            return error.reason
        except MetadataTooNew as error:
            return f"written by a newer Penstock (metadata version {error.found})"
        try:
            for space, kind in KINDS.items():
                for record in store.list(space):
                    msgspec.json.decode(record.value, type=kind)
        except msgspec.DecodeError as error:
            return f"record {record.name!r} of {space}: {error}"
        finally:
            store.close()
    return None
