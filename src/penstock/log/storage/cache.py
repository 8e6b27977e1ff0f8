"""The newest batches in memory, so that readers at the tail do not touch the disk, and what was last read
from the disk for a reader that goes on, so that it does not touch the disk each time.

Bounded over all partitions together: the newest batches in bytes, the oldest batch goes first; windows of
the disk in number. Holds what was written, flushed or not: the partition decides what a reader may see.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict, deque

from penstock.log.batch.view import BatchView

# Two seconds of a busy broker: 64 MiB at 30 MB/s. Readers further behind use the page cache.
DEFAULT_CACHE_BYTES = 64 * 1024 * 1024


# Partitions with a window at the same time, of two MiB at the most (reader.py).
DEFAULT_WINDOWS = 16


class Window:
    """Batches that lie one behind the other in a segment, with the buffers that they were read into, of
    `size` bytes together. `end_offset`: behind the last of them."""

    __slots__ = ("bases", "end_offset", "size", "views")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.views: list[BatchView] = []
        self.end_offset = 0
        self.size = 0

    def add(self, view: BatchView, end_offset: int) -> None:
        if not self.views or self.views[-1].buffer is not view.buffer:
            self.size += len(view.buffer)
        self.bases.append(view.base_offset)
        self.views.append(view)
        self.end_offset = end_offset

    def holds(self, offset: int) -> bool:
        return bool(self.bases) and self.bases[0] <= offset < self.end_offset

    def read(self, offset: int, end_offset: int, max_bytes: int) -> list[BatchView]:
        """As BatchCache.read, of a window that holds the offset."""
        found = []
        budget = max_bytes
        for index in range(bisect_right(self.bases, offset) - 1, len(self.bases)):
            view = self.views[index]
            if view.base_offset >= end_offset:
                break
            found.append(view)
            budget -= view.payload_bytes(0, view.count)
            # Compaction leaves gaps: the first may lie before the offset as a whole.
            if budget <= 0 and len(found) > 1:
                break
        return found


class RecentBatches:
    """The cached tail of one partition: consecutive batches without a gap. And a window further back, of
    the files as they are: `changes` counts how often these were replaced."""

    __slots__ = ("bases", "changes", "numbers", "views", "window")

    def __init__(self) -> None:
        self.window: Window | None = None
        self.changes = 0
        self.bases: deque[int] = deque()
        self.views: deque[BatchView] = deque()
        # The places of the batches in the order of the whole cache.
        self.numbers: deque[int] = deque()


class BatchCache:
    def __init__(
        self, max_bytes: int = DEFAULT_CACHE_BYTES, max_windows: int = DEFAULT_WINDOWS
    ) -> None:
        self.max_bytes = max_bytes
        self.max_windows = max_windows
        self.used_bytes = 0
        # All batches in the order in which they came, by a number, with their sizes. Not a deque: a
        # deleted partition takes its batches out of the middle.
        self._order: OrderedDict[int, tuple[RecentBatches, int]] = OrderedDict()
        self._next_number = 0
        # Those that have a window, the one that was read for last at the end.
        self._with_window: OrderedDict[RecentBatches, None] = OrderedDict()
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
                window = tail.window
                if window is None or not window.holds(offset):
                    return []
                return window.read(offset, end_offset, max_bytes)
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
        """Whether `read` gives something for `offset`."""
        with self._lock:
            bases, window = tail.bases, tail.window
            if bases and bases[0] <= offset:
                return True
            return window is not None and window.holds(offset)

    def keep_window(self, tail: RecentBatches, window: Window, changes: int) -> None:
        """`changes`: of the tail, before the files were looked at that the window was read from."""
        with self._lock:
            if tail.changes != changes or self.max_windows == 0:
                return
            tail.window = window
            self._with_window[tail] = None
            self._with_window.move_to_end(tail)
            if len(self._with_window) > self.max_windows:
                self._with_window.popitem(last=False)[0].window = None

    def drop_window(self, tail: RecentBatches) -> None:
        """The files of the partition were replaced: what was read from them is not read again."""
        with self._lock:
            tail.changes += 1
            tail.window = None
            self._with_window.pop(tail, None)

    def drop(self, tails: set[RecentBatches]) -> None:
        """Forgets partitions that were deleted or stopped. Looks at their own batches alone."""
        with self._lock:
            for tail in tails:
                tail.changes += 1
                tail.window = None
                self._with_window.pop(tail, None)
                for number in tail.numbers:
                    self.used_bytes -= self._order.pop(number)[1]
                tail.bases.clear()
                tail.views.clear()
                tail.numbers.clear()
