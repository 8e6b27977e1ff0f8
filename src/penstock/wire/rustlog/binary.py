"""RustLog dialect B: requests, read (server) and written (client). Replies: binary_reply.py.

Payload = u8 type and fields, all big-endian; str = u16 length and UTF-8. Bytes after the fields are
ignored, as the existing broker ignores them.

  01 Produce            topic str, partition u32, count u32, count x (u32 length, bytes)
  02 Fetch              group str (or empty), topic str, partition u32, offset u64, max_bytes u32
  03 OffsetCommit       group str, topic str, partition u32, offset u64
  04 OffsetFetch        group str, topic str, partition u32
  05 CreateTopic        topic str, partition_count u32
  06 ListTopics         -
  07 DescribeTopic      topic str
  08 DescribePartition  topic str, partition u32
  09 Metrics            -
  FF Ping               -
"""

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from penstock.wire.primitives import (
    LENGTH_BYTES,
    U16_MAX,
    read_u16,
    read_u32,
    read_u64,
    write_u16,
    write_u32,
    write_u64,
)
from penstock.wire.rustlog.frames import (
    DECODE_ERROR,
    MAX_FRAME_BYTES,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    Metrics,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Produce,
    Request,
    RustLogProtocolError,
    framed,
)

PRODUCE: Final = 0x01
FETCH: Final = 0x02
OFFSET_COMMIT: Final = 0x03
OFFSET_FETCH: Final = 0x04
CREATE_TOPIC: Final = 0x05
LIST_TOPICS: Final = 0x06
DESCRIBE_TOPIC: Final = 0x07
DESCRIBE_PARTITION: Final = 0x08
METRICS: Final = 0x09
ERROR: Final = 0xFE
PING: Final = 0xFF


@final
class BinaryReader:
    """A position in bytes `start` to `end` of a buffer; each read names the field in its error."""

    def __init__(self, buffer: bytes, start: i64, end: i64) -> None:
        self.buffer = buffer
        self.start = start
        self.position = start
        self.end = end

    def error(self, what: str) -> RustLogProtocolError:
        text = f"Decode error: decode error: {what}"
        return RustLogProtocolError(text, self.position - self.start, DECODE_ERROR)

    def need(self, size: i64, what: str) -> i64:
        """The position of the next `size` bytes; moves past them."""
        position = self.position
        if self.end - position < size:
            raise self.error(what)
        self.position = position + size
        return position

    def read_u8(self, what: str) -> i64:
        return i64(self.buffer[self.need(1, what)])

    def read_u32(self, what: str) -> i64:
        return read_u32(self.buffer, self.need(4, what))

    def read_u64(self, what: str) -> int:
        return read_u64(self.buffer, self.need(8, what))

    def read_text(self, name: str) -> str:
        size = read_u16(self.buffer, self.need(2, f"missing {name} length"))
        begin = self.need(size, f"truncated {name}")
        try:
            return self.buffer[begin : begin + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"invalid utf8 {name}: {_utf8_complaint(error)}") from None

    def read_records(self, count: i64) -> list[bytes]:
        """`count` byte strings behind a u32 length each.

        All lengths are checked against the size of the input before the first record is built: the
        peer chose the count, and it may be anything.
        """
        begin = self.position
        left = count
        while left > 0:
            size = self.read_u32("truncated record length")
            self.need(size, "truncated record")
            left -= 1
        buffer = self.buffer
        records: list[bytes] = []
        position = begin
        while position < self.position:
            value_at: i64 = position + 4
            position = value_at + read_u32(buffer, position)
            records.append(buffer[value_at:position])
        return records


def _utf8_complaint(error: UnicodeDecodeError) -> str:
    """The text of Rust's standard library for the same error."""
    if error.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {error.start}"
    return f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"


