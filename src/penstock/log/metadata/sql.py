"""The SQLite database under the metadata: WAL mode, written by one thread in group commits.

A change is a function that gets the writer's connection. All changes that wait are run in one
transaction, each in a savepoint of its own, and made durable by one commit (synchronous=FULL: one
fsync of the WAL). A change that raises is undone alone; the others of its group are kept.

    store = SqlStore("data/metadata.db", post=loop.call_soon_threadsafe)
    change = store.submit(lambda db: db.execute("INSERT ...", (...)).lastrowid)
    change.on_done(lambda done: ...)                 # after the commit, run by `post`
    row_id = change.result(timeout_s=5.0)            # or blocking

It does not know what the tables mean (schema.py), keeps no cache, and does not go through the log's
file layer: SQLite does its own file work. SQL stays in this package: all others use the named records
of store.py. Its errors are in errors.py.
"""

import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, Final, TypeVar

from penstock.log.callbacks import Callbacks, Post
from penstock.log.metadata.schema import APPLICATION_ID, MIGRATIONS
from penstock.log.metadata_errors import (
    MetadataClosed,
    MetadataDamaged,
    MetadataError,
    MetadataOverloaded,
    MetadataRefused,
    MetadataTooNew,
    MetadataUnavailable,
    MetadataWriteFailed,
)
from penstock.log.pending import Pending

T = TypeVar("T")

# A waiting change holds about 1 KiB (closure, parameters, Change), so this is 64 MiB at most. It is
# six changes for each of 10,000 connections; more means that the disk does not keep up, and then
# changes are refused instead of queued.
MAX_QUEUED_CHANGES: Final = 65_536

# A change takes about 10 us, so a full group delays its first change by about 40 ms: the time of a
# few fsyncs. Larger groups would save nothing, one fsync is already spread over thousands.
MAX_CHANGES_PER_COMMIT: Final = 4_096

# Another process (a backup, `sqlite3` by hand) may hold the database for a moment; after this time
# the changes fail with "database is locked" instead of waiting for ever.
LOCK_WAIT_S: Final = 5.0

# These errors concern the whole database, not one statement.
_STORAGE_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
_DAMAGE_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_logger = logging.getLogger(__name__)


class Change(Pending[T]):
    """A submitted change, done when it is durable or has failed. The store's `post` runs its callbacks."""

    __slots__ = ("_later", "function")

    def __init__(self, function: Callable[[sqlite3.Connection], T], later: Callbacks) -> None:
        super().__init__()
        self._later = later
        # Gone when it is done: it may hold large parameters.
        self.function: Callable[[sqlite3.Connection], T] | None = function

    def _call_late(self, callback: "Callable[[Pending[T]], object]") -> None:
        # Behind the callbacks that are due already and wait for `post`.
        self._later.add([partial(callback, self)])


def _call_inline(function: Callable[[], None]) -> None:
    function()


def _base_code(error: sqlite3.Error) -> int:
    # The low byte is the kind, the rest says more about it. Errors of the Python module itself
    # (wrong number of parameters) carry no code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _open_error(path: str, error: sqlite3.Error) -> MetadataError | None:
    """The store's own error for trouble with the database as a whole, else None."""
    code = _base_code(error)
    if code in _DAMAGE_CODES:
        return MetadataDamaged(path, str(error))
    if code in _STORAGE_CODES:
        return MetadataUnavailable(path, str(error))
    return None


