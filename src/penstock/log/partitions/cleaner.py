"""Maintenance of sealed segments: retention, key compaction, merging of small batches.

Everything is rewritten beside the old files and put in place in one step, so that a crash leaves the
old or the new, and readers see no difference but the records that were to go. The active segment is
never touched; when all of it is too old, another one becomes active. Runs in a maintenance thread, one
partition at a time.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from penstock.log.batch.builder import BatchBuilder
from penstock.log.batch.encryption import Sealer
from penstock.log.batch.format import (
    FLAG_AT_MOST_ONCE,
    FLAG_CLEANED,
    FLAG_EMPTY_DELETES,
    ORIGIN_MASK,
    VERSION,
    BatchError,
)
from penstock.log.batch.view import BatchView
from penstock.log.errors import CorruptLog
from penstock.log.partitions.cleaning_state import CleaningState, read_state, write_state
from penstock.log.partitions.partition import Partition
from penstock.log.partitions.replacing import (
    append_batch,
    note_damage,
    replace_sealed,
    sealed_segments,
    with_ends,
)
from penstock.log.storage.files import File
from penstock.log.storage.index import NO_TIME, SparseIndex
from penstock.log.storage.scan import unreadable
from penstock.log.storage.segment import Segment

# Batches are merged up to this size: a reader gets one for a megabyte instead of thousands.
MERGED_BATCH_BYTES = 1024 * 1024
MERGED_BATCH_RECORDS = 65_536
# A segment whose batches are smaller than this on average is worth merging.
SMALL_BATCH_BYTES = 64 * 1024
# A compaction reads everything, so it waits until this share of a partition is new, as in Kafka: the cost
# of a record is then bounded, however large the partition is.
MIN_DIRTY_SHARE = 0.5
# What a batch says of all its records.
KEPT_FLAGS = FLAG_AT_MOST_ONCE | FLAG_EMPTY_DELETES | ORIGIN_MASK
# Keys that one compaction remembers: 16-byte digests in a dictionary, about 130 bytes each, so half a
# gigabyte at the most. With more keys the oldest part of the log is compacted in this run.
MAX_KEYS = 4_000_000
# Later than the time of any record.
FAR_FUTURE_US = 1 << 63


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a run did."""

    segments: int = 0
    records_removed: int = 0
    bytes_removed: int = 0


def apply_retention(partition: Partition, now_us: int) -> int:
    """Gives up segments that are too old or too much. Returns how many bytes were given back."""
    settings = partition.settings
    before = partition.size_bytes()
    if settings.cleanup == "compact":
        return 0
    if settings.retention_ms:
        _retain_by_age(partition, now_us - settings.retention_ms * 1000)
    if settings.retention_bytes:
        _retain_by_size(partition, settings.retention_bytes)
    return before - partition.size_bytes()


def purge(partition: Partition) -> int:
    """Gives up every record that readers can see. Returns how many bytes were given back."""
    before = partition.size_bytes()
    partition.roll(FAR_FUTURE_US)
    partition.trim(partition.visible_offset)
    return before - partition.size_bytes()


def _retain_by_age(partition: Partition, oldest_us: int) -> None:
    segments = partition.segments
    keep_from = partition.start_offset
    for segment, following in itertools.pairwise(segments):
        if _max_time(partition, segment) >= oldest_us:
            break
        keep_from = following.base_offset
    else:
        active = segments[-1].index if segments else None
        if active is not None and active.size and active.max_time_us < oldest_us:
            # Nothing of the active segment is to be kept. Perhaps nobody appends to it ever again.
            keep_from = max(keep_from, partition.roll(oldest_us))
    partition.trim(keep_from)


def _retain_by_size(partition: Partition, max_bytes: int) -> None:
    segments = partition.segments
    total = partition.size_bytes()
    keep_from = partition.start_offset
    for segment, following in itertools.pairwise(segments):
        if total <= max_bytes:
            break
        total -= partition.segment_size(segment)
        keep_from = following.base_offset
    partition.trim(keep_from)


