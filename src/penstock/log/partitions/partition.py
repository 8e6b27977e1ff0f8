"""A partition: one log of a topic. Its segments, visibility, rolling by age, trimming, closing.

Appending is in appending.py, loop_appends.py and adopting.py, reading in reader.py, opening in recovery.py,
cleaning in cleaner.py.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from penstock.log.batch.encryption import NO_KEYS, Keyring
from penstock.log.errors import CorruptLog, OffsetOutOfRange, closed_error
from penstock.log.partitions.adopting import Adopting
from penstock.log.partitions.cleaning_state import CleaningState
from penstock.log.partitions.damage_report import DamageReport
from penstock.log.partitions.flush_threads import FlushThreads
from penstock.log.partitions.outcome import Callback, Outcome, deliver
from penstock.log.partitions.recovery import recover, remove_segment
from penstock.log.partitions.survey import CHECKPOINT_FILE, START_FILE, write_number
from penstock.log.settings import TopicSettings
from penstock.log.storage.cache import BatchCache
from penstock.log.storage.files import File
from penstock.log.storage.handles import HandlePool
from penstock.log.storage.hints import ReadHints
from penstock.log.storage.salt import Salt, new_salt
from penstock.log.storage.segment import CutFailed, Segment, key_id_in


class Partition(Adopting):
    """Thread-safe. Offsets: start <= visible <= next; visible is what readers may see."""

    def __init__(
        self,
        directory: str,
        settings: TopicSettings,
        pool: HandlePool,
        cache: BatchCache,
        clock_us: Callable[[], int],
        observe_flush: Callable[[float, int], None] | None = None,
        flush_threads: FlushThreads | None = None,
        draw_salt: Callable[[], int] = new_salt,
        durable_offset: int = 0,
        keys: Keyring = NO_KEYS,
    ) -> None:
        """`durable_offset`: what is known to be durable, beside what the files themselves tell."""
        found = recover(pool.files, directory, durable_offset)
        super().__init__(
            directory, settings, pool, cache, clock_us, observe_flush, flush_threads, found, keys
        )
        for segment in self.segments:
            segment.open_body = keys.open_body
            # Without a key nothing was ever encrypted: the start would be refused.
            segment.key_id = key_id_in(pool.files, segment.path) if keys else 0
        self.salt = found.salt if found.salt.value else Salt(draw_salt())
        self.clock_us = clock_us
        self.hints = ReadHints()
        # A list of segments, which is never changed but replaced, and the bytes of all but its last.
        self._added_up: tuple[list[Segment], int] = [], 0
        # What the cleaner knows; read when it comes for the first time.
        self.cleaning: CleaningState | None = None
        self.counters.cut_bytes = found.cut_bytes
        self.damages = DamageReport(self.counters, found.damages)
        self.recovered = found
        self.start_offset = found.start_offset
        self.missing_head = found.missing_head
        for segment in self.segments[:-1]:
            if not segment.sealed:
                self._sealing.add(segment, self.segments[-1].base_offset, self._producers)
        self.finish_rolls()
        # A thread opens partitions, and the event loop asks later: then the file system is not asked.
        self.size_bytes()

    # --- visibility ------------------------------------------------------------------------------

    def watch(self, offset: int, callback: Callback) -> None:
        """Calls back once when a record at `offset` can be read; at once when it can already."""
        with self._lock:
            if self.visible_offset <= offset:
                if self.closed:
                    raise closed_error(self.deleted_topic)
                self._visible.watch(offset, callback)
                return
        callback()

    def watch_early(self, offset: int, callback: Callback) -> None:
        """Like `watch`, for messages at most once, which need not be durable. One watcher only."""
        with self._lock:
            waits = self._visible.watch_early(offset, callback)
        if not waits:
            callback()

    def unwatch(self, callback: Callback) -> None:
        with self._lock:
            self._visible.unwatch(callback)

    def last_sequence(self, producer_id: int) -> int | None:
        with self.write_lock:
            return self._producers.last_sequence(producer_id)

    def hold(self, transaction_id: int, over: Iterable[int] = (), at: int | None = None) -> None:
        """What is appended from now on becomes visible at `release`: a transaction is being shown.

        `over`: producers of earlier transactions, which never come back. They are forgotten, so that
        many transactions do not take the places of clients that do. `at`: it begins here already.
        """
        with self.write_lock:
            for producer_id in over:
                self._producers.restore(producer_id, None)
            with self._lock:
                self._visible.hold(transaction_id, self.next_offset if at is None else at)

    def release(self, transaction_id: int) -> Outcome:
        with self._lock:
            self._visible.release(transaction_id)
            return Outcome(wakes=self._show())

    def is_held_before(self, transaction_id: int, other_id: int) -> bool:
        """Whether another transaction keeps back what this one shows here."""
        with self._lock:
            return self._visible.is_held_before(transaction_id, other_id)

    # --- segments --------------------------------------------------------------------------------

    def roll(self, oldest_us: int) -> int:
        """Starts a new segment if all of the active one is older. Gives the offset where it begins."""
        with self.write_lock:
            if not self.segments or self.segments[-1].sealed or self.stopped or self.closed:
                return self.start_offset
            index = self._active_index()
            if index.size and index.max_time_us < oldest_us:
                try:
                    self._roll()
                except CutFailed as failed:
                    outcome = Outcome()
                    self._stop(outcome, [], failed.error)
                    self.wake_early([lambda: deliver(outcome)])
            return self.segments[-1].base_offset

    def finish_rolls(self) -> Outcome:
        """Seals segments that were rolled: off the way of the appends that are waiting."""
        outcome = Outcome()
        with self.write_lock:
            if self._sealing:
                self._finish_flush(outcome, [])
            if self._sealing and self._flushing.needed and self.stopped is None:
                self._flush(outcome, [])
            if self.stopped is None:
                self._sealing.finish()
        return outcome

    @property
    def has_rolls(self) -> bool:
        return bool(self._sealing) and self.stopped is None

    @contextmanager
    def open_segment(self, offset: int) -> Iterator[tuple[Segment, int, File]]:
        """The segment that should hold `offset`, the offset at which it ends, and its open file.

        All three belong together even while the cleaner puts a rewritten segment in place.
        """
        with self._segments_lock:
            segments = self.segments
            at = bisect_right(segments, offset, key=_base_offset) - 1
            if at < 0:
                raise OffsetOutOfRange(offset, self.start_offset, self.visible_offset)
            last = at + 1 == len(segments)
            end = self.next_offset if last else segments[at + 1].base_offset
            use = self.pool.use(segments[at].path)
            try:
                file = use.__enter__()
            except FileNotFoundError:
                if self.deleted_topic is not None:
                    raise closed_error(self.deleted_topic) from None
                # Retention changes the list first: only another program can have removed this file.
                base_offset, path = segments[at].base_offset, segments[at].path
                raise CorruptLog(path, 0, "the file is missing", base_offset, end) from None
        try:
            yield segments[at], end, file
        finally:
            use.__exit__(None, None, None)

    def replace_segments(self, old: list[Segment], new: Segment, put: Callback) -> None:
        """Lets `put` change the files while no reader is between list and file, then the list.

        Readers wait for the disk meanwhile, appends do not.
        """
        with self._segments_lock:
            put()
            for segment in old:
                self.pool.forget(segment.path)
            at = self.segments.index(old[0])
            kept = [segment for segment in self.segments if segment not in old]
            self.segments = [*kept[:at], new, *kept[at:]]
        self.cache.drop_window(self.tail)

    def key_ids(self) -> set[int]:
        """Of the keys that its records are encrypted with; 0 where some are not."""
        segments = self.segments
        written = segments[:-1] + [one for one in segments[-1:] if self.segment_size(one)]
        return {segment.key_id for segment in written}

    def size_bytes(self) -> int:
        """Bytes of all segment files. Those before the last are added up once for each list of them: a
        partition may have thousands, and the event loop asks."""
        segments = self.segments
        if not segments:
            return 0
        added, total = self._added_up
        if added is not segments:
            total = sum([self.segment_size(segment) for segment in segments[:-1]])
            self._added_up = segments, total
        return total + self.segment_size(segments[-1])

    def segment_size(self, segment: Segment) -> int:
        if segment.index is not None:
            return segment.index.size
        if segment.sealed_bytes is not None:
            return segment.sealed_bytes
        size = self.pool.files.size(segment.path)
        if segment.sealed:
            segment.sealed_bytes = size
        return size

    def trim(self, offset: int) -> None:
        """Trims everything below `offset`: it is never read again; whole segments are removed at once."""
        with self.write_lock:
            offset = min(offset, self.visible_offset)
            # Closed: the directory may belong to a new topic of the same name by now.
            if self.closed or offset <= self.start_offset:
                return
            pairs = itertools.pairwise(self.segments)
            gone = [segment for segment, after in pairs if after.base_offset <= offset]
            self._sealing.give_up(gone)
            self.pool.files.make_directory(self.directory)
            write_number(self.pool.files, f"{self.directory}/{START_FILE}", offset)
            with self._lock:
                self.start_offset = offset
            self._remove(gone)

    def _remove(self, gone: list[Segment]) -> None:
        with self._segments_lock:
            self.segments = [segment for segment in self.segments if segment not in gone]
        self.cache.drop_window(self.tail)
        self._sealing.forget(gone)
        self._flushing.forget(gone)
        for segment in gone:
            self.pool.forget(segment.path)
            remove_segment(self.pool.files, segment)
        if gone:
            self.pool.files.sync_directory(self.directory)

    def abandon(self, deleted_topic: str | None) -> Outcome:
        """The topic of this name was deleted (None: the log is closing): nothing more is written, waiting
        appends are refused. What the cache holds is dropped by the caller, once for all partitions."""
        with self._lock:
            self.closed = True
            self.deleted_topic = deleted_topic
            waiting, self._pending = self._pending, []
            self._pending_bytes = 0
            outcome = Outcome(wakes=self._visible.end())
        self._refuse(outcome, [token for _, token in waiting], closed_error(self.deleted_topic))
        for segment in self.segments:
            self.pool.forget(segment.path)
        return outcome

    def settle(self) -> Outcome:
        """After `abandon`: waits for a flush that is under way; refuses what was not flushed."""
        with self.write_lock:
            outcome = Outcome()
            self._finish_flush(outcome, [])
            late = [entry.token for entry in self._take_unflushed()]
            self._refuse(outcome, late, closed_error(self.deleted_topic))
            return outcome

    def close(self, *, note_end: bool = True) -> Outcome:
        """Writes and flushes what is queued, and notes where the log ends, if nobody else does."""
        outcome = Outcome()
        while self._pending and self.stopped is None:
            step = self.write_pending()
            outcome.tokens.extend(step.tokens)
            outcome.wakes.extend(step.wakes)
        for step in (self.flush(), self.finish_rolls()):
            outcome.tokens.extend(step.tokens)
            outcome.wakes.extend(step.wakes)
        with self.write_lock, self._lock:
            self.closed = True
            # Appended while the rest was being written.
            late, self._pending, self._pending_bytes = self._pending, [], 0
        # The event loop may have written more since the flush above.
        step = self.flush()
        outcome.tokens.extend(step.tokens)
        outcome.wakes.extend(step.wakes)
        with self._lock:
            outcome.wakes.extend(self._visible.end())
        self._refuse(outcome, [token for _, token in late], closed_error(self.deleted_topic))
        changed = self.flushed_offset != self.recovered.checkpoint
        if note_end and self.segments and self.stopped is None and changed:
            path = f"{self.directory}/{CHECKPOINT_FILE}"
            # Without it, or with an older one, recovery knows less, but nothing wrong.
            with suppress(OSError):
                write_number(self.pool.files, path, self.flushed_offset)
        return outcome


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
