"""A full disk, to the last block: topics can be deleted and retention works, and nothing else is stored."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from kit.engines import WAIT_S, Opener, batch, make, put, values_of
from kit.faulty_files import FaultyFiles
from kit.transactions import begin, stage

from penstock.log.errors import StorageFull
from penstock.log.metadata.store import MetadataStore
from penstock.log.metadata_errors import MetadataWriteFailed
from penstock.log.storage.files import RealFiles
from penstock.log.storage.reserve import RESERVE_BYTES, RESERVE_FILE, Reserve
from penstock.log.storage.segment import TEMPORARY_SUFFIX


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(RealFiles())


def test_it_takes_space_and_is_made_once(tmp_path: Path, files: FaultyFiles) -> None:
    path = tmp_path / RESERVE_FILE
    for _ in range(2):
        reserve = Reserve(files, str(tmp_path))
        reserve.fill()
        assert (path.stat().st_size, reserve.spent) == (RESERVE_BYTES, False)
    assert (files.calls["create"], files.calls["sync"]) == (1, 1)
    assert os.stat(path).st_blocks * 512 >= RESERVE_BYTES


@pytest.mark.parametrize("kind", ["create", "write", "sync"])
def test_a_disk_that_has_no_room_for_it(tmp_path: Path, files: FaultyFiles, kind: str) -> None:
    reserve = Reserve(files, str(tmp_path))
    files.fail(kind, errno.ENOSPC, times=3)  # type: ignore[arg-type]  # the kinds of calls
    for _ in range(3):
        reserve.fill()
        assert reserve.spent and not (tmp_path / RESERVE_FILE).exists()
        assert not reserve.spend(), "there is nothing to give"
    with pytest.raises(StorageFull, match="here"):
        reserve.check("here")
    reserve.fill()
    assert not reserve.spent
    reserve.check("here")


def test_a_half_written_one_is_made_anew(tmp_path: Path, files: FaultyFiles) -> None:
    (tmp_path / RESERVE_FILE).write_bytes(b"half")
    Reserve(files, str(tmp_path)).fill()
    assert (tmp_path / RESERVE_FILE).stat().st_size == RESERVE_BYTES


def test_nothing_is_stored_until_it_is_there_again(opened: Opener, files: FaultyFiles) -> None:
    engine = opened()
    make(engine, "a")
    begin(engine)
    assert engine.reserve.spend()
    with pytest.raises(StorageFull):
        engine.append("a", 0, batch(b"v"))
    with pytest.raises(StorageFull):
        stage(engine, 1, b"v")
    engine.maintain()
    stage(engine, 1, b"staged")
    put(engine, "a", b"v")
    engine.transactions.commit("q", [1])
    assert values_of(engine, "a") == [b"v", b"staged"]


def test_metadata_that_finds_no_space_gets_the_reserve(tmp_path: Path) -> None:
    """SQLite's own limit of pages: it says the same as when the disk is full."""
    asked: list[str] = []

    def give_space() -> bool:
        asked.append("space")
        store._writer.execute("PRAGMA max_page_count = 10000")
        return len(asked) == 1

    store = MetadataStore(str(tmp_path / "metadata.db"), make_space=give_space)

    def fill(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE IF NOT EXISTS large (content BLOB)")
        db.execute("INSERT INTO large VALUES (?)", (bytes(100_000),))

    def limit(pages: int) -> None:
        store.submit(lambda db: db.execute(f"PRAGMA max_page_count = {pages}")).result(WAIT_S)

    limit(1)  # not below what is used already
    store.submit(fill).result(WAIT_S)
    limit(1)
    with pytest.raises(MetadataWriteFailed, match="full"):
        store.submit(fill).result(WAIT_S)
    assert asked == ["space", "space"], "once for each, and no more"
    assert store.query("SELECT count(*) FROM large") == [(1,)]
    store.close()


def test_retention_on_a_full_disk(opened: Opener, files: FaultyFiles, tmp_path: Path) -> None:
    engine = opened()
    make(engine, "old", retention_ms=1)
    put(engine, "old", b"v" * 1000, time_us=1)
    files.fail("write", errno.ENOSPC, suffix=TEMPORARY_SUFFIX)
    engine.maintain()
    assert engine.partition_info("old", 0).size_bytes == 0
    assert not engine.reserve.spent, "there was space again behind it"
    engine.delete_topic("old").result(WAIT_S)
