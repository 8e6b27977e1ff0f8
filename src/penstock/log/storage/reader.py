"""The reading side of a partition: by offset with a byte limit, by time, from memory or from disk.

Shows only what the partition makes visible. Damage is an error that names file and position; expired
records are left out. Any thread may read.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from penstock.log.batch.collector import Collector
from penstock.log.batch.format import FLAG_CLEANED, BatchError
from penstock.log.batch.view import BatchView
from penstock.log.errors import CorruptLog, OffsetOutOfRange
from penstock.log.storage.cache import BatchCache, RecentBatches, Window
from penstock.log.storage.files import File, FileSystem
from penstock.log.storage.hints import ReadHints
from penstock.log.storage.index import NO_TIME
from penstock.log.storage.scan import Damage, Walker, end_of, unreadable
from penstock.log.storage.segment import Segment

# The least read from disk at once: below it system calls cost more than the bytes.
MIN_CHUNK_BYTES = 256 * 1024
# One look at the disk takes at most this much, whatever the caller's limit is. Measured: 22 M records/s to
# Arrow with 1 MiB, 10 M with 4 MiB, which no longer stays in the CPU's cache between copy and checksum.
MAX_CHUNK_BYTES = 1024 * 1024
# What was read stays in memory for a reader that takes less of it and goes on (cache.py), unless large
# batches made it larger than this: a chunk, and another one that begins with the batch that was cut off.
MAX_WINDOW_BYTES = 2 * MAX_CHUNK_BYTES
# One call walks over at most this much of expired or removed records before it answers "nothing yet,
# go on from here", so that no call takes for ever.
MAX_SKIPPED_BYTES = 32 * 1024 * 1024


class HasFiles(Protocol):
    @property
    def files(self) -> FileSystem: ...


class Readable(Protocol):
    """What reading needs of a partition: of one that is written here, or one that is followed."""

    @property
    def pool(self) -> HasFiles: ...
    @property
    def clock_us(self) -> Callable[[], int]: ...
    @property
    def cache(self) -> BatchCache: ...
    @property
    def tail(self) -> RecentBatches: ...
    @property
    def hints(self) -> ReadHints: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def visible_offset(self) -> int: ...
    @property
    def missing_head(self) -> Damage | None: ...
    def open_segment(self, offset: int) -> AbstractContextManager[tuple[Segment, int, File]]: ...


@dataclass(slots=True)
class ReadResult:
    """Views of consecutive rows, where to go on, and where the visible log ended at this moment."""

    views: list[BatchView]
    next_offset: int
    end_offset: int

    def count(self) -> int:
        return sum(len(view) for view in self.views)


def in_memory(partition: Readable, offset: int, end: int | None = None) -> bool:
    """Whether a read at `offset` needs no disk (or has nothing to read). `end` as in `read`."""
    if end is None:
        end = partition.visible_offset
    return offset >= end or partition.cache.reaches(partition.tail, offset)


def read(
    partition: Readable,
    offset: int,
    max_bytes: int,
    end: int | None = None,
    *,
    memory_only: bool = False,
) -> ReadResult:
    """Raises OffsetOutOfRange, CorruptLog, or OSError when the disk cannot be read. `end` is where this
    reader stops, if not at the end of what is visible to all. `memory_only`: it stops where the disk would
    have to be read, perhaps with nothing."""
    if end is None:
        end = partition.visible_offset
    if offset > end or offset < partition.start_offset:
        raise OffsetOutOfRange(offset, partition.start_offset, end)
    if partition.missing_head is not None:
        _refuse_known_damage([partition.missing_head], offset)
    collector = Collector(offset, max_bytes, partition.clock_us())
    skipped = 0
    while collector.offset < end and not collector.full:
        if skipped > MAX_SKIPPED_BYTES and not collector.views:
            break
        cached = partition.cache.read(partition.tail, collector.offset, end, max_bytes)
        for view in cached:
            collector.take(view)
            if collector.full:
                break
        if not cached:
            if memory_only:
                break
            try:
                skipped += _read_from_disk(partition, collector, end, max_bytes)
            except CorruptLog:
                if not collector.views:
                    raise
                break
    return ReadResult(collector.views, min(collector.offset, end), end)


def _read_from_disk(partition: Readable, collector: Collector, end: int, max_bytes: int) -> int:
    """Reads on in the segment that holds the offset; gives the bytes that were walked."""
    chunk_bytes = min(max(max_bytes, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
    changes = partition.tail.changes
    with partition.open_segment(collector.offset) as (segment, segment_end, file):
        index = segment.loaded_index(partition.pool.files, file)
        _refuse_known_damage(segment.damages, collector.offset)
        start = partition.hints.take(segment, collector.offset)
        if start is None:
            start = index.position_of(collector.offset)
        before, window = partition.tail.window, Window()
        goes_on = before is not None and before.end_offset == collector.offset
        if goes_on:
            chunk_bytes = MAX_CHUNK_BYTES
        walker = segment.walker(file, start, index.size, chunk_bytes)
        stop = min(end, segment_end)
        if _take_batches(segment, walker, collector, stop, window) and collector.offset < stop:
            raise CorruptLog(
                segment.path, walker.position, "records are missing", collector.offset, stop
            )
        partition.hints.put(segment, collector.offset, walker.position)
        walked = walker.position - start
        if partition.cache.max_windows:
            if goes_on:
                _fill_window(window, walker, stop)
                partition.hints.put(segment, window.end_offset, walker.position)
            if window.bases and window.size <= MAX_WINDOW_BYTES and not segment.key_id:
                partition.cache.keep_window(partition.tail, window, changes)
        return walked


def _fill_window(window: Window, walker: Walker, stop: int) -> None:
    """Adds the batches up to `stop` that were read and that nobody has asked for yet. Whatever is wrong
    with one is found, and told, by who asks for it."""
    while walker.holds_next():
        try:
            header = walker.check()
            if header is None or header.base_offset >= stop:
                break
            if window.bases and header.base_offset > window.end_offset:
                break
            # The last one may be in it, because its records were not all taken.
            if not window.bases or header.base_offset == window.end_offset:
                window.add(walker.view(header), end_of(walker, header))
        except BatchError:
            break
        walker.advance(header)


def _refuse_known_damage(damages: list[Damage], offset: int) -> None:
    for damage in damages:
        if damage.first_offset <= offset < damage.next_offset:
            raise CorruptLog(
                damage.path,
                damage.position,
                damage.reason,
                damage.first_offset,
                damage.next_offset,
            )


def _take_batches(
    segment: Segment, walker: Walker, collector: Collector, end: int, window: Window
) -> bool:
    """Collects batches up to `end`, in the window as well. True when it came to the end of the segment."""
    walked = 0
    while collector.offset < end and not collector.full:
        try:
            header = walker.check()
        except BatchError as error:
            _step_over(segment, walker, collector, error.reason, end)
            continue
        if header is None:
            return True
        if header.base_offset > collector.offset and not header.flags & FLAG_CLEANED:
            raise CorruptLog(
                segment.path,
                walker.position,
                "records are missing",
                collector.offset,
                header.base_offset,
            )
        if header.base_offset >= end:
            return False
        batch_end = end_of(walker, header)
        if batch_end > collector.offset:
            try:
                view = walker.view(header)
                collector.take(view)
            except BatchError as error:
                end_offset = header.base_offset + header.count
                raise unreadable(
                    segment.path, walker.position, error, header.base_offset, end_offset
                ) from None
            window.add(view, batch_end)
            if collector.full:
                return False
        walker.advance(header)
        walked += header.length
        if walked > MAX_SKIPPED_BYTES and not collector.views:
            return False
    return False


def _step_over(
    segment: Segment, walker: Walker, collector: Collector, reason: str, end: int
) -> None:
    """Goes on behind damage that lies before the wanted offset; raises when it holds that offset."""
    position = walker.position
    walker.resync(0)
    header = walker.check() if walker.position < walker.end else None
    following = header.base_offset if header is not None else end
    if following > collector.offset:
        raise CorruptLog(segment.path, position, reason, collector.offset, following)


def offset_at_time(partition: Readable, time_us: int) -> int | None:
    """The offset of the first visible record at `time_us` or later; None when there is none."""
    offset = partition.start_offset
    if partition.missing_head is not None:
        _refuse_known_damage([partition.missing_head], offset)
    while offset < partition.visible_offset:
        with partition.open_segment(offset) as (segment, segment_end, file):
            index = segment.loaded_index(partition.pool.files, file)
            if index.max_time_us != NO_TIME and index.max_time_us >= time_us:
                found = _first_at(partition, file, segment, segment_end, time_us)
                if found is not None:
                    return found
            offset = segment_end
    return None


def _first_at(
    partition: Readable, file: File, segment: Segment, segment_end: int, time_us: int
) -> int | None:
    index = segment.loaded_index(partition.pool.files, file)
    walker = segment.walker(file, index.position_of_time(time_us), index.size)
    expected = segment.base_offset
    while True:
        header = walker.check_or_refuse(segment.path, expected, segment_end)
        if header is None:
            return None
        expected = end_of(walker, header)
        if header.max_time_us >= time_us:
            view = walker.view(header)
            first = view.row_at(partition.start_offset)
            if first < view.count:
                row = view.rows(first, view.count).row_at_time(time_us)
                if row < view.count:
                    offset = view.offset_of(row)
                    return offset if offset < partition.visible_offset else None
        walker.advance(header)
