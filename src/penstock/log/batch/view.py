"""Views on stored batches: columns and single records without copying what was read.

Hot: compiled by mypyc, runs uncompiled too. Does no I/O; reader.py and scan.py read the bytes.
"""

from collections.abc import Callable
from typing import Final

import zstandard
from librt.strings import read_i32_le, read_i64_le
from mypy_extensions import i64

from penstock.log.batch.format import (
    FLAG_EMPTY_DELETES,
    FLAG_EXPIRIES,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_NULLS,
    FLAG_OFFSETS,
    FLAG_TIMES,
    FLAG_ZSTD,
    HEADER_SIZE,
    MAX_BATCH_BYTES,
    VERSION,
    Batch,
    BatchError,
    BatchHeader,
)

Headers = list[tuple[bytes, bytes]]
# Decrypts the body of a batch: its header, the bytes that hold both, and the place of the body.
OpenBody = Callable[[BatchHeader, bytes, int], bytes]


class Record:
    """One record on its own, for callers that want one; bulk paths use the columns of a view."""

    def __init__(
        self,
        offset: int,
        time_us: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        expiry_us: int,
    ) -> None:
        self.offset: Final = offset
        self.time_us: Final = time_us
        self.key: Final = key
        self.value: Final = value
        self.headers: Final = headers
        self.expiry_us: Final = expiry_us

    def __repr__(self) -> str:
        return f"Record(offset={self.offset}, key={self.key!r}, value={self.value!r})"


class UnknownKeyId(BatchError):
    """The batch is intact, and its body is encrypted with a key that this server does not have."""

    def __init__(self, key_id: int) -> None:
        super().__init__(f"encrypted with key {key_id}, which is not known here")
        self.key_id = key_id


def view_appended(batch: Batch, base_offset: int) -> "BatchView":
    """A view of a batch as it stands in the log from `base_offset` on, without reading it back."""
    header = BatchHeader(
        HEADER_SIZE + len(batch.body),
        batch.flags,
        base_offset,
        batch.count,
        batch.raw_length,
        batch.first_time_us,
        batch.max_time_us,
        batch.producer_id,
        batch.epoch,
        batch.sequence,
        0,
        VERSION,
        0,
        0,
    )
    return view_body(header, batch.body, 0)


def no_keys(header: BatchHeader, buffer: bytes, position: int) -> bytes:
    """Opens nothing: for those who have no keys."""
    raise UnknownKeyId(header.key_id)


def view_body(
    header: BatchHeader, buffer: bytes, position: int, open_body: OpenBody = no_keys
) -> "BatchView":
    """A view on a body that lies at `position` of `buffer`, decrypted and decompressed where needed."""
    end = position + header.length - header.size
    if header.key_id:
        buffer = open_body(header, buffer, position)
        position, end = 0, len(buffer)
    if header.flags & FLAG_ZSTD:
        if header.raw_length > 2 * MAX_BATCH_BYTES:
            raise BatchError(f"impossible raw length {header.raw_length}")
        return BatchView(header, _unpacked(header, buffer[position:end]), 0, header.raw_length)
    return BatchView(header, buffer, position, end)


def _unpacked(header: BatchHeader, packed: bytes) -> bytes:
    try:
        # The library uses the size in the frame and ignores the limit that it is given.
        if zstandard.frame_content_size(packed) != header.raw_length:
            raise BatchError("zstd: the raw length does not match")
        return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=True)
    except zstandard.ZstdError as error:
        raise BatchError(f"zstd: {error}") from None


def _padded(size: i64) -> i64:
    return (size + 7) & ~7


