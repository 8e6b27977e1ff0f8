"""Transactions in the metadata: their names and states, and the places of what their tasks have staged.

    number of a batch:  sequence of its group << 24 | its place within the group

A group is what a client sends and numbers as one. Its rows appear together, so the last row of a task tells
which group comes next.

The functions with a connection are changes for SqlStore.submit: each one happens as a whole or not at all,
and looks at the state of the transaction first, because another change may have come before it. These are
tables and no named records, because transactions are the embedded engine's own affair (an engine that has
transactions keeps them itself), many tasks of one transaction write at the same time, and a commit takes
ranges of rows away.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Final

from penstock.log.engine import Tasks
from penstock.log.errors import TransactionNotOpen
from penstock.log.metadata import committed_names
from penstock.log.metadata.committed_names import in_a_range
from penstock.log.metadata.sql import SqlStore
from penstock.log.pending import Pending

# Batches of one group. Each has a record at least, and a group is held in memory.
PLACE_BITS = 24

# The position of a batch that stands in its row and in no file.
IN_METADATA = -1

# The file of a batch that lies in the one which its task has for all partitions.
SHARED = -1

# What the column `content` has of a batch in a file of its partition alone, little-endian: i64 number of
# the batch that began the file, then the header of the batch as it was staged. The commit writes other
# headers into that file; whatever it was doing when it ended, the row tells what was staged.
_OWN_FILE: Final = Struct("<q")


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Where a staged batch lies and where it shall go. `created_us` tells the topic from another one of
    the same name; 0 when that is not known. `position`: in its file, or IN_METADATA. `file`: SHARED, or the
    number of the batch that began a file for its partition alone; then `head` is the header."""

    task: int
    number: int
    topic: str
    partition: int
    position: int
    length: int
    created_us: int = 0
    file: int = SHARED
    head: bytes = b""

    def own_file(self) -> bytes | None:
        """For the column `content`."""
        return None if self.file == SHARED else _OWN_FILE.pack(self.file) + self.head


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A transaction that is not committed yet. `updated_us` is its last sign of life."""

    name: str
    state: str
    begun_us: int
    updated_us: int
    deadline_us: int
    # By topic, in bytes.
    staged: dict[str, int]


# --- looking at them -----------------------------------------------------------------------------

_LAST_OF_TASK = (
    "SELECT number FROM staged WHERE transaction_id = ? AND task = ? ORDER BY number DESC LIMIT 1"
)
# Positions grow with the numbers.
_END_OF_SHARED_FILE = (
    "SELECT position + length FROM staged WHERE transaction_id = ? AND task = ? AND content IS NULL"
    " ORDER BY number DESC LIMIT 1"
)


def find(metadata: SqlStore, name: str) -> tuple[int, str] | None:
    """Id and state; the id is 0 when only the name is remembered."""
    rows = metadata.query("SELECT id, state FROM transactions WHERE name = ?", (name,))
    if rows:
        return rows[0][0], rows[0][1]
    return (0, "committed") if in_a_range(metadata, name) else None


def in_state(metadata: SqlStore, state: str) -> list[int]:
    """Ids of transactions; those being committed are in the order of their decisions."""
    rows = metadata.query(
        "SELECT id FROM transactions WHERE state = ? ORDER BY updated_us, id", (state,)
    )
    return [row[0] for row in rows]


def state_of(metadata: SqlStore, transaction_id: int) -> str:
    rows = metadata.query("SELECT state FROM transactions WHERE id = ?", (transaction_id,))
    return str(rows[0][0]) if rows else "unknown"


def late_at(metadata: SqlStore, now_us: int) -> list[int]:
    rows = metadata.query(
        "SELECT id FROM transactions WHERE state = 'open' AND deadline_us <= ?", (now_us,)
    )
    return [row[0] for row in rows]


def staged_by(metadata: SqlStore, transaction_id: int) -> list[StagedBatch]:
    """In the order in which they become visible."""
    rows = metadata.query(
        "SELECT task, number, topic, partition, position, length, created_us,"
        " CASE WHEN position >= 0 THEN content END FROM staged"
        " WHERE transaction_id = ? ORDER BY task, number",
        (transaction_id,),
    )
    return [_staged_batch(*row) for row in rows]


def _staged_batch(*row: Any) -> StagedBatch:
    found = StagedBatch(*row[:-1])
    own_file = row[-1]
    if own_file is None:
        return found
    (file,) = _OWN_FILE.unpack_from(own_file)
    return replace(found, file=file, head=own_file[_OWN_FILE.size :])


def content_of(metadata: SqlStore, transaction_id: int, staged: StagedBatch) -> bytes:
    """Of a batch that stands in its row; empty when the row is gone."""
    rows = metadata.query(
        "SELECT content FROM staged WHERE transaction_id = ? AND task = ? AND number = ?",
        (transaction_id, staged.task, staged.number),
    )
    return bytes(rows[0][0] or b"") if rows else b""


def usage(metadata: SqlStore, prefix: str) -> tuple[int, int]:
    """How many with this prefix are not committed, and the bytes that they have staged."""
    rows = metadata.query(
        "WITH unfinished AS (SELECT id FROM transactions"
        " WHERE state IN ('open', 'committing') AND substr(name, 1, ?1) = ?2)"
        " SELECT (SELECT count(*) FROM unfinished), coalesce(sum(length), 0) FROM staged"
        " WHERE transaction_id IN unfinished",
        (len(prefix), prefix),
    )
    return rows[0][0], rows[0][1]


def open_ones(metadata: SqlStore) -> list[OpenRow]:
    """By name."""
    unfinished = "(SELECT id FROM transactions WHERE state IN ('open', 'committing'))"
    staged: dict[int, dict[str, int]] = {}
    for transaction_id, topic, size in metadata.query(
        "SELECT transaction_id, topic, sum(length) FROM staged"
        f" WHERE transaction_id IN {unfinished} GROUP BY transaction_id, topic",
        (),
    ):
        staged.setdefault(transaction_id, {})[topic] = size
    rows = metadata.query(
        "SELECT id, name, state, begun_us, updated_us, deadline_us FROM transactions"
        " WHERE state IN ('open', 'committing') ORDER BY name",
        (),
    )
    return [
        OpenRow(name, state, begun_us, updated_us, deadline_us, staged.get(transaction_id, {}))
        for transaction_id, name, state, begun_us, updated_us, deadline_us in rows
    ]


def oldest_us(metadata: SqlStore) -> int | None:
    """When the oldest that is not committed was begun."""
    rows = metadata.query(
        "SELECT min(begun_us) FROM transactions"
        " WHERE state IN ('open', 'committing') AND begun_us > 0"
    )
    found: int | None = rows[0][0]
    return found


def stages_for(metadata: SqlStore, topic: str) -> bool:
    return bool(metadata.query("SELECT 1 FROM staged WHERE topic = ? LIMIT 1", (topic,)))


def number_of(sequence: int, place: int) -> int:
    assert place < 1 << PLACE_BITS
    return sequence << PLACE_BITS | place


def sequence_after(metadata: SqlStore, transaction_id: int, task: int) -> int:
    """The next one of a task. Not the count: failed writes may leave some out."""
    rows = metadata.query(_LAST_OF_TASK, (transaction_id, task))
    return (rows[0][0] >> PLACE_BITS) + 1 if rows else 0


def place_after(metadata: SqlStore, transaction_id: int, task: int) -> tuple[int, int]:
    """The next sequence of a task, and the next position in the file that it has for all partitions."""
    rows = metadata.query(_END_OF_SHARED_FILE, (transaction_id, task))
    return sequence_after(metadata, transaction_id, task), rows[0][0] if rows else 0


# --- changing them -------------------------------------------------------------------------------


def begin_row(db: sqlite3.Connection, name: str, now_us: int, deadline_us: int) -> tuple[int, str]:
    """Id and state, as `find` gives them."""
    if in_a_range(db, name):
        return 0, "committed"
    db.execute(
        "INSERT OR IGNORE INTO transactions (name, state, deadline_us, updated_us, begun_us)"
        " VALUES (?, 'open', ?, ?, ?)",
        (name, deadline_us, now_us, now_us),
    )
    db.execute(
        "UPDATE transactions SET deadline_us = ?, updated_us = ? WHERE name = ? AND state = 'open'",
        (deadline_us, now_us, name),
    )
    row = db.execute("SELECT id, state FROM transactions WHERE name = ?", (name,)).fetchone()
    return row[0], row[1]


def _state(db: sqlite3.Connection, transaction_id: int) -> str:
    row = db.execute("SELECT state FROM transactions WHERE id = ?", (transaction_id,)).fetchone()
    return str(row[0]) if row is not None else "unknown"


def decide_at_once_row(
    db: sqlite3.Connection, name: str, staged: Sequence[tuple[StagedBatch, bytes]], now_us: int
) -> tuple[int, str, bool]:
    """Begun, staged and decided by one change. Gives id and state after it, and whether it is new: when it
    is repeated, the first one stands."""
    if in_a_range(db, name):
        return 0, "committed", False
    row = db.execute("SELECT id, state FROM transactions WHERE name = ?", (name,)).fetchone()
    if row is not None:
        if row[1] == "open":
            raise TransactionNotOpen(name, "open with staged batches")
        return row[0], row[1], False
    # Of nothing at all there is nothing to finish.
    state = "committing" if staged else "committed"
    added = db.execute(
        "INSERT INTO transactions (name, state, deadline_us, updated_us) VALUES (?, ?, ?, ?)",
        (name, state, now_us, now_us),
    )
    transaction_id = added.lastrowid
    assert transaction_id is not None
    _insert_staged(db, transaction_id, staged)
    return transaction_id, state, True


def _insert_staged(
    db: sqlite3.Connection,
    transaction_id: int,
    staged: Sequence[tuple[StagedBatch, bytes | None]],
) -> None:
    db.executemany(
        "INSERT INTO staged"
        " (transaction_id, task, number, topic, partition, position, length, created_us, content)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                transaction_id,
                one.task,
                one.number,
                one.topic,
                one.partition,
                one.position,
                one.length,
                one.created_us,
                content,
            )
            for one, content in staged
        ],
    )


def stage_row(
    db: sqlite3.Connection, name: str, transaction_id: int, staged: list[StagedBatch], now_us: int
) -> None:
    state = _state(db, transaction_id)
    if state != "open":
        raise TransactionNotOpen(name, state)
    _insert_staged(db, transaction_id, [(one, one.own_file()) for one in staged])
    # The deadline keeps its distance from the last sign of life.
    db.execute(
        "UPDATE transactions SET deadline_us = deadline_us + max(?1 - updated_us, 0),"
        " updated_us = max(?1, updated_us) WHERE id = ?2",
        (now_us, transaction_id),
    )


def decide_row(
    db: sqlite3.Connection,
    name: str,
    transaction_id: int,
    tasks: Tasks,
    now_us: int,
    rows: int | None,
) -> str:
    """The point of no return. Gives the state after it."""
    state = _state(db, transaction_id)
    if state == "unknown":
        raise TransactionNotOpen(name, state)
    if state != "open":
        return state
    for task, groups in tasks.items():
        last = db.execute(_LAST_OF_TASK, (transaction_id, task)).fetchone()
        found = 0 if last is None else (last[0] >> PLACE_BITS) + 1
        if groups is not None and groups != found:
            raise TransactionNotOpen(name, f"another one than task {task} staged in")
    db.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (task INTEGER PRIMARY KEY)")
    db.execute("DELETE FROM chosen")
    db.executemany("INSERT INTO chosen VALUES (?)", [(task,) for task in tasks])
    db.execute(
        "DELETE FROM staged WHERE transaction_id = ? AND task NOT IN (SELECT task FROM chosen)",
        (transaction_id,),
    )
    db.execute(
        "UPDATE transactions SET state = 'committing', updated_us = ? WHERE id = ?",
        (now_us, transaction_id),
    )
    if rows is not None:
        committed_names.note_rows(db, name, rows, now_us)
    return "committing"


def undecide_row(db: sqlite3.Connection, transaction_id: int) -> None:
    """Takes a decision back of which nothing was done."""
    db.execute("DELETE FROM staged WHERE transaction_id = ?", (transaction_id,))
    db.execute("DELETE FROM transactions WHERE id = ?", (transaction_id,))


def drop_rows(db: sqlite3.Connection, transaction_id: int, lost: Sequence[StagedBatch]) -> None:
    db.executemany(
        "DELETE FROM staged WHERE transaction_id = ? AND task = ? AND number = ?",
        [(transaction_id, one.task, one.number) for one in lost],
    )


def finish_row(db: sqlite3.Connection, transaction_id: int, now_us: int) -> None:
    db.execute("DELETE FROM staged WHERE transaction_id = ?", (transaction_id,))
    db.execute(
        "UPDATE transactions SET state = 'committed', updated_us = ? WHERE id = ?",
        (now_us, transaction_id),
    )


def remove_row(db: sqlite3.Connection, transaction_id: int, late_us: int | None) -> str:
    """Gives the state after it."""
    row = db.execute(
        "SELECT state, deadline_us FROM transactions WHERE id = ?", (transaction_id,)
    ).fetchone()
    if row is None:
        return "unknown"
    state, deadline_us = row
    if state != "open" or (late_us is not None and deadline_us > late_us):
        return str(state)
    db.execute("DELETE FROM staged WHERE transaction_id = ?", (transaction_id,))
    db.execute("DELETE FROM transactions WHERE id = ?", (transaction_id,))
    return "unknown"


def give_no_id_below(db: sqlite3.Connection, transaction_id: int) -> None:
    """The next transaction has a larger id: SQLite remembers the largest that a row ever had."""
    db.execute(
        "INSERT INTO transactions (id, name, state, deadline_us, updated_us)"
        " VALUES (?, '', 'open', 0, 0)",
        (transaction_id,),
    )
    db.execute("DELETE FROM transactions WHERE id = ?", (transaction_id,))


# --- for log/transactions ------------------------------------------------------------------------


class TransactionTable:
    """The same for callers that know no SQL. What changes waits until it is durable. Thread-safe."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def find(self, name: str) -> tuple[int, str] | None:
        return find(self._store, name)

    def in_state(self, state: str) -> list[int]:
        return in_state(self._store, state)

    def state_of(self, transaction_id: int) -> str:
        return state_of(self._store, transaction_id)

    def late_at(self, now_us: int) -> list[int]:
        return late_at(self._store, now_us)

    def staged_by(self, transaction_id: int) -> list[StagedBatch]:
        return staged_by(self._store, transaction_id)

    def content_of(self, transaction_id: int, staged: StagedBatch) -> bytes:
        return content_of(self._store, transaction_id, staged)

    def usage(self, prefix: str) -> tuple[int, int]:
        return usage(self._store, prefix)

    def stages_for(self, topic: str) -> bool:
        return stages_for(self._store, topic)

    def sequence_after(self, transaction_id: int, task: int) -> int:
        return sequence_after(self._store, transaction_id, task)

    def place_after(self, transaction_id: int, task: int) -> tuple[int, int]:
        return place_after(self._store, transaction_id, task)

    def begin(self, name: str, now_us: int, deadline_us: int) -> tuple[int, str]:
        return self._store.submit(lambda db: begin_row(db, name, now_us, deadline_us)).result()

    def stage(self, name: str, transaction_id: int, staged: list[StagedBatch], now_us: int) -> None:
        self._store.submit(lambda db: stage_row(db, name, transaction_id, staged, now_us)).result()

    def decide(
        self, name: str, transaction_id: int, tasks: Tasks, now_us: int, rows: int | None
    ) -> str:
        return self._store.submit(
            lambda db: decide_row(db, name, transaction_id, tasks, now_us, rows)
        ).result()

    def rows_of(self, name: str) -> int | None:
        return committed_names.rows_of(self._store, name)

    def open_ones(self) -> list[OpenRow]:
        return open_ones(self._store)

    def oldest_us(self) -> int | None:
        return oldest_us(self._store)

    def decide_at_once(
        self, name: str, staged: Sequence[tuple[StagedBatch, bytes]], now_us: int
    ) -> tuple[int, str, bool]:
        return self._store.submit(lambda db: decide_at_once_row(db, name, staged, now_us)).result()

    def undecide(self, transaction_id: int) -> None:
        self._store.submit(lambda db: undecide_row(db, transaction_id)).result()

    def drop(self, transaction_id: int, lost: Sequence[StagedBatch]) -> None:
        self._store.submit(lambda db: drop_rows(db, transaction_id, lost)).result()

    def finish(self, transaction_id: int, now_us: int) -> None:
        self._store.submit(lambda db: finish_row(db, transaction_id, now_us)).result()

    def finish_soon(
        self, transaction_id: int, now_us: int, done: Callable[[Pending[None]], object]
    ) -> None:
        """Does not wait; calls `done` when it is durable or has failed."""
        self._store.submit(lambda db: finish_row(db, transaction_id, now_us), first=done)

    def remove(self, transaction_id: int, late_us: int | None) -> str:
        return self._store.submit(lambda db: remove_row(db, transaction_id, late_us)).result()

    def fold_names(self, before_us: int) -> int:
        """Puts the names of old committed ones into ranges, some at a time. Gives how many."""
        return self._store.submit(lambda db: committed_names.fold_rows(db, before_us)).result()

    def forget_names(self, before_us: int) -> None:
        self._store.submit(lambda db: committed_names.forget_rows(db, before_us)).result()
