"""Group commit: the threads that write and flush what partitions have queued.

One flush covers everything that arrived while the one before it ran. Partitions are independent: a few
threads serve all of them, each partition by one thread at a time. Without threads (tests, tools) `step`
does the same work inline.
"""

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from penstock.log.partitions.outcome import Outcome, deliver
from penstock.log.partitions.partition import Partition

# fdatasync waits for the device, not for the CPU: four partitions can wait at the same time.
DEFAULT_THREADS = 4

# Together half a millisecond: about two flushes of the disk that this was measured on.
GATHER_STEPS = 5
GATHER_STEP_S = 0.0001
# With this much waiting a flush is worth it, however few batches it is.
GATHERED_BYTES = 256 * 1024

Post = Callable[[Callable[[], None]], object]

logger = logging.getLogger(__name__)


def call_now(work: Callable[[], None]) -> None:
    work()


class GroupCommit:
    """`post` runs completions where they belong, for example loop.call_soon_threadsafe."""

    def __init__(
        self,
        threads: int = DEFAULT_THREADS,
        post: Post = call_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.post = post
        self._monotonic = monotonic
        self._ready = threading.Condition()
        self._queue: deque[Partition] = deque()
        self._queued: set[Partition] = set()
        self._running: set[Partition] = set()
        self._timers: list[tuple[float, int, Partition]] = []
        self._timed: set[Partition] = set()
        # Their flush interval has passed: flush them when they are served next.
        self._timed_out: set[Partition] = set()
        # Callers of `forget` that wait for a partition to be left alone.
        self._forgetting = 0
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"penstock-commit-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, partition: Partition) -> None:
        """The partition has something queued."""
        with self._ready:
            if partition not in self._queued and partition not in self._running:
                self._queued.add(partition)
                self._queue.append(partition)
                self._ready.notify()

    def step(self) -> bool:
        """Serves one partition inline. False when there was nothing to do."""
        with self._ready:
            self._collect_due()
            if not self._queue:
                return False
            partition = self._start()
        self._serve(partition)
        return True

    def forget(self, partition: Partition) -> None:
        """Waits until nobody works on the partition, and drops what was planned for it."""
        with self._ready:
            if partition in self._queued:
                self._queued.discard(partition)
                self._queue.remove(partition)
            self._timers = [timer for timer in self._timers if timer[2] is not partition]
            heapq.heapify(self._timers)
            self._timed.discard(partition)
            self._timed_out.discard(partition)
            self._forgetting += 1
            while partition in self._running:
                self._ready.wait()
            self._forgetting -= 1

    def close(self) -> None:
        """Ends the threads after what they are doing; partitions flush themselves on close."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                self._collect_due()
                while not self._queue and not self._closing:
                    self._ready.wait(self._until_next_timer())
                    self._collect_due()
                if self._closing:
                    return
                partition = self._start()
            _gather(partition)
            self._serve(partition)

    def _start(self) -> Partition:
        partition = self._queue.popleft()
        self._queued.discard(partition)
        self._running.add(partition)
        return partition

    def _serve(self, partition: Partition) -> None:
        try:
            due = partition in self._timed_out
            self._timed_out.discard(partition)
            self._deliver(partition.write_pending())
            if due:
                self._deliver(partition.flush())
            if partition.has_rolls:
                self._deliver(partition.finish_rolls())
                if partition.has_rolls:
                    logger.warning("%s: sealing failed, tried again later", partition.directory)
        except Exception:  # appends are answered by then; the thread has other partitions to serve
            logger.exception("upkeep of %s failed", partition.directory)
        finally:
            with self._ready:
                self._running.discard(partition)
                self._plan_flush(partition)
                if partition.pending_batches and partition not in self._queued:
                    self._queued.add(partition)
                    self._queue.append(partition)
                if self._forgetting:
                    self._ready.notify_all()

    def _deliver(self, outcome: Outcome) -> None:
        if outcome.tokens or outcome.wakes:
            self.post(lambda: deliver(outcome))

    # --- durability "interval" -------------------------------------------------------------------

    def _plan_flush(self, partition: Partition) -> None:
        if partition.settings.durability != "interval" or not partition.unflushed:
            return
        if partition not in self._timed:
            due = self._monotonic() + partition.settings.flush_interval_ms / 1000
            heapq.heappush(self._timers, (due, id(partition), partition))
            self._timed.add(partition)

    def _collect_due(self) -> None:
        now = self._monotonic()
        while self._timers and self._timers[0][0] <= now:
            partition = heapq.heappop(self._timers)[2]
            self._timed.discard(partition)
            self._timed_out.add(partition)
            if partition not in self._queued and partition not in self._running:
                self._queued.add(partition)
                self._queue.append(partition)

    def _until_next_timer(self) -> float | None:
        if not self._timers:
            return None
        return max(self._timers[0][0] - self._monotonic(), 0.0)


def _gather(partition: Partition) -> None:
    """Gives callers that the last flush released a moment to come back with their next append.

    Without it a group of 64 waiting callers falls into a flush for one and a flush for 63, in turns.
    Waits only while fewer than three quarters of the last group are back, and never for long.
    """
    expected = partition.last_group_batches * 3 // 4
    for _ in range(GATHER_STEPS):
        enough = partition.pending_bytes >= GATHERED_BYTES
        if enough or partition.pending_batches >= expected:
            return
        time.sleep(GATHER_STEP_S)
