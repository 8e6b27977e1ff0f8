"""What transactions keep on the disk: staged batches in files, their places and states in the metadata.

One file per task of a transaction, in `transactions/<id>/` of the data directory. A staged batch has the
form of a stored one, with its number within the task in the place of the offset:

    number of a batch:  sequence of its group << 24 | its place within the group

A group is what a client sends and numbers as one. Its rows appear together, so the last row of a task tells
which group comes next. Bytes of a file that no row names do not count: a crash left them, and the next
write goes over them.

The functions below are changes for MetadataStore.submit: each one happens as a whole or not at all, and
looks at the state of the transaction first, because another change may have come before it. When to do
what, transactions.py and applying.py tell.
"""

import sqlite3
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from penstock.log.batch.format import Batch, BatchError
from penstock.log.engine import Tasks
from penstock.log.errors import StagingDamaged, TransactionNotOpen
from penstock.log.metadata.store import MetadataStore
from penstock.log.storage.files import File, FileSystem
from penstock.log.storage.scan import Walker
from penstock.log.storage.segment import write_parts
from penstock.log.transactions.committed_names import in_a_range

STAGING_DIRECTORY = "transactions"
# Batches of one group. Each has a record at least, and a group is held in memory.
PLACE_BITS = 24
# Made by a human being in the directory of a transaction: go on without what cannot be read.
GIVE_UP_FILE = "give-up"


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Where a staged batch lies and where it shall go. `created_us` tells the topic from another one of
    the same name; 0 when that is not known."""

    task: int
    number: int
    topic: str
    partition: int
    position: int
    length: int
    created_us: int = 0


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

    def read(
        self, transaction_id: int, staged: Sequence[StagedBatch]
    ) -> Generator[Batch, None, None]:
        """The batches again, in the order given. Raises StagingDamaged."""
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
            raise StagingDamaged(path, 0, "the file is missing") from None

    def damaged(
        self, transaction_id: int, staged: Sequence[StagedBatch]
    ) -> list[tuple[StagedBatch, StagingDamaged]]:
        """Those that cannot be read, with the reason."""
        found = []
        for entry in staged:
            try:
                for _ in self.read(transaction_id, [entry]):
                    continue
            except StagingDamaged as error:
                found.append((entry, error))
        return found

    def give_up_path(self, transaction_id: int) -> str:
        return f"{self._directory(transaction_id)}/{GIVE_UP_FILE}"

    def given_up(self, transaction_id: int) -> bool:
        return self._files.exists(self.give_up_path(transaction_id))

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
        raise StagingDamaged(path, entry.position, error.reason) from None
    return Batch(
        body,
        header.count,
        header.flags,
        header.first_time_us,
        header.max_time_us,
        header.raw_length,
    )


# --- rows: looking at them -----------------------------------------------------------------------

# Number and end. Positions grow with the numbers.
_LAST_OF_TASK = (
    "SELECT number, position + length FROM staged"
    " WHERE transaction_id = ? AND task = ? ORDER BY number DESC LIMIT 1"
)


def find(metadata: MetadataStore, name: str) -> tuple[int, str] | None:
    """Id and state; the id is 0 when only the name is remembered."""
    rows = metadata.query("SELECT id, state FROM transactions WHERE name = ?", (name,))
    if rows:
        return rows[0][0], rows[0][1]
    return (0, "committed") if in_a_range(metadata, name) else None


def in_state(metadata: MetadataStore, state: str) -> list[int]:
    """Ids of transactions; those being committed are in the order of their decisions."""
    rows = metadata.query(
        "SELECT id FROM transactions WHERE state = ? ORDER BY updated_us, id", (state,)
    )
    return [row[0] for row in rows]


def state_of(metadata: MetadataStore, transaction_id: int) -> str:
    rows = metadata.query("SELECT state FROM transactions WHERE id = ?", (transaction_id,))
    return str(rows[0][0]) if rows else "unknown"


def late_at(metadata: MetadataStore, now_us: int) -> list[int]:
    rows = metadata.query(
        "SELECT id FROM transactions WHERE state = 'open' AND deadline_us <= ?", (now_us,)
    )
    return [row[0] for row in rows]


def staged_by(metadata: MetadataStore, transaction_id: int) -> list[StagedBatch]:
    """In the order in which they become visible."""
    rows = metadata.query(
        "SELECT task, number, topic, partition, position, length, created_us FROM staged"
        " WHERE transaction_id = ? ORDER BY task, number",
        (transaction_id,),
    )
    return [StagedBatch(*row) for row in rows]


def number_of(sequence: int, place: int) -> int:
    assert place < 1 << PLACE_BITS
    return sequence << PLACE_BITS | place


def place_after(metadata: MetadataStore, transaction_id: int, task: int) -> tuple[int, int]:
    """The next sequence and position of a task. Not the count: failed writes may leave some out."""
    rows = metadata.query(_LAST_OF_TASK, (transaction_id, task))
    return ((rows[0][0] >> PLACE_BITS) + 1, rows[0][1]) if rows else (0, 0)


# --- rows: changing them -------------------------------------------------------------------------


def begin_row(db: sqlite3.Connection, name: str, now_us: int, deadline_us: int) -> tuple[int, str]:
    """Id and state, as `find` gives them."""
    if in_a_range(db, name):
        return 0, "committed"
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
        "INSERT INTO staged"
        " (transaction_id, task, number, topic, partition, position, length, created_us)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
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
    db: sqlite3.Connection, name: str, transaction_id: int, tasks: Tasks, now_us: int
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
