"""Group commit: who writes and flushes what was appended to partitions, and in which thread.

An idle partition is written by the caller itself (`Partition.append_idle`). With durability none or
interval that is all. With ack a thread flushes and tells the event loop, which writes what was queued
meanwhile and begins the next flush (loop_appends.py). Where there is no event loop, or much is queued, or a
segment must be begun, a commit thread takes over and does all of it. Either way one flush covers all that
arrived during the one before it. Partitions are independent, and each is served by one thread at a time.
Without threads (tests, tools) `step` does the work inline, and everything is queued.

Locks, in the order in which they are taken: `Partition.serving` (a thread serves it), `write_lock` (whoever
writes; the event loop only tries it), `_lock` (held for a few instructions).
"""

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from penstock.log.batch.format import FLAG_AT_MOST_ONCE, Batch
from penstock.log.partitions.flush_timers import FlushTimers
from penstock.log.partitions.outcome import Outcome, deliver
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.tokens import AppendToken

# fdatasync waits for the device, not for the CPU: four partitions can wait at the same time.
DEFAULT_THREADS = 4
# Messages at most once have no answer that waits for the disk, and their subscribers get them before: they
# are flushed a moment later, when the delivery is over. Readers of what is durable see them then.
LATE_FLUSH_S: Final = 0.002

Post = Callable[[Callable[[], None]], object]
# A delay in seconds, and what to call then.
Later = Callable[[float, Callable[[], None]], object]

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
        *,
        write_idle: bool | None = None,
        later: Later | None = None,
    ) -> None:
        """`later` calls in the thread that `post` calls back in. It is given where that is an event loop,
        and `append` is only called there."""
        self.post = post
        self._later = later
        # Where the caller steps by hand, everything is queued unless it says otherwise.
        self._write_idle = threads > 0 if write_idle is None else write_idle
        # Partitions that need a thread; None ends the thread that gets it.
        self._queue: SimpleQueue[Partition | None] = SimpleQueue()
        self._timers = FlushTimers(self.submit, monotonic, in_thread=threads > 0)
        self._threads = [
            threading.Thread(target=self._run, name=f"penstock-commit-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def append(self, partition: Partition, batch: Batch) -> AppendToken:
        """Takes a batch in the thread that completions belong to. Raises when it cannot be taken."""
        written = partition.append_idle(batch) if self._write_idle else None
        if written is None:
            token = partition.append(batch)
            if self._later is None or partition.needs_thread:
                self.submit(partition)
            return token
        token, wakes = written
        if not token.done:
            if self._later is not None and batch.flags & FLAG_AT_MOST_ONCE:
                self._flush_late(partition, self._later)
            else:
                self._flush(partition)
        elif partition.needs_timer:
            self.submit(partition)
        if wakes:
            # Not from inside the append: a watcher that is woken may append, too.
            self.post(lambda: deliver(Outcome(wakes=wakes)))
        return token

    def _flush(self, partition: Partition) -> None:
        if self._later is None or not partition.start_flush(lambda: self._flushed(partition)):
            self.submit(partition)

    def _flush_late(self, partition: Partition, later: Later) -> None:
        if not partition.flush_is_late:
            partition.flush_is_late = True
            later(LATE_FLUSH_S, lambda: self._flush_now(partition))

    def _flush_now(self, partition: Partition) -> None:
        """Where nothing has flushed it meanwhile, and nothing is about to."""
        partition.flush_is_late = False
        if partition.needs_flush:
            self._flush(partition)

    def _flushed(self, partition: Partition) -> None:
        """A flush that the event loop began is over."""
        outcome = partition.flush_ended(lambda: self._flushed(partition))
        if outcome is None or partition.needs_thread:
            self.submit(partition)
        if outcome is not None:
            deliver(outcome)

    def submit(self, partition: Partition) -> None:
        """The partition has something to be written or flushed."""
        if partition.schedule():
            self._queue.put(partition)

    def step(self) -> bool:
        """Serves one partition inline. False when there was nothing to do."""
        self._timers.collect_due()
        while True:
            try:
                partition = self._queue.get_nowait()
            except Empty:
                return False
            if partition is not None and self._serve(partition):
                return True

    def forget(self, partition: Partition) -> None:
        """Waits until no thread serves the partition; from then on none will."""
        partition.forgotten = True
        with partition.serving:
            self._timers.forget(partition)

    def close(self) -> None:
        """Ends the threads after what they are doing; partitions flush themselves on close."""
        self._timers.close()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (partition := self._queue.get()) is not None:
            self._serve(partition)

    def _serve(self, partition: Partition) -> bool:
        """False when there was nothing to do, because the partition is forgotten."""
        with partition.serving:
            if partition.forgotten:
                return False
            try:
                due, partition.flush_due = partition.flush_due, False
                self._deliver(partition.write_pending())
                if due:
                    self._deliver(partition.flush())
                if partition.has_rolls:
                    self._deliver(partition.finish_rolls())
                    if partition.has_rolls:
                        logger.warning("%s: sealing failed, tried again later", partition.directory)
            except Exception:  # appends are answered by then; the thread has others to serve
                logger.exception("upkeep of %s failed", partition.directory)
            if partition.needs_timer:
                self._timers.plan(partition)
        if not partition.unschedule():
            self._queue.put(partition)  # behind the others that wait
        return True

    def _deliver(self, outcome: Outcome) -> None:
        if outcome.tokens or outcome.wakes:
            self.post(lambda: deliver(outcome))
