"""A partition that another process writes, for reading only: finds its segments in the directory.

The writer reports up to where records are durable; nothing after that is ever read, so a write in
progress is not mistaken for damage. Changes no file and takes no lock. What the cleaner replaces or
removes meanwhile is noticed by the identity of the files, and looked for again.
"""

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.log.batch.encryption import NO_KEYS, Keyring
from penstock.log.batch.format import FLAG_CLEANED, HEADER_SIZE, BatchError, BatchHeader
from penstock.log.errors import CorruptLog, OffsetOutOfRange
from penstock.log.storage import reader
from penstock.log.storage.cache import BatchCache, RecentBatches
from penstock.log.storage.files import File, FileSystem, RealFiles
from penstock.log.storage.hints import ReadHints
from penstock.log.storage.index import IndexDamaged, SparseIndex
from penstock.log.storage.salt import find_salt
from penstock.log.storage.scan import Damage, Walker, end_of
from penstock.log.storage.segment import LOG_SUFFIX, Segment, offset_of_name, read_small_file

# The index of a file without an index file grows in steps of this size, just ahead of its readers, so
# that what was walked is still in memory when it is read.
GROW_BYTES = 8 * 1024 * 1024
# Looks at the directory for one offset. Each further one means that files changed within microseconds.
MAX_LOOKS = 4
# The cleaner removes files, syncs the directory and puts one new file in place: in between records
# seem to be missing. 7 tries with doubled pauses wait over a second for a slow disk.
TRIES = 8
FIRST_PAUSE_S = 0.01

# Device, inode, size, time of the last change.
Identity = tuple[int, int, int, int]
# Asks the writer: the first offset kept, and the one behind the last durable.
Refresh = Callable[[], tuple[int, int]]


def identify(path: str) -> Identity:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(slots=True, eq=False)
class _Known:
    """A segment file as it was found. `whole`: its identity, once the index covers all of it."""

    segment: Segment
    index: SparseIndex
    inode: tuple[int, int]
    # The first header: a file that grows never changes it, a rewritten one always does.
    head: bytes
    whole: Identity | None = None

    def is_still(self, now: Identity, head: bytes) -> bool:
        if self.whole is not None:
            return now == self.whole
        return now[:2] == self.inode and head == self.head


@dataclass(frozen=True, slots=True)
class _Pool:
    """No file is kept open; all that a reader needs is to find them."""

    files: FileSystem


