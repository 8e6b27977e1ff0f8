"""RustLog dialect J: writes requests (client) and replies (server), compact, keys in schema order.

Number lists are written from a table, three or four bytes at a time, without a list of numbers. A
Fetch reply is built once and stops before the record that would pass the frame cap.
Reading is in json.py.
"""

import json
from collections.abc import Iterable
from typing import Final, final

from librt.strings import BytesWriter, read_i32_le, write_i16_le, write_i32_le
from mypy_extensions import i16, i64, u8

from penstock.wire.primitives import LENGTH_BYTES, put_u32
from penstock.wire.rustlog.frames import (
    MAX_FRAME_BYTES,
    CreateTopic,
    Fetch,
    ListTopics,
    Metrics,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Produce,
    Request,
    bounded_message,
    framed,
)

# Each number from 0 to 255 with its comma, four bytes an entry: `7,  `, `42, `, `255,`.
_NUMBERS: Final = b"".join([b"%d," % value + b" " * (3 - len(str(value))) for value in range(256)])

_FETCH_HEAD: Final = b'{"Fetch":{"records":['
_RECORD_OFFSET: Final = b'{"offset":'
_RECORD_PAYLOAD: Final = b',"payload":'
_FETCH_TAIL: Final = b'],"next_offset":'
_PRODUCE_HEAD: Final = b'{"Produce":{"offsets":['

# Digits of the largest offset the log can give (an i64).
MAX_OFFSET_DIGITS: Final = 19
# What follows the last record, at most: `],"next_offset":`, digits, `}}`.
_TAIL_ROOM: Final = len(_FETCH_TAIL) + MAX_OFFSET_DIGITS + 2
# A Fetch reply with one record, less its number list and brackets, at most.
_SINGLE_OVERHEAD: Final = (
    len(_FETCH_HEAD)
    + len(_RECORD_OFFSET)
    + MAX_OFFSET_DIGITS
    + len(_RECORD_PAYLOAD)
    + len(b"}")
    + _TAIL_ROOM
)


# ---- sizes ---------------------------------------------------------------------------------------


def number_list_size(payload: bytes) -> int:
    """Characters of the payload as a number list, brackets included."""
    size: i64 = len(payload)
    if size == 0:
        return 2
    # Each number has a digit and a comma or closing bracket.
    total: i64 = 1 + 2 * size
    position: i64 = 0
    while position < size:
        value: i64 = payload[position]
        if value > 9:
            total += 1 if value < 100 else 2
        position += 1
    return total


def fits_single_record_reply(payload: bytes) -> bool:
    """Whether a Fetch reply with this record alone fits a frame, whatever its offset will be."""
    size: i64 = len(payload)
    room: i64 = MAX_FRAME_BYTES - _SINGLE_OVERHEAD
    if 4 * size + 2 <= room:
        return True
    return 2 * size + 1 <= room and number_list_size(payload) <= room


def fits_produce_reply(first_offset: int, count: int) -> bool:
    """Whether the reply to a Produce of `count` records fits a frame: many empty records need more room
    in the reply than in the request."""
    # So few fit with the longest offsets and a comma each; most requests end here.
    if count <= (MAX_FRAME_BYTES - len(_PRODUCE_HEAD) - 3) // (MAX_OFFSET_DIGITS + 1):
        return True
    return produce_reply_size(first_offset, count) <= MAX_FRAME_BYTES


def produce_reply_size(first_offset: int, count: int) -> int:
    """Payload bytes of the reply to a Produce of `count` records."""
    size = len(_PRODUCE_HEAD) + len(b"]}}") + max(count - 1, 0)
    low, last = first_offset, first_offset + count
    while low < last:
        digits = len(str(low))
        high = min(last, 10**digits)
        size += digits * (high - low)
        low = high
    return size


# ---- replies -------------------------------------------------------------------------------------