def _max_time(partition: Partition, segment: Segment) -> int:
    with partition.pool.use(segment.path) as file:
        return segment.loaded_index(partition.pool.files, file).max_time_us


# --- rewriting ------------------------------------------------------------------------------------


class _Rewriter:
    """Writes kept records as large batches into a new file."""

    def __init__(
        self,
        file: File,
        base_offset: int,
        durable_offset: int,
        compress: bool,
        salt: int,
        sealer: Sealer | None,
    ) -> None:
        self._salt = salt
        self._sealer = sealer
        self.index = SparseIndex(base_offset)
        self.kept = 0
        self._file = file
        self._durable_offset = durable_offset
        self._compress = compress
        # What belongs to the batch: records that differ in it are not merged.
        self._kept_flags = 0
        self._builder = BatchBuilder()

    def add(self, view: BatchView, row: int) -> None:
        full = self._builder.size() + view.payload_bytes(row, row + 1) > MERGED_BATCH_BYTES
        kept_flags = view.flags & KEPT_FLAGS
        if view.header.version < VERSION:
            kept_flags |= FLAG_EMPTY_DELETES
        if full or len(self._builder) >= MERGED_BATCH_RECORDS or kept_flags != self._kept_flags:
            self.flush()
        self._kept_flags = kept_flags
        self._builder.add_row(view, row)
        self.kept += 1

    def flush(self) -> None:
        if not len(self._builder):
            return
        base = self._builder.first_offset()
        end = self._builder.last_offset() + 1
        batch = self._builder.build()
        batch.flags |= FLAG_CLEANED | self._kept_flags
        if self._compress:
            batch = batch.compressed()
        append_batch(
            self._file, self.index, batch, base, end, self._durable_offset, self._salt, self._sealer
        )
        self._builder = BatchBuilder()


def _rows(
    partition: Partition, segment: Segment, end_offset: int
) -> Iterator[tuple[BatchView, int]]:
    """All records of a sealed segment. Raises CorruptLog: a damaged segment is never rewritten.

    Missing records are damage too: rewritten, their gap would look like the work of the cleaner.
    """
    expected = segment.base_offset
    with partition.pool.use(segment.path) as file:
        walker = segment.walker(file, 0, file.size())
        while True:
            header = walker.check_or_refuse(segment.path, expected, end_offset)
            base = header.base_offset if header is not None else end_offset
            cleaned = header is not None and header.flags & FLAG_CLEANED
            if base < expected or (base > expected and not cleaned):
                text = "records are missing"
                raise CorruptLog(segment.path, walker.position, text, expected, base)
            if header is None:
                return
            try:
                view = walker.view(header)
            except BatchError as error:
                end = header.base_offset + header.count
                raise unreadable(segment.path, walker.position, error, base, end) from None
            for row in range(view.count):
                yield view, row
            expected = view.next_offset()
            walker.advance(header)


def _rewrite(
    partition: Partition,
    group: list[Segment],
    end_offset: int,
    keep: Callable[[BatchView, int], bool],
) -> Cleaned:
    """Replaces consecutive sealed segments by one that holds the records to keep.

    The last record stays in any case: a segment ends where the next one begins, so that a missing
    end is always damage and never the work of the cleaner.
    """
    removed = 0

    def fill(file: File, sealer: Sealer | None) -> SparseIndex:
        nonlocal removed
        compress = partition.settings.compression == "zstd"
        base = group[0].base_offset
        rewriter = _Rewriter(file, base, end_offset, compress, partition.salt.value, sealer)
        for segment, segment_end in with_ends(group, end_offset):
            for view, row in _rows(partition, segment, segment_end):
                if keep(view, row) or view.offset_of(row) == end_offset - 1:
                    rewriter.add(view, row)
                else:
                    removed += 1
        rewriter.flush()
        return rewriter.index

    before = sum(partition.segment_size(segment) for segment in group)
    new = replace_sealed(partition, group, end_offset, fill)
    if new is None:
        return Cleaned()
    return Cleaned(len(group), removed, before - partition.segment_size(new))


