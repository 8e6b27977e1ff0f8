"""A staged file becomes a segment: what readers, appends, cleaning and the next start see of it."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.faulty_files import CallKind, FaultyFiles
from kit.partitions import Bench, append_now, append_rows, read_all, roll
from kit.records import Row, build
from kit.simulated_disk import SimulatedDisk
from msgspec import structs

from penstock.log.batch.format import Batch
from penstock.log.errors import AppendFailed, LogError, PartitionStopped, StorageFull, UnknownTopic
from penstock.log.partitions import cleaner
from penstock.log.partitions.adopting import StagedFile
from penstock.log.partitions.outcome import Outcome, deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.producers import TRANSACTION_BIT
from penstock.log.partitions.verify import verify
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles
from penstock.log.storage.reader import offset_at_time
from penstock.log.storage.segment import write_all

DIRECTORY = "/data/topics/t/0"
STAGED = "/data/transactions/1/1-0.stage"
PRODUCER = TRANSACTION_BIT | 1
SETTINGS = TopicSettings(segment_bytes=1000, retention_ms=0, tombstone_ms=0)


@pytest.fixture
def disk() -> FaultyFiles:
    files = FaultyFiles(SimulatedDisk(1))
    files.make_directory("/data/transactions/1")
    return files


@pytest.fixture
def bench(disk: FaultyFiles) -> Bench:
    return Bench(disk, DIRECTORY, SETTINGS, cache_bytes=1 << 20)


def rows(*values: bytes, time_us: int = 5, key: bytes | None = None) -> list[Row]:
    return [Row(value, time_us, key) for value in values]


def staged(
    disk: FaultyFiles, *some: list[Row], garbage: bytes = b"", sequence: int = 0
) -> StagedFile:
    """Writes a file as it is staged."""
    batches: list[Batch] = [build(few) for few in some]
    heads = [batch.stamp(number << 24, 0) for number, batch in enumerate(batches)]
    file = disk.open(STAGED, create=True)
    content = b"".join(head + batch.body for head, batch in zip(heads, batches, strict=True))
    write_all(file, content + garbage, 0)
    file.sync()
    file.close()
    disk.sync_directory("/data/transactions/1")
    return StagedFile(STAGED, heads, PRODUCER, sequence)


def adopt(partition: Partition, file: StagedFile) -> bool:
    outcome = Outcome()
    try:
        return partition.adopt(file, outcome)
    finally:
        deliver(outcome)


def values(partition: Partition) -> list[bytes]:
    found = read_all(partition)
    assert [offset for offset, _ in found] == list(
        range(partition.start_offset, partition.visible_offset)
    )
    return [row.value for _, row in found]


@pytest.mark.parametrize("before", [0, 1, 12])
@pytest.mark.parametrize("durability", ["ack", "interval", "none"])
def test_it_stands_between_what_was_there_and_what_comes(
    bench: Bench, disk: FaultyFiles, before: int, durability: str
) -> None:
    bench.settings = structs.replace(SETTINGS, durability=durability)
    partition = bench.open()
    expected = [b"before %d" % number for number in range(before)]
    append_rows(partition, [rows(value) for value in expected])
    assert adopt(partition, staged(disk, rows(b"one", b"two"), rows(b"three")))
    assert not disk.exists(STAGED), "moved, not copied"
    assert partition.flushed_offset == partition.next_offset == before + 3
    assert partition.last_sequence(PRODUCER) == 1
    append_rows(partition, [rows(b"behind")])
    expected += [b"one", b"two", b"three", b"behind"]
    assert values(partition) == expected
    assert partition.counters.appended_records == len(expected)
    assert partition.counters.appended_bytes == partition.size_bytes()
    deliver(partition.finish_rolls())
    for _ in range(2):
        again = bench.open()
        assert values(again) == expected
        assert again.last_sequence(PRODUCER) == 1
    report = verify(disk, DIRECTORY)
    assert report.clean and not report.torn and report.records == len(expected)


def test_appends_go_on_behind_it_in_the_same_file(bench: Bench, disk: FaultyFiles) -> None:
    partition = bench.open()
    assert adopt(partition, staged(disk, rows(b"one")))
    append_rows(partition, [rows(b"two")])
    assert [name for name in disk.list(DIRECTORY) if name.endswith(".log")] == [f"{0:020}.log"]
    append_rows(partition, [rows(b"x" * 900)])
    assert len(partition.segments) == 2
    assert values(bench.open()) == [b"one", b"two", b"x" * 900]


def test_an_empty_active_segment_makes_room(bench: Bench, disk: FaultyFiles) -> None:
    partition = bench.open()
    append_rows(partition, [rows(b"old")])
    cleaner.purge(partition)
    assert partition.segments[-1].base_offset == partition.next_offset == 1
    assert adopt(partition, staged(disk, rows(b"one", b"two")))
    append_rows(partition, [rows(b"three")])
    assert values(partition) == [b"one", b"two", b"three"]
    assert values(bench.open()) == [b"one", b"two", b"three"]


def test_bytes_behind_the_last_batch_are_cut(bench: Bench, disk: FaultyFiles) -> None:
    partition = bench.open()
    file = staged(disk, rows(b"one"), garbage=b"of a write that failed ")
    assert adopt(partition, file)
    append_rows(partition, [rows(b"two")])
    assert values(partition) == values(bench.open()) == [b"one", b"two"]
    assert verify(disk, DIRECTORY).clean


def test_a_reader_at_the_end_goes_on_through_it(bench: Bench, disk: FaultyFiles) -> None:
    """What is cached before it and behind it leaves no gap."""
    partition = bench.open()
    append_rows(partition, [rows(b"before")])
    assert adopt(partition, staged(disk, rows(b"one"), rows(b"two")))
    append_rows(partition, [rows(b"behind")])
    for offset in range(4):
        assert values(partition)[offset:] == [b"before", b"one", b"two", b"behind"][offset:]
    woken: list[int] = []
    partition.watch(4, lambda: woken.append(1))
    assert adopt(partition, staged(disk, rows(b"three"), sequence=2))
    assert woken == [1]


def test_what_a_transaction_holds_back_is_not_seen(bench: Bench, disk: FaultyFiles) -> None:
    partition = bench.open()
    append_rows(partition, [rows(b"before")])
    partition.hold(1)
    assert adopt(partition, staged(disk, rows(b"one")))
    append_rows(partition, [rows(b"behind")])
    assert values(partition) == [b"before"]
    deliver(partition.release(1))
    assert values(partition) == [b"before", b"one", b"behind"]


def test_appends_of_others_are_completed_before_it(bench: Bench, disk: FaultyFiles) -> None:
    """What was written and not flushed lies before it: it becomes durable with it, or before."""
    bench.settings = structs.replace(SETTINGS, durability="none")
    partition = bench.open()
    append_now(partition, build(rows(b"not flushed")))
    assert partition.flushed_offset == 0
    queued = partition.append(build(rows(b"queued")))
    assert adopt(partition, staged(disk, rows(b"one")))
    deliver(partition.write_pending())
    assert queued.result(0) == 2
    assert values(partition) == [b"not flushed", b"one", b"queued"]


# --- cleaning ------------------------------------------------------------------------------------


def test_merging_compaction_and_retention(bench: Bench, disk: FaultyFiles) -> None:
    bench.settings = structs.replace(SETTINGS, cleanup="compact")
    partition = bench.open()
    append_rows(partition, [rows(b"old", key=b"k")])
    assert adopt(partition, staged(disk, rows(b"new", key=b"k"), rows(b"other", key=b"o")))
    roll(partition, Row(b"last", 9, b"l"))
    deliver(partition.finish_rolls())
    cleaner.compact(partition, 10)
    # The last record of a segment stays, and these two fit one.
    assert [row.value for _, row in read_all(partition)] == [b"new", b"other", b"last"]
    assert [row.value for _, row in read_all(bench.open())] == [b"new", b"other", b"last"]


def test_retention_by_size_and_age(bench: Bench, disk: FaultyFiles) -> None:
    partition = bench.open()
    append_rows(partition, [rows(b"old", time_us=1)])
    assert adopt(partition, staged(disk, rows(b"one", time_us=50), rows(b"two", time_us=40)))
    append_rows(partition, [rows(b"behind", time_us=60)])
    assert offset_at_time(partition, 30) == 1
    assert offset_at_time(partition, 45) == 1
    assert offset_at_time(partition, 51) == 3
    partition.settings = structs.replace(SETTINGS, retention_bytes=350)
    deliver(partition.finish_rolls())
    cleaner.apply_retention(partition, 100)
    assert values(partition) == [b"one", b"two", b"behind"]
    partition.settings = structs.replace(SETTINGS, retention_ms=1)
    cleaner.apply_retention(partition, 100_000)
    assert values(partition) == []
    assert values(bench.open()) == []


# --- what cannot be adopted ------------------------------------------------------------------------


def missing(disk: FaultyFiles, file: StagedFile) -> None:
    disk.remove(STAGED)


def cut(disk: FaultyFiles, file: StagedFile) -> None:
    opened = disk.open(STAGED, write=True)
    opened.truncate(file.size - 8)
    opened.close()


def on_another_disk(disk: FaultyFiles, file: StagedFile) -> None:
    disk.fail("rename", errno.EXDEV, suffix=STAGED)


@pytest.mark.parametrize("harm", [missing, cut, on_another_disk])
def test_what_is_not_whole_or_elsewhere_is_left_alone(
    bench: Bench, disk: FaultyFiles, harm: Callable[[FaultyFiles, StagedFile], None]
) -> None:
    partition = bench.open()
    append_rows(partition, [rows(b"before")])
    file = staged(disk, rows(b"one"), rows(b"two"))
    harm(disk, file)
    assert not adopt(partition, file)
    append_rows(partition, [rows(b"behind")])
    assert values(partition) == values(bench.open()) == [b"before", b"behind"]


def test_a_repeat_is_not_stored_twice(bench: Bench, disk: FaultyFiles) -> None:
    partition = bench.open()
    assert adopt(partition, staged(disk, rows(b"one"), rows(b"two")))
    assert not adopt(partition, staged(disk, rows(b"one"), rows(b"two")))
    with pytest.raises(LogError):
        adopt(partition, staged(disk, rows(b"four"), sequence=3))
    assert values(partition) == [b"one", b"two"]


def test_a_deleted_topic_takes_none(bench: Bench, disk: FaultyFiles) -> None:
    partition = bench.open()
    deliver(partition.abandon("t"))
    with pytest.raises(UnknownTopic):
        adopt(partition, staged(disk, rows(b"one")))
    assert disk.exists(STAGED)


# --- a disk that fails -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "suffix"),
    [
        ("open", STAGED),
        ("write", STAGED),
        ("truncate", STAGED),
        ("sync", STAGED),
        ("rename", STAGED),
        ("make_directory", DIRECTORY),
        ("create", "/salt.tmp"),
    ],
)
@pytest.mark.parametrize(
    ("error", "kind"), [(errno.ENOSPC, StorageFull), (errno.EIO, AppendFailed)]
)
def test_an_error_before_the_new_name_changes_nothing(
    bench: Bench,
    disk: FaultyFiles,
    call: CallKind,
    suffix: str,
    error: int,
    kind: type[LogError],
) -> None:
    """It can be tried again, also after others have appended."""
    partition = bench.open()
    file = staged(disk, rows(b"one"), rows(b"two"), garbage=b"more")
    disk.fail(call, error, suffix=suffix)
    with pytest.raises(kind):
        adopt(partition, file)
    assert partition.next_offset == 0 and partition.stopped is None
    append_rows(partition, [rows(b"meanwhile")])
    assert adopt(partition, file)
    assert values(partition) == [b"meanwhile", b"one", b"two"]
    inner = disk.inner
    assert isinstance(inner, SimulatedDisk)
    for mode in ("drop", "keep"):
        after = FaultyFiles(inner.crash_after(len(inner.operations), mode, 3))
        again = Bench(after, DIRECTORY, SETTINGS).open()
        assert values(again) == [b"meanwhile", b"one", b"two"]


@pytest.mark.parametrize("directory", [DIRECTORY, "/data/transactions/1"])
def test_a_name_that_is_not_durable_stops_the_partition(
    bench: Bench, disk: FaultyFiles, directory: str
) -> None:
    partition = bench.open()
    append_rows(partition, [rows(b"before")])
    file = staged(disk, rows(b"one"))
    disk.fail("sync_directory", errno.EIO, suffix=directory)
    with pytest.raises(PartitionStopped):
        adopt(partition, file)
    with pytest.raises(PartitionStopped):
        partition.append(build(rows(b"refused")))
    assert values(partition) == [b"before"]
    # The page cache has it: the next start finds all of it.
    assert values(bench.open()) == [b"before", b"one"]


def test_a_flush_before_it_that_fails_stops_the_partition(bench: Bench, disk: FaultyFiles) -> None:
    bench.settings = structs.replace(SETTINGS, durability="none")
    partition = bench.open()
    append_rows(partition, [rows(b"not flushed")])
    file = staged(disk, rows(b"one"))
    disk.fail("sync", errno.EIO, suffix=".log")
    with pytest.raises(PartitionStopped):
        adopt(partition, file)
    assert disk.exists(STAGED)


def test_a_staged_file_of_the_real_disk_keeps_its_inode(tmp_path: Path) -> None:
    """Every byte is written once."""
    bench = Bench(RealFiles(), str(tmp_path / "t" / "0"), SETTINGS)
    partition = bench.open()
    batch = build(rows(b"one"))
    head = batch.stamp(0, 0)
    path = tmp_path / "1-0.stage"
    path.write_bytes(head + batch.body)
    inode = path.stat().st_ino
    assert adopt(partition, StagedFile(str(path), [head], PRODUCER, 0))
    assert Path(partition.segments[0].path).stat().st_ino == inode
    assert values(partition) == [b"one"]