@final
class FetchReplyWriter:
    """One Fetch reply, row by row. `full` is set when a record no longer fits; it is not taken.

    The first record is taken whatever `max_payload_bytes` says, as the document demands. If even
    that one fits no frame, `count` stays 0 and `full` is set: there is no reply for this offset.
    """

    def __init__(self, max_payload_bytes: int) -> None:
        self.count: int = 0
        self.full = False
        self._payload_room: i64 = min(max_payload_bytes, MAX_FRAME_BYTES)
        self._writer = BytesWriter()
        write_i32_le(self._writer, 0)
        self._writer.write(_FETCH_HEAD)

    def add(self, offset: i64, payload: bytes) -> bool:
        """Whether the record was taken."""
        return self._add(offset, payload, 0, len(payload))

    def add_rows(
        self,
        batch: bytes,
        offsets_at: i64,
        values_at: i64,
        first_row: i64,
        row_count: i64,
        first_offset: i64,
    ) -> int:
        """Take consecutive rows of a log batch, as many as fit: how many.

        `batch` holds at `offsets_at` the value offsets (i32 little-endian, one more than rows,
        counted from `values_at`). `first_offset` is the log offset of `first_row`.
        """
        offset_at: i64 = offsets_at + 4 * first_row
        begin: i64 = values_at + i64(read_i32_le(batch, offset_at))
        row: i64 = 0
        while row < row_count:
            offset_at += 4
            finish: i64 = values_at + i64(read_i32_le(batch, offset_at))
            if not self._add(first_offset + row, batch, begin, finish):
                break
            begin = finish
            row += 1
        return row

    def _add(self, offset: i64, buffer: bytes, begin: i64, finish: i64) -> bool:
        size: i64 = finish - begin
        if self.full or (self.count > 0 and size > self._payload_room):
            self.full = True
            return False
        writer = self._writer
        before: i64 = len(writer)
        # A number takes at least two characters: skip a record that cannot fit.
        if before + 2 * size < MAX_FRAME_BYTES:
            if self.count > 0:
                writer.append(u8(0x2C))
            writer.write(_RECORD_OFFSET)
            write_decimal(writer, offset)
            writer.write(_RECORD_PAYLOAD)
            write_number_list(writer, buffer, begin, finish)
            writer.append(u8(0x7D))
            if len(writer) - LENGTH_BYTES + _TAIL_ROOM <= MAX_FRAME_BYTES:
                self.count += 1
                self._payload_room -= size
                return True
            writer.truncate(before)
        self.full = True
        return False

    def finish(self, next_offset: i64) -> bytes:
        """The whole frame. Nothing may be added after."""
        self.full = True
        self._writer.write(_FETCH_TAIL)
        write_decimal(self._writer, next_offset)
        self._writer.write(b"}}")
        put_u32(self._writer, 0, len(self._writer) - LENGTH_BYTES)
        return self._writer.getvalue()


def encode_produce_reply(first_offset: i64, count: i64) -> bytes:
    """Offsets first_offset, first_offset + 1, ... one for each record."""
    writer = BytesWriter()
    writer.write(_PRODUCE_HEAD)
    number: i64 = 0
    while number < count:
        if number > 0:
            writer.append(u8(0x2C))
        write_decimal(writer, first_offset + number)
        number += 1
    writer.write(b"]}}")
    return framed(writer.getvalue())


def encode_offset_commit_reply(success: bool) -> bytes:
    return framed(b'{"OffsetCommit":{"success":%s}}' % (b"true" if success else b"false"))


def encode_offset_fetch_reply(offset: int | None) -> bytes:
    number = "null" if offset is None else str(offset)
    return framed(b'{"OffsetFetch":{"offset":%s}}' % number.encode())


def encode_create_topic_reply(success: bool) -> bytes:
    return framed(b'{"CreateTopic":{"success":%s}}' % (b"true" if success else b"false"))


def encode_list_topics_reply(pages: Iterable[list[tuple[str, int]]]) -> bytes:
    """Names and partition counts. Pages, because whoever makes them lets others run in between."""
    entry = b'{"topic":%s,"partition_count":%d}'
    parts: list[bytes] = []
    for page in pages:
        if page:
            parts.append(b",".join([entry % (_quoted(name), count) for name, count in page]))
    return framed(b'{"ListTopics":{"topics":[%s]}}' % b",".join(parts))