class Follower:
    """Thread-safe: many readers share what was found. Fits reader.Readable."""

    def __init__(
        self,
        directory: str,
        clock_us: Callable[[], int],
        *,
        files: FileSystem | None = None,
        identify: Callable[[str], Identity] = identify,
        pause: Callable[[float], None] = time.sleep,
        keys: Keyring = NO_KEYS,
    ) -> None:
        self.directory = directory
        self._keys = keys
        self.clock_us = clock_us
        self.pool = _Pool(files if files is not None else RealFiles())
        self.cache = BatchCache(0, max_windows=0)
        self.tail = RecentBatches()
        self.hints = ReadHints()
        self.missing_head: Damage | None = None
        self.start_offset = 0
        self.visible_offset = 0
        self._identify = identify
        self._pause = pause
        self._lock = threading.Lock()
        self._bases: list[int] = []
        self._known: dict[int, _Known] = {}

    def told(self, earliest: int, latest: int) -> None:
        """What the writer says of its offsets. They never go back."""
        with self._lock:
            self.start_offset = max(self.start_offset, earliest)
            self.visible_offset = max(self.visible_offset, latest)

    def read(self, offset: int, max_bytes: int, refresh: Refresh) -> reader.ReadResult:
        """Raises what reader.read and `refresh` raise."""
        pause_s = FIRST_PAUSE_S
        for tries_left in reversed(range(TRIES)):
            try:
                return reader.read(self, offset, max_bytes)
            except (CorruptLog, FileNotFoundError):
                self.told(*refresh())
                if offset < self.start_offset:
                    error = OffsetOutOfRange(offset, self.start_offset, self.visible_offset)
                    raise error from None
                if not tries_left:
                    raise
            self._forget()
            self._pause(pause_s)
            pause_s *= 2
        raise AssertionError("the last try returns or raises")

    def _forget(self) -> None:
        with self._lock:
            self._bases = []
            self._known = {}

    # --- segments --------------------------------------------------------------------------------

    @contextmanager
    def open_segment(self, offset: int) -> Iterator[tuple[Segment, int, File]]:
        """See Partition.open_segment. The file is opened for this use alone: nothing is held back
        from the cleaner."""
        with self._lock:
            segment, end, file = self._find(offset)
        try:
            yield segment, end, file
        finally:
            file.close()

    def _find(self, offset: int) -> tuple[Segment, int, File]:
        for look in range(MAX_LOOKS):
            if look:
                self._list()
            at = bisect_right(self._bases, offset) - 1
            if at < 0:
                continue
            try:
                found = self._open(at, offset)
            except FileNotFoundError:
                continue
            if found is not None:
                return found
        at = bisect_right(self._bases, offset)
        following = self._bases[at] if at < len(self._bases) else self.visible_offset
        text = "no segment file holds the records"
        raise CorruptLog(self.directory, 0, text, offset, following)

    def _list(self) -> None:
        names = self.pool.files.list(self.directory)
        bases = [offset_of_name(name, LOG_SUFFIX) for name in names]
        self._bases = [base for base in bases if base is not None]
        for gone in self._known.keys() - set(self._bases):
            del self._known[gone]

    def _open(self, at: int, offset: int) -> tuple[Segment, int, File] | None:
        """None when the directory must be looked at again: the file is another, or ends early."""
        base = self._bases[at]
        following = self._bases[at + 1] if at + 1 < len(self._bases) else None
        path = Segment(self.directory, base, sealed=False).path
        before = self._identify(path)
        file = self.pool.files.open(path)
        try:
            known = self._look_into(base, path, file, before)
            if known is None:
                file.close()
                return None
            limit = self.visible_offset if following is None else following
            if known.whole is None and offset >= known.index.next_offset:
                self._grow(known, file, offset, min(limit, self.visible_offset))
                if following is not None and known.index.next_offset == following:
                    known.whole = before
            end = known.index.next_offset
            # One that reaches into the next was put in the place of both: the list is too old.
            overlaps = following is not None and end > following
            if offset < end and not overlaps:
                return known.segment, min(end, limit), file
        except BaseException:
            file.close()
            raise
        file.close()
        return None

    def _look_into(self, base: int, path: str, file: File, before: Identity) -> _Known | None:
        """What is known of the file, checked against what it is now; None when it was replaced."""
        if self._identify(path)[:2] != before[:2]:
            return None
        head = file.pread(HEADER_SIZE, 0)
        known = self._known.get(base)
        if known is not None:
            if known.is_still(before, head):
                return known
            # Its neighbours may be gone into the new one.
            del self._known[base]
            return None
        salt = find_salt(self.pool.files, self.directory, [(base, path)])
        segment = Segment(
            self.directory, base, sealed=False, salt=salt, open_body=self._keys.open_body
        )
        index, whole = SparseIndex(base), None
        try:
            data = read_small_file(self.pool.files, segment.index_path)
            if data is not None:
                index, whole = SparseIndex.decode(data, base, before[2]), before
        except IndexDamaged:
            # Of an older file, or really damaged: the index grows by walking.
            index, whole = SparseIndex(base), None
        # An index file is removed before its segment is replaced: unchanged, they belong together.
        if self._identify(path)[:2] != before[:2]:
            return None
        segment.index = index
        known = _Known(segment, index, before[:2], head, whole)
        self._known[base] = known
        return known

    def _grow(self, known: _Known, file: File, offset: int, end: int) -> None:
        """Walks on to `offset` and some bytes more, never behind `end`: that need not be whole."""
        index = known.index
        start = index.size
        walker = known.segment.walker(file, start, file.size())
        while index.next_offset < end:
            header = _check(known, walker, end)
            if header is None or header.base_offset >= end:
                return
            expected = index.next_offset
            if header.base_offset > expected and not header.flags & FLAG_CLEANED:
                _note(known, walker.position, "records are missing", header.base_offset)
            index.add(
                header.base_offset,
                walker.position,
                header.length,
                end_of(walker, header),
                header.max_time_us,
            )
            walker.advance(header)
            if index.next_offset > offset and index.size - start >= GROW_BYTES:
                return


def _note(known: _Known, position: int, reason: str, following: int) -> None:
    path, expected = known.segment.path, known.index.next_offset
    known.segment.damages.append(Damage(path, position, position, reason, expected, following))


def _check(known: _Known, walker: Walker, end: int) -> BatchHeader | None:
    """The next batch, behind damage where there is some; the damage is noted."""
    position = walker.position
    try:
        return walker.check()
    except BatchError as error:
        walker.resync(known.index.next_offset)
        header = walker.check() if walker.position < walker.end else None
        following = end if header is None else min(header.base_offset, end)
        _note(known, position, error.reason, following)
        if header is None or header.base_offset >= end:
            # Nothing that is durable follows: readers up to `end` must meet the damage.
            known.index.next_offset = end
            return None
        return header
