"""The metadata store's file: killed processes, write errors, newer, damaged and foreign files."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock.log.metadata.schema import MIGRATIONS
from penstock.log.metadata.sql import SqlStore
from penstock.log.metadata_errors import MetadataDamaged, MetadataTooNew, MetadataUnavailable

INSERT = "INSERT INTO records VALUES ('groups', ?, 0, x'')"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "metadata.db")


def groups(store: SqlStore) -> list[str]:
    return [name for (name,) in store.query("SELECT name FROM records ORDER BY 1")]


IO_ERROR_CHILD = """
import resource, sys
from penstock.log.metadata.sql import SqlStore, MetadataWriteFailed
store = SqlStore(sys.argv[1])
insert = "INSERT INTO records VALUES ('groups', ?, 0, x'')"
store.submit(lambda db: db.execute(insert, ("before",))).result(300)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
change = store.submit(lambda db: db.execute(insert, ("y" * 200_000,)))
try:
    change.result(300)
    print("no error")
except MetadataWriteFailed as error:
    print(error.reason)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
store.submit(lambda db: db.execute(insert, ("after",))).result(300)
print(store.query("SELECT name FROM records ORDER BY 1"))
store.close()
"""


def test_a_real_write_error_at_commit_fails_the_group_and_the_store_goes_on(path: str) -> None:
    # A file size limit makes the write of the WAL fail in the kernel, as a full disk would.
    done = subprocess.run(
        [sys.executable, "-c", IO_ERROR_CHILD, path],
        capture_output=True, text=True, timeout=HANG_S, check=True,
    )  # fmt: skip
    reason, rows = done.stdout.splitlines()
    assert reason in ("disk I/O error", "database or disk is full")
    assert rows == "[('after',), ('before',)]"
    with closing(SqlStore(path)) as store:
        assert groups(store) == ["after", "before"]


KILL_CHILD = """
import itertools, sys, threading
from penstock.log.metadata.sql import SqlStore
store = SqlStore(sys.argv[1])
start = int(sys.argv[2])
print_lock = threading.Lock()
def work(worker):
    for n in itertools.count(start):
        name = f"{worker}/{n}"
        store.submit(lambda db: db.execute(
            "INSERT INTO records VALUES ('groups', ?, ?, x'')", (name, n))).result(300)
        with print_lock:
            print(name, flush=True)
for worker in range(4):
    threading.Thread(target=work, args=(worker,)).start()
"""


def test_acknowledged_changes_survive_sigkill(path: str) -> None:
    # Proves process crashes only: the page cache survives them. Power loss is SQLite's own proof.
    acknowledged: set[str] = set()
    for round_number in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", KILL_CHILD, path, str(round_number * 1_000_000)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        with child.stdout as lines:
            for _ in range(37 + 61 * round_number):
                acknowledged.add(lines.readline().rstrip("\n"))
            os.kill(child.pid, signal.SIGKILL)
            # What it could still say before it died counts too; a cut line does not.
            acknowledged.update(line.rstrip("\n") for line in lines if line.endswith("\n"))
        assert child.wait(HANG_S) == -signal.SIGKILL
        with closing(SqlStore(path)) as store:
            assert acknowledged - set(groups(store)) == set()
    assert len(acknowledged) >= 5 * 37


def test_a_newer_database_is_refused_and_left_alone(path: str) -> None:
    SqlStore(path).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(MetadataTooNew) as caught:
        SqlStore(path)
    assert (caught.value.found, caught.value.known) == (len(MIGRATIONS) + 1, len(MIGRATIONS))
    assert "newer Penstock" in str(caught.value)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)


def other_program(path: str) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE recipes (name TEXT)")


def not_a_database(path: str) -> None:
    Path(path).write_bytes(b"this is no database at all\n" * 100)


def fill(path: str) -> None:
    rows = [(f"{n:04}" * 20,) for n in range(500)]
    with closing(SqlStore(path)) as store:
        store.submit(lambda db: db.executemany(INSERT, rows)).result(HANG_S)


def broken_page(path: str) -> None:
    fill(path)
    content = bytearray(Path(path).read_bytes())
    with closing(sqlite3.connect(path)) as raw:
        (root,) = raw.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'records'"
        ).fetchone()
        (page_size,) = raw.execute("PRAGMA page_size").fetchone()
    start = (root - 1) * page_size
    content[start : start + 64] = b"\xa5" * 64
    Path(path).write_bytes(content)


def cut_short(path: str) -> None:
    fill(path)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("damage", [other_program, not_a_database, broken_page, cut_short])
def test_a_damaged_file_is_one_clear_error(path: str, damage: Callable[[str], None]) -> None:
    damage(path)
    with pytest.raises(MetadataDamaged) as caught:
        SqlStore(path)
    assert caught.value.path == path
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def directory_there(path: str) -> None:
    os.mkdir(path)


def parent_missing(path: str) -> None:
    os.rmdir(os.path.dirname(path))


@pytest.mark.parametrize("obstacle", [directory_there, parent_missing])
def test_a_place_that_cannot_hold_it_is_one_clear_error(
    path: str, obstacle: Callable[[str], None]
) -> None:
    obstacle(path)
    with pytest.raises(MetadataUnavailable) as caught:
        SqlStore(path)
    assert "\n" not in str(caught.value)


def test_damage_met_while_running_is_the_stores_own_error(path: str) -> None:
    with closing(SqlStore(path)) as store, closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("UPDATE sqlite_schema SET rootpage = 9999 WHERE name = 'records'")
        raw.commit()
        raw.execute("PRAGMA schema_version = 1000")  # makes the reader look again
        with pytest.raises(MetadataDamaged):
            store.query("SELECT * FROM records")


def test_an_empty_file_is_a_fresh_database(path: str) -> None:
    Path(path).touch()
    with closing(SqlStore(path)) as store:
        assert store.query("SELECT * FROM records") == []
