"""A failed fdatasync is final: Linux reports it once and takes the pages for clean, so a retry would lie.

Waiting appends hear "outcome unknown", later ones are refused, what was durable is served; the restart
finds out what is there, and trusts nothing that the page cache only shows.
"""

import errno

import pytest
from faults.log_kit import OpenLog, fresh_disk, from_producer, numbered, plain
from kit.faulty_files import FaultyFiles
from kit.records import Row
from kit.simulated_disk import SimulatedDisk
from kit.torn_content import PURE_MODES, CrashMode

from penstock.log.errors import OutcomeUnknown, PartitionStopped
from penstock.log.settings import TopicSettings

pytestmark = pytest.mark.usefixtures("writes")

BIG_SEGMENTS = TopicSettings(retention_ms=0)


def log_with_failed_flush(seed: int = 0) -> tuple[OpenLog, SimulatedDisk, list[bytes], list[bytes]]:
    """A log with two durable records and three of which nobody knows."""
    disk = SimulatedDisk(seed)
    files = FaultyFiles(disk)
    log = OpenLog(files, BIG_SEGMENTS)
    source = numbered()
    durable = [next(source), next(source)]
    for value in durable:
        log.store(value)
    unknown = [next(source) * 6 for _ in range(3)]
    files.fail("sync", errno.EIO)
    tokens = [
        log.queue(from_producer([Row(value)], 5, 0, number)) for number, value in enumerate(unknown)
    ]
    log.run()
    for token in tokens:
        assert isinstance(token.error, OutcomeUnknown)
        assert "/log" in str(token.error)
    return log, disk, durable, unknown


def test_the_partition_stops() -> None:
    log, _, durable, _ = log_with_failed_flush()
    with pytest.raises(PartitionStopped, match="until restart"):
        log.queue(plain(b"refused"))
    assert log.partition.visible_offset == 2
    assert log.values() == durable
    log.run()
    log.close()


def test_appends_that_wait_behind_a_failing_flush_are_refused() -> None:
    disk = fresh_disk()
    files = FaultyFiles(disk)
    log = OpenLog(files, TopicSettings(retention_ms=0))
    files.fail("sync", errno.EIO)
    first = log.queue(plain(b"x" * (3 << 20)))
    second = log.queue(plain(b"y" * (3 << 20)))
    log.run()
    assert isinstance(first.error, OutcomeUnknown)
    assert isinstance(second.error, PartitionStopped)


@pytest.mark.parametrize("mode", PURE_MODES)
@pytest.mark.parametrize("seed", range(5))
def test_after_a_power_loss(mode: CrashMode, seed: int) -> None:
    log, disk, durable, unknown = log_with_failed_flush(seed)
    log.die()
    found = disk.crash_after(len(disk.operations), mode, seed)
    again = OpenLog(found, BIG_SEGMENTS)
    values = again.values()
    assert values == [*durable, *unknown][: len(values)]
    assert len(values) >= len(durable)
    assert again.store(b"on") == len(values)


@pytest.mark.parametrize("seed", range(10))
def test_after_a_restart_of_the_process_alone(seed: int) -> None:
    """The page cache shows all records, the disk has not got them all, and a sync says nothing.

    The producer sends again, is told that its batches are stored, and then power goes.
    """
    log, disk, durable, unknown = log_with_failed_flush(seed)
    log.die()
    log = OpenLog(disk, BIG_SEGMENTS)
    promised = log.values()
    assert promised == [*durable, *unknown]
    for number, value in enumerate(unknown):
        assert log.send(from_producer([Row(value)], 5, 0, number)).error is None
    log.store(b"on")
    found = disk.crash("drop")
    again = OpenLog(found, BIG_SEGMENTS)
    assert again.partition.recovered.damages == []
    assert again.values() == [*promised, b"on"]


def test_other_partitions_go_on() -> None:
    files = FaultyFiles(fresh_disk())
    one = OpenLog(files, directory="/one")
    other = OpenLog(files, directory="/other")
    files.fail("sync", errno.EIO)
    assert isinstance(one.send(plain(b"a")).error, OutcomeUnknown)
    assert other.store(b"b") == 0
    assert other.values() == [b"b"]


def test_a_failed_sync_of_the_directory_stops_too() -> None:
    """The name of a new segment that is not durable is as bad as bytes that are not."""
    files = FaultyFiles(fresh_disk())
    log = OpenLog(files)
    files.fail("sync_directory", errno.EIO)
    assert isinstance(log.send(plain(b"a")).error, OutcomeUnknown)
    with pytest.raises(PartitionStopped):
        log.queue(plain(b"b"))
