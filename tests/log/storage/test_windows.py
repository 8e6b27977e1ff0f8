"""What was read from the disk serves the next reads of who goes on, and nobody who must not see it."""

from collections.abc import Sequence

import pytest
from kit.partitions import Bench, append_rows, roll
from kit.records import Row
from kit.simulated_disk import SimulatedDisk, SimulatedFile

from penstock.log.errors import OffsetOutOfRange
from penstock.log.partitions.cleaner import merge_small_batches
from penstock.log.partitions.partition import Partition
from penstock.log.storage.cache import BatchCache, RecentBatches, Window
from penstock.log.storage.reader import in_memory, read

RECORDS = 200


class Watched(SimulatedDisk):
    """Counts reads of segment files."""

    def __init__(self) -> None:
        super().__init__(1)
        self.reads = 0

    def open(self, path: str, *, create: bool = False, write: bool = False) -> SimulatedFile:
        file = super().open(path, create=create, write=write)
        if path.endswith(".log"):
            pread = file.pread

            def counted(size: int, position: int) -> bytes:
                self.reads += 1
                return pread(size, position)

            file.pread = counted  # type: ignore[method-assign]  # this one file is watched
        return file


def rows(numbers: Sequence[int]) -> list[Row]:
    return [Row(b"%04d" % number, number) for number in numbers]


def filled(disk: SimulatedDisk, in_batch: int = 10, **settings: object) -> Partition:
    """Without a cache of recent batches."""
    work = Bench(disk, "/data/0")
    work.settings = work.settings.changed(settings)
    partition = work.open()
    append_rows(partition, [rows(range(at, at + in_batch)) for at in range(0, RECORDS, in_batch)])
    return partition


def values(partition: Partition, offset: int, count: int) -> list[bytes]:
    """As a FETCH does it: so many records, however many a read gives."""
    found: list[bytes] = []
    while len(found) < count:
        result = read(partition, offset, 1 << 18, memory_only=in_memory(partition, offset))
        for view in result.views:
            found += view.values()
        assert result.next_offset > offset or not in_memory(partition, offset)
        offset = result.next_offset
        if offset >= partition.visible_offset:
            break
    return found[:count]


def expected(offset: int, count: int) -> list[bytes]:
    return [row.value for row in rows(range(offset, min(offset + count, RECORDS)))]


@pytest.mark.parametrize("in_batch", [1, 10, 200])
@pytest.mark.parametrize("step", [1, 7, 10, 50])
def test_who_goes_on_reads_the_disk_seldom(in_batch: int, step: int) -> None:
    disk = Watched()
    partition = filled(disk, in_batch)
    disk.reads = 0
    for offset in range(0, RECORDS, step):
        assert values(partition, offset, step)[: RECORDS - offset] == expected(offset, step)
    assert disk.reads == 1


def test_a_single_read_keeps_what_it_took_alone() -> None:
    partition = filled(SimulatedDisk(1))
    read(partition, 50, 1)
    assert in_memory(partition, 50) and in_memory(partition, 59)
    assert not in_memory(partition, 49) and not in_memory(partition, 60)
    # Who goes on there gets the rest of the chunk.
    read(partition, 60, 1)
    assert in_memory(partition, 60) and in_memory(partition, RECORDS - 1)
    assert not in_memory(partition, 50)


def test_memory_alone_gives_what_it_has_and_where_to_go_on() -> None:
    partition = filled(SimulatedDisk(1))
    assert read(partition, 50, 1, memory_only=True).next_offset == 50
    read(partition, 50, 1)
    found = read(partition, 55, 1 << 20, memory_only=True)
    assert [value for view in found.views for value in view.values()] == expected(55, 5)
    assert (found.next_offset, found.end_offset) == (60, RECORDS)


def test_a_byte_limit_holds_within_a_window() -> None:
    partition = filled(SimulatedDisk(1))
    read(partition, 0, 1 << 20)
    found = read(partition, 5, 24, memory_only=True)
    assert [value for view in found.views for value in view.values()] == expected(5, 6)
    assert found.next_offset == 11


def test_segments_that_were_rewritten_are_read_anew() -> None:
    partition = filled(SimulatedDisk(1), in_batch=1)
    roll(partition, Row(b"active"))
    read(partition, 0, 100)
    assert in_memory(partition, 0)
    merge_small_batches(partition)
    assert not in_memory(partition, 0)
    assert values(partition, 0, RECORDS) == expected(0, RECORDS)


def test_what_was_trimmed_is_gone() -> None:
    partition = filled(SimulatedDisk(1))
    roll(partition, Row(b"active"))
    read(partition, 0, 500)
    partition.trim(100)
    with pytest.raises(OffsetOutOfRange):
        read(partition, 99, 1, memory_only=True)
    assert values(partition, 100, 5) == expected(100, 5)
    partition.trim(RECORDS)
    assert not in_memory(partition, 100)


def test_a_window_may_lie_in_two_chunks() -> None:
    """A batch that the end of a chunk cuts off is read again with what follows it."""
    disk = Watched()
    work = Bench(disk, "/data/0")
    partition = work.open()
    size = 100_000
    append_rows(partition, [[Row(bytes([number]) * size)] for number in range(9)])
    disk.reads = 0
    found = [values(partition, number, 1)[0][0] for number in range(9)]
    assert found == list(range(9))
    assert disk.reads < 6


def test_a_window_that_would_be_large_is_not_kept() -> None:
    partition = Bench(SimulatedDisk(1), "/data/0").open()
    append_rows(partition, [[Row(bytes(3 << 20))]])
    read(partition, 0, 1)
    assert not in_memory(partition, 0)


def test_compressed_batches_count_with_what_they_unpack_to() -> None:
    partition = filled(SimulatedDisk(1), in_batch=200, compression="zstd")
    read(partition, 0, 1)
    assert in_memory(partition, 0)
    large = Bench(SimulatedDisk(1), "/data/0")
    large.settings = large.settings.changed({"compression": "zstd"})
    other = large.open()
    append_rows(other, [[Row(bytes(3 << 20))]])
    read(other, 0, 1)
    assert not in_memory(other, 0)


# --- the cache of windows --------------------------------------------------------------------------


def window(partition: Partition) -> Window:
    found = partition.tail.window
    assert found is not None
    return found


def test_the_number_of_windows_is_bounded() -> None:
    partition = filled(SimulatedDisk(1))
    read(partition, 0, 1)
    kept = window(partition)
    cache = BatchCache(0, max_windows=2)
    tails = [RecentBatches() for _ in range(3)]
    for tail in (*tails[:2], tails[0], tails[2]):
        cache.keep_window(tail, kept, 0)
    assert [cache.reaches(tail, 0) for tail in tails] == [True, False, True]
    cache.drop({tails[0]})
    assert [cache.reaches(tail, 0) for tail in tails] == [False, False, True]


def test_a_window_of_files_that_were_replaced_meanwhile_is_not_kept() -> None:
    partition = filled(SimulatedDisk(1))
    read(partition, 0, 1)
    cache, tail = BatchCache(0, max_windows=2), RecentBatches()
    changes = tail.changes
    cache.drop_window(tail)
    cache.keep_window(tail, window(partition), changes)
    assert not cache.reaches(tail, 0)


def test_a_cache_without_windows_keeps_none() -> None:
    partition = filled(SimulatedDisk(1))
    partition.cache.max_windows = 0
    read(partition, 0, 1 << 20)
    assert not in_memory(partition, 0)