def decode_request(buffer: bytes, start: i64, end: i64) -> Request:
    """The request in bytes `start` to `end`."""
    reader = BinaryReader(buffer, start, end)
    kind = reader.read_u8("empty buffer")
    if kind == PRODUCE:
        topic = reader.read_text("topic")
        partition: int = reader.read_u32("missing partition")
        count = reader.read_u32("missing record count")
        return Produce(topic, partition, reader.read_records(count))
    if kind == FETCH:
        group = reader.read_text("group_id")
        topic = reader.read_text("topic")
        partition = reader.read_u32("missing partition")
        offset = reader.read_u64("missing offset")
        return Fetch(topic, partition, offset, reader.read_u32("missing max_bytes"), group or None)
    if kind == OFFSET_COMMIT:
        group = reader.read_text("group")
        topic = reader.read_text("topic")
        partition = reader.read_u32("missing partition")
        return OffsetCommit(topic, partition, group, reader.read_u64("missing offset"))
    if kind == OFFSET_FETCH:
        group = reader.read_text("group")
        topic = reader.read_text("topic")
        return OffsetFetch(topic, reader.read_u32("missing partition"), group)
    return _decode_admin(kind, reader)


def _decode_admin(kind: i64, reader: BinaryReader) -> Request:
    if kind == CREATE_TOPIC:
        topic = reader.read_text("topic")
        return CreateTopic(topic, reader.read_u32("missing partition count"))
    if kind == LIST_TOPICS:
        return ListTopics()
    if kind == DESCRIBE_TOPIC:
        return DescribeTopic(reader.read_text("topic"))
    if kind == DESCRIBE_PARTITION:
        topic = reader.read_text("topic")
        return DescribePartition(topic, reader.read_u32("missing partition"))
    if kind == METRICS:
        return Metrics()
    if kind == PING:
        return Ping()
    # The one decode error whose text has a single prefix.
    raise RustLogProtocolError(f"Decode error: unknown request type: {kind}", 0, DECODE_ERROR)


def encode_request(request: Request) -> bytes:
    """A whole frame. A text or number that its field cannot hold is a ValueError."""
    writer = BytesWriter()
    if isinstance(request, Produce):
        writer.append(u8(PRODUCE))
        write_text(writer, request.topic)
        write_number(writer, request.partition)
        write_records(writer, request.records)
    elif isinstance(request, Fetch):
        writer.append(u8(FETCH))
        write_text(writer, request.group_id or "")
        write_text(writer, request.topic)
        write_number(writer, request.partition)
        write_u64(writer, request.offset)
        write_number(writer, request.max_bytes)
    elif isinstance(request, OffsetCommit):
        writer.append(u8(OFFSET_COMMIT))
        write_text(writer, request.group_id)
        write_text(writer, request.topic)
        write_number(writer, request.partition)
        write_u64(writer, request.offset)
    elif isinstance(request, OffsetFetch):
        writer.append(u8(OFFSET_FETCH))
        write_text(writer, request.group_id)
        write_text(writer, request.topic)
        write_number(writer, request.partition)
    else:
        _encode_admin(writer, request)
    return framed(writer.getvalue())


def _encode_admin(writer: BytesWriter, request: Request) -> None:
    if isinstance(request, CreateTopic):
        writer.append(u8(CREATE_TOPIC))
        write_text(writer, request.topic)
        write_number(writer, request.partition_count)
    elif isinstance(request, ListTopics):
        writer.append(u8(LIST_TOPICS))
    elif isinstance(request, DescribeTopic):
        writer.append(u8(DESCRIBE_TOPIC))
        write_text(writer, request.topic)
    elif isinstance(request, DescribePartition):
        writer.append(u8(DESCRIBE_PARTITION))
        write_text(writer, request.topic)
        write_number(writer, request.partition)
    elif isinstance(request, Metrics):
        writer.append(u8(METRICS))
    else:
        writer.append(u8(PING))


def write_text(writer: BytesWriter, text: str) -> None:
    raw = text.encode("utf-8")
    if len(raw) > U16_MAX:
        raise ValueError(f"text of {len(raw)} bytes, the most is {U16_MAX}")
    write_u16(writer, len(raw))
    writer.write(raw)


def write_number(writer: BytesWriter, number: int) -> None:
    if not 0 <= number <= 0xFFFF_FFFF:
        raise ValueError(f"{number} is not an unsigned 32-bit number")
    write_u32(writer, number)


def write_records(writer: BytesWriter, records: list[bytes]) -> None:
    write_u32(writer, len(records))
    for record in records:
        size: i64 = len(record)
        if len(writer) + LENGTH_BYTES + size > MAX_FRAME_BYTES:
            raise ValueError(f"records do not fit a frame of {MAX_FRAME_BYTES} bytes")
        write_u32(writer, size)
        writer.write(record)
