"""Walks the batches of a segment file: for reading, recovery, index rebuilding and verification.

Checks every checksum on the way. Does not decide what damage means: recovery.py and reader.py do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.log.batch.encryption import end_offset_of
from penstock.log.batch.format import (
    FLAG_CLEANED,
    FLAG_OFFSETS,
    HEADER_SIZE,
    MAGIC_BYTES,
    OLDEST_VERSION,
    BatchError,
    BatchHeader,
    check_batch,
    parse_header,
)
from penstock.log.batch.view import BatchView, OpenBody, UnknownKeyId, no_keys, view_body
from penstock.log.errors import CorruptLog, KeyUnknown
from penstock.log.storage.files import File
from penstock.log.storage.salt import ANY_SALT, Salt

# Read at once while scanning: large enough that system calls do not count, small enough to stay in the
# CPU's cache between copy and checksum.
SCAN_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a segment file that holds no valid batch, and the offsets that are lost with it."""

    path: str
    position: int
    end_position: int
    reason: str
    first_offset: int
    next_offset: int


class Walker:
    """Goes from batch to batch up to `end`, reading `chunk_bytes` at a time.

    Batches of another salt, or older than `least_version`, are damage: bytes that do not belong here.
    """

    def __init__(
        self,
        file: File,
        position: int,
        end: int,
        chunk_bytes: int = SCAN_CHUNK_BYTES,
        salt: Salt = ANY_SALT,
        least_version: int = OLDEST_VERSION,
        open_body: OpenBody = no_keys,
    ) -> None:
        self.position = position
        self.end = end
        self._file = file
        self._salt = salt
        self._least_version = least_version
        self._open_body = open_body
        self._chunk_bytes = chunk_bytes
        self._window = b""
        self._window_at = position

    def _need(self, size: int) -> int:
        """Makes `size` bytes at the position available if the file has them; gives their place."""
        inside = self.position - self._window_at
        if inside + size > len(self._window):
            wanted = min(max(size, self._chunk_bytes), self.end - self.position)
            self._window = self._file.pread(wanted, self.position)
            self._window_at = self.position
            inside = 0
        return inside

    def holds_next(self) -> bool:
        """Whether the next batch was read already, as a whole."""
        inside = self.position - self._window_at
        left = len(self._window) - inside
        if left < HEADER_SIZE:
            return False
        try:
            return parse_header(self._window, inside).length <= left
        except BatchError:
            return False

    def check(self) -> BatchHeader | None:
        """The batch at the position, its checksum verified; None at the end. Raises BatchError."""
        if self.position >= self.end:
            return None
        inside = self._need(HEADER_SIZE)
        header = parse_header(self._window, inside)
        if self.position + header.length > self.end:
            raise BatchError("batch is cut off")
        inside = self._need(header.length)
        header = check_batch(self._window, inside)
        self._salt.check(header, self._least_version)
        if header.key_id:
            self.end_offset(header)
        elif header.flags & FLAG_OFFSETS:
            self.view(header)  # where it ends stands in its columns: they must be readable too
        return header

    def check_or_refuse(self, path: str, first_offset: int, end_offset: int) -> BatchHeader | None:
        """Like `check`, for who can do nothing about damage. Raises CorruptLog.

        `first_offset` is the first that may be lost, `end_offset` the end of the segment.
        """
        position = self.position
        try:
            return self.check()
        except BatchError as error:
            self.resync(first_offset)
            header = self.check() if self.position < self.end else None
            following = header.base_offset if header is not None else end_offset
            raise CorruptLog(path, position, error.reason, first_offset, following) from None

    def view(self, header: BatchHeader) -> BatchView:
        """A view of the batch that `check` gave."""
        return view_body(header, self._window, self._body_at(header), self._open_body)

    def body(self, header: BatchHeader) -> bytes:
        """The body of the batch that `check` gave, decrypted and perhaps compressed."""
        start = self._body_at(header)
        if header.key_id:
            return self._open_body(header, self._window, start)
        return self._window[start : start + header.length - header.size]

    def _body_at(self, header: BatchHeader) -> int:
        return self.position - self._window_at + header.size

    def end_offset(self, header: BatchHeader) -> int:
        """The offset behind the last record of the batch that `check` gave. Needs no key."""
        if header.key_id:
            end = end_offset_of(self._window, self._body_at(header))
            if end < header.base_offset + header.count:
                raise BatchError(f"impossible end offset {end}")
            return end
        if header.flags & FLAG_OFFSETS:
            return self.view(header).next_offset()
        return header.base_offset + header.count

    def advance(self, header: BatchHeader) -> None:
        self.position += header.length

    def resync(self, least_offset: int) -> None:
        """Moves on from a bad place to the next valid batch, or to the end.

        Where the bad header tells a length that leads to another batch, that one comes first, so
        that bytes inside a record that look like a batch are not taken for one. A length that leads
        nowhere may be the damage: trusting it would lose whole batches that lie behind.
        """
        start = self.position
        header = self._header_here()
        if header is not None and self._leads_on(start + header.length):
            self.position = start + header.length
        else:
            self.position = min(start + 8, self.end)
            if header is not None and header.base_offset == least_offset:
                least_offset = header.base_offset + header.count
        while self.position < self.end:
            if self._valid_here(least_offset):
                return
            self._next_magic()

    def _header_here(self) -> BatchHeader | None:
        inside = self._need(HEADER_SIZE)
        try:
            return parse_header(self._window, inside)
        except BatchError:
            return None

    def _leads_on(self, position: int) -> bool:
        """Whether a batch ends at this position: the next one, or the end of the file, is there."""
        if position >= self.end:
            return position == self.end
        return self._file.pread(len(MAGIC_BYTES), position) == MAGIC_BYTES

    def _valid_here(self, least_offset: int) -> bool:
        try:
            header = self.check()
        except BatchError:
            return False
        return header is not None and header.base_offset >= least_offset

    def _next_magic(self) -> None:
        """Moves to the next aligned magic behind the position, or to the end."""
        self.position += 8
        while self.position < self.end:
            inside = self._need(8)
            found = self._window.find(MAGIC_BYTES, inside)
            if found < 0:
                self.position = self._window_at + (len(self._window) & ~7)
                if len(self._window) < 8:
                    self.position = self.end
                continue
            place = self._window_at + found
            if place & 7:
                self.position = (place | 7) + 1
                continue
            self.position = place
            return
        self.position = self.end


