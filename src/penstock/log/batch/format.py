"""The batch: the unit of append, flush, checksum, read and transfer, and its bytes on disk.

The layout, the header and the hot encoder. Reading columns is in view.py, building batches with
all columns in builder.py. Hot: compiled by mypyc, runs uncompiled too. Does no I/O and assigns no
offsets: the partition does.
"""

from struct import Struct
from typing import Final

import zstandard
from crc32c import crc32c
from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

# The batch on disk, little-endian, all of it 8-byte aligned, so that Arrow arrays can point into it:
#
#    0 u32 magic            4 u32 length of the whole batch, this header included
#    8 u32 crc32c of the body, then of bytes 12 to 80. In this order, so that the producer's thread
#          can checksum the body while it is still in its cache, before anybody knows the offset.
#   12 u16 flags           14 u16 version
#   16 i64 base offset     24 u32 count            28 u32 body length before compression, else 0
#   32 i64 first time      40 i64 max time         (microseconds)
#   48 u64 producer id     56 u32 epoch            60 u32 sequence     (zero without FLAG_PRODUCER)
#   64 i64 durable offset: every record below it was durable when this batch was written. Recovery
#          needs it to tell a torn tail (may be cut) from damage to durable records (must not be).
#   72 u32 salt of the partition (storage/salt.py), 0 where there is none: a record that holds the
#          bytes of a batch is not taken for a batch of this partition
#   76 u32 id of the key that the body is encrypted with, 0 = none. An encrypted body has a layout of
#          its own around the columns (encryption.py)
#   80 body: the columns below in this order, as the flags say, each padded to 8
#
#      value_offsets i32[count+1], values
#      FLAG_NULLS     value validity bits (Arrow order); a null value takes no bytes
#      FLAG_KEYS      key_offsets i32[count+1], key validity bits, keys
#      FLAG_HEADERS   header_offsets i32[count+1] (first header of each record), then for the h headers
#                     of the batch: name_offsets i32[h+1], names, content_offsets i32[h+1], contents
#      FLAG_TIMES     times i64[count]      (else every record has the first time)
#      FLAG_EXPIRIES  expiries i64[count]   (0 = never)
#      FLAG_OFFSETS   offsets i64[count]    (after compaction: no longer base, base+1, ...)
#
# Version 1 is read, not written: its header ends at 72, without salt and key id, and it has no nulls. In
# its place a keyed record with an empty value is a deletion mark.
PREFIX: Final = Struct("<III")
REST: Final = Struct("<HHqIIqqQIIqII")
HEADER_SIZE: Final = 80
REST_1: Final = Struct("<HHqIIqqQIIq")
HEADER_SIZE_1: Final = 72
CRC_FROM: Final = 12
_CRC: Final = Struct("<I")
_VERSION: Final = Struct("<H")
VERSION_AT: Final = 14

MAGIC: Final = 0x4B545350  # b"PSTK"
MAGIC_BYTES: Final = b"PSTK"
VERSION: Final = 2
OLDEST_VERSION: Final = 1

FLAG_KEYS: Final = 1
FLAG_HEADERS: Final = 2
FLAG_TIMES: Final = 4
FLAG_EXPIRIES: Final = 8
FLAG_OFFSETS: Final = 16
FLAG_PRODUCER: Final = 32
FLAG_ZSTD: Final = 64
# Written by the cleaner: a gap between this batch and the one before it is what compaction removed.
# A gap before any other batch means that records are missing.
FLAG_CLEANED: Final = 128
# The producer asked for at most once: a delivery of these records need not be acknowledged.
FLAG_AT_MOST_ONCE: Final = 256
KNOWN_FLAGS_1: Final = 511
# Some values are null.
FLAG_NULLS: Final = 512
# Records of a version 1 batch that were written anew: a keyed one with an empty value is a deletion mark.
FLAG_EMPTY_DELETES: Final = 1024
# Four bits with the number of the door that the records came in by (origin.py), 0 where it is not known.
ORIGIN_SHIFT: Final = 11
ORIGIN_MASK: Final = 15 << ORIGIN_SHIFT
KNOWN_FLAGS: Final = 2047 | ORIGIN_MASK

# A reader holds one batch whole in memory, and i32 offsets end at 2 GiB: 64 MiB keeps both harmless
# and still holds four records of the largest default size.
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
# Rows of one batch: Spark reads 64 K rows at once; 16 times that bounds what a reader has to walk.
MAX_BATCH_RECORDS: Final = 1024 * 1024
# Offsets are i64 everywhere.
MAX_OFFSET: Final = (1 << 63) - 1
# Times too, in microseconds.
MIN_TIME_US: Final = -(1 << 63)
MAX_TIME_US: Final = (1 << 63) - 1

# Values of up to this many bytes are encoded when they are written, not before: small batches that wait for
# the same flush then become one (partitions/joining.py). Larger ones gain nothing by it.
SMALL_BATCH_BYTES: Final = 4096

