"""The newest batches in memory, so that readers at the tail do not touch the disk.

Bounded in bytes over all partitions together; the oldest batch goes first. Holds what was written,
flushed or not: the partition decides what a reader may see.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict, deque

from penstock.log.batch.view import BatchView

# Two seconds of a busy broker: 64 MiB at 30 MB/s. Readers further behind use the page cache.
DEFAULT_CACHE_BYTES = 64 * 1024 * 1024


class RecentBatches:
    """The cached tail of one partition: consecutive batches without a gap."""

    __slots__ = ("bases", "numbers", "views")

    def __init__(self) -> None:
        self.bases: deque[int] = deque()
        self.views: deque[BatchView] = deque()
        # The places of the batches in the order of the whole cache.
        self.numbers: deque[int] = deque()


class BatchCache:
    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        # All batches in the order in which they came, by a number, with their sizes. Not a deque: a
        # deleted partition takes its batches out of the middle.
        self._order: OrderedDict[int, tuple[RecentBatches, int]] = OrderedDict()
        self._next_number = 0
        self._lock = threading.Lock()

    def add(self, tail: RecentBatches, view: BatchView, size: int) -> None:
        with self._lock:
            tail.bases.append(view.base_offset)
            tail.views.append(view)
            tail.numbers.append(self._next_number)
            self._order[self._next_number] = (tail, size)
            self._next_number += 1
            self.used_bytes += size
            while self.used_bytes > self.max_bytes:
                _, (oldest, oldest_size) = self._order.popitem(last=False)
                self.used_bytes -= oldest_size
                oldest.bases.popleft()
                oldest.views.popleft()
                oldest.numbers.popleft()

    def read(
        self, tail: RecentBatches, offset: int, end_offset: int, max_bytes: int
    ) -> list[BatchView]:
        """Views from `offset` on, empty when the cache does not reach back that far.

        Stops when the payload passes `max_bytes`, with at least one batch; the caller trims rows.
        """
        with self._lock:
            if not tail.bases or tail.bases[0] > offset:
                return []
            first = bisect_right(tail.bases, offset) - 1
            found = []
            budget = max_bytes
            for index in range(first, len(tail.bases)):
                view = tail.views[index]
                if view.base_offset >= end_offset:
                    break
                found.append(view)
                budget -= len(view.buffer)
                if budget <= 0:
                    break
            return found

    def reaches(self, tail: RecentBatches, offset: int) -> bool:
        """Whether the cache goes back to `offset`."""
        with self._lock:
            bases = tail.bases
            return bool(bases) and bases[0] <= offset

    def drop(self, tails: set[RecentBatches]) -> None:
        """Forgets partitions that were deleted or stopped. Looks at their own batches alone."""
        with self._lock:
            for tail in tails:
                for number in tail.numbers:
                    self.used_bytes -= self._order.pop(number)[1]
                tail.bases.clear()
                tail.views.clear()
                tail.numbers.clear()
