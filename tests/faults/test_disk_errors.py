"""A disk that is full, fails or writes short: what producers hear, and what is there afterwards.

A failed write fails the append and nothing else. A failed flush is final, because the kernel may have
thrown the pages away: the partition stops until a restart finds out what is really there.
"""

import errno
import threading
from contextlib import suppress

import pytest
from faults.log_kit import OpenLog, fresh_disk, from_producer, log_paths, numbered, plain
from kit.faulty_files import CallKind, FaultyFiles
from kit.limits import HANG_S
from kit.records import Row, build
from kit.simulated_disk import SimulatedDisk
from kit.torn_content import PURE_MODES

from penstock.log.errors import (
    AppendFailed,
    LogClosed,
    OutcomeUnknown,
    PartitionStopped,
    StorageFull,
)
from penstock.log.partitions import cleaner
from penstock.log.settings import TopicSettings

pytestmark = pytest.mark.usefixtures("writes")

ERRORS = pytest.mark.parametrize(
    ("error", "kind"),
    [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, AppendFailed)],
    ids=["ENOSPC", "EDQUOT", "EIO"],
)
BIG_SEGMENTS = TopicSettings(retention_ms=0)


def faulty_log(
    settings: TopicSettings = BIG_SEGMENTS,
) -> tuple[OpenLog, FaultyFiles, SimulatedDisk]:
    disk = fresh_disk()
    files = FaultyFiles(disk)
    return OpenLog(files, settings, cache_bytes=0), files, disk


def all_futures(disk: SimulatedDisk) -> list[SimulatedDisk]:
    """The disks that a restart may find: after a kill, and after a power loss in each mode."""
    count = len(disk.operations)
    after_kill = SimulatedDisk(0, disk.contents())
    return [after_kill, *(disk.crash_after(count, mode, 1) for mode in PURE_MODES)]


@ERRORS
@pytest.mark.parametrize("written", [None, 0, 10, 200, 380])
def test_a_failed_write(error: int, kind: type[AppendFailed], written: int | None) -> None:
    """Three batches in one write: all fail, nothing of them is ever shown, and all can come again."""
    log, files, disk = faulty_log()
    log.store(b"before")
    if written is None:
        files.fail("write", error, times=None)
    else:
        files.write_short(written, error, times=None)
    source = numbered()
    batches = [from_producer([Row(next(source))], 5, 0, sequence) for sequence in range(3)]
    tokens = [log.queue(batch) for batch in batches]
    log.run()
    for token in tokens:
        assert type(token.error) is kind
        assert "/log" in str(token.error)
    assert log.values() == [b"before"]
    for found in all_futures(disk):
        assert OpenLog(found, BIG_SEGMENTS).values() == [b"before"]
    with pytest.raises(kind):
        log.send(plain(b"still failing")).result()

    files.clear()
    assert [log.send(batch).result() for batch in batches] == [1, 2, 3]
    assert all(log.send(batch).repeated for batch in batches)
    log.store(b"after")
    for found in all_futures(disk):
        assert len(OpenLog(found, BIG_SEGMENTS).values()) == 5


def test_a_short_write_alone_is_no_error() -> None:
    log, files, disk = faulty_log()
    files.write_short(100, 0, times=0)
    source = numbered()
    values = [next(source), next(source)]
    log.store(*values)
    assert log.values() == values
    log.die()
    assert OpenLog(disk).values() == values


def test_a_repeat_is_no_better_than_its_first_copy() -> None:
    """Both wait for the same write: when it fails, neither may be acknowledged."""
    log, files, _ = faulty_log()
    files.fail("write", errno.ENOSPC)
    batch = from_producer([Row(b"once")], 5, 0, 0)
    tokens = [log.queue(batch), log.queue(batch)]
    log.run()
    assert [type(token.error) for token in tokens] == [StorageFull, StorageFull]
    tokens = [log.queue(batch), log.queue(batch)]
    log.run()
    assert [(t.result(), t.repeated) for t in tokens] == [(0, False), (0, True)]
    assert log.values() == [b"once"]


