"""The embedded engine: threads, timers, maintenance, start and close."""

import errno
import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from conformance.blipmq.peer import until
from kit.engines import WAIT_S, Opener, batch, make, put, values_of
from kit.faulty_files import FaultyFiles
from kit.partitions import Clock
from kit.records import Row, build

from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.errors import AppendFailed, LogClosed
from penstock.log.metadata.schema import MIGRATIONS
from penstock.log.metadata_errors import MetadataUnavailable
from penstock.log.partitions.ends import CLEAN_STOP_FILE
from penstock.log.storage.lock import DataDirectoryInUse


def test_interval_is_flushed_by_its_timer(opened: Opener) -> None:
    now = [50.0]
    engine = opened(EngineOptions(commit_threads=0), monotonic=lambda: now[0])
    make(engine, "orders", durability="interval", flush_interval_ms=100)
    token = engine.append("orders", 0, batch(b"v"))
    assert engine.commit.step() and token.done
    partition = engine.catalogue.partition("orders", 0)
    assert (partition.visible_offset, partition.flushed_offset) == (1, 0)
    now[0] += 0.09
    assert not engine.commit.step()
    now[0] += 0.01
    assert engine.commit.step()
    assert partition.flushed_offset == 1


@pytest.mark.parametrize("durability", ["ack", "interval", "none"])
def test_close_writes_and_flushes_what_was_accepted(opened: Opener, durability: str) -> None:
    engine = opened(EngineOptions(commit_threads=0))
    make(engine, "orders", durability=durability)
    written = engine.append("orders", 0, batch(b"one"))
    engine.commit.step()
    queued = engine.append("orders", 0, batch(b"two"))
    partition = engine.catalogue.partition("orders", 0)
    engine.close()
    engine.close()
    assert (written.result(0), queued.result(0)) == (0, 1)
    assert partition.flushed_offset == 2
    with pytest.raises(LogClosed):
        partition.append(batch(b"late"))
    assert values_of(opened(), "orders") == [b"one", b"two"]


def test_close_goes_on_when_the_ends_cannot_be_written(opened: Opener, files: FaultyFiles) -> None:
    engine = opened(EngineOptions(commit_threads=0))
    make(engine, "orders", 2)
    tokens = [engine.append("orders", number, batch(b"v")) for number in (0, 1)]
    files.fail("create", errno.ENOSPC, suffix="ends.tmp")
    engine.close()
    assert [token.result(0) for token in tokens] == [0, 0]
    again = opened()
    assert values_of(again, "orders") == values_of(again, "orders", 1) == [b"v"]


def test_flushes_are_observed(opened: Opener) -> None:
    seen: list[tuple[float, int]] = []
    engine = opened(observe_flush=lambda seconds, records: seen.append((seconds, records)))
    make(engine, "orders")
    put(engine, "orders", b"one", b"two")
    assert [records for _, records in seen] == [2]
    assert seen[0][0] >= 0


def test_maintenance_runs_over_all_partitions(opened: Opener) -> None:
    clock = Clock(10_000_000)
    engine = opened(clock_us=clock)
    make(engine, "old", segment_bytes=4096, retention_ms=1000)
    make(engine, "keyed", segment_bytes=4096, cleanup="compact", tombstone_ms=0)
    for number in range(8):
        put(engine, "old", b"x" * 2000, time_us=number)
        row = Row(b"%d" % number + b"x" * 1000, number, b"k")
        engine.append("keyed", 0, build([row])).result(WAIT_S)
    engine.close()
    engine = opened(clock_us=clock)
    engine.maintain()
    earliest, latest = engine.offsets("old", 0)
    assert latest == 8 and earliest > 4
    assert len(values_of(engine, "keyed")) < 8
    assert values_of(engine, "keyed")[-1].startswith(b"7")


