"""The metadata store: grouping, durability, isolation of errors, and what bad files get."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.log.metadata.schema import APPLICATION_ID, MIGRATIONS
from penstock.log.metadata.sql import LOCK_WAIT_S, MAX_CHANGES_PER_COMMIT, Change, SqlStore
from penstock.log.metadata_errors import (
    MetadataClosed,
    MetadataOverloaded,
    MetadataRefused,
    MetadataUnavailable,
    MetadataWriteFailed,
)

INSERT_OFFSET = "INSERT INTO records (space, name, version, value) VALUES ('groups', ?, ?, x'')"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


@pytest.fixture
def store(path: str) -> Iterator[SqlStore]:
    opened = SqlStore(path)
    yield opened
    opened.close()


class Hold:
    """A change that keeps the writer busy until it is released."""

    def __init__(self, store: SqlStore) -> None:
        self.running = threading.Event()
        self.release = threading.Event()
        self.change = store.submit(self._run)
        assert self.running.wait(HANG_S)

    def _run(self, _connection: sqlite3.Connection) -> None:
        self.running.set()
        assert self.release.wait(HANG_S)


def insert(group: str, offset: int = 0) -> Callable[[sqlite3.Connection], int]:
    return lambda connection: connection.execute(INSERT_OFFSET, (group, offset)).rowcount


def constant(value: int, _connection: sqlite3.Connection) -> int:
    return value


def groups(store: SqlStore) -> list[str]:
    return [name for (name,) in store.query("SELECT name FROM records ORDER BY 1")]


def test_result_is_what_the_change_returned_and_can_be_queried(store: SqlStore) -> None:
    change = store.submit(
        lambda db: db.execute(
            "INSERT INTO records (space, name, version, value)"
            " VALUES ('topics', 'orders', 3, x'') RETURNING version"
        ).fetchone()[0]
    )
    assert change.result(HANG_S) == 3
    assert change.done
    assert change.error is None
    assert store.query("SELECT version FROM records WHERE name = ?", ("orders",)) == [(3,)]


def test_waiting_changes_share_one_commit(store: SqlStore) -> None:
    hold = Hold(store)
    commits = store.commits
    changes = [store.submit(insert(f"group-{n:03}", n)) for n in range(500)]
    assert not any(change.done for change in changes)
    hold.release.set()
    assert [change.result(HANG_S) for change in changes] == [1] * 500
    assert store.commits - commits == 2  # the held one alone, then all others together
    assert store.changes == 501
    assert len(groups(store)) == 500


def test_a_group_is_limited(store: SqlStore) -> None:
    hold = Hold(store)
    changes = [store.submit(lambda _db: None) for _ in range(MAX_CHANGES_PER_COMMIT + 1)]
    hold.release.set()
    changes[-1].result(HANG_S)
    assert store.commits == 3


def test_not_visible_to_readers_before_the_commit(store: SqlStore) -> None:
    def change(connection: sqlite3.Connection) -> list[str]:
        insert("early")(connection)
        return groups(store)

    assert store.submit(change).result(HANG_S) == []
    assert groups(store) == ["early"]


def test_a_change_sees_the_earlier_ones_of_its_group(store: SqlStore) -> None:
    hold = Hold(store)
    store.submit(insert("first"))
    count = store.submit(lambda db: db.execute("SELECT count(*) FROM records").fetchone()[0])
    hold.release.set()
    assert count.result(HANG_S) == 1


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("no such thing"), ValueError),
        (SystemExit(3), SystemExit),
        (None, MetadataRefused),  # the second insert of the same row
    ],
)
def test_a_failing_change_is_undone_alone(
    store: SqlStore, error: BaseException | None, raised: type[BaseException]
) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        insert("half done")(connection)
        if error is not None:
            raise error
        insert("half done")(connection)

    hold = Hold(store)
    before, failing, after = (
        store.submit(insert("a")),
        store.submit(fail),
        store.submit(insert("b")),
    )
    hold.release.set()
    assert (before.result(HANG_S), after.result(HANG_S)) == (1, 1)
    with pytest.raises(raised):
        failing.result(HANG_S)
    assert isinstance(failing.error, raised)
    assert groups(store) == ["a", "b"]
    assert store.commits == 2


def test_a_full_database_fails_its_group_with_one_error_and_the_store_goes_on(
    store: SqlStore,
) -> None:
    used = store.submit(lambda db: db.execute("PRAGMA page_count").fetchone()[0]).result(HANG_S)
    store.submit(lambda db: db.execute(f"PRAGMA max_page_count = {used}").fetchone()).result(HANG_S)
    hold = Hold(store)
    small, large = store.submit(insert("small")), store.submit(insert("x" * 100_000))
    hold.release.set()
    for change in (small, large):
        with pytest.raises(MetadataWriteFailed, match=r"2 metadata change.*full") as caught:
            change.result(HANG_S)
        assert (caught.value.path, caught.value.changes) == (store.path, 2)
    assert groups(store) == []
    store.submit(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchone()).result(HANG_S)
    assert store.submit(insert("x" * 100_000)).result(HANG_S) == 1


def test_a_change_that_ends_the_transaction_fails_its_group(store: SqlStore) -> None:
    bad = store.submit(lambda db: db.commit())
    with pytest.raises(MetadataWriteFailed, match="ended the transaction"):
        bad.result(HANG_S)
    assert store.submit(insert("next")).result(HANG_S) == 1


@pytest.mark.parametrize(
    "name", ["\u00fc\u4e2d\U0001f600", "..", "a/b", "A", "a", "it's", "nul\0inside", " "]
)
def test_names_hold_any_utf8(store: SqlStore, name: str) -> None:
    store.submit(insert(name, 5)).result(HANG_S)
    found = store.query("SELECT name, version FROM records WHERE name = ?", (name,))
    assert found == [(name, 5)]


def test_callbacks_run_through_post_once_per_group_in_order(path: str) -> None:
    posted: list[object] = []
    order: list[int] = []
    all_run = threading.Event()

    def post(function: Callable[[], None]) -> None:
        posted.append(function)
        function()
        if len(order) == 10:
            all_run.set()

    with closing(SqlStore(path, post=post)) as store:
        hold = Hold(store)
        for n in range(10):
            change: Change[int] = store.submit(partial(constant, n))
            change.on_done(lambda done: order.append(done.result()))
        hold.release.set()
        assert all_run.wait(HANG_S)
        assert order == list(range(10))
        assert len(posted) == 1
        change.on_done(lambda _done: order.append(99))  # late: at once
        assert order[-1] == 99


def test_callbacks_reach_an_event_loop(path: str) -> None:
    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        store = SqlStore(path, post=loop.call_soon_threadsafe)
        store.submit(lambda _db: 5).on_done(lambda done: future.set_result(threading.get_ident()))
        thread = await asyncio.wait_for(future, HANG_S)
        store.close()
        return thread, threading.get_ident()

    callback_thread, loop_thread = asyncio.run(main())
    assert callback_thread == loop_thread


def test_a_failing_callback_or_post_does_not_stop_the_writer(path: str) -> None:
    def post(_function: object) -> None:
        raise RuntimeError("Event loop is closed")

    with closing(SqlStore(path, post=post)) as store:
        hold = Hold(store)
        store.submit(lambda _db: None).on_done(print)
        hold.release.set()
        assert store.submit(lambda _db: 1).result(HANG_S) == 1
    with closing(SqlStore(path)) as store:
        hold = Hold(store)
        store.submit(lambda _db: None).on_done(lambda _done: 1 // 0)
        hold.release.set()
        assert store.submit(lambda _db: 2).result(HANG_S) == 2


def test_the_queue_is_bounded(path: str) -> None:
    with closing(SqlStore(path, max_queued=3)) as store:
        hold = Hold(store)
        kept = [store.submit(insert(str(n))) for n in range(3)]
        with pytest.raises(MetadataOverloaded, match="3 metadata changes wait"):
            store.submit(insert("too many"))
        hold.release.set()
        assert [change.result(HANG_S) for change in kept] == [1, 1, 1]
        assert store.submit(insert("again")).result(HANG_S) == 1


def test_result_times_out_and_the_change_still_happens(store: SqlStore) -> None:
    hold = Hold(store)
    change = store.submit(insert("late"))
    with pytest.raises(TimeoutError):
        change.result(0.01)
    assert change.error is None
    hold.release.set()
    assert change.result(HANG_S) == 1


def test_close_writes_what_is_queued(path: str) -> None:
    store = SqlStore(path)
    hold = Hold(store)
    changes = [store.submit(insert(str(n))) for n in range(100)]
    closer = threading.Thread(target=store.close)
    closer.start()
    hold.release.set()
    closer.join(HANG_S)
    assert all(change.done and change.error is None for change in changes)
    store.close()  # again: nothing happens
    with pytest.raises(MetadataClosed):
        store.submit(insert("x"))
    with pytest.raises(MetadataClosed):
        store.query("SELECT 1")
    with closing(SqlStore(path)) as again:
        assert len(groups(again)) == 100


def test_wal_and_full_synchronous_and_private(store: SqlStore) -> None:
    def pragmas(connection: sqlite3.Connection) -> tuple[str, int]:
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        return mode, connection.execute("PRAGMA synchronous").fetchone()[0]

    assert store.submit(pragmas).result(HANG_S) == ("wal", 2)
    for suffix in ("", "-wal", "-shm"):
        assert os.stat(store.path + suffix).st_mode & 0o077 == 0


def test_queries_cannot_write(store: SqlStore) -> None:
    with pytest.raises(MetadataUnavailable, match="readonly"):
        store.query("DELETE FROM records RETURNING name")


def test_a_fresh_database_has_the_version_of_the_last_migration(store: SqlStore) -> None:
    assert store.query("PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert store.query("PRAGMA application_id") == [(APPLICATION_ID,)]


def test_a_database_locked_by_another_process_fails_the_group_in_bounded_time(
    store: SqlStore,
) -> None:
    store.submit(lambda db: db.execute("PRAGMA busy_timeout = 10").fetchone()).result(HANG_S)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataWriteFailed, match="locked"):
            store.submit(insert("blocked")).result(HANG_S)
        other.execute("ROLLBACK")
    assert LOCK_WAIT_S < HANG_S
    assert store.submit(insert("free")).result(HANG_S) == 1
