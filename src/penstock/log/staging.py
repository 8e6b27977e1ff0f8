"""What transactions keep on the disk: staged batches in files, their places and states in the metadata.

One file per task of a transaction, in `transactions/<id>/` of the data directory. A staged batch has the
form of a stored one, with its number within the task in the place of the offset. The functions below are
changes for MetadataStore.submit: each one happens as a whole or not at all, and looks at the state of the
transaction first, because another change may have come before it. When to do what, transactions.py tells.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.log.batch import Batch, BatchError
from penstock.log.errors import CorruptLog, TransactionNotOpen
from penstock.log.files import File, FileSystem
from penstock.log.metadata import MetadataStore
from penstock.log.scan import Walker
from penstock.log.segment import write_parts

STAGING_DIRECTORY = "transactions"


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Where a staged batch lies and where it shall go."""

    task: int
    number: int
    topic: str
    partition: int
    position: int
    length: int


class Staging:
    """The staging files of one data directory. Every call may touch the disk. Thread-safe."""

    def __init__(self, root: str, files: FileSystem) -> None:
        self._root = f"{root}/{STAGING_DIRECTORY}"
        self._files = files
        self._lock = threading.Lock()
        # Files whose names are durable, by transaction. A file that is not in here gets its directory
        # synced with the next write, whatever became of the write that created it.
        self._named: dict[int, set[int]] = {}

    def _directory(self, transaction_id: int) -> str:
        return f"{self._root}/{transaction_id}"

    def _path(self, transaction_id: int, task: int) -> str:
        return f"{self._directory(transaction_id)}/{task}.stage"

    def write(
        self, transaction_id: int, entries: Sequence[StagedBatch], batches: Sequence[Batch]
    ) -> None:
        """Writes batches of one task that lie one behind the other, durable on return."""
        task = entries[0].task
        parts = []
        for entry, batch in zip(entries, batches, strict=True):
            parts += [batch.stamp(entry.number, 0), batch.body]
        with self._lock:
            named = task in self._named.get(transaction_id, ())
        file = self._open(transaction_id, task, named)
        try:
            write_parts(file, parts, entries[0].position)
            file.sync()
        finally:
            file.close()
        if not named:
            self._files.sync_directory(self._directory(transaction_id))
            with self._lock:
                self._named.setdefault(transaction_id, set()).add(task)

    def _open(self, transaction_id: int, task: int, named: bool) -> File:
        if not named:
            self._files.make_directory(self._directory(transaction_id))
        # A file that was there and is gone must not come back with a hole: FileNotFoundError.
        return self._files.open(self._path(transaction_id, task), create=not named, write=True)

    def read(self, transaction_id: int, staged: Sequence[StagedBatch]) -> Iterator[Batch]:
        """The batches again, in the order given. Raises CorruptLog."""
        file: File | None = None
        path = ""
        try:
            for entry in staged:
                wanted = self._path(transaction_id, entry.task)
                if file is None or wanted != path:
                    if file is not None:
                        file.close()
                    path = wanted
                    file = self._open_to_read(path)
                yield _batch_at(file, path, entry)
        finally:
            if file is not None:
                file.close()

    def _open_to_read(self, path: str) -> File:
        try:
            return self._files.open(path)
        except FileNotFoundError:
            raise CorruptLog(path, 0, "the file is missing", 0, 0) from None

    def remove(self, transaction_id: int) -> None:
        with self._lock:
            self._named.pop(transaction_id, None)
        self._files.remove_tree(self._directory(transaction_id))

    def present(self) -> list[int]:
        """Ids of all transactions that have files."""
        names = self._files.list(self._root)
        return [int(name) for name in names if name.isascii() and name.isdigit()]


def _batch_at(file: File, path: str, entry: StagedBatch) -> Batch:
    walker = Walker(file, entry.position, entry.position + entry.length, entry.length)
    try:
        header = walker.check()
        if header is None or header.length != entry.length or header.base_offset != entry.number:
            raise BatchError("another batch lies here")
        body = walker.body(header)
    except BatchError as error:
        raise CorruptLog(path, entry.position, error.reason, 0, 0) from None
    return Batch(
        body,
        header.count,
        header.flags,
        header.first_time_us,
        header.max_time_us,
        header.raw_length,
    )


# --- rows: looking at them -----------------------------------------------------------------------


def find(metadata: MetadataStore, name: str) -> tuple[int, str] | None:
    """Id and state."""
    rows = metadata.query("SELECT id, state FROM transactions WHERE name = ?", (name,))
    return (rows[0][0], rows[0][1]) if rows else None


def in_state(metadata: MetadataStore, state: str) -> list[int]:
    """Ids of transactions; those being committed are in the order of their decisions."""
    rows = metadata.query(
        "SELECT id FROM transactions WHERE state = ? ORDER BY updated_us, id", (state,)
    )
    return [row[0] for row in rows]


def late_at(metadata: MetadataStore, now_us: int) -> list[int]:
    rows = metadata.query(
        "SELECT id FROM transactions WHERE state = 'open' AND deadline_us <= ?", (now_us,)
    )
    return [row[0] for row in rows]


def staged_by(metadata: MetadataStore, transaction_id: int) -> list[StagedBatch]:
    """In the order in which they become visible."""
    rows = metadata.query(
        "SELECT task, number, topic, partition, position, length FROM staged"
        " WHERE transaction_id = ? ORDER BY task, number",
        (transaction_id,),
    )
    return [StagedBatch(*row) for row in rows]


def place_after(metadata: MetadataStore, transaction_id: int, task: int) -> tuple[int, int]:
    """The next number and position of a task. Not the count: failed writes leave numbers out."""
    rows = metadata.query(
        "SELECT coalesce(max(number) + 1, 0), coalesce(max(position + length), 0) FROM staged"
        " WHERE transaction_id = ? AND task = ?",
        (transaction_id, task),
    )
    return rows[0][0], rows[0][1]


# --- rows: changing them -------------------------------------------------------------------------


def begin_row(db: sqlite3.Connection, name: str, now_us: int, deadline_us: int) -> tuple[int, str]:
    db.execute(
        "INSERT OR IGNORE INTO transactions (name, state, deadline_us, updated_us)"
        " VALUES (?, 'open', ?, ?)",
        (name, deadline_us, now_us),
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


def stage_row(
    db: sqlite3.Connection, name: str, transaction_id: int, staged: list[StagedBatch], now_us: int
) -> None:
    state = _state(db, transaction_id)
    if state != "open":
        raise TransactionNotOpen(name, state)
    db.executemany(
        "INSERT INTO staged (transaction_id, task, number, topic, partition, position, length)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                transaction_id,
                one.task,
                one.number,
                one.topic,
                one.partition,
                one.position,
                one.length,
            )
            for one in staged
        ],
    )
    # The deadline keeps its distance from the last sign of life.
    db.execute(
        "UPDATE transactions SET deadline_us = deadline_us + max(?1 - updated_us, 0),"
        " updated_us = max(?1, updated_us) WHERE id = ?2",
        (now_us, transaction_id),
    )


def decide_row(
    db: sqlite3.Connection, name: str, transaction_id: int, tasks: set[int], now_us: int
) -> str:
    """The point of no return. Gives the state after it."""
    state = _state(db, transaction_id)
    if state == "unknown":
        raise TransactionNotOpen(name, state)
    if state != "open":
        return state
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
    return "committing"


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


def forget_old_rows(db: sqlite3.Connection, old_us: int) -> None:
    db.execute("DELETE FROM transactions WHERE state = 'committed' AND updated_us < ?", (old_us,))
