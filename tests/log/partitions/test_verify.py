"""penstock log verify, without the command: every damaged place is found, nothing is changed."""

from collections.abc import Callable

import pytest
from kit.partitions import DOOMSDAY_US, Bench, append_now, append_rows, roll
from kit.records import Row, build, stored
from kit.simulated_disk import SimulatedDisk

from penstock.log.batch.format import Batch
from penstock.log.partitions.cleaner import compact, merge_small_batches
from penstock.log.partitions.verify import NoLogDirectory, Report, data_directory_of, verify
from penstock.log.settings import TopicSettings

ROOT = "/data"
PARTITION = f"{ROOT}/topics/orders/0"
FIRST = f"{PARTITION}/{0:020d}.log"
SECOND = f"{PARTITION}/{5:020d}.log"
BATCH = len(stored(build([Row(b"0" * 50, 1)])))


@pytest.fixture
def disk() -> SimulatedDisk:
    """Two sealed segments of five single-record batches and an active one of two, stopped cleanly."""
    made = SimulatedDisk(1)
    partition = Bench(made, PARTITION).open()
    for number in range(12):
        batch = build([Row(b"%d" % (number % 10) * 50, 1)]).from_producer(3, 0, number)
        if number in (5, 10):
            partition.roll(DOOMSDAY_US)
        append_now(partition, batch).result(0)
    partition.close()
    return made


def overwrite(disk: SimulatedDisk, path: str, position: int, content: bytes) -> None:
    file = disk.open(path, write=True)
    file.pwritev([content], position)
    file.close()


def cut(disk: SimulatedDisk, path: str, by: int) -> None:
    file = disk.open(path, write=True)
    file.truncate(file.size() - by)
    file.close()


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    paths = [f"{PARTITION}/{name}" for name in disk.list(PARTITION)]
    found = {}
    for path in paths:
        file = disk.open(path)
        found[path] = file.pread(file.size(), 0)
        file.close()
    return found


def places(report: Report) -> list[tuple[str, int, int, int]]:
    found = []
    for damage in report.damages:
        name = damage.path.removeprefix(f"{PARTITION}/").lstrip("0")
        found.append((name, damage.position, damage.first_offset, damage.next_offset))
    return found


@pytest.mark.parametrize("directory", [ROOT, PARTITION])
def test_a_sound_log_is_clean(disk: SimulatedDisk, directory: str) -> None:
    before = contents(disk)
    report = verify(disk, directory)
    assert (report.damages, report.torn) == ([], [])
    assert (report.partitions, report.segments, report.batches, report.records) == (1, 3, 12, 12)
    assert report.size_bytes == 12 * BATCH
    assert contents(disk) == before


def test_the_lock_of_a_partition_is_that_of_its_data_directory(disk: SimulatedDisk) -> None:
    assert data_directory_of(disk, PARTITION) == ROOT
    assert data_directory_of(disk, PARTITION + "/") == ROOT
    assert data_directory_of(disk, ROOT) == ROOT


@pytest.mark.parametrize("position", [0, 8, 30, BATCH - 1])
def test_damage_inside_is_found_where_it_is(disk: SimulatedDisk, position: int) -> None:
    overwrite(disk, FIRST, 2 * BATCH + position, b"\xee")
    before = contents(disk)
    report = verify(disk, ROOT)
    assert places(report) == [(".log", 2 * BATCH, 2, 3)]
    assert report.torn == []
    assert contents(disk) == before


def test_every_damaged_place_is_reported(disk: SimulatedDisk) -> None:
    overwrite(disk, FIRST, 30, b"\xee")
    overwrite(disk, FIRST, 3 * BATCH + 30, b"\xee")
    overwrite(disk, SECOND, 4 * BATCH + 30, b"\xee")
    assert places(verify(disk, ROOT)) == [
        (".log", 0, 0, 1),
        (".log", 3 * BATCH, 3, 4),
        ("5.log", 4 * BATCH, 9, 10),
    ]


def test_a_cut_sealed_segment_is_damage(disk: SimulatedDisk) -> None:
    cut(disk, FIRST, BATCH)
    found = places(verify(disk, ROOT))
    assert (".log", 4 * BATCH, 4, 5) in found
    assert any(name == ".index" for name, *_ in found)


def test_a_missing_segment_is_damage(disk: SimulatedDisk) -> None:
    disk.remove(SECOND)
    found = places(verify(disk, ROOT))
    assert (".log", 5 * BATCH, 5, 10) in found
    assert ("5.index", 0, -1, -1) in found


def test_a_missing_beginning_is_damage(disk: SimulatedDisk) -> None:
    for suffix in ("log", "index"):
        disk.remove(f"{PARTITION}/{0:020d}.{suffix}")
    assert places(verify(disk, ROOT)) == [(".log", 0, 0, 5)]