def clean(partition: Partition, now_us: int) -> Cleaned:
    """Compaction where the topic asks for it, and merging: of what is new, or due, since the last round.

    An idle round reads nothing, after a restart too. Raises what `compact` and `merge_small_batches` raise.
    """
    files, directory = partition.pool.files, partition.directory
    if partition.cleaning is None:
        partition.cleaning = read_state(files, directory)
    before = state = partition.cleaning
    done = Cleaned()
    to = _sealed_to(partition)
    if partition.settings.cleanup == "compact" and _is_due(partition, state, now_us):
        done, mark_us = compact(partition, now_us)
        state = replace(state, compacted_to=to, mark_us=mark_us)
    damage: CorruptLog | None = None
    if to > state.merged_to:
        try:
            done = _add(done, merge_small_batches(partition, state.merged_to))
        except CorruptLog as error:
            damage = error  # left alone from now on, like what is good
        state = replace(state, merged_to=to)
    if state != before:
        with partition.write_lock:
            if not partition.closed:  # else the directory may belong to the next topic of this name
                write_state(files, directory, state)
        partition.cleaning = state
    if damage is not None:
        raise damage
    return done


def _sealed_to(partition: Partition) -> int:
    """Where the segments end that the cleaner may look at: the first one that it may not ends them."""
    visible = partition.visible_offset
    end = partition.start_offset
    for segment, following in itertools.pairwise(partition.segments):
        if not segment.sealed or following.base_offset > visible:
            break
        end = following.base_offset
    return end


def _is_due(partition: Partition, state: CleaningState, now_us: int) -> bool:
    """True if enough is new, or a deletion mark has become old enough to go."""
    oldest_mark_us = now_us - partition.settings.tombstone_ms * 1000
    if state.mark_us != NO_TIME and state.mark_us < oldest_mark_us:
        return True
    sizes = [(s.base_offset, partition.segment_size(s)) for s, _ in sealed_segments(partition)]
    dirty_bytes = sum(size for base, size in sizes if base >= state.compacted_to)
    total_bytes = sum(size for _, size in sizes)
    return dirty_bytes > 0 and dirty_bytes >= MIN_DIRTY_SHARE * total_bytes


def merge_small_batches(partition: Partition, from_offset: int = 0) -> Cleaned:
    """Rewrites sealed segments whose batches are small, one at a time.

    Raises CorruptLog when it met damage for the first time, after it has done the other segments.
    """
    total = Cleaned()
    damage: CorruptLog | None = None
    for segment, end_offset in sealed_segments(partition):
        if segment.base_offset < max(partition.start_offset, from_offset):
            continue
        if not _is_fragmented(partition, segment):
            continue
        try:
            done = _rewrite(partition, [segment], end_offset, lambda view, row: True)
        except CorruptLog as error:
            note_damage(partition, segment, error)
            damage = damage or error
            continue
        total = _add(total, done)
    if damage is not None:
        raise damage
    return total


def _is_fragmented(partition: Partition, segment: Segment) -> bool:
    """Looks at the beginning of a segment only: fragmentation is even in practice."""
    batches = 0
    size = 0
    with partition.pool.use(segment.path) as file:
        walker = segment.walker(file, 0, file.size(), SMALL_BATCH_BYTES)
        while batches < 32:
            try:
                header = walker.check()
            except BatchError:
                return True  # the rewrite finds the damage and reports it
            if header is None:
                break
            if header.flags & FLAG_CLEANED:
                return False
            batches += 1
            size += header.length
            walker.advance(header)
    return batches > 1 and size < batches * SMALL_BATCH_BYTES