def unreadable(
    path: str, position: int, error: BatchError, first_offset: int, next_offset: int
) -> CorruptLog:
    """The error for a batch whose checksum is right and whose body cannot be used."""
    kind = KeyUnknown if isinstance(error, UnknownKeyId) else CorruptLog
    return kind(path, position, error.reason, first_offset, next_offset)


def end_of(walker: Walker, header: BatchHeader) -> int:
    """The offset after the last record of the batch at the walker's position."""
    return walker.end_offset(header)


@dataclass(frozen=True, slots=True)
class Found:
    """One step of a scan: a valid batch, or the damage before the next one."""

    position: int
    header: BatchHeader | None
    next_offset: int
    damage: Damage | None


def scan(file: File, path: str, base_offset: int, end: int, salt: Salt) -> Iterator[Found]:
    """All batches of a segment and all damage between them, in file order."""
    least_version = salt.least_version(base_offset)
    walker = Walker(file, 0, end, salt=salt, least_version=least_version)
    expected = base_offset
    while True:
        start = walker.position
        reason = ""
        try:
            header = walker.check()
            if header is None:
                return
            if header.base_offset < expected:
                reason = f"offset {header.base_offset} after {expected - 1}"
        except BatchError as error:
            reason = error.reason
            header = None
        if reason:
            walker.resync(expected)
            header = walker.check() if walker.position < end else None
            following = header.base_offset if header is not None else -1
            damage = Damage(path, start, walker.position, reason, expected, following)
            yield Found(start, None, expected, damage)
            if header is None:
                return
            expected = header.base_offset
            start = walker.position
        assert header is not None
        if header.base_offset > expected and not header.flags & FLAG_CLEANED:
            text = "records are missing"
            damage = Damage(path, start, start, text, expected, header.base_offset)
            yield Found(start, None, expected, damage)
        expected = end_of(walker, header)
        yield Found(start, header, expected, None)
        walker.advance(header)