def encode_metrics_reply(text: str) -> bytes:
    return framed(b'{"Metrics":{"text":%s}}' % _quoted(text))


def encode_pong() -> bytes:
    return framed(b'"Pong"')


def encode_error(message: str) -> bytes:
    return framed(b'{"Error":{"message":%s}}' % _quoted(bounded_message(message)))


# ---- requests ------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """A whole frame. What dialect J has no form for, or no frame can hold, is a ValueError."""
    if isinstance(request, Produce):
        return _produce(request)
    if isinstance(request, Fetch):
        return framed(
            b'{"Fetch":{"topic":%s,"partition":%d,"offset":%d,"max_bytes":%d,"group_id":%s}}'
            % (
                _quoted(request.topic),
                request.partition,
                request.offset,
                request.max_bytes,
                b"null" if request.group_id is None else _quoted(request.group_id),
            )
        )
    if isinstance(request, OffsetCommit):
        return framed(
            b'{"OffsetCommit":{"topic":%s,"partition":%d,"group_id":%s,"offset":%d}}'
            % (
                _quoted(request.topic),
                request.partition,
                _quoted(request.group_id),
                request.offset,
            )
        )
    if isinstance(request, OffsetFetch):
        return framed(
            b'{"OffsetFetch":{"topic":%s,"partition":%d,"group_id":%s}}'
            % (_quoted(request.topic), request.partition, _quoted(request.group_id))
        )
    if isinstance(request, CreateTopic):
        return framed(
            b'{"CreateTopic":{"topic":%s,"partition_count":%d}}'
            % (_quoted(request.topic), request.partition_count)
        )
    if isinstance(request, Ping):
        return framed(b'"Ping"')
    if isinstance(request, ListTopics):
        return framed(b'"ListTopics"')
    if isinstance(request, Metrics):
        return framed(b'"Metrics"')
    raise ValueError(f"RustLog's JSON dialect has no {type(request).__name__}")


def _produce(request: Produce) -> bytes:
    writer = BytesWriter()
    writer.write(b'{"Produce":{"topic":')
    writer.write(_quoted(request.topic))
    writer.write(b',"partition":%d,"records":[' % request.partition)
    first = True
    for record in request.records:
        if not first:
            writer.append(u8(0x2C))
        first = False
        write_number_list(writer, record, 0, len(record))
        if len(writer) > MAX_FRAME_BYTES:
            break
    writer.write(b"]}}")
    return framed(writer.getvalue())


# ---- pieces --------------------------------------------------------------------------------------


def write_number_list(writer: BytesWriter, buffer: bytes, begin: i64, finish: i64) -> None:
    """Bytes `begin` to `finish` as `[98,121]`."""
    writer.append(u8(0x5B))
    if begin == finish:
        writer.append(u8(0x5D))
        return
    position = begin
    while position < finish:
        value: i64 = buffer[position]
        entry = read_i32_le(_NUMBERS, 4 * value)
        if value > 99:
            write_i32_le(writer, entry)
        elif value > 9:
            write_i16_le(writer, i16(entry & 0x7FFF))
            writer.append(u8(0x2C))
        else:
            write_i16_le(writer, i16(entry & 0x7FFF))
        position += 1
    # The comma behind the last number becomes the bracket.
    writer[len(writer) - 1] = u8(0x5D)


def write_decimal(writer: BytesWriter, number: i64) -> None:
    """A number that is not below 0."""
    if number < 10:
        writer.append(u8(0x30 + number))
        return
    power: i64 = 10
    while number // power >= 10:
        power *= 10
    while power > 0:
        writer.append(u8(0x30 + number // power % 10))
        power //= 10


def _quoted(text: str) -> bytes:
    """As serde prints it: quotes, backslashes and control characters escaped, all else as UTF-8."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8")