def compact(partition: Partition, now_us: int) -> tuple[Cleaned, int]:
    """Keeps the newest record of each key; deletion marks go when they are old enough. Also gives the time
    of the oldest mark that stays for its age alone, or NO_TIME.

    A record without a key stays. A record with a key and no value (null) is a deletion mark.
    Raises CorruptLog when it meets damage for the first time; the next run leaves that segment out.
    """
    sealed = sealed_segments(partition)
    if not sealed:
        return Cleaned(), NO_TIME
    latest: dict[bytes, int] = {}
    for segment, segment_end in reversed(sealed):
        try:
            _note_latest(latest, _rows(partition, segment, segment_end))
        except CorruptLog as error:
            note_damage(partition, segment, error)
            raise
    oldest_mark_us = now_us - partition.settings.tombstone_ms * 1000
    if _leaves_some_out(partition, sealed):
        oldest_mark_us = NO_TIME

    def keep(view: BatchView, row: int) -> bool:
        key = view.key(row)
        if key is None:
            return True
        newest = latest.get(_digest(key))
        if newest is None:
            return True  # past MAX_KEYS: an older record of the key may stay, so its mark stays too
        if newest > view.offset_of(row):
            return False
        if not view.is_deletion(row):
            return True
        time_us = view.time_of(row)
        if time_us < oldest_mark_us:
            return False
        waiting.add(time_us)
        return True

    waiting = _Oldest()
    total = Cleaned()
    for group, end_offset in _groups(partition, sealed):
        rows = (
            row
            for segment, segment_end in with_ends(group, end_offset)
            for row in _rows(partition, segment, segment_end)
        )
        # The last record stays in any case: for its sake alone nothing is rewritten, ever again.
        if any(not keep(*row) and row[0].offset_of(row[1]) != end_offset - 1 for row in rows):
            total = _add(total, _rewrite(partition, group, end_offset, keep))
    # Where marks must stay whatever their age, no later round can remove them before something is new.
    return total, NO_TIME if oldest_mark_us == NO_TIME else waiting.time_us


class _Oldest:
    """The least of some times."""

    def __init__(self) -> None:
        self.time_us = NO_TIME

    def add(self, time_us: int) -> None:
        if self.time_us == NO_TIME or time_us < self.time_us:
            self.time_us = time_us


def _note_latest(latest: dict[bytes, int], rows: Iterator[tuple[BatchView, int]]) -> None:
    for view, row in rows:
        key = view.key(row)
        if key is None:
            continue
        digest = _digest(key)
        known = latest.get(digest)
        # A full table takes no new keys, but those in it must know of every record: taken for the
        # newest, an older one would come back when the mark behind it goes.
        if known is not None or len(latest) < MAX_KEYS:
            latest[digest] = max(known if known is not None else -1, view.offset_of(row))


def _leaves_some_out(partition: Partition, sealed: list[tuple[Segment, int]]) -> bool:
    """True if a segment between these stays as it is (damaged, or not sealed yet): without the deletion
    mark behind it, what it still holds would come back."""
    last = sealed[-1][0]
    older = itertools.takewhile(lambda segment: segment is not last, partition.segments)
    return bool({id(segment) for segment in older} - {id(segment) for segment, _ in sealed})


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _groups(
    partition: Partition, sealed: list[tuple[Segment, int]]
) -> Iterator[tuple[list[Segment], int]]:
    """Neighbours that fit one segment together, so that compaction leaves no crumbs."""
    group: list[Segment] = []
    size = 0
    end_offset = 0
    for segment, segment_end in sealed:
        segment_size = partition.segment_size(segment)
        joins = bool(group) and end_offset == segment.base_offset
        if group and (not joins or size + segment_size > partition.settings.segment_bytes):
            yield group, end_offset
            group, size = [], 0
        group.append(segment)
        size += segment_size
        end_offset = segment_end
    if group:
        yield group, end_offset


def _add(one: Cleaned, other: Cleaned) -> Cleaned:
    return Cleaned(
        one.segments + other.segments,
        one.records_removed + other.records_removed,
        one.bytes_removed + other.bytes_removed,
    )
