"""The recent-batch cache: bounded over all partitions, oldest first, no gaps."""

import threading
from collections import deque

from kit.limits import HANG_S

from penstock.log.batch.format import encode_values
from penstock.log.batch.view import BatchView, view_appended
from penstock.log.storage.cache import BatchCache, RecentBatches

COUNT = 10
SIZE = 100


def batch_at(base_offset: int) -> BatchView:
    return view_appended(encode_values([b"v" * 8] * COUNT, 0), base_offset)


def fill(cache: BatchCache, tail: RecentBatches, batches: range) -> None:
    for number in batches:
        cache.add(tail, batch_at(number * COUNT), SIZE)


def bases(views: list[BatchView]) -> list[int]:
    return [int(view.base_offset) for view in views]


def test_reads_start_in_the_batch_that_holds_the_offset() -> None:
    cache, tail = BatchCache(10 * SIZE), RecentBatches()
    fill(cache, tail, range(3))
    assert bases(cache.read(tail, 15, 30, 1 << 20)) == [10, 20]
    assert bases(cache.read(tail, 0, 30, 1 << 20)) == [0, 10, 20]
    assert bases(cache.read(tail, 29, 30, 1 << 20)) == [20]


def test_reads_end_at_the_end_offset_and_at_the_byte_limit() -> None:
    cache, tail = BatchCache(10 * SIZE), RecentBatches()
    fill(cache, tail, range(4))
    assert bases(cache.read(tail, 0, 20, 1 << 20)) == [0, 10]
    assert bases(cache.read(tail, 0, 40, 1)) == [0]
    assert bases(cache.read(tail, 0, 40, len(batch_at(0).buffer) + 1)) == [0, 10]


def test_the_oldest_batch_of_all_partitions_goes_first() -> None:
    cache = BatchCache(3 * SIZE)
    one, other = RecentBatches(), RecentBatches()
    fill(cache, one, range(2))
    fill(cache, other, range(2))
    assert cache.used_bytes == 3 * SIZE
    assert not cache.reaches(one, 0) and cache.reaches(one, 10) and cache.reaches(other, 0)
    assert cache.read(one, 5, 20, 1 << 20) == []
    assert bases(cache.read(one, 10, 20, 1 << 20)) == [10]


def test_a_batch_larger_than_the_cache_is_not_kept() -> None:
    cache, tail = BatchCache(SIZE - 1), RecentBatches()
    fill(cache, tail, range(1))
    assert cache.used_bytes == 0
    assert not cache.reaches(tail, 0)
    assert cache.read(tail, 0, 10, 1 << 20) == []


def test_a_dropped_partition_gives_its_bytes_back() -> None:
    cache = BatchCache(10 * SIZE)
    one, other = RecentBatches(), RecentBatches()
    fill(cache, one, range(2))
    fill(cache, other, range(3))
    cache.drop({one})
    assert cache.used_bytes == 3 * SIZE
    assert not cache.reaches(one, 0)
    assert bases(cache.read(other, 0, 30, 1 << 20)) == [0, 10, 20]
    cache.drop({one})
    fill(cache, one, range(5, 6))
    assert bases(cache.read(one, 50, 60, 1 << 20)) == [50]
    assert cache.used_bytes == 4 * SIZE


def test_what_is_left_of_a_drop_goes_in_its_order() -> None:
    cache = BatchCache(4 * SIZE)
    one, other = RecentBatches(), RecentBatches()
    for number in range(2):
        fill(cache, one, range(number, number + 1))
        fill(cache, other, range(number, number + 1))
    cache.drop({one})
    fill(cache, one, range(7, 9))
    assert bases(cache.read(other, 0, 20, 1 << 20)) == [0, 10]
    fill(cache, one, range(9, 10))
    assert bases(cache.read(other, 10, 20, 1 << 20)) == [10] and not cache.reaches(other, 0)
    assert bases(cache.read(one, 70, 100, 1 << 20)) == [70, 80, 90]
    assert cache.used_bytes == 4 * SIZE


def test_another_thread_cannot_evict_between_two_looks() -> None:
    """`reaches` looks whether there is a batch, and then at the first one."""
    cache, tail = BatchCache(10 * SIZE), RecentBatches()
    fill(cache, tail, range(1))

    def evict() -> None:
        if cache._lock.acquire(blocking=False):
            tail.bases.popleft()
            cache._lock.release()

    class Looked(deque[int]):
        def __len__(self) -> int:
            length = super().__len__()
            other = threading.Thread(target=evict)
            other.start()
            other.join(HANG_S)
            return length

    tail.bases = Looked(tail.bases)
    assert cache.reaches(tail, 0)
