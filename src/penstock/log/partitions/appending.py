"""The way of a batch from the caller to the disk and back, for one partition: when its append completes.

A batch is in one of these states:

    queued     in `_pending`, without an offset
    written    has its offset and is in the page cache; with durability none or interval it completes now
    unflushed  written by the event loop itself (loop_appends.py), completed by the next flush (ack)
    flushing   covered by a flush that runs in another thread (flushing.py)
    completed  its token has an offset or an error

The holder of `write_lock` writes. The event loop only tries it, so it never waits: while a flush runs, or a
segment must be begun, or others are before it, the batch is queued. A commit thread (commit.py) writes what
is queued and flushes: one flush covers everything that came before it. A failed write is taken
back and refused; a failed flush is final, because the kernel may have dropped the pages: the partition
stops, and every append that it may have covered fails with "outcome unknown".

Locks, in the order in which they are taken: `serving`, `write_lock`, `_segments_lock`, `_lock`. The last
one is held for a few instructions only, and is the only one that the event loop waits for.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable

from penstock.log.batch.encryption import Keyring, Sealer
from penstock.log.batch.format import (
    FLAG_AT_MOST_ONCE,
    FLAG_PRODUCER,
    HEADER_SIZE,
    MAX_BATCH_BYTES,
    Batch,
)
from penstock.log.batch.view import view_appended
from penstock.log.errors import (
    LogError,
    OutcomeUnknown,
    Overloaded,
    PartitionStopped,
    TooLarge,
    closed_error,
)
from penstock.log.partitions.append_group import Entry, Group, Load
from penstock.log.partitions.flush_threads import FlushThreads
from penstock.log.partitions.flushing import Flushing
from penstock.log.partitions.joining import joined
from penstock.log.partitions.outcome import Callback, Outcome
from penstock.log.partitions.recovery import Recovered
from penstock.log.partitions.sealing import Sealing
from penstock.log.partitions.tokens import AppendToken
from penstock.log.partitions.visibility import Visibility
from penstock.log.settings import TopicSettings
from penstock.log.statistics import Counters
from penstock.log.storage.cache import BatchCache, RecentBatches
from penstock.log.storage.complaints import Complaints, append_error, as_disk_error
from penstock.log.storage.handles import HandlePool
from penstock.log.storage.index import SparseIndex
from penstock.log.storage.salt import Salt, write_salt
from penstock.log.storage.segment import CutFailed, Segment, cut_back, take_away, write_parts

# Bytes written between two flushes. Measured on ext4: 2 to 4 MiB per fdatasync give twice the
# throughput of 10 MiB and more, because the kernel starts writing early; less costs flushes.
GROUP_BYTES = 4 * 1024 * 1024
# One system call writes about this much: beyond it the page cache work no longer fits the CPU's cache.
WRITE_BYTES = 1024 * 1024
# Queued but not yet written; past it the log refuses, so that memory stays bounded when the disk is
# slow. Holds the largest batch twice.
MAX_PENDING_BYTES = 2 * (MAX_BATCH_BYTES + HEADER_SIZE)
# A group that leaves this much queued is flushed in another thread while the next one is written. With
# less the next write is short, and would wait for the running flush of the same file.
OVERLAP_BYTES = 256 * 1024
# From this size on the kernel is asked to start writing before the flush.
WRITEBACK_BYTES = 256 * 1024
# A batch that is joined of small appends is no larger than such a part of a segment, so that segments end
# about where they are full.
BATCHES_A_SEGMENT = 8
# What a cached batch costs beside its bytes.
CACHE_OVERHEAD_BYTES = 512

# The directory was not even opened: no flush has failed.
NOT_OPENED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

logger = logging.getLogger(__name__)


def _call_all(callbacks: list[Callback]) -> None:
    for callback in callbacks:
        callback()


class AppendSide:
    """The part of a partition that takes appends. Thread-safe."""

    def __init__(
        self,
        directory: str,
        settings: TopicSettings,
        pool: HandlePool,
        cache: BatchCache,
        clock_us: Callable[[], int],
        observe_flush: Callable[[float, int], None] | None,
        flush_threads: FlushThreads | None,
        found: Recovered,
        keys: Keyring,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.pool = pool
        self.cache = cache
        self._observe_flush = observe_flush
        self._flushing = Flushing(pool, directory, flush_threads)
        self.tail = RecentBatches()
        self.counters = Counters()
        self.segments = found.segments
        self.next_offset = found.next_offset
        self.flushed_offset = found.next_offset
        self.stopped: str | None = None
        self.closed = False
        # The name of the topic, once that was deleted.
        self.deleted_topic: str | None = None
        # Drawn by the partition where recovery found none.
        self.salt = found.salt
        self._producers = found.producers
        self.keys = keys
        # Of the active segment; None until it is needed, or where nothing is encrypted.
        self._sealer: Sealer | None = None
        self._lock = threading.Lock()
        # Guards the list of segments together with the files that it names: held while files are put
        # in place, so nobody on the event loop takes it.
        self._segments_lock = threading.Lock()
        # Held by the writer: the commit thread, or maintenance that replaces segments.
        self.write_lock = threading.Lock()
        self._pending: list[tuple[Batch, AppendToken]] = []
        self._pending_bytes = 0
        # For commit.py: held by the thread that serves the partition; whether it is in the queue or
        # being served; its place in the timers; whether a late flush is on its way; deleted, nobody may
        # work on it any more.
        self.serving = threading.Lock()
        self._scheduled = False
        self.flush_planned = False
        self.flush_due = False
        self.flush_is_late = False
        self.forgotten = False
        self._unflushed: list[Entry] = []
        self._unflushed_bytes = 0
        # The event loop wrote a part of a batch behind the end of the active segment.
        self._fell_short = False
        self._sealing = Sealing(pool.files, directory)
        self._visible = Visibility(found.next_offset)
        self._complaints = Complaints(clock_us)
        # Calls back where callbacks belong; the engine sets it.
        self.wake_early: Callable[[list[Callback]], None] = _call_all

    @property
    def visible_offset(self) -> int:
        return self._visible.offset

    @property
    def early_offset(self) -> int:
        """The end of what those may see who take messages at most once: written, maybe not durable."""
        return self._visible.early

    # --- the producer's side ---------------------------------------------------------------------

    def append(self, batch: Batch, token: AppendToken | None = None) -> AppendToken:
        """Queues a batch; the caller must notify the commit thread. Raises when it cannot be accepted."""
        size = batch.size()
        if size > MAX_BATCH_BYTES + HEADER_SIZE:
            raise TooLarge("batch", size, MAX_BATCH_BYTES)
        if token is None:
            token = AppendToken(batch.count)
        with self._lock:
            if self.closed:
                raise closed_error(self.deleted_topic)
            if self.stopped is not None:
                raise PartitionStopped(self.directory, self.stopped)
            if self._pending_bytes + size > MAX_PENDING_BYTES:
                raise Overloaded(self.directory, f"{self._pending_bytes} bytes wait to be written")
            self._pending.append((batch, token))
            self._pending_bytes += size
        return token

    def schedule(self) -> bool:
        """True when the partition has to be put into the queue of the commit threads."""
        with self._lock:
            if self._scheduled or self.forgotten:
                return False
            self._scheduled = True
            return True

    def unschedule(self) -> bool:
        """After it was served: False when there is more to do, and it must be served again."""
        with self._lock:
            self._scheduled = bool(self._pending or self._unflushed or self.flush_due)
            return not self._scheduled

    @property
    def needs_timer(self) -> bool:
        """Written but not flushed, with durability interval, and no time set for the flush."""
        return self.settings.durability == "interval" and not self.flush_planned and self.unflushed

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    @property
    def unflushed(self) -> bool:
        return self._flushing.needed and self.stopped is None

    @property
    def pending_batches(self) -> int:
        return len(self._pending)

    # --- the commit thread -----------------------------------------------------------------------

    def write_pending(self) -> Outcome:
        """Writes one group of what is queued, and flushes it where the topic asks for that."""
        with self.write_lock:
            group = self._take_group()
            try:
                return self._commit(group)
            except Exception as error:
                return self._give_up(group, error)

    def _give_up(self, group: list[tuple[Batch, AppendToken]], error: Exception) -> Outcome:
        """Must not happen. Whatever it is, this partition does not go on half-done, and nobody is left
        waiting."""
        logger.exception("commit of %s failed", self.directory)
        outcome = Outcome()
        self._finish_flush(outcome, [])
        self._stop(outcome, [], as_disk_error(error))
        unknown = OutcomeUnknown(self.directory, str(error))
        self._refuse(outcome, [token for _, token in group if not token.done], unknown)
        return outcome

    def _commit(self, group: list[tuple[Batch, AppendToken]]) -> Outcome:
        entries, outcome = self._write_group(group)
        early = self._early()
        if early:
            self.wake_early(early)
        self._finish_flush(outcome, entries)
        if self.stopped is not None:
            return outcome
        if self.settings.durability != "ack" or not self._flushing.needed:
            self._publish(outcome, self._take_unflushed() + entries)
        elif self._pending_bytes >= OVERLAP_BYTES and self._flushing.can_overlap:
            entries = self._take_unflushed() + entries
            repeats = [token for token in outcome.tokens if token.repeated]
            outcome.tokens = [token for token in outcome.tokens if not token.repeated]
            try:
                self._flushing.start(Load(entries, repeats, self.next_offset))
            except Exception as error:  # no thread could be started, say
                outcome.tokens.extend(repeats)
                self._stop(outcome, entries, as_disk_error(error))
        else:
            self._flush(outcome, entries)
        return outcome

    def _early(self) -> list[Callback]:
        """Those who take messages at most once and need not wait for the flush."""
        with self._lock:
            return self._visible.take_early()

    def _take_unflushed(self) -> list[Entry]:
        entries, self._unflushed, self._unflushed_bytes = self._unflushed, [], 0
        return entries

    def _finish_flush(self, outcome: Outcome, unflushed: list[Entry]) -> None:
        """Waits for the flush under way, if there is one, and completes its appends. If it failed, what was
        written since (`unflushed`) fails with it."""
        flush = self._flushing.take()
        if flush is None:
            return
        load = flush.load
        outcome.tokens.extend(load.repeats)
        try:
            flush.running.wait()
        except Exception as error:  # whatever the error is, the content of the disk is unknown
            self._stop(outcome, [*load.entries, *unflushed], as_disk_error(error))
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
        if taken == 1:
            return group
        return joined(group, self.settings.segment_bytes // BATCHES_A_SEGMENT)

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
        # repeats of what is in the log stand; the rest is refused and may be sent again.
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
        header, stored = self._stamped(stored, base)
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
        # The first copy may be in this very group: the token completes after its flush.
        outcome.tokens.append(token)
        return False

    def _must_roll(self, waiting_bytes: int, size: int) -> bool:
        if not self.segments or self.segments[-1].sealed:
            return True
        used = self._active_index().size + waiting_bytes
        # Batches of version 1 and 2 are not mixed in one file.
        too_old = self.segments[-1].base_offset < self.salt.since
        if self.segments[-1].key_id != self.wanted_key:
            too_old = True  # one file, one key: the first batch tells that of all
        return bool(used) and (too_old or used + size > self.settings.segment_bytes)

    @property
    def wanted_key(self) -> int:
        """The id of the key that new batches are encrypted with; 0: they are not."""
        return self.keys.current if self.settings.encryption else 0

    def _stamped(self, batch: Batch, base_offset: int) -> tuple[bytes, Batch]:
        """Header and batch as they are written to the active segment: encrypted where the segment is."""
        segment = self.segments[-1]
        if base_offset == segment.base_offset:  # its first batch, or the first try of it failed
            segment.key_id = self.wanted_key
            self._sealer = None
        if not segment.key_id:
            return batch.stamp(base_offset, self.flushed_offset, self.salt.value), batch
        if self._sealer is None:
            self._sealer = self.keys.sealer(segment.key_id)
        return self._sealer.seal(batch, base_offset, self.flushed_offset, self.salt.value)

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
        self._cut_what_fell_short()
        base_offset = self.next_offset
        index = SparseIndex(base_offset)
        segment = Segment(
            self.directory, base_offset, False, index, salt=self.salt, open_body=self.keys.open_body
        )
        try:
            with self.pool.use(segment.path, create=True) as file:
                if file.size():
                    file.truncate(0)
            self._name_durable()
        except OSError:
            self.pool.forget(segment.path)
            take_away(self.pool.files, segment)
            raise
        with self._segments_lock:
            old = self.segments[-1] if self.segments else None
            self.segments = [*self.segments, segment]
        if old is not None and not old.sealed:
            self._sealing.add(old, base_offset, self._producers)

    def _cut_what_fell_short(self) -> None:
        """What is written next may be shorter, or go to a new segment: nothing may lie behind the end of
        this one. Raises OSError, CutFailed."""
        if self._fell_short:
            with self.pool.use(self.segments[-1].path) as file:
                cut_back(file, self._active_index().size)
            self._fell_short = False

    def _name_durable(self) -> None:
        """Of a new file: before anything is written to it, so that a directory that cannot be opened is
        a plain refusal. Where nobody waits for a flush, the next flush does it."""
        if self.settings.durability != "ack":
            self._flushing.created()
            return
        try:
            self.pool.files.sync_directory(self.directory)
        except OSError as error:
            if error.errno in NOT_OPENED:
                raise
            raise CutFailed(error) from error

    def _write(self, group: Group) -> None:
        """One write for several batches. Raises OSError with nothing of them left in the file."""
        entries, group_bytes = group.waiting, group.waiting_bytes
        group.waiting, group.waiting_bytes = [], 0
        if not entries:
            return
        self._cut_what_fell_short()
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
            if self.settings.durability == "ack" and group_bytes >= WRITEBACK_BYTES:
                # The disk begins while the next part is prepared; the flush then waits for less.
                file.start_writeback(position, group_bytes)
        self._flushing.wrote(segment)
        self._note_written(entries, position)
        group.written.extend(entries)

    def _note_written(self, entries: list[Entry], position: int) -> None:
        index = self._active_index()
        for entry in entries:
            size = entry.stored.size()
            self.next_offset = entry.base_offset + entry.batch.count
            index.add(entry.base_offset, position, size, self.next_offset, entry.batch.max_time_us)
            position += size
            if entry.batch.flags & FLAG_AT_MOST_ONCE:
                self._visible.written(entry.base_offset, self.next_offset)
            view = view_appended(entry.batch, entry.base_offset)
            self.cache.add(self.tail, view, entry.batch.size() + CACHE_OVERHEAD_BYTES)
            self.counters.appended_records += entry.batch.count
            self.counters.appended_bytes += size
        self.counters.appended_batches += len(entries)

    def _refuse(self, outcome: Outcome, tokens: list[AppendToken], error: LogError) -> None:
        for token in tokens:
            token.error = error
        outcome.tokens.extend(tokens)
        self.counters.failed_appends += len(tokens)

    def _flush(self, outcome: Outcome, entries: list[Entry]) -> None:
        """Flushes here and now."""
        entries = self._take_unflushed() + entries
        began_s = time.perf_counter()
        try:
            self._flushing.now()
        except Exception as error:  # as above
            self._stop(outcome, entries, as_disk_error(error))
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
        entries = self._take_unflushed() + entries
        reason = error.strerror or str(error)
        unknown = OutcomeUnknown(self.directory, reason)
        with self._lock:
            self.stopped = f"flush failed: {reason}"
            waiting, self._pending = self._pending, []
            self._pending_bytes = 0
        repeated = [token for token in outcome.tokens if token.repeated]
        for token in [*[entry.token for entry in entries], *repeated]:
            token.error = unknown
        outcome.tokens.extend([entry.token for entry in entries])
        stopped = PartitionStopped(self.directory, self.stopped or reason)
        self._refuse(outcome, [token for _, token in waiting], stopped)
        self.cache.drop({self.tail})

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
