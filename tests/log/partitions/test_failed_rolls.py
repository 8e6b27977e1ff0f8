"""A roll that fails, and a partition whose topic is gone: nothing is left in the way of what comes next."""

import errno
from pathlib import Path

import pytest
from kit.faulty_files import FaultyFiles
from kit.partitions import DOOMSDAY_US, Bench, append_now, append_rows, read_all, roll
from kit.records import Row, build

from penstock.log.errors import AppendFailed, PartitionStopped
from penstock.log.partitions.outcome import deliver
from penstock.log.partitions.verify import verify
from penstock.log.settings import TopicSettings
from penstock.log.storage.files import RealFiles
from penstock.log.storage.segment import LOG_SUFFIX, file_name

SEGMENT_BYTES = 65_536
TOO_LARGE_FOR_THIS_SEGMENT = b"x" * (SEGMENT_BYTES - 200)


@pytest.mark.parametrize("by", ["age", "size"])
def test_records_behind_a_failed_roll_are_read_after_a_restart(tmp_path: Path, by: str) -> None:
    """The file of the new segment was there already, empty, at the offset that the old one goes on with."""
    files = FaultyFiles(RealFiles())
    bench = Bench(files, str(tmp_path / "p"), TopicSettings(segment_bytes=SEGMENT_BYTES))
    partition = bench.open()
    append_rows(partition, [[Row(b"a" * 200)], [Row(b"b")]])
    files.fail("sync_directory", errno.EMFILE)
    if by == "age":
        with pytest.raises(OSError, match="open files"):
            partition.roll(DOOMSDAY_US)
    else:
        refused = append_now(partition, build([Row(TOO_LARGE_FOR_THIS_SEGMENT)]))
        assert isinstance(refused.error, AppendFailed)
    append_rows(partition, [[Row(b"c")], [Row(b"d")]])
    deliver(partition.close())
    again = bench.open()
    assert again.recovered.damages == []
    assert [row.value for _, row in read_all(again)] == [b"a" * 200, b"b", b"c", b"d"]


def test_a_directory_that_cannot_be_flushed_stops_the_partition_by_age_too(tmp_path: Path) -> None:
    files = FaultyFiles(RealFiles())
    partition = Bench(files, str(tmp_path / "p")).open()
    append_rows(partition, [[Row(b"a")]])
    files.fail("sync_directory", errno.EIO)
    partition.roll(DOOMSDAY_US)
    with pytest.raises(PartitionStopped):
        partition.append(build([Row(b"b")]))


def test_nothing_is_trimmed_when_the_topic_is_gone(tmp_path: Path) -> None:
    """Its directory may belong to the next topic of the same name."""
    directory = tmp_path / "p"
    partition = Bench(RealFiles(), str(directory)).open()
    append_rows(partition, [[Row(b"a")]])
    roll(partition, Row(b"b"))
    deliver(partition.abandon("orders"))
    before = sorted(path.name for path in directory.iterdir())
    partition.trim(1)
    assert sorted(path.name for path in directory.iterdir()) == before


@pytest.mark.parametrize("before", ["active", "sealed"])
def test_an_empty_file_that_a_power_loss_brings_back_hides_nothing(
    tmp_path: Path, before: str
) -> None:
    """A failed roll removes its file; the removal need not be durable when later records are."""
    bench = Bench(RealFiles(), str(tmp_path / "p"))
    partition = bench.open()
    append_rows(partition, [[Row(b"a")], [Row(b"b")], [Row(b"c")]])
    if before == "sealed":
        roll(partition, Row(b"d"))
    expected = read_all(partition)
    deliver(partition.close())
    left = tmp_path / "p" / file_name(1, LOG_SUFFIX)
    left.touch()
    assert verify(bench.files, bench.directory).clean
    again = bench.open()
    assert again.recovered.damages == []
    assert read_all(again) == expected
    assert not left.exists()
    append_rows(again, [[Row(b"e")]])
    assert read_all(again)[-1] == (len(expected), Row(b"e"))


def test_an_empty_segment_behind_missing_records_stays_damage(tmp_path: Path) -> None:
    bench = Bench(RealFiles(), str(tmp_path / "p"))
    partition = bench.open()
    append_rows(partition, [[Row(b"a")], [Row(b"b")]])
    deliver(partition.close())
    (tmp_path / "p" / file_name(0, LOG_SUFFIX)).write_bytes(b"")
    (tmp_path / "p" / file_name(2, LOG_SUFFIX)).touch()
    assert not verify(bench.files, bench.directory).clean
    assert [(one.first_offset, one.next_offset) for one in bench.open().recovered.damages] == [
        (0, 2)
    ]