def test_a_missing_end_is_damage_when_it_was_durable(disk: SimulatedDisk) -> None:
    cut(disk, f"{PARTITION}/{10:020d}.log", BATCH)
    assert places(verify(disk, ROOT)) == [("10.log", BATCH, 11, 12)]


def torn_disk(change: Callable[[SimulatedDisk, str], None]) -> SimulatedDisk:
    """A log that a crash left: no checkpoint, and the last batch was never proven durable."""
    disk = SimulatedDisk(1)
    partition = Bench(disk, PARTITION).open()
    append_rows(partition, [[Row(b"one")], [Row(b"two")]])
    change(disk, FIRST)
    return disk


@pytest.mark.parametrize(
    "change",
    [
        lambda disk, path: cut(disk, path, 8),
        lambda disk, path: overwrite(disk, path, disk.size(path) - 1, b"\xee"),
        lambda disk, path: overwrite(disk, path, disk.size(path), b"rubbish"),
        lambda disk, path: overwrite(disk, path, disk.size(path), bytes(4096)),
    ],
    ids=["cut", "torn", "rubbish", "zeros"],
)
def test_a_torn_tail_is_no_damage(change: Callable[[SimulatedDisk, str], None]) -> None:
    disk = torn_disk(change)
    report = verify(disk, ROOT)
    assert report.damages == []
    assert [torn.end_position for torn in report.torn] == [disk.size(FIRST)]
    torn_bytes = sum(torn.end_position - torn.position for torn in report.torn)
    partition = Bench(disk, PARTITION).open()
    assert partition.counters.cut_bytes == torn_bytes, "the next start cuts just that"
    assert verify(disk, ROOT).torn == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (f"{0:020d}.index", "checksum"),
        (f"{5:020d}.producers", "checksum"),
        ("checkpoint", "checksum"),
    ],
)
def test_damaged_small_files_are_found(disk: SimulatedDisk, name: str, reason: str) -> None:
    overwrite(disk, f"{PARTITION}/{name}", 9, b"\xee")
    (damage,) = verify(disk, ROOT).damages
    assert damage.path == f"{PARTITION}/{name}"
    assert reason in damage.reason


def test_an_index_of_another_segment_is_found(disk: SimulatedDisk) -> None:
    other = contents(disk)[f"{PARTITION}/{5:020d}.index"]
    overwrite(disk, f"{PARTITION}/{0:020d}.index", 0, other)
    (damage,) = verify(disk, ROOT).damages
    assert damage.reason == "does not fit its segment"


def test_columns_that_lie_are_found() -> None:
    disk = SimulatedDisk(1)
    partition = Bench(disk, PARTITION).open()
    good = build([Row(b"aa"), Row(b"bb"), Row(b"cc")])
    body = good.body[:4] + b"\xff\xff\xff\x7f" + good.body[8:]
    append_rows(partition, [[Row(b"one")]])
    salt = partition.salt.value
    overwrite(disk, FIRST, disk.size(FIRST), stored(Batch(body, 3, 0, 0, 0), 1, 1, salt))
    overwrite(disk, FIRST, disk.size(FIRST), stored(build([Row(b"last")]), 4, 4, salt))
    (damage,) = verify(disk, ROOT).damages
    assert (damage.first_offset, damage.next_offset) == (1, 4)
    assert "does not rise" in damage.reason


def test_a_merged_and_a_compacted_log_are_clean() -> None:
    disk = SimulatedDisk(1)
    work = Bench(disk, PARTITION, TopicSettings(cleanup="compact", tombstone_ms=0))
    partition = work.open()
    for number in range(40):
        key = b"%d" % (number % 7)
        if number % 10 == 0:
            roll(partition, Row(b"v" * number, number, key))
        else:
            append_rows(partition, [[Row(b"v" * number, number, key)]])
    compact(partition, 1 << 60)
    merge_small_batches(partition)
    partition.trim(12)
    assert verify(disk, ROOT).damages == []


def test_a_partition_without_records_is_clean() -> None:
    disk = SimulatedDisk(1)
    disk.make_directory(PARTITION)
    report = verify(disk, ROOT)
    assert (report.partitions, report.segments, report.damages) == (1, 0, [])


@pytest.mark.parametrize("directory", ["/missing", "/empty", "/file"])
def test_another_directory_is_refused(disk: SimulatedDisk, directory: str) -> None:
    disk.make_directory("/empty")
    disk.open("/file", create=True).close()
    with pytest.raises(NoLogDirectory, match="is no data directory"):
        verify(disk, directory)
