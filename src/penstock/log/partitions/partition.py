"""A partition: the append side of one log. Assigns offsets, writes batches, flushes, rolls, seals.

Appends are queued by any thread and written by one commit thread at a time (commit.py), which also runs
fdatasync: one flush covers everything that was queued meanwhile, and nobody else waits for the disk.
Reading is in reader.py, opening in recovery.py, cleaning in cleaner.py.
"""

import errno
import itertools
import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress

from penstock.log.batch.format import FLAG_PRODUCER, HEADER_SIZE, MAX_BATCH_BYTES, Batch
from penstock.log.batch.view import view_appended
from penstock.log.errors import (
    CorruptLog,
    LogClosed,
    LogError,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    PartitionStopped,
    TooLarge,
)
from penstock.log.partitions.append_group import Entry, Group, Load
from penstock.log.partitions.cleaning_state import CleaningState
from penstock.log.partitions.flushing import Flushing
from penstock.log.partitions.outcome import Callback, Outcome
from penstock.log.partitions.recovery import recover, remove_segment
from penstock.log.partitions.sealing import Sealing
from penstock.log.partitions.survey import CHECKPOINT_FILE, START_FILE, write_number
from penstock.log.partitions.tokens import AppendToken
from penstock.log.partitions.visibility import Visibility
from penstock.log.settings import TopicSettings
from penstock.log.statistics import Counters
from penstock.log.storage.cache import BatchCache, RecentBatches
from penstock.log.storage.complaints import Complaints, append_error
from penstock.log.storage.files import File
from penstock.log.storage.handles import HandlePool
from penstock.log.storage.hints import ReadHints
from penstock.log.storage.index import SparseIndex
from penstock.log.storage.salt import Salt, new_salt, write_salt
from penstock.log.storage.segment import (
    CutFailed,
    Segment,
    cut_back,
    write_parts,
)

# Bytes written between two flushes. Measured on ext4: 2 to 4 MiB per fdatasync give twice the
# throughput of 10 MiB and more, because the kernel starts writing early; less costs flushes.
GROUP_BYTES = 4 * 1024 * 1024
# One system call writes about this much: beyond it the page cache work no longer fits the CPU's cache.
WRITE_BYTES = 1024 * 1024
# Queued but not yet written; past it the log refuses, so that memory stays bounded when the disk is
# slow. Holds the largest batch twice.
MAX_PENDING_BYTES = 2 * (MAX_BATCH_BYTES + HEADER_SIZE)
# What a cached batch costs beside its bytes.
CACHE_OVERHEAD_BYTES = 512

logger = logging.getLogger(__name__)