# zstd level 1: the log is written at memory speed, higher levels cost more than the disk they save.
ZSTD_LEVEL: Final = 1

# A checksum of 100 KB takes 5 us. Letting other threads run meanwhile costs more than it gives: to get
# the interpreter's lock back from a busy event loop can take milliseconds, for every batch.
KEEP_GIL: Final = 0

_PADS: Final = [b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0"]


class BatchError(Exception):
    """Bytes that are no valid batch. `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Batch:
    """A body without offsets, as a producer passes it to the log. A small one of plain values is encoded
    when its body is first asked for; until then `values` has them."""

    def __init__(
        self,
        body: bytes,
        count: int,
        flags: int,
        first_time_us: int,
        max_time_us: int,
        raw_length: int = 0,
    ) -> None:
        if first_time_us < MIN_TIME_US or max_time_us > MAX_TIME_US:
            raise BatchError(f"impossible times {first_time_us} to {max_time_us}")
        self._body = body
        self._body_length = len(body)
        self.values: list[bytes] | None = None
        self.count = count
        self.flags = flags
        self.first_time_us = first_time_us
        self.max_time_us = max_time_us
        self.raw_length = raw_length
        self.producer_id = 0
        self.epoch = 0
        self.sequence = 0
        # -1 until it is computed.
        self.body_checksum = -1

    @property
    def body(self) -> bytes:
        values = self.values
        if values is not None:
            self.values = None
            self._body = _body_of(values)
        return self._body

    def encode_later(self, values: list[bytes], body_length: int) -> None:
        """Nobody may change the list from now on."""
        self.values = values
        self._body_length = body_length

    def from_producer(self, producer_id: int, epoch: int, sequence: int) -> "Batch":
        """Marks the batch for idempotent append: repeats of the same three are stored once."""
        if not (0 <= producer_id < 1 << 64 and 0 <= epoch < 1 << 32 and 0 <= sequence < 1 << 32):
            raise BatchError(f"impossible producer {producer_id}, {epoch}, {sequence}")
        self.flags |= FLAG_PRODUCER
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = sequence
        return self

    def size(self) -> int:
        return HEADER_SIZE + self._body_length

    def compressed(self) -> "Batch":
        """The same batch with a zstd body, or itself where that would not be smaller."""
        if self.flags & FLAG_ZSTD:
            return self
        squeezed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(self.body)
        squeezed += _PADS[len(squeezed) & 7]
        if len(squeezed) >= len(self.body):
            return self
        smaller = self.with_body(squeezed)
        smaller.flags |= FLAG_ZSTD
        smaller.raw_length = len(self.body)
        return smaller

    def with_body(self, body: bytes) -> "Batch":
        """The same records in other bytes."""
        other = Batch(
            body,
            self.count,
            self.flags,
            self.first_time_us,
            self.max_time_us,
            self.raw_length,
        )
        other.producer_id = self.producer_id
        other.epoch = self.epoch
        other.sequence = self.sequence
        return other

    def stamp(self, base_offset: int, durable_offset: int, salt: int = 0) -> bytes:
        """The header for this place in a log, checksum included."""
        return self.stamped(self.rest(base_offset, durable_offset, salt, 0))

    def rest(self, base_offset: int, durable_offset: int, salt: int, key_id: int) -> bytes:
        """The header from byte 12 on."""
        return REST.pack(
            self.flags,
            VERSION,
            base_offset,
            self.count,
            self.raw_length,
            self.first_time_us,
            self.max_time_us,
            self.producer_id,
            self.epoch,
            self.sequence,
            durable_offset,
            salt,
            key_id,
        )

    def stamped(self, rest: bytes) -> bytes:
        """The whole header, from what `rest` gives."""
        if self.body_checksum < 0:
            self.body_checksum = crc32c(self.body, 0, KEEP_GIL)
        checksum = crc32c(rest, self.body_checksum)
        return PREFIX.pack(MAGIC, HEADER_SIZE + len(self.body), checksum) + rest


class BatchHeader:
    """The header of a stored batch, parsed."""

    def __init__(
        self,
        length: int,
        flags: int,
        base_offset: int,
        count: int,
        raw_length: int,
        first_time_us: int,
        max_time_us: int,
        producer_id: int,
        epoch: int,
        sequence: int,
        durable_offset: int,
        version: int,
        salt: int,
        key_id: int,
    ) -> None:
        self.length: Final = length
        self.version: Final = version
        # Of the header itself: the body begins behind it.
        self.size: Final = HEADER_SIZE if version > OLDEST_VERSION else HEADER_SIZE_1
        self.salt: Final = salt
        self.key_id: Final = key_id
        self.flags: Final = flags
        self.base_offset: Final = base_offset
        self.count: Final = count
        self.raw_length: Final = raw_length
        self.first_time_us: Final = first_time_us
        self.max_time_us: Final = max_time_us
        self.producer_id: Final = producer_id
        self.epoch: Final = epoch
        self.sequence: Final = sequence
        self.durable_offset: Final = durable_offset


def encode_values(values: list[bytes], time_us: int) -> Batch:
    """The hot path: a batch of plain values that all have the same time. The list belongs to the batch from
    then on. Raises BatchError."""
    if not values:
        raise BatchError("a batch needs at least one record")
    if len(values) > MAX_BATCH_RECORDS:
        raise BatchError(f"batch has over {MAX_BATCH_RECORDS} records")
    size: i64 = 0
    for value in values:
        size += len(value)
    if size > MAX_BATCH_BYTES:
        raise BatchError(f"batch is over {MAX_BATCH_BYTES} bytes")
    if size + 4 * len(values) <= SMALL_BATCH_BYTES:
        batch = Batch(b"", len(values), 0, time_us, time_us)
        batch.encode_later(values, _padded(4 * (len(values) + 1)) + _padded(size))
        return batch
    batch = Batch(_body_of(values), len(values), 0, time_us, time_us)
    batch.body_checksum = crc32c(batch.body, 0, KEEP_GIL)
    return batch


def encode_timed_values(values: list[bytes], times_us: list[int]) -> Batch:
    """A batch of plain values with a time each, in any order."""
    times = BytesWriter()
    for time_us in times_us:
        write_i64_le(times, time_us)
    body = _body_of(values) + times.getvalue()
    return Batch(body, len(values), FLAG_TIMES, times_us[0], max(times_us))


def _body_of(values: list[bytes]) -> bytes:
    """The columns of plain values: offsets, values, each padded."""
    offsets = BytesWriter()
    position: i64 = 0
    write_i32_le(offsets, 0)
    for value in values:
        position += len(value)
        write_i32_le(offsets, i32(position))
    if not len(values) & 1:
        write_i32_le(offsets, 0)  # padding: count + 1 offsets of 4 bytes, to a multiple of 8
    parts = [offsets.getvalue()]
    parts.extend(values)
    parts.append(_PADS[position & 7])
    return b"".join(parts)


def _padded(size: i64) -> i64:
    return (size + 7) & ~7


def check_counts(records: int, size: int) -> None:
    """Refuses a batch that is too large to be stored."""
    if records > MAX_BATCH_RECORDS:
        raise BatchError(f"batch has over {MAX_BATCH_RECORDS} records")
    if size > MAX_BATCH_BYTES:
        raise BatchError(f"batch is over {MAX_BATCH_BYTES} bytes")


def parse_header(buffer: bytes, position: int) -> BatchHeader:
    """Parses and checks what can be checked without the body. Raises BatchError."""
    if len(buffer) - position < HEADER_SIZE:
        raise BatchError("shorter than a batch header")
    magic, length, _ = PREFIX.unpack_from(buffer, position)
    if magic != MAGIC:
        raise BatchError("no batch magic")
    if length < HEADER_SIZE or length & 7 or length > HEADER_SIZE + 2 * MAX_BATCH_BYTES:
        raise BatchError(f"impossible batch length {length}")
    (version,) = _VERSION.unpack_from(buffer, position + VERSION_AT)
    if version == VERSION:
        rest = REST.unpack_from(buffer, position + CRC_FROM)
        flags, _, base, count, raw, first, latest, producer, epoch, sequence, durable, salt, key = (
            rest
        )
        known_flags = KNOWN_FLAGS
    elif version == OLDEST_VERSION:
        rest = REST_1.unpack_from(buffer, position + CRC_FROM)
        flags, _, base, count, raw, first, latest, producer, epoch, sequence, durable = rest
        salt, key, known_flags = 0, 0, KNOWN_FLAGS_1
    else:
        raise BatchError(f"unknown batch version {version}")
    if flags & ~known_flags:
        raise BatchError(f"unknown batch flags {flags:#x}")
    if count == 0 or count > MAX_BATCH_RECORDS or not 0 <= base <= MAX_OFFSET - count:
        raise BatchError(f"impossible batch of {count} records at offset {base}")
    return BatchHeader(
        length,
        flags,
        base,
        count,
        raw,
        first,
        latest,
        producer,
        epoch,
        sequence,
        durable,
        version,
        salt,
        key,
    )


def check_batch(buffer: bytes, position: int) -> BatchHeader:
    """Parses a whole batch and checks its checksum. Raises BatchError."""
    header = parse_header(buffer, position)
    if position + header.length > len(buffer):
        raise BatchError("batch is cut off")
    (expected,) = _CRC.unpack_from(buffer, position + 8)
    view = memoryview(buffer)
    body_at = position + header.size
    body_checksum = crc32c(view[body_at : position + header.length])
    found = crc32c(view[position + CRC_FROM : body_at], body_checksum)
    if found != expected:
        raise BatchError(f"checksum is {found:08x}, not {expected:08x}")
    return header