class SqlStore:
    """See the module text. All public methods may be called from any thread.

    `commits` and `changes` count the commits done and the changes in them, for the metrics.
    """

    def __init__(
        self,
        path: str,
        *,
        post: Post | None = None,
        max_queued: int | None = None,
        make_space: Callable[[], bool] = lambda: False,
    ) -> None:
        # An absolute path, because SQLite gives ":memory:" and "file:..." a meaning of their own.
        self.path = os.path.abspath(path)
        self.commits = 0
        self.changes = 0
        self._callbacks = Callbacks(post if post is not None else _call_inline)
        self._max_queued = max_queued if max_queued is not None else MAX_QUEUED_CHANGES
        # Asked when the disk is full. True: it may go now.
        self._make_space = make_space
        self._queue: deque[Change[Any]] = deque()
        self._refusal: str | None = None
        self._closing = False
        self._submitted = threading.Condition()  # guards the queue; wakes the writer
        self._reader_lock = threading.Lock()
        self._writer, self._reader = _open(self.path)
        # A daemon, so that a process that forgets close() can still end; nothing acknowledged is
        # lost by that, only what still waits.
        self._thread = threading.Thread(target=self._write, name="penstock-metadata", daemon=True)
        self._thread.start()

    def submit(
        self,
        change: Callable[[sqlite3.Connection], T],
        first: Callable[[Pending[T]], object] | None = None,
    ) -> Change[T]:
        """Queue a change. Its function runs on the writer thread, in submission order.

        It must not commit, roll back or keep the connection, and must be short: all others wait.
        `first` is called before all callbacks that are added later, in the order of the commits. It may
        give an iterator of its steps (callbacks.py).
        """
        pending = Change(change, self._callbacks)
        if first is not None:
            pending.on_done(first)
        with self._submitted:
            if self._closing:
                raise MetadataClosed(self.path)
            if self._refusal is not None:
                raise MetadataUnavailable(self.path, self._refusal)
            if len(self._queue) >= self._max_queued:
                raise MetadataOverloaded(self.path, self._max_queued)
            self._queue.append(pending)
            self._submitted.notify()
        return pending

    def refuse(self, reason: str) -> None:
        """From now on every change is refused: it would be written into a file that is gone."""
        with self._submitted:
            self._refusal = reason

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of a SELECT, as of the last commit. Writing statements are refused by SQLite."""
        with self._reader_lock:
            if self._closing:
                raise MetadataClosed(self.path)
            try:
                return self._reader.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise (_open_error(self.path, error) or self._refused(error)) from error

    def close(self) -> None:
        """Write what is queued, then close. Calling it again does nothing."""
        with self._submitted:
            self._closing = True
            self._submitted.notify()
        self._thread.join()
        with self._reader_lock:
            # The reader goes first: the last connection to close moves the WAL into the database.
            self._reader.close()
            self._writer.close()

    def _write(self) -> None:
        while group := self._next_group():
            self._complete(group, self._commit_group(group))

    def _next_group(self) -> list[Change[Any]]:
        """Wait for changes; empty when the store is closed and everything is written."""
        with self._submitted:
            self._submitted.wait_for(lambda: self._queue or self._closing)
            count = min(len(self._queue), MAX_CHANGES_PER_COMMIT)
            return [self._queue.popleft() for _ in range(count)]

    def _commit_group(self, group: list[Change[Any]]) -> list[tuple[Any, BaseException | None]]:
        """Run and commit a group; for each change what its function gave, or its error."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            outcomes = [self._run_change(change) for change in group]
            self._writer.execute("COMMIT")
        except Exception as failure:
            # Whatever happened, the transaction must be gone before the next group begins. SQLite
            # may have rolled back by itself; then there is nothing to roll back.
            if self._writer.in_transaction:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
            full = isinstance(failure, sqlite3.Error) and _base_code(failure) == sqlite3.SQLITE_FULL
            if full and self._make_space():
                return self._commit_group(group)
            _logger.error("%s", MetadataWriteFailed(self.path, str(failure), len(group)))
            return [(None, self._group_lost(failure, len(group))) for _ in group]
        self.commits += 1
        self.changes += len(group)
        return outcomes

    def _group_lost(self, cause: Exception, changes: int) -> MetadataError:
        error = MetadataWriteFailed(self.path, str(cause), changes)
        error.__cause__ = cause
        return error

    def _run_change(self, change: Change[Any]) -> tuple[Any, BaseException | None]:
        """Run one change in its savepoint. Raises only when the whole group is lost."""
        self._writer.execute("SAVEPOINT change")
        try:
            assert change.function is not None, "it runs before it is done"
            value = change.function(self._writer)
        except BaseException as error:
            # BaseException too: a change that calls sys.exit() must not end the writer.
            code = _base_code(error) if isinstance(error, sqlite3.Error) else 0
            if code in _STORAGE_CODES or code in _DAMAGE_CODES:
                raise
            self._require_transaction()
            self._writer.execute("ROLLBACK TO change")
            self._writer.execute("RELEASE change")
            return None, self._refused(error) if isinstance(error, sqlite3.Error) else error
        self._require_transaction()
        self._writer.execute("RELEASE change")
        return value, None

    def _refused(self, cause: sqlite3.Error) -> MetadataError:
        error = MetadataRefused(self.path, str(cause))
        error.__cause__ = cause
        return error

    def _require_transaction(self) -> None:
        if not self._writer.in_transaction:
            raise RuntimeError("a change ended the transaction of its group")

    def _complete(
        self, group: list[Change[Any]], outcomes: list[tuple[Any, BaseException | None]]
    ) -> None:
        """Make all changes of a group done, with at most one call of `post`."""
        due: list[Callable[[], object]] = []
        for change, (value, error) in zip(group, outcomes, strict=True):
            change.function = None
            due.extend(partial(callback, change) for callback in change.mark_done(value, error))
        try:
            self._callbacks.add(due)
        except Exception:  # the event loop is closed, say; the changes themselves are durable
            _logger.exception("callbacks of %d metadata changes could not be posted", len(due))


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _open(path: str) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Open or create the database, check it, bring its tables up to date; gives writer, reader."""
    try:
        # SQLite would create it readable for everybody; it holds the hashes of the API keys. Its
        # -wal and -shm files get the rights of this file.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise MetadataUnavailable(path, error.strerror or str(error)) from error
    with ExitStack() as opened:
        try:
            writer = opened.enter_context(closing(_connect(path)))
            _check(writer, path)
            (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise MetadataUnavailable(path, "this file system cannot hold a WAL database")
            _migrate(writer)
            reader = opened.enter_context(closing(_connect(path)))
            reader.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            raise (_open_error(path, error) or MetadataUnavailable(path, str(error))) from error
        opened.pop_all()
    return writer, reader


def _check(connection: sqlite3.Connection, path: str) -> None:
    """Refuse, without writing anything, what is not ours to change."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables == 0 and version == 0 and application == 0:
        return  # new and empty
    if application != APPLICATION_ID:
        raise MetadataDamaged(path, "an SQLite database of another program")
    if version > len(MIGRATIONS):
        raise MetadataTooNew(path, version, len(MIGRATIONS))
    # Finds a damaged page at the start and not later. Reads the whole file once.
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise MetadataDamaged(path, " ".join(str(verdict).split()))


def _migrate(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number in range(version + 1, len(MIGRATIONS) + 1):
        connection.execute("BEGIN IMMEDIATE")
        for step in MIGRATIONS[number - 1]:
            if isinstance(step, str):
                connection.execute(step)
            else:
                step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