class Partition:
    """Thread-safe. Offsets: start <= visible <= next; visible is what readers may see."""

    def __init__(
        self,
        directory: str,
        settings: TopicSettings,
        pool: HandlePool,
        cache: BatchCache,
        clock_us: Callable[[], int],
        observe_flush: Callable[[float, int], None] | None = None,
        sync_pool: Executor | None = None,
        draw_salt: Callable[[], int] = new_salt,
        durable_offset: int = 0,
    ) -> None:
        """`durable_offset`: what is known to be durable, beside what the files themselves tell."""
        self.directory = directory
        self.settings = settings
        self.pool = pool
        self.cache = cache
        self.clock_us = clock_us
        self._observe_flush = observe_flush
        self._flushing: Flushing[Load] = Flushing(pool, directory, sync_pool)
        self.tail = RecentBatches()
        self.hints = ReadHints()
        self.counters = Counters()
        found = recover(pool.files, directory, durable_offset)
        self.counters.cut_bytes = found.cut_bytes
        self.counters.damages = len(found.damages)
        self.recovered = found
        self.salt = found.salt if found.salt.value else Salt(draw_salt())
        self.segments = found.segments
        self.start_offset = found.start_offset
        self.missing_head = found.missing_head
        self.next_offset = found.next_offset
        self.flushed_offset = found.next_offset
        self.stopped: str | None = None
        self.closed = False
        # What the cleaner knows; read when it comes for the first time.
        self.cleaning: CleaningState | None = None
        self._producers = found.producers
        self._lock = threading.Lock()
        # Held by whoever writes: the commit thread, or maintenance that replaces segments.
        self.write_lock = threading.Lock()
        self._pending: list[tuple[Batch, AppendToken]] = []
        self._pending_bytes = 0
        self.last_group_batches = 0
        self._sealing = Sealing(pool.files, directory)
        self._visible = Visibility(found.next_offset)
        self._complaints = Complaints(clock_us)
        for segment in self.segments[:-1]:
            if not segment.sealed:
                self._sealing.add(segment, self.segments[-1].base_offset, self._producers)
        self.finish_rolls()

    @property
    def visible_offset(self) -> int:
        return self._visible.offset

    # --- the producer's side ---------------------------------------------------------------------

    def append(self, batch: Batch, token: AppendToken | None = None) -> AppendToken:
        """Queues a batch; the commit thread must be told. Raises when it cannot be taken."""
        size = batch.size()
        if size > MAX_BATCH_BYTES + HEADER_SIZE:
            raise TooLarge("batch", size, MAX_BATCH_BYTES)
        if token is None:
            token = AppendToken(batch.count)
        with self._lock:
            if self.closed:
                raise LogClosed
            if self.stopped is not None:
                raise PartitionStopped(self.directory, self.stopped)
            if self._pending_bytes + size > MAX_PENDING_BYTES:
                raise Overloaded(self.directory, f"{self._pending_bytes} bytes wait to be written")
            self._pending.append((batch, token))
            self._pending_bytes += size
        return token

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    @property
    def unflushed(self) -> bool:
        return self._flushing.needed and self.stopped is None

    @property
    def pending_batches(self) -> int:
        return len(self._pending)

    def watch(self, offset: int, callback: Callback) -> None:
        """Calls back once when a record at `offset` can be read; at once when it can already."""
        with self._lock:
            if self.visible_offset <= offset:
                if self.closed:
                    raise LogClosed
                self._visible.watch(offset, callback)
                return
        callback()

    def unwatch(self, callback: Callback) -> None:
        with self._lock:
            self._visible.unwatch(callback)

    # --- the commit thread -----------------------------------------------------------------------

    def write_pending(self) -> Outcome:
        """Writes one group of what is queued, and flushes it where the topic asks for that."""
        with self.write_lock:
            group = self._take_group()
            try:
                return self._commit(group)
            except Exception as error:
                # Must not happen. Whatever it is, this partition does not go on half-done, and
                # nobody is left waiting.
                logger.exception("commit of %s failed", self.directory)
                outcome = Outcome()
                self._finish_flush(outcome, [])
                self._stop(outcome, [], OSError(errno.EIO, f"{type(error).__name__}: {error}"))
                unknown = OutcomeUnknown(self.directory, str(error))
                self._refuse(outcome, [token for _, token in group if not token.done], unknown)
                return outcome

    def _commit(self, group: list[tuple[Batch, AppendToken]]) -> Outcome:
        entries, outcome = self._write_group(group)
        self._finish_flush(outcome, entries)
        if self.stopped is not None:
            return outcome
        if self.settings.durability != "ack" or not self._flushing.needed:
            self._publish(outcome, entries)
        elif self._pending and self._flushing.can_overlap:
            repeats = [token for token in outcome.tokens if token.repeated]
            outcome.tokens = [token for token in outcome.tokens if not token.repeated]
            self._flushing.start(Load(entries, repeats, self.next_offset))
        else:
            self._flush(outcome, entries)
        return outcome

    def _finish_flush(self, outcome: Outcome, unflushed: list[Entry]) -> None:
        """Waits for the flush in the other thread, if there is one, and tells of it. Where it failed,
        what was written since (`unflushed`) is lost with it."""
        flush = self._flushing.take()
        if flush is None:
            return
        load = flush.load
        outcome.tokens.extend(load.repeats)
        try:
            flush.future.result()
        except OSError as error:
            self._stop(outcome, [*load.entries, *unflushed], error)
            return
        self._flushed(outcome, load.entries, load.end_offset, flush.began_s)

    def flush(self) -> Outcome:
        """fdatasync for everything written so far (interval, none, close)."""
        with self.write_lock:
            outcome = Outcome()
            self._finish_flush(outcome, [])
            if self.stopped is None and self._flushing.needed:
                self._flush(outcome, [])
            return outcome

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

    def roll(self, oldest_us: int) -> int:
        """Starts a new segment if all of the active one is older. Gives the offset where it begins."""
        with self.write_lock:
            if not self.segments or self.segments[-1].sealed or self.stopped or self.closed:
                return self.start_offset
            index = self._active_index()
            if index.size and index.max_time_us < oldest_us:
                self._roll()
            return self.segments[-1].base_offset

    def _take_group(self) -> list[tuple[Batch, AppendToken]]:
        with self._lock:
            size = 0
            taken = 0
            for batch, _ in self._pending:
                if size and size + batch.size() > GROUP_BYTES:
                    break
                size += batch.size()
                taken += 1
            group, self._pending = self._pending[:taken], self._pending[taken:]
            self._pending_bytes -= size
            self.last_group_batches = taken
            return group

    def _write_group(self, batches: list[tuple[Batch, AppendToken]]) -> tuple[list[Entry], Outcome]:
        outcome = Outcome()
        group = Group()
        if self.stopped is not None:
            error = PartitionStopped(self.directory, self.stopped)
            self._refuse(outcome, [token for _, token in batches], error)
            return [], outcome
        try:
            for batch, token in batches:
                if self._is_new(batch, token, outcome):
                    self._place(group, batch, token)
            self._write(group)
        except OSError as error:
            failed = self._take_back(group, batches, outcome)
            refusal = append_error(self.directory, error)
            self._refuse(outcome, failed, refusal)
            self._complaints.tell(refusal)
        except CutFailed as cut:
            failed = self._take_back(group, batches, outcome)
            self._stop(outcome, group.written, cut.error)
            self._refuse(outcome, failed, OutcomeUnknown(self.directory, str(cut.error)))
        return group.written, outcome

    def _take_back(
        self, group: Group, batches: list[tuple[Batch, AppendToken]], outcome: Outcome
    ) -> list[AppendToken]:
        """Gives back the numbers of what was not written; returns the tokens to be refused."""
        for offset, producer_id, previous in reversed(group.undo):
            if offset >= self.next_offset:
                self._producers.restore(producer_id, previous)
        # Other answers may rest on what was not written: a repeat of it, a gap behind it. Only
        # repeats of what is in the log stand; the rest is told to try again.
        kept = [t for t in outcome.tokens if t.repeated and 0 <= t.base_offset < self.next_offset]
        self.counters.failed_appends -= sum(t.error is not None for t in outcome.tokens)
        outcome.tokens = kept
        told = {id(entry.token) for entry in group.written}
        told.update(id(token) for token in outcome.tokens)
        failed = [token for _, token in batches if id(token) not in told]
        for token in failed:
            token.repeated = False
            token.base_offset = -1
        return failed

    def _place(self, group: Group, batch: Batch, token: AppendToken) -> None:
        """Gives the batch its offset, and writes what has gathered where that is enough."""
        stored = batch.compressed() if self.settings.compression == "zstd" else batch
        if self._must_roll(group.waiting_bytes, stored.size()):
            self._write(group)
            self._roll()
        if self.segments[-1].base_offset < self.salt.since:
            self._begin_salt(self.segments[-1])
        last = group.waiting[-1] if group.waiting else None
        base = last.base_offset + last.batch.count if last is not None else self.next_offset
        header = stored.stamp(base, self.flushed_offset, self.salt.value)
        group.waiting.append(Entry(batch, token, base, header, stored))
        group.waiting_bytes += stored.size()
        if batch.flags & FLAG_PRODUCER:
            previous = self._producers.stored(
                batch.producer_id, batch.epoch, batch.sequence, base, batch.count
            )
            group.undo.append((base, batch.producer_id, previous))
        if group.waiting_bytes >= WRITE_BYTES:
            self._write(group)

    def _is_new(self, batch: Batch, token: AppendToken, outcome: Outcome) -> bool:
        """False for a repeat and for a batch that its producer may not send; both are answered."""
        if not batch.flags & FLAG_PRODUCER:
            return True
        try:
            repeat = self._producers.check(batch.producer_id, batch.epoch, batch.sequence)
        except LogError as error:
            self._refuse(outcome, [token], error)
            return False
        if repeat is None:
            return True
        token.repeated = True
        token.base_offset = repeat.base_offset
        self.counters.repeated_batches += 1
        # The first copy may be in this very group: the token is told after its flush.
        outcome.tokens.append(token)
        return False

    def _must_roll(self, waiting_bytes: int, size: int) -> bool:
        if not self.segments or self.segments[-1].sealed:
            return True
        used = self._active_index().size + waiting_bytes
        # Batches of version 1 and 2 are not mixed in one file.
        too_old = self.segments[-1].base_offset < self.salt.since
        return bool(used) and (too_old or used + size > self.settings.segment_bytes)

    def _begin_salt(self, segment: Segment) -> None:
        """The first batch with a salt is about to be written, at the beginning of this segment."""
        salt = Salt(self.salt.value, segment.base_offset)
        write_salt(self.pool.files, self.directory, salt)
        self.salt = segment.salt = salt

    def _active_index(self) -> SparseIndex:
        index = self.segments[-1].index
        assert index is not None, "the active segment has its index in memory"
        return index

    def _roll(self) -> None:
        """Goes on in a new file; the old one is flushed and sealed behind the next flush."""
        if not self.segments:
            self.pool.files.make_directory(self.directory)
        base_offset = self.next_offset
        index = SparseIndex(base_offset)
        segment = Segment(self.directory, base_offset, False, index, salt=self.salt)
        with self.pool.use(segment.path, create=True) as file:
            if file.size():
                file.truncate(0)
        self._flushing.created()
        with self._lock:
            old = self.segments[-1] if self.segments else None
            self.segments = [*self.segments, segment]
        if old is not None and not old.sealed:
            self._sealing.add(old, base_offset, self._producers)

    def _write(self, group: Group) -> None:
        """One write for several batches. Raises OSError with nothing of them left in the file."""
        entries, group_bytes = group.waiting, group.waiting_bytes
        group.waiting, group.waiting_bytes = [], 0
        if not entries:
            return
        segment = self.segments[-1]
        index = self._active_index()
        position = index.size
        parts = [part for entry in entries for part in (entry.header, entry.stored.body)]
        with self.pool.use(segment.path) as file:
            try:
                write_parts(file, parts, position)
            except OSError:
                cut_back(file, position)
                raise
            if self.settings.durability == "ack":
                # The disk begins while the next part is prepared; the flush then waits for less.
                file.start_writeback(position, group_bytes)
        self._flushing.wrote(segment)
        for entry in entries:
            size = entry.stored.size()
            self.next_offset = entry.base_offset + entry.batch.count
            index.add(entry.base_offset, position, size, self.next_offset, entry.batch.max_time_us)
            position += size
            view = view_appended(entry.batch, entry.base_offset)
            self.cache.add(self.tail, view, entry.batch.size() + CACHE_OVERHEAD_BYTES)
            self.counters.appended_records += entry.batch.count
            self.counters.appended_bytes += size
        self.counters.appended_batches += len(entries)
        group.written.extend(entries)

    def _refuse(self, outcome: Outcome, tokens: list[AppendToken], error: LogError) -> None:
        for token in tokens:
            token.error = error
        outcome.tokens.extend(tokens)
        self.counters.failed_appends += len(tokens)

    def _flush(self, outcome: Outcome, entries: list[Entry]) -> None:
        """Flushes here and now."""
        began_s = time.perf_counter()
        try:
            self._flushing.now()
        except OSError as error:
            self._stop(outcome, entries, error)
            return
        self._flushed(outcome, entries, self.next_offset, began_s)

    def _flushed(
        self, outcome: Outcome, entries: list[Entry], end_offset: int, began_s: float
    ) -> None:
        self.counters.flushes += 1
        if self._observe_flush is not None:
            records = end_offset - self.flushed_offset
            self._observe_flush(time.perf_counter() - began_s, records)
        with self._lock:
            self.flushed_offset = end_offset
        self._publish(outcome, entries)

    def _stop(self, outcome: Outcome, entries: list[Entry], error: OSError) -> None:
        reason = error.strerror or str(error)
        unknown = OutcomeUnknown(self.directory, reason)
        with self._lock:
            self.stopped = f"flush failed: {reason}"
            waiting, self._pending = self._pending, []
            self._pending_bytes = 0
        repeated = [token for token in outcome.tokens if token.repeated]
        for token in [*(entry.token for entry in entries), *repeated]:
            token.error = unknown
        outcome.tokens.extend(entry.token for entry in entries)
        stopped = PartitionStopped(self.directory, self.stopped or reason)
        self._refuse(outcome, [token for _, token in waiting], stopped)
        self.cache.drop(self.tail)

    def _publish(self, outcome: Outcome, entries: list[Entry]) -> None:
        for entry in entries:
            entry.token.base_offset = entry.base_offset
            outcome.tokens.append(entry.token)
        with self._lock:
            outcome.wakes.extend(self._show())

    def _show(self) -> list[Callback]:
        """Makes visible what may be seen; gives the watchers to wake. The lock is held."""
        durable = self.settings.durability == "ack"
        return self._visible.show(self.flushed_offset if durable else self.next_offset)

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

    # --- segments --------------------------------------------------------------------------------

    @contextmanager
    def open_segment(self, offset: int) -> Iterator[tuple[Segment, int, File]]:
        """The segment that should hold `offset`, the offset at which it ends, and its open file.

        All three belong together even while the cleaner puts a rewritten segment in place.
        """
        with self._lock:
            segments = self.segments
            at = bisect_right([segment.base_offset for segment in segments], offset) - 1
            if at < 0:
                raise OffsetOutOfRange(offset, self.start_offset, self.visible_offset)
            last = at + 1 == len(segments)
            end = self.next_offset if last else segments[at + 1].base_offset
            use = self.pool.use(segments[at].path)
            try:
                file = use.__enter__()
            except FileNotFoundError:
                # Retention changes the list first: only a stranger can have taken this file away.
                base_offset, path = segments[at].base_offset, segments[at].path
                raise CorruptLog(path, 0, "the file is missing", base_offset, end) from None
        try:
            yield segments[at], end, file
        finally:
            use.__exit__(None, None, None)

    def replace_segments(self, old: list[Segment], new: Segment, put: Callback) -> None:
        """Lets `put` change the files while no reader is between list and file, then the list."""
        with self._lock:
            put()
            for segment in old:
                self.pool.forget(segment.path)
            at = self.segments.index(old[0])
            kept = [segment for segment in self.segments if segment not in old]
            self.segments = [*kept[:at], new, *kept[at:]]

    def size_bytes(self) -> int:
        """Bytes of all segment files."""
        return sum(self.segment_size(segment) for segment in self.segments)

    def segment_size(self, segment: Segment) -> int:
        if segment.index is not None:
            return segment.index.size
        return self.pool.files.size(segment.path)

    def trim(self, offset: int) -> None:
        """Gives up everything below `offset`: it is never read again, whole segments go at once."""
        with self.write_lock:
            offset = min(offset, self.visible_offset)
            if offset <= self.start_offset:
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
        with self._lock:
            self.segments = [segment for segment in self.segments if segment not in gone]
        self._sealing.forget(gone)
        self._flushing.forget(gone)
        for segment in gone:
            self.pool.forget(segment.path)
            remove_segment(self.pool.files, segment)
        if gone:
            self.pool.files.sync_directory(self.directory)

    def abandon(self) -> Outcome:
        """The topic is being deleted: nothing more is written, waiting appends are refused."""
        with self._lock:
            self.closed = True
            waiting, self._pending = self._pending, []
            self._pending_bytes = 0
            outcome = Outcome(wakes=self._visible.end())
        self._refuse(outcome, [token for _, token in waiting], LogClosed())
        self.cache.drop(self.tail)
        for segment in self.segments:
            self.pool.forget(segment.path)
        return outcome

    def settle(self) -> Outcome:
        """Waits for a flush that is under way, and gives what it has to tell."""
        with self.write_lock:
            outcome = Outcome()
            self._finish_flush(outcome, [])
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
        with self._lock:
            self.closed = True
            # Came in while the rest was being written.
            late, self._pending, self._pending_bytes = self._pending, [], 0
            outcome.wakes.extend(self._visible.end())
        self._refuse(outcome, [token for _, token in late], LogClosed())
        changed = self.flushed_offset != self.recovered.checkpoint
        if note_end and self.segments and self.stopped is None and changed:
            path = f"{self.directory}/{CHECKPOINT_FILE}"
            # Without it, or with an older one, recovery knows less, but nothing wrong.
            with suppress(OSError):
                write_number(self.pool.files, path, self.flushed_offset)
        return outcome
