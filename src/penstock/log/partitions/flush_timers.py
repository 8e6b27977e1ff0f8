"""When partitions with durability interval are flushed: a heap of times, and a thread that watches it.

Not compiled: a thread that waits gains nothing. Does not flush; commit.py does.
"""

import heapq
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from penstock.log.partitions.partition import Partition


class FlushTimers:
    """`submit` is called for those that are due. Without a thread the caller asks `collect_due`."""

    def __init__(
        self,
        submit: Callable[[Partition], None],
        monotonic: Callable[[], float],
        *,
        in_thread: bool,
    ) -> None:
        self._submit = submit
        self._monotonic = monotonic
        self._in_thread = in_thread
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Partition]] = []
        # Tells the thread to look at the heap again; True ends it.
        self._nudges: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def plan(self, partition: Partition) -> None:
        due = self._monotonic() + partition.settings.flush_interval_ms / 1000
        with self._lock:
            if partition.flush_planned:
                return
            partition.flush_planned = True
            heapq.heappush(self._heap, (due, id(partition), partition))
            if self._in_thread and self._thread is None and not self._closed:
                # Most logs have no such topic.
                self._thread = threading.Thread(
                    target=self._run, name="penstock-flush-timer", daemon=True
                )
                self._thread.start()
        if self._in_thread:
            self._nudges.put(False)

    def forget(self, partition: Partition) -> None:
        with self._lock:
            self._heap = [timer for timer in self._heap if timer[2] is not partition]
            heapq.heapify(self._heap)

    def collect_due(self) -> float | None:
        """Submits what is due. Gives how long it is until the next one, if there is one."""
        due: list[Partition] = []
        with self._lock:
            now = self._monotonic()
            while self._heap and self._heap[0][0] <= now:
                partition = heapq.heappop(self._heap)[2]
                partition.flush_planned = False
                partition.flush_due = True
                due.append(partition)
            wait_s = self._heap[0][0] - now if self._heap else None
        for partition in due:
            self._submit(partition)
        return wait_s

    def close(self) -> None:
        """Ends the thread. What is planned after this is flushed when its partition is closed."""
        with self._lock:  # a thread is started under it: one that is not started cannot be joined
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._nudges.put(True)
            thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            try:
                ended = self._nudges.get(timeout=self.collect_due())
            except Empty:
                continue
