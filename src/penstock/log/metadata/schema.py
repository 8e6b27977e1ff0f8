"""Tables of the metadata database, as an ordered list of migrations.

Migration number n (from 1) brings a database from `PRAGMA user_version` n - 1 to n. A migration
that was ever released is never edited: a change of the tables is a new one at the end of the list.
What SQL cannot say is a function of the connection (old_tables.py). `sql.py` runs them.
"""

import sqlite3
from collections.abc import Callable
from typing import Final

from penstock.log.metadata.old_tables import move_to_records

# "PNST" in the file header (PRAGMA application_id): tells our database from any other program's.
APPLICATION_ID: Final = 0x504E5354

# Times are microseconds since 1970. Names are any UTF-8 and compare byte by byte.
# AUTOINCREMENT: an id is never used again, so a late write for a deleted topic cannot hit the next.
_FIRST: Final = (
    """
    CREATE TABLE topics (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        directory TEXT NOT NULL UNIQUE,
        partitions INTEGER NOT NULL CHECK (partitions > 0),
        settings TEXT NOT NULL CHECK (json_valid(settings)),
        created_us INTEGER NOT NULL
    ) STRICT
    """,
    # A topic whose files are still to be removed: written with the removal of its row in `topics`,
    # taken away once the directory is gone, so an interrupted delete goes on at the next start.
    """
    CREATE TABLE deletions (
        topic_id INTEGER PRIMARY KEY,
        directory TEXT NOT NULL,
        requested_us INTEGER NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE group_offsets (
        group_name TEXT NOT NULL,
        topic_id INTEGER NOT NULL,
        partition INTEGER NOT NULL,
        offset INTEGER NOT NULL,
        updated_us INTEGER NOT NULL,
        PRIMARY KEY (group_name, topic_id, partition)
    ) STRICT, WITHOUT ROWID
    """,
    # Deleting a topic removes its offsets in all groups.
    "CREATE INDEX group_offsets_by_topic ON group_offsets (topic_id)",
    """
    CREATE TABLE api_keys (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        hash BLOB NOT NULL,
        salt BLOB NOT NULL,
        role TEXT NOT NULL,
        rules TEXT NOT NULL CHECK (json_valid(rules)),
        created_us INTEGER NOT NULL,
        revoked_us INTEGER
    ) STRICT
    """,
)

# What QoS1 subscribers have settled: partition number to floor and ranges, as JSON. The topic by name:
# its rows go when the topic is deleted, and a name is all that the first subscriber comes with.
_BACKLOGS: Final = (
    """
    CREATE TABLE backlogs (
        id INTEGER PRIMARY KEY,
        topic TEXT NOT NULL,
        state TEXT NOT NULL CHECK (json_valid(state))
    ) STRICT
    """,
)

# Transactions by name, and what their tasks have staged: where it lies and where it shall go.
_TRANSACTIONS: Final = (
    """
    CREATE TABLE transactions (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        state TEXT NOT NULL CHECK (state IN ('open', 'committing', 'committed')),
        deadline_us INTEGER NOT NULL,
        updated_us INTEGER NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE staged (
        transaction_id INTEGER NOT NULL,
        task INTEGER NOT NULL,
        number INTEGER NOT NULL,
        topic TEXT NOT NULL,
        partition INTEGER NOT NULL,
        position INTEGER NOT NULL,
        length INTEGER NOT NULL,
        PRIMARY KEY (transaction_id, task, number)
    ) STRICT, WITHOUT ROWID
    """,
)

# Which topic a staged batch is for, whatever has its name later; 0 in rows that are older than this. And
# numbered names of committed transactions as ranges: a stream of a million batches is one row. The index
# finds the few that are open or being committed among the many that are remembered.
_TRANSACTION_NAMES: Final = (
    "ALTER TABLE staged ADD COLUMN created_us INTEGER NOT NULL DEFAULT 0",
    """
    CREATE TABLE committed_series (
        stem TEXT NOT NULL,
        first INTEGER NOT NULL,
        last INTEGER NOT NULL CHECK (last >= first),
        updated_us INTEGER NOT NULL,
        PRIMARY KEY (stem, first)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX transactions_by_state ON transactions (state, updated_us)",
)

# Named records (log/records.py) take the place of the tables of topics, deletions, group offsets, keys and
# backlogs. The key begins with the space: a space is read as one range.
_RECORDS: Final = (
    """
    CREATE TABLE records (
        space TEXT NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (space, name)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE TABLE last_version (version INTEGER NOT NULL) STRICT",
    "INSERT INTO last_version VALUES (1)",
    move_to_records,
    "DROP TABLE topics",
    "DROP TABLE deletions",
    "DROP TABLE group_offsets",
    "DROP TABLE api_keys",
    "DROP TABLE backlogs",
)

# A small transaction is decided and staged by one change: its batches stand in the rows themselves. NULL
# where they are in a file, at `position`.
_STAGED_CONTENT: Final = ("ALTER TABLE staged ADD COLUMN content BLOB",)

# How many rows the last writes of a series had, told by those who committed them: a write that is repeated
# under the same name and has another number of rows is another write. And when a transaction was begun; 0
# in rows that are older than this.
_COMMITTED_ROWS: Final = (
    "ALTER TABLE transactions ADD COLUMN begun_us INTEGER NOT NULL DEFAULT 0",
    """
    CREATE TABLE committed_rows (
        stem TEXT NOT NULL,
        number INTEGER NOT NULL,
        count INTEGER NOT NULL,
        updated_us INTEGER NOT NULL,
        PRIMARY KEY (stem, number)
    ) STRICT, WITHOUT ROWID
    """,
)

Step = str | Callable[[sqlite3.Connection], None]

MIGRATIONS: Final[tuple[tuple[Step, ...], ...]] = (
    _FIRST,
    _BACKLOGS,
    _TRANSACTIONS,
    _TRANSACTION_NAMES,
    _RECORDS,
    _STAGED_CONTENT,
    _COMMITTED_ROWS,
)