def test_maintenance_of_one_partition_does_not_keep_it_from_the_others(
    opened: Opener, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    engine = opened(clock_us=Clock(10_000_000))
    for name in ("a", "b"):
        make(engine, name, segment_bytes=4096, retention_ms=1000)
        for number in range(8):
            put(engine, name, b"x" * 2000, time_us=number)
    files.fail("create", errno.EIO, suffix="start.tmp")
    with caplog.at_level(logging.WARNING):
        engine.maintain()
    assert "maintenance of" in caplog.text
    assert sorted(engine.offsets(name, 0)[0] > 0 for name in ("a", "b")) == [False, True]


def test_a_second_engine_on_the_same_directory_is_refused(opened: Opener, tmp_path: Path) -> None:
    opened()
    with pytest.raises(DataDirectoryInUse):
        EmbeddedEngine(str(tmp_path / "data"))


def test_a_failed_open_lets_the_next_one_in(opened: Opener, tmp_path: Path) -> None:
    opened().close()
    with closing(sqlite3.connect(tmp_path / "data" / "metadata.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(Exception, match="99"):
        EmbeddedEngine(str(tmp_path / "data"))
    with closing(sqlite3.connect(tmp_path / "data" / "metadata.db")) as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    assert opened().topics() == []


@pytest.mark.parametrize("crashed", [True, False])
def test_damage_and_torn_tails_are_logged_at_start_or_when_touched(
    opened: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture, crashed: bool
) -> None:
    engine = opened()
    make(engine, "torn")
    make(engine, "damaged")
    for name in ("torn", "damaged"):
        put(engine, name, b"one")
        put(engine, name, b"two")
    engine.close()
    directory = tmp_path / "data" / "topics"
    (log,) = (directory / "torn" / "0").glob("*.log")
    log.write_bytes(log.read_bytes() + b"torn")
    (log,) = (directory / "damaged" / "0").glob("*.log")
    log.write_bytes(b"x" + log.read_bytes()[1:])
    if crashed:
        (tmp_path / "data" / CLEAN_STOP_FILE).unlink()
    engine = opened()
    if not crashed:  # after a clean stop a start opens nothing
        for name in ("torn", "damaged"):
            put(engine, name, b"three")
    assert "torn tail of 4 bytes cut" in caplog.text
    assert "damaged at byte 0: no batch magic; offsets 0 to 0 cannot be read" in caplog.text
    assert "damaged/0" in engine.partition_info("damaged", 0).damages[0]
    assert values_of(engine, "damaged", offset=1)[:1] == [b"two"]
    assert values_of(engine, "torn")[:2] == [b"one", b"two"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_directory_that_is_removed_takes_nothing_any_more(
    opened: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    engine = opened()
    make(engine, "a")
    put(engine, "a", b"v")
    engine.maintain()
    put(engine, "a", b"v")
    (tmp_path / "data").rename(tmp_path / "away")
    if replaced:
        shutil.copytree(tmp_path / "away", tmp_path / "data")
    until(lambda: engine.lost is not None, "seen")
    for _ in range(2):
        engine.maintain()
        with pytest.raises(AppendFailed, match="the data directory was removed"):
            engine.append("a", 0, batch(b"v"))
        for change in (
            lambda: engine.create_topic("b"),
            lambda: engine.commit_offset("g", "a", 0, 1),
            lambda: engine.transactions.begin("q", 1_000_000),
        ):
            with pytest.raises(MetadataUnavailable, match="the data directory was removed"):
                change()
    assert caplog.text.count("was removed under the running server") == 1


def test_a_clock_that_jumps_removes_nothing(opened: Opener) -> None:
    """Retention and the timeouts of transactions wait until the jump is confirmed."""
    clock, elapsed = Clock(1_700_000_000_000_000), [0.0]
    engine = opened(clock_us=clock, elapsed_s=lambda: elapsed[0])
    make(engine, "a", retention_ms=3600 * 1000)
    put(engine, "a", b"kept", time_us=clock.now_us)
    engine.transactions.begin("q", 60_000_000)
    clock.now_us += 30 * 24 * 3600 * 1_000_000
    engine.maintain()
    assert values_of(engine, "a") == [b"kept"]
    assert engine.transactions.state("q") == "open"
    assert engine.statistics().clock_step_us == 30 * 24 * 3600 * 1_000_000
    # Time that really passes is believed.
    clock.now_us -= 30 * 24 * 3600 * 1_000_000
    for _ in range(2):
        clock.now_us += 3600 * 1_000_000
        elapsed[0] += 3600
        engine.maintain()
    assert engine.offsets("a", 0) == (1, 1)
    assert engine.transactions.state("q") == "unknown"


def test_a_restart_with_a_clock_that_went_back(opened: Opener) -> None:
    """The right time comes later, as on a machine whose clock stands still without power: retention goes by
    it at once, and not a day later."""
    day_us = 24 * 3600 * 1_000_000
    clock, elapsed = Clock(1_700_000_000_000_000), [0.0]
    engine = opened(clock_us=clock, elapsed_s=lambda: elapsed[0])
    make(engine, "a", retention_ms=3600 * 1000)
    put(engine, "a", b"old", time_us=clock.now_us)
    engine.close()
    clock.now_us -= 300 * day_us
    engine = opened(clock_us=clock, elapsed_s=lambda: elapsed[0])
    engine.maintain()
    assert values_of(engine, "a") == [b"old"]
    clock.now_us += 301 * day_us
    engine.maintain()
    assert engine.statistics().clock_step_us == 0
    assert engine.offsets("a", 0) == (1, 1)
