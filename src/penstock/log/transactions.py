"""Transactions by name: staged by many tasks, across topics and partitions, visible at once or never.

A task stages batches; they are durable beside the log (staging.py) and in nobody's sight. The commit
names the tasks that count. Its point of no return is one row in the metadata. What follows can be
repeated at will: the batches are appended as those of an idempotent producer, and the partitions
concerned show nothing new until all of it is durable. A crash in between is finished at the next start,
before anybody reads. Names of committed transactions are remembered, so a repeated commit changes
nothing.

    open --commit--> committing --all appended--> committed
    open --abort, or its time is over--> gone

The calls touch the disk and wait for it: run them in a thread.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable

from penstock.log.batch import Batch
from penstock.log.catalogue import Catalogue
from penstock.log.commit import GroupCommit
from penstock.log.errors import (
    Overloaded,
    TransactionNotOpen,
    UnknownPartition,
    UnknownTopic,
)
from penstock.log.metadata import MetadataStore
from penstock.log.outcome import deliver
from penstock.log.partition import Partition
from penstock.log.staging import StagedBatch, Staging
from penstock.log.tokens import AppendToken

# Producer ids of transactions have the highest bit: no client is given such a one.
PRODUCER_BIT = 1 << 63
# Unwritten appends of one commit: keeps well below what a partition may queue.
APPEND_WINDOW = 32
APPEND_TIMEOUT_S = 60.0
# A committed name is remembered this long: far longer than any client repeats a commit.
REMEMBERED_US = 7 * 24 * 3600 * 1_000_000

logger = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], object]


class Transactions:
    """Thread-safe. One commit is applied at a time."""

    def __init__(
        self,
        staging: Staging,
        metadata: MetadataStore,
        catalogue: Catalogue,
        commit: GroupCommit,
        clock_us: Callable[[], int],
        post: Post,
    ) -> None:
        self._staging = staging
        self._metadata = metadata
        self._catalogue = catalogue
        self._commit = commit
        self._clock_us = clock_us
        self._post = post
        self._applying = threading.Lock()
        self._lock = threading.Lock()
        # Where the next batch of a task goes: its number and its place in the file.
        self._tasks: dict[tuple[int, int], tuple[int, int]] = {}
        self._held: dict[int, list[Partition]] = {}

    def recover(self) -> None:
        """At start: finishes commits, removes what no transaction owns."""
        for (transaction_id,) in self._metadata.query(
            "SELECT id FROM transactions WHERE state = 'committing'"
        ):
            self._apply(transaction_id)
        known = {row[0] for row in self._metadata.query("SELECT id FROM transactions")}
        for transaction_id in self._staging.present():
            if transaction_id not in known:
                self._staging.remove(transaction_id)

    def begin(self, name: str, timeout_us: int) -> str:
        """Opens it, or gives an open one more time. Gives its state: open or committed."""
        now_us = self._clock_us()
        found = self._find(name)
        if found is not None and found[1] == "committing":
            self._apply(found[0])
        return self._metadata.submit(
            lambda db: _begin(db, name, now_us, now_us + timeout_us)
        ).result()

    def stage(self, name: str, task: int, topic: str, partition: int, batch: Batch) -> None:
        """Durable on return. Raises TransactionNotOpen, UnknownTopic, UnknownPartition."""
        self._catalogue.partition(topic, partition)
        transaction_id = self._open_id(name)
        with self._lock:
            number, position = self._place(transaction_id, task)
            self._tasks[transaction_id, task] = number + 1, position + batch.size()
        length = self._staging.write(transaction_id, task, number, batch, position)
        staged = StagedBatch(task, number, topic, partition, position, length)
        self._metadata.submit(lambda db: _stage(db, transaction_id, staged)).result()

    def commit(self, name: str, tasks: Iterable[int]) -> None:
        """Everything that these tasks staged becomes visible at once. Repeating it changes nothing."""
        chosen = list(tasks)
        now_us = self._clock_us()
        found = self._find(name)
        if found is None:
            raise TransactionNotOpen(name, "unknown")
        transaction_id, state = found
        if state == "open":
            self._metadata.submit(lambda db: _decide(db, transaction_id, chosen, now_us)).result()
        if state != "committed":
            self._apply(transaction_id)

    def abort(self, name: str) -> None:
        """What was staged is gone. Aborting what does not exist is fine; a commit stands."""
        found = self._find(name)
        if found is None:
            return
        if found[1] != "open":
            raise TransactionNotOpen(name, found[1])
        self._forget(found[0])

    def expire(self) -> int:
        """Ends open transactions whose time is over, finishes commits, forgets old names."""
        now_us = self._clock_us()
        for (transaction_id,) in self._metadata.query(
            "SELECT id FROM transactions WHERE state = 'committing'"
        ):
            self._apply(transaction_id)
        late = self._metadata.query(
            "SELECT id FROM transactions WHERE state = 'open' AND deadline_us <= ?", (now_us,)
        )
        for (transaction_id,) in late:
            self._forget(transaction_id)
        old_us = now_us - REMEMBERED_US
        if self._metadata.query(
            "SELECT 1 FROM transactions WHERE state = 'committed' AND updated_us < ? LIMIT 1",
            (old_us,),
        ):
            self._metadata.submit(lambda db: _forget_old(db, old_us)).result()
        return len(late)

    def state(self, name: str) -> str:
        """open, committing, committed or unknown."""
        found = self._find(name)
        return found[1] if found is not None else "unknown"

    # --- inside ----------------------------------------------------------------------------------

    def _find(self, name: str) -> tuple[int, str] | None:
        rows = self._metadata.query("SELECT id, state FROM transactions WHERE name = ?", (name,))
        return (rows[0][0], rows[0][1]) if rows else None

    def _open_id(self, name: str) -> int:
        found = self._find(name)
        if found is None or found[1] != "open":
            raise TransactionNotOpen(name, found[1] if found is not None else "unknown")
        return found[0]

    def _place(self, transaction_id: int, task: int) -> tuple[int, int]:
        known = self._tasks.get((transaction_id, task))
        if known is not None:
            return known
        rows = self._metadata.query(
            "SELECT count(*), coalesce(max(position + length), 0) FROM staged"
            " WHERE transaction_id = ? AND task = ?",
            (transaction_id, task),
        )
        return rows[0][0], rows[0][1]

    def _forget(self, transaction_id: int) -> None:
        self._metadata.submit(lambda db: _remove(db, transaction_id)).result()
        self._drop_staging(transaction_id)

    def _drop_staging(self, transaction_id: int) -> None:
        with self._lock:
            for key in [key for key in self._tasks if key[0] == transaction_id]:
                del self._tasks[key]
        try:
            self._staging.remove(transaction_id)
        except OSError as error:
            logger.warning("staged files of transaction %d stay: %s", transaction_id, error)

    def _apply(self, transaction_id: int) -> None:
        """Appends what was staged and shows it. Raises when the log refuses; then it is tried again
        later, and until then the partitions show nothing new, so that nobody sees a part."""
        with self._applying:
            rows = self._metadata.query(
                "SELECT task, number, topic, partition, position, length FROM staged"
                " WHERE transaction_id = ? ORDER BY task, number",
                (transaction_id,),
            )
            staged = [StagedBatch(*row) for row in rows]
            self._hold(transaction_id, staged)
            self._append(transaction_id, staged)
            for partition in self._held[transaction_id]:
                deliver(partition.flush())  # also where the topic itself asks for less
            now_us = self._clock_us()
            self._metadata.submit(lambda db: _finish(db, transaction_id, now_us)).result()
            self._release(transaction_id)
        self._drop_staging(transaction_id)

    def _hold(self, transaction_id: int, staged: list[StagedBatch]) -> None:
        if transaction_id in self._held:
            return
        held = []
        for topic, partition in sorted({(entry.topic, entry.partition) for entry in staged}):
            target = self._target(topic, partition)
            if target is not None:
                target.hold()
                held.append(target)
        self._held[transaction_id] = held

    def _release(self, transaction_id: int) -> None:
        """In one go on the event loop: a reader there sees all of it or nothing."""
        held = self._held.pop(transaction_id, [])

        def release() -> None:
            for partition in held:
                deliver(partition.release())

        self._post(release)

    def _append(self, transaction_id: int, staged: list[StagedBatch]) -> None:
        tokens: list[AppendToken] = []
        sequences: dict[tuple[str, int], int] = {}
        batches = self._staging.read(transaction_id, staged)
        for entry, batch in zip(staged, batches, strict=True):
            key = entry.topic, entry.partition
            sequence = sequences.get(key, 0)
            sequences[key] = sequence + 1
            target = self._target(*key)
            if target is None:
                continue  # the topic was deleted since: its records have nowhere to go
            batch.from_producer(PRODUCER_BIT | transaction_id, 0, sequence)
            if len(tokens) >= APPEND_WINDOW:
                tokens.pop(0).result(APPEND_TIMEOUT_S)
            tokens.append(self._append_one(target, batch, tokens))
        for token in tokens:
            token.result(APPEND_TIMEOUT_S)

    def _append_one(
        self, target: Partition, batch: Batch, tokens: list[AppendToken]
    ) -> AppendToken:
        while True:
            try:
                token = target.append(batch)
            except Overloaded:
                if not tokens:
                    raise
                tokens.pop(0).result(APPEND_TIMEOUT_S)
                continue
            self._commit.submit(target)
            return token

    def _target(self, topic: str, partition: int) -> Partition | None:
        try:
            return self._catalogue.partition(topic, partition)
        except (UnknownTopic, UnknownPartition):
            return None


def _begin(db: sqlite3.Connection, name: str, now_us: int, deadline_us: int) -> str:
    db.execute(
        "INSERT OR IGNORE INTO transactions (name, state, deadline_us, updated_us)"
        " VALUES (?, 'open', ?, ?)",
        (name, deadline_us, now_us),
    )
    db.execute(
        "UPDATE transactions SET deadline_us = ? WHERE name = ? AND state = 'open'",
        (deadline_us, name),
    )
    (state,) = db.execute("SELECT state FROM transactions WHERE name = ?", (name,)).fetchone()
    return str(state)


def _stage(db: sqlite3.Connection, transaction_id: int, staged: StagedBatch) -> None:
    """The state is looked at again: a commit or abort may have come first."""
    row = db.execute("SELECT name, state FROM transactions WHERE id = ?", (transaction_id,))
    found = row.fetchone()
    if found is None or found[1] != "open":
        raise TransactionNotOpen(*(found or ("?", "unknown")))
    db.execute(
        "INSERT INTO staged (transaction_id, task, number, topic, partition, position, length)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            transaction_id,
            staged.task,
            staged.number,
            staged.topic,
            staged.partition,
            staged.position,
            staged.length,
        ),
    )


def _decide(db: sqlite3.Connection, transaction_id: int, tasks: list[int], now_us: int) -> None:
    """The point of no return."""
    db.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (task INTEGER PRIMARY KEY)")
    db.execute("DELETE FROM chosen")
    db.executemany("INSERT OR IGNORE INTO chosen VALUES (?)", [(task,) for task in tasks])
    db.execute(
        "DELETE FROM staged WHERE transaction_id = ? AND task NOT IN (SELECT task FROM chosen)",
        (transaction_id,),
    )
    db.execute(
        "UPDATE transactions SET state = 'committing', updated_us = ?"
        " WHERE id = ? AND state = 'open'",
        (now_us, transaction_id),
    )


def _finish(db: sqlite3.Connection, transaction_id: int, now_us: int) -> None:
    db.execute("DELETE FROM staged WHERE transaction_id = ?", (transaction_id,))
    db.execute(
        "UPDATE transactions SET state = 'committed', updated_us = ? WHERE id = ?",
        (now_us, transaction_id),
    )


def _remove(db: sqlite3.Connection, transaction_id: int) -> None:
    db.execute("DELETE FROM staged WHERE transaction_id = ?", (transaction_id,))
    db.execute("DELETE FROM transactions WHERE id = ? AND state = 'open'", (transaction_id,))


def _forget_old(db: sqlite3.Connection, old_us: int) -> None:
    db.execute("DELETE FROM transactions WHERE state = 'committed' AND updated_us < ?", (old_us,))