class BatchView:
    """Consecutive rows of one stored batch. Points into the bytes that were read; copies nothing.

    Rows are numbered within the whole batch; the view covers `first_row` up to, not including,
    `last_row`. The `..._at` fields are positions in `buffer`, for code that works on whole columns.
    """

    def __init__(self, header: BatchHeader, buffer: bytes, body_at: int, body_end: int) -> None:
        count: i64 = header.count
        flags: i64 = header.flags
        at: i64 = body_at
        self.header: Final = header
        self.buffer: Final = buffer
        self.body_end: i64 = body_end
        if self.body_end > len(buffer):
            raise BatchError("batch is cut off")
        self.base_offset: i64 = header.base_offset
        self.count: i64 = count
        self.flags: i64 = flags
        self.first_row: i64 = 0
        self.last_row: i64 = count
        self.body_at: i64 = at
        self.value_offsets_at: i64 = at
        offsets_size: i64 = _padded(4 * (count + 1))
        self.values_at: i64 = at + offsets_size
        at = self.values_at + _padded(self._i32(at + 4 * count))
        self.value_validity_at: i64 = 0
        self.key_offsets_at: i64 = 0
        self.key_validity_at: i64 = 0
        self.keys_at: i64 = 0
        self.header_offsets_at: i64 = 0
        self.name_offsets_at: i64 = 0
        self.names_at: i64 = 0
        self.content_offsets_at: i64 = 0
        self.contents_at: i64 = 0
        self.times_at: i64 = 0
        self.expiries_at: i64 = 0
        self.offsets_at: i64 = 0
        if flags & FLAG_NULLS:
            self.value_validity_at = at
            at += _padded((count + 7) >> 3)
        if flags & FLAG_KEYS:
            self.key_offsets_at = at
            self.key_validity_at = at + offsets_size
            self.keys_at = self.key_validity_at + _padded((count + 7) >> 3)
            at = self.keys_at + _padded(self._i32(self.key_offsets_at + 4 * count))
        if flags & FLAG_HEADERS:
            self.header_offsets_at = at
            total: i64 = self._i32(at + 4 * count)
            self.name_offsets_at = at + offsets_size
            self.names_at = self.name_offsets_at + _padded(4 * (total + 1))
            self.content_offsets_at = self.names_at + _padded(
                self._i32(self.name_offsets_at + 4 * total)
            )
            self.contents_at = self.content_offsets_at + _padded(4 * (total + 1))
            at = self.contents_at + _padded(self._i32(self.content_offsets_at + 4 * total))
        if flags & FLAG_TIMES:
            self.times_at = at
            at += 8 * count
        if flags & FLAG_EXPIRIES:
            self.expiries_at = at
            at += 8 * count
        if flags & FLAG_OFFSETS:
            self.offsets_at = at
            at += 8 * count
        if at > self.body_end:
            raise BatchError("columns reach past the end of the batch")

    def _i32(self, position: i64) -> i64:
        # The checksum is right, but another program may have written the file.
        if position + 4 > self.body_end:
            raise BatchError("columns reach past the end of the batch")
        number: i64 = i64(read_i32_le(self.buffer, position))
        if number < 0:
            raise BatchError("negative column offset")
        return number

    def rows(self, first_row: int, last_row: int) -> "BatchView":
        """The same batch, other rows."""
        part = BatchView(self.header, self.buffer, self.body_at, self.body_end)
        part.first_row = first_row
        part.last_row = last_row
        return part

    def __len__(self) -> int:
        return self.last_row - self.first_row

    # --- offsets ---------------------------------------------------------------------------------

    def offset_of(self, row: i64) -> i64:
        if self.offsets_at:
            return read_i64_le(self.buffer, self.offsets_at + 8 * row)
        return self.base_offset + row

    def first_offset(self) -> int:
        return self.offset_of(self.first_row)

    def next_offset(self) -> int:
        """The offset after the last row of the view."""
        return self.offset_of(self.last_row - 1) + 1

    def row_at(self, offset: i64) -> i64:
        """The first row of the whole batch whose offset is `offset` or higher (`count` if none)."""
        if not self.offsets_at:
            row: i64 = offset - self.base_offset
            if row < 0:
                return 0
            return row if row < self.count else self.count
        low: i64 = 0
        high: i64 = self.count
        while low < high:
            middle: i64 = (low + high) >> 1
            if self.offset_of(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def row_at_time(self, time_us: i64) -> i64:
        """The first row of the view whose time is `time_us` or later (`last_row` if none)."""
        row: i64 = self.first_row
        while row < self.last_row and self.time_of(row) < time_us:
            row += 1
        return row

    # --- single fields ----------------------------------------------------------------------------

    def _item(self, offsets_at: i64, bytes_at: i64, row: i64) -> bytes:
        at: i64 = offsets_at + 4 * row
        start: i64 = bytes_at + i64(read_i32_le(self.buffer, at))
        end: i64 = bytes_at + i64(read_i32_le(self.buffer, at + 4))
        if start < bytes_at or end < start or end > self.body_end:
            raise BatchError("column offsets do not rise")
        return self.buffer[start:end]

    def value(self, row: i64) -> bytes:
        """For protocols that have no null: an empty value stands for it."""
        return self._item(self.value_offsets_at, self.values_at, row)

    def is_null(self, row: i64) -> bool:
        if not self.value_validity_at:
            return False
        bits: i64 = i64(self.buffer[self.value_validity_at + (row >> 3)])
        return not (bits >> (row & 7)) & 1

    def is_deletion(self, row: i64) -> bool:
        """True for a deletion mark of compaction: a key without a value."""
        if self.key(row) is None:
            return False
        if self.flags & FLAG_EMPTY_DELETES or self.header.version < VERSION:
            return not self.value(row)
        return self.is_null(row)

    def key(self, row: i64) -> bytes | None:
        if not self.keys_at:
            return None
        bits: i64 = i64(self.buffer[self.key_validity_at + (row >> 3)])
        if not (bits >> (row & 7)) & 1:
            return None
        return self._item(self.key_offsets_at, self.keys_at, row)

    def headers(self, row: i64) -> Headers:
        found: Headers = []
        if not self.header_offsets_at:
            return found
        at: i64 = self.header_offsets_at + 4 * row
        index: i64 = i64(read_i32_le(self.buffer, at))
        last: i64 = i64(read_i32_le(self.buffer, at + 4))
        if index < 0 or last > self.header_count():
            raise BatchError("header offsets reach past the headers")
        while index < last:
            name = self._item(self.name_offsets_at, self.names_at, index)
            content = self._item(self.content_offsets_at, self.contents_at, index)
            found.append((name, content))
            index += 1
        return found

    def header_count(self) -> i64:
        """Headers of all rows of the batch."""
        if not self.header_offsets_at:
            return 0
        return i64(read_i32_le(self.buffer, self.header_offsets_at + 4 * self.count))

    def time_of(self, row: i64) -> i64:
        if self.times_at:
            return read_i64_le(self.buffer, self.times_at + 8 * row)
        return self.header.first_time_us

    def expiry_of(self, row: i64) -> i64:
        if self.expiries_at:
            return read_i64_le(self.buffer, self.expiries_at + 8 * row)
        return 0

    def record(self, row: int) -> Record:
        return Record(
            self.offset_of(row),
            self.time_of(row),
            self.key(row),
            None if self.is_null(row) else self.value(row),
            self.headers(row),
            self.expiry_of(row),
        )

    def check_columns(self) -> None:
        """Checks every column offset, for callers that do not trust the writer. Raises BatchError."""
        self._check_rising(self.value_offsets_at, self.count)
        if self.key_offsets_at:
            self._check_rising(self.key_offsets_at, self.count)
        if self.header_offsets_at:
            self._check_rising(self.header_offsets_at, self.count)
            self._check_rising(self.name_offsets_at, self.header_count())
            self._check_rising(self.content_offsets_at, self.header_count())
        if self.offsets_at:
            expected: i64 = self.base_offset
            row: i64 = 0
            while row < self.count:
                if self.offset_of(row) < expected:
                    raise BatchError(f"offset of row {row} does not rise")
                expected = self.offset_of(row) + 1
                row += 1

    def _check_rising(self, offsets_at: i64, count: i64) -> None:
        before: i64 = 0
        row: i64 = 0
        while row <= count:
            offset: i64 = i64(read_i32_le(self.buffer, offsets_at + 4 * row))
            if offset < before or (row == 0 and offset != 0):
                raise BatchError(f"column offset {row} does not rise")
            before = offset
            row += 1

    # --- many rows --------------------------------------------------------------------------------

    def values(self) -> list[bytes]:
        found: list[bytes] = []
        row: i64 = self.first_row
        while row < self.last_row:
            found.append(self.value(row))
            row += 1
        return found

    def records(self) -> list[Record]:
        return [self.record(row) for row in range(self.first_row, self.last_row)]

    def payload_bytes(self, first_row: i64, last_row: i64) -> i64:
        """Bytes of values, keys and headers of these rows, without the bookkeeping around them."""
        total: i64 = self._span(self.value_offsets_at, first_row, last_row)
        if self.keys_at:
            total += self._span(self.key_offsets_at, first_row, last_row)
        if self.header_offsets_at:
            first: i64 = self._i32(self.header_offsets_at + 4 * first_row)
            last: i64 = self._i32(self.header_offsets_at + 4 * last_row)
            total += self._span(self.name_offsets_at, first, last)
            total += self._span(self.content_offsets_at, first, last)
        return total

    def _span(self, offsets_at: i64, first: i64, last: i64) -> i64:
        return self._i32(offsets_at + 4 * last) - self._i32(offsets_at + 4 * first)

    def rows_within(self, max_bytes: i64) -> i64:
        """How many rows from the first one on have at most `max_bytes` of payload (may be 0)."""
        low: i64 = 0
        high: i64 = self.last_row - self.first_row
        while low < high:
            middle: i64 = (low + high + 1) >> 1
            if self.payload_bytes(self.first_row, self.first_row + middle) <= max_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def live(self, now_us: i64) -> "list[BatchView]":
        """The rows that have not expired, as views of consecutive rows."""
        if not self.expiries_at:
            return [self]
        runs: list[BatchView] = []
        start: i64 = -1
        row: i64 = self.first_row
        while row < self.last_row:
            expiry: i64 = self.expiry_of(row)
            dead: bool = expiry != 0 and expiry <= now_us
            if dead and start >= 0:
                runs.append(self.rows(start, row))
                start = -1
            elif not dead and start < 0:
                start = row
            row += 1
        if start >= 0:
            runs.append(self.rows(start, self.last_row))
        return runs
