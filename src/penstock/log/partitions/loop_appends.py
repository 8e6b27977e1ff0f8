"""Appends that the event loop writes itself, and flushes that a thread carries out for it.

A small batch for an idle partition is written where it arrives: handing it to a thread would cost more than
the copy into the page cache. With durability ack a thread then flushes in the background
(flush_threads.py). What is appended meanwhile is queued, written by the event loop when the flush is over,
and covered by the next one. Nothing here waits: where a lock is taken, a segment must be begun, or much is
queued, the commit threads take over (commit.py), and what they do is in appending.py.
"""

from penstock.log.batch.format import FLAG_AT_MOST_ONCE, FLAG_PRODUCER, Batch
from penstock.log.partitions.append_group import Entry, Load
from penstock.log.partitions.appending import AppendSide
from penstock.log.partitions.outcome import Callback, Outcome
from penstock.log.partitions.tokens import AppendToken

# The event loop writes batches up to this size itself: copying more into the page cache takes longer than
# handing the batch to a thread.
LOOP_WRITE_BYTES = 64 * 1024

NOBODY: list[Callback] = []


class LoopAppends(AppendSide):
    """Everything here is called on the event loop."""

    def append_idle(self, batch: Batch) -> tuple[AppendToken, list[Callback]] | None:
        """Writes a small batch here and now, where that waits for nobody and no flush is running.

        Gives the token and the watchers to wake; None when the batch has to be queued. With durability
        ack the token is not done, and the partition needs a flush. A write that fails or falls short
        is left to the commit thread: it cuts off what the write left, and writes the batch again.
        """
        size = batch.size()
        if (
            self._pending
            or size + self._unflushed_bytes > LOOP_WRITE_BYTES
            or batch.flags & FLAG_PRODUCER
            or not self.write_lock.acquire(blocking=False)
        ):
            return None
        try:
            return self._append_idle(batch, size)
        finally:
            self.write_lock.release()

    def _append_idle(self, batch: Batch, size: int) -> tuple[AppendToken, list[Callback]] | None:
        settings = self.settings
        if (
            self._pending
            or self.closed
            or self.stopped is not None
            or self._flushing.running
            or self._fell_short
            or settings.compression == "zstd"
            or self._must_roll(0, size)
        ):
            return None
        segment = self.segments[-1]
        if segment.base_offset < self.salt.since:
            return None
        handle = self.pool.borrow(segment.path)
        if handle is None:
            return None
        base = self.next_offset
        header, stored = self._stamped(batch, base)
        size = stored.size()
        position = self._active_index().size
        self._fell_short = True
        try:
            if handle.file.pwritev((header, stored.body), position) != size:
                return None
        except OSError:
            return None
        finally:
            self.pool.give_back(handle)
        self._fell_short = False
        self._flushing.wrote(segment)
        token = AppendToken(batch.count)
        entry = Entry(batch, token, base, header, stored)
        self._note_written([entry], position)
        if settings.durability == "ack":
            self._unflushed.append(entry)
            self._unflushed_bytes += size
            return token, self._early() if batch.flags & FLAG_AT_MOST_ONCE else NOBODY
        token.base_offset = base
        token.done = True
        with self._lock:
            return token, self._show()

    @property
    def needs_thread(self) -> bool:
        """Something is to be written or flushed, and no flush is under way whose end sees to it."""
        if not self._pending and not self._unflushed:
            return False
        return not self._flushing.for_loop or self._pending_bytes > LOOP_WRITE_BYTES

    @property
    def needs_flush(self) -> bool:
        """Something was written by the event loop and is not flushed, nor being flushed; who closes the
        partition sees to it."""
        return bool(self._unflushed) and not self._flushing.running and not self.closed

    def start_flush(self, done: Callback) -> bool:
        """Begins to flush what was written; `done` is called when that is over. False when a commit
        thread has to do it."""
        if self._pending or not self.write_lock.acquire(blocking=False):
            return False
        try:
            return self._start_flush(done)
        finally:
            self.write_lock.release()

    def _start_flush(self, done: Callback) -> bool:
        if self.stopped is not None or self.settings.durability != "ack" or self._flushing.running:
            return False
        if not self._unflushed:
            return True  # another thread has flushed it by now
        self._flushing.start(Load(self._take_unflushed(), [], self.next_offset), done)
        return True

    def flush_ended(self, done: Callback) -> Outcome | None:
        """Tells of the flush that is over, writes what was queued meanwhile, and begins the next one. None
        when the partition is busy elsewhere; `needs_thread` tells what is left."""
        if not self.write_lock.acquire(blocking=False):
            return None
        try:
            outcome = Outcome()
            if self._flushing.running and not self._flushing.over:
                return outcome  # a later flush, begun while this call was on its way; its end comes too
            if self._flushing.for_loop:
                self._finish_flush(outcome, [])
            if self._pending and self._can_write_here():
                self._write_queued(outcome)
            if self._unflushed:
                self._start_flush(done)
            return outcome
        finally:
            self.write_lock.release()

    def _can_write_here(self) -> bool:
        size = self._pending_bytes
        return (
            size <= LOOP_WRITE_BYTES
            and self.stopped is None
            and not self._fell_short
            and self.settings.durability == "ack"
            and self.settings.compression != "zstd"
            and not self._must_roll(0, size)
            and self.segments[-1].base_offset >= self.salt.since
            and not self._has_producers()
        )

    def _has_producers(self) -> bool:
        """Whether repeats may be queued: they are answered with the flush that covers what they repeat,
        which a commit thread sees to."""
        return any(batch.flags & FLAG_PRODUCER for batch, _ in self._pending)

    def _write_queued(self, outcome: Outcome) -> None:
        group = self._take_group()
        try:
            entries, told = self._write_group(group)
        except Exception as error:
            entries, told = [], self._give_up(group, error)
        self._unflushed.extend(entries)
        self._unflushed_bytes += sum([entry.stored.size() for entry in entries])
        outcome.tokens.extend(told.tokens)
        outcome.wakes.extend(told.wakes)
        outcome.wakes.extend(self._early())
