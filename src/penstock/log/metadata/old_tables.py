"""The tables of metadata versions 1 to 4, turned into records (log/records.py).

Runs once, inside the migration that makes the records. Names and fields are written out here, and not
taken from the modules that own the spaces today: what a migration writes never changes. Should an owner
change its records, it reads this form too.
"""

import sqlite3
from collections.abc import Iterable, Iterator

import msgspec

from penstock.log.records import join_name

# Space, name, and what becomes its JSON.
Named = tuple[str, str, object]


def move_to_records(db: sqlite3.Connection) -> None:
    for named in (_topics(db), _deletions(db), _offsets(db), _keys(db), _backlogs(db), _ids(db)):
        _insert(db, named)


def _insert(db: sqlite3.Connection, named: Iterable[Named]) -> None:
    db.executemany(
        "INSERT INTO records (space, name, version, value) VALUES (?, ?, 1, ?)",
        [(space, name, msgspec.json.encode(value)) for space, name, value in named],
    )


def _raw(text: str) -> msgspec.Raw:
    """JSON that stays as it is."""
    return msgspec.Raw(text.encode())


def _topics(db: sqlite3.Connection) -> Iterator[Named]:
    rows = db.execute("SELECT name, id, directory, partitions, settings, created_us FROM topics")
    fields = ("id", "directory", "partitions", "settings", "created_us")
    for name, topic_id, directory, partitions, settings, created_us in rows:
        values = (topic_id, directory, partitions, _raw(settings), created_us)
        yield "topics", name, dict(zip(fields, values, strict=True))


def _deletions(db: sqlite3.Connection) -> Iterator[Named]:
    rows = db.execute("SELECT directory, topic_id, requested_us FROM deletions")
    for directory, topic_id, requested_us in rows:
        yield "deletions", directory, {"topic_id": topic_id, "requested_us": requested_us}


def _offsets(db: sqlite3.Connection) -> Iterator[Named]:
    rows = db.execute(
        "SELECT topic_id, group_name, partition, offset, updated_us FROM group_offsets"
    )
    for topic_id, group, partition, offset, updated_us in rows:
        yield "offsets", join_name(topic_id, group, partition), [offset, updated_us]


def _keys(db: sqlite3.Connection) -> Iterator[Named]:
    rows = db.execute(
        "SELECT name, id, role, rules, created_us, revoked_us, salt, hash FROM api_keys"
    )
    fields = ("id", "role", "topics", "created_us", "revoked_us", "salt", "digest")
    for name, key_id, role, rules, *rest in rows:
        values = (key_id, role, _raw(rules), *rest)
        yield "keys", name, dict(zip(fields, values, strict=True))


def _backlogs(db: sqlite3.Connection) -> Iterator[Named]:
    for row_id, topic, state in db.execute("SELECT id, topic, state FROM backlogs"):
        yield "settled", join_name(topic, row_id), _raw(state)


def _ids(db: sqlite3.Connection) -> Iterator[Named]:
    given: dict[str, int] = dict(db.execute("SELECT name, seq FROM sqlite_sequence"))
    for table, counter in (("topics", "topic"), ("api_keys", "key")):
        if table in given:
            yield "counters", counter, given[table]