def test_the_cut_after_a_failed_write_is_durable() -> None:
    """Else a power loss could bring whole batches back that were told to have failed."""
    log, files, disk = faulty_log()
    source = numbered()
    files.write_short(400, errno.ENOSPC)
    for _ in range(4):
        log.queue(plain(next(source)))
    log.run()
    for seed in range(20):
        for mode in PURE_MODES:
            found = disk.crash_after(len(disk.operations), mode, seed)
            assert OpenLog(found, BIG_SEGMENTS).values() == []


@pytest.mark.parametrize("kind", ["create", "sync_directory", "make_directory"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_without_descriptors_a_first_append_is_refused_and_the_next_one_stored(
    kind: CallKind, number: int
) -> None:
    """Nothing was written by then: no outcome is unknown."""
    log, files, _ = faulty_log()
    files.fail(kind, number)
    refused = log.send(plain(b"refused"))
    assert type(refused.error) is AppendFailed
    assert log.store(b"stored") == 0
    assert log.values() == [b"stored"]


def test_a_failed_write_that_cannot_be_taken_back(writes: str) -> None:
    """Nobody knows what is on the disk then: no promise, and no appends behind it."""
    log, files, disk = faulty_log()
    log.store(b"before")
    # All of the first batch and some of the second; or some of the first, when each is written alone.
    files.write_short(200 if writes == "queued" else 100, errno.EIO)
    files.fail("truncate", errno.EIO)
    source = numbered()
    values = [next(source), next(source)]
    tokens = [log.queue(plain(value)) for value in values]
    log.run()
    assert [type(token.error) for token in tokens] == [OutcomeUnknown, OutcomeUnknown]
    with pytest.raises(PartitionStopped):
        log.queue(plain(b"refused"))
    assert log.values() == [b"before"]
    for found in all_futures(disk):
        assert OpenLog(found, BIG_SEGMENTS).values() in ([b"before"], [b"before", values[0]])


@ERRORS
@pytest.mark.parametrize("kind_of_call", ["create", "write", "rename"])
@pytest.mark.parametrize("suffix", [".log", ".producers.tmp", ".index.tmp"])
def test_a_full_disk_while_rolling(
    error: int, kind: type[AppendFailed], kind_of_call: CallKind, suffix: str
) -> None:
    """Sealing needs a few bytes. Without them the log goes on, and seals when there is space."""
    settings = TopicSettings(segment_bytes=1000, retention_ms=0)
    log, files, disk = faulty_log(settings)
    source = numbered()
    stored: list[bytes] = []
    for number in range(20):
        if number == 3:
            files.fail(kind_of_call, error, times=None, suffix=suffix)
        if number == 12:
            files.clear()
        value = next(source)
        token = log.send(from_producer([Row(value)], 5, 0, len(stored)))
        if token.error is None:
            stored.append(value)
        else:
            assert 3 <= number < 12 and type(token.error) is kind
    assert log.partition.stopped is None
    assert log.values() == stored
    assert all(segment.sealed for segment in log.partition.segments[:-1])
    for found in all_futures(disk):
        again = OpenLog(found, settings)
        assert again.values() == stored
        last = from_producer([Row(stored[-1])], 5, 0, len(stored) - 1)
        assert again.send(last).repeated


def test_a_full_disk_at_start_and_at_stop() -> None:
    """Recovery and close need no space: records are served, and sealing comes later."""
    settings = TopicSettings(segment_bytes=1000, retention_ms=0)
    log, _, disk = faulty_log(settings)
    source = numbered()
    values = [next(source) for _ in range(12)]
    for value in values:
        log.store(value)
    log.die()
    for path in log_paths(disk, ".index"):
        disk.remove(path)
    files = FaultyFiles(disk)
    files.fail("write", errno.ENOSPC, times=None, suffix=".tmp")
    files.fail("create", errno.ENOSPC, times=None, suffix=".tmp")
    log = OpenLog(files, settings)
    assert log.values() == values
    log.close()
    log = OpenLog(disk, settings)
    assert log.values() == values
    assert all(segment.sealed for segment in log.partition.segments[:-1])


def test_trim_between_roll_and_seal_keeps_the_producers() -> None:
    """The segment goes before it was sealed; that its batches were stored is not forgotten."""
    settings = TopicSettings(segment_bytes=1000, retention_ms=0)
    log, files, disk = faulty_log(settings)
    files.fail("create", errno.ENOSPC, times=None, suffix=".index.tmp")
    batch = from_producer([Row(b"once")], 5, 0, 0)
    log.send(batch)
    source = numbered()
    for _ in range(8):
        log.store(next(source))
    assert log.partition.has_rolls
    log.partition.trim(8)
    for found in all_futures(disk):
        again = OpenLog(found, settings)
        assert again.partition.start_offset == 8
        assert again.send(batch).repeated


def test_a_full_disk_while_cleaning() -> None:
    settings = TopicSettings(segment_bytes=1000, retention_ms=0)
    log, files, disk = faulty_log(settings)
    source = numbered()
    values = [next(source) for _ in range(12)]
    for value in values:
        log.store(value)
    files.fail("write", errno.ENOSPC, times=None)
    with pytest.raises(OSError, match="No space"):
        cleaner.merge_small_batches(log.partition)
    assert log_paths(disk, ".tmp") == [], "what was written so far is given back"
    assert log.values() == values
    files.clear()
    assert cleaner.merge_small_batches(log.partition).segments > 0
    assert log.values() == values


@pytest.mark.parametrize("kind_of_call", ["remove", "rename", "sync_directory"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_a_replacement_that_cannot_be_put_in_place(kind_of_call: CallKind, nth: int) -> None:
    """It waits for the restart; until then no other may take its place and be overwritten by it."""
    settings = TopicSettings(segment_bytes=1000, cleanup="compact", retention_ms=0, tombstone_ms=0)
    log, files, disk = faulty_log(settings)
    source = numbered()
    newest: dict[bytes, bytes] = {}
    for number in range(40):
        key = b"key %d" % (number % 7)
        newest[key] = next(source)
        log.send(build([Row(newest[key], key=key)])).result()
        if number == 20:
            files.fail(kind_of_call, errno.EIO, nth=nth)
        if number in (20, 30, 38):
            with suppress(OSError):
                cleaner.compact(log.partition, 1)
    log.die()
    for found in all_futures(disk):
        again = OpenLog(found, settings)
        assert again.partition.recovered.damages == []
        rows = again.records().values()
        assert {row.key: row.value for row in rows} == newest


def test_an_append_that_comes_while_the_log_closes_is_answered() -> None:
    log, files, _ = faulty_log(TopicSettings(durability="none", retention_ms=0))
    log.store(b"written, not flushed")
    with files.pause("sync") as paused:
        closing = threading.Thread(target=log.close)
        closing.start()
        paused.wait_until_reached()
        token = log.queue(plain(b"late"))
    closing.join(HANG_S)
    assert isinstance(token.error, LogClosed) and token.done


def test_given_up_before_it_was_flushed_and_then_lost() -> None:
    """Without flushes a trim may outlive the records: the log goes on behind it, not before it."""
    settings = TopicSettings(segment_bytes=1000, durability="none", retention_ms=0)
    log, _, disk = faulty_log(settings)
    source = numbered()
    for number in range(4):
        log.send(from_producer([Row(next(source))], 5, 0, number))
    log.partition.flush()
    log.store(b"lost")
    log.partition.trim(5)
    found = disk.crash("drop")
    for _ in range(2):
        log = OpenLog(found, settings, cache_bytes=0)
        assert (log.partition.start_offset, log.partition.next_offset) == (5, 5)
        assert log.partition.recovered.damages == []
        assert log.send(from_producer([Row(b"again")], 5, 0, 3)).repeated
        log.die()
    log = OpenLog(found, settings, cache_bytes=0)
    assert log.store(b"new") == 5
    assert log.values() == [b"new"]


def test_verdicts_that_rest_on_a_failed_write_are_withdrawn() -> None:
    """Epoch 1 fences epoch 0 only when it is stored; a number is behind only when others are."""
    log, files, _ = faulty_log()
    files.fail("write", errno.ENOSPC)
    numbers = [(5, 1, 0), (5, 0, 0), (6, 0, 4), (6, 0, 2)]
    tokens = [log.queue(from_producer([Row(b"x")], *number)) for number in numbers]
    log.run()
    assert [type(token.error) for token in tokens] == [StorageFull] * 4
    assert log.partition.counters.failed_appends == 4
    assert log.send(from_producer([Row(b"old")], 5, 0, 0)).result() == 0
