"""RustLog dialect B: replies, written (server) and read (client). Requests: binary.py.

01 Produce            base_offset u64, count u32
02 Fetch              count u32, count x (u32 length, bytes), next_offset u64
03 OffsetCommit       u8 1
04 OffsetFetch        u8 0, or u8 1 and offset u64
05 CreateTopic        u8 1
06 ListTopics         count u32, count x (name str, partition_count u32), sorted by name
07 DescribeTopic      topic str, partition_count u32, length u32, length x (id u32, watermark u64)
08 DescribePartition  topic str, partition u32, high_watermark u64
09 Metrics            u32 length, text
FE Error              code u16, text str
FF Ping               -
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, final

from librt.strings import BytesWriter, read_i32_le, write_i32_be
from mypy_extensions import i32, i64, u8

from penstock.wire.primitives import LENGTH_BYTES, put_u32, read_u16, write_u16, write_u64
from penstock.wire.rustlog.binary import (
    CREATE_TOPIC,
    DESCRIBE_PARTITION,
    DESCRIBE_TOPIC,
    ERROR,
    FETCH,
    LIST_TOPICS,
    METRICS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PING,
    PRODUCE,
    BinaryReader,
    write_number,
    write_text,
)
from penstock.wire.rustlog.frames import (
    DECODE_ERROR,
    MAX_FRAME_BYTES,
    CreateTopicReply,
    DescribePartitionReply,
    DescribeTopicReply,
    ErrorReply,
    FetchReply,
    ListTopicsReply,
    MetricsReply,
    OffsetCommitReply,
    OffsetFetchReply,
    PongReply,
    ProduceReply,
    Reply,
    RustLogProtocolError,
    bounded_message,
    framed,
)

# `max_bytes` of a Fetch counts this for each record besides its payload: the storage header.
RECORD_OVERHEAD: Final = 12

_PRODUCE_REPLY: Final = Struct(">BQI")
_OFFSET_REPLY: Final = Struct(">BBQ")


# ---- writing -------------------------------------------------------------------------------------


@final
class FetchReplyWriter:
    """One Fetch reply, row by row. `full` is set when a record no longer fits; it is not taken.

    `max_bytes` counts payload and 12 bytes for each record. The first record is taken whatever it
    says, except that 0 takes none.
    """

    def __init__(self, max_bytes: int) -> None:
        self.count: int = 0
        self.full = max_bytes <= 0
        self._room: i64 = min(max_bytes, 2 * MAX_FRAME_BYTES)
        self._writer = BytesWriter()
        write_i32_be(self._writer, 0)
        self._writer.append(u8(FETCH))
        write_i32_be(self._writer, 0)

    def add(self, payload: bytes) -> bool:
        """Whether the record was taken."""
        return self._add(payload, 0, len(payload))

    def add_rows(
        self, batch: bytes, offsets_at: i64, values_at: i64, first_row: i64, row_count: i64
    ) -> int:
        """Take consecutive rows of a log batch, as many as fit: how many.

        `batch` holds at `offsets_at` the value offsets (i32 little-endian, one more than rows,
        counted from `values_at`).
        """
        offset_at: i64 = offsets_at + 4 * first_row
        begin: i64 = values_at + i64(read_i32_le(batch, offset_at))
        row: i64 = 0
        while row < row_count:
            offset_at += 4
            finish: i64 = values_at + i64(read_i32_le(batch, offset_at))
            if not self._add(batch, begin, finish):
                break
            begin = finish
            row += 1
        return row

    def _add(self, buffer: bytes, begin: i64, finish: i64) -> bool:
        size: i64 = finish - begin
        cost: i64 = size + RECORD_OVERHEAD
        # next_offset follows the records, 8 bytes.
        written: i64 = len(self._writer) - LENGTH_BYTES + 4 + size + 8
        if self.full or written > MAX_FRAME_BYTES or (self.count > 0 and cost > self._room):
            self.full = True
            return False
        write_i32_be(self._writer, i32(size))
        self._writer.write(buffer[begin:finish])
        self.count += 1
        self._room -= cost
        return True

    def finish(self, next_offset: int) -> bytes:
        """The whole frame. Nothing may be added after."""
        self.full = True
        write_u64(self._writer, next_offset)
        put_u32(self._writer, 0, len(self._writer) - LENGTH_BYTES)
        put_u32(self._writer, 5, self.count)
        return self._writer.getvalue()


def encode_produce_reply(first_offset: int, count: int) -> bytes:
    return framed(_PRODUCE_REPLY.pack(PRODUCE, first_offset, count))


def encode_offset_commit_reply() -> bytes:
    return framed(bytes((OFFSET_COMMIT, 1)))


def encode_offset_fetch_reply(offset: int | None) -> bytes:
    if offset is None:
        return framed(bytes((OFFSET_FETCH, 0)))
    return framed(_OFFSET_REPLY.pack(OFFSET_FETCH, 1, offset))


def encode_create_topic_reply() -> bytes:
    return framed(bytes((CREATE_TOPIC, 1)))


def encode_list_topics_reply(pages: Iterable[list[tuple[str, int]]]) -> bytes:
    """Names and partition counts. Pages, because whoever makes them lets others run in between."""
    entries = BytesWriter()
    count = 0
    for page in pages:
        count += len(page)
        for name, partition_count in page:
            write_text(entries, name)
            write_number(entries, partition_count)
    head = BytesWriter()
    head.append(u8(LIST_TOPICS))
    write_number(head, count)
    return framed(head.getvalue() + entries.getvalue())


def encode_describe_topic_reply(topic: str, high_watermarks: list[int]) -> bytes:
    """Partitions 0, 1, ... with their watermarks."""
    writer = BytesWriter()
    writer.append(u8(DESCRIBE_TOPIC))
    write_text(writer, topic)
    write_number(writer, len(high_watermarks))
    write_number(writer, len(high_watermarks))
    for partition, high_watermark in enumerate(high_watermarks):
        write_number(writer, partition)
        write_u64(writer, high_watermark)
    return framed(writer.getvalue())


def encode_describe_partition_reply(topic: str, partition: int, high_watermark: int) -> bytes:
    writer = BytesWriter()
    writer.append(u8(DESCRIBE_PARTITION))
    write_text(writer, topic)
    write_number(writer, partition)
    write_u64(writer, high_watermark)
    return framed(writer.getvalue())


def encode_metrics_reply(text: str) -> bytes:
    raw = text.encode("utf-8")
    return framed(b"".join((bytes((METRICS,)), len(raw).to_bytes(4, "big"), raw)))


def encode_pong() -> bytes:
    return framed(bytes((PING,)))


def encode_error(code: int, message: str) -> bytes:
    writer = BytesWriter()
    writer.append(u8(ERROR))
    write_u16(writer, code)
    write_text(writer, bounded_message(message))
    return framed(writer.getvalue())


# ---- reading -------------------------------------------------------------------------------------


def decode_reply(buffer: bytes, start: i64, end: i64) -> Reply:
    """The reply in bytes `start` to `end`; what follows its fields is ignored."""
    reader = BinaryReader(buffer, start, end)
    kind = reader.read_u8("empty buffer")
    if kind == PRODUCE:
        base = reader.read_u64("missing base offset")
        count: int = reader.read_u32("missing count")
        return ProduceReply(range(base, base + count))
    if kind == FETCH:
        return _fetch_reply(reader)
    if kind == OFFSET_COMMIT:
        return OffsetCommitReply(reader.read_u8("missing success") == 1)
    if kind == OFFSET_FETCH:
        known = reader.read_u8("missing presence") == 1
        return OffsetFetchReply(reader.read_u64("missing offset") if known else None)
    if kind == ERROR:
        code: int = read_u16(reader.buffer, reader.need(2, "missing code"))
        return ErrorReply(code, reader.read_text("message"))
    if kind == PING:
        return PongReply()
    return _admin_reply(kind, reader)


def _fetch_reply(reader: BinaryReader) -> FetchReply:
    payloads = reader.read_records(reader.read_u32("missing record count"))
    next_offset = reader.read_u64("missing next offset")
    first = next_offset - len(payloads)
    if first < 0:
        raise reader.error("next offset below the number of records")
    return FetchReply(range(first, next_offset), payloads, next_offset)


def _admin_reply(kind: i64, reader: BinaryReader) -> Reply:
    if kind == CREATE_TOPIC:
        return CreateTopicReply(reader.read_u8("missing success") == 1)
    if kind == LIST_TOPICS:
        topics: list[tuple[str, int]] = []
        left = reader.read_u32("missing topic count")
        while left > 0:
            name = reader.read_text("topic")
            topics.append((name, reader.read_u32("missing partition count")))
            left -= 1
        return ListTopicsReply(topics)
    if kind == DESCRIBE_TOPIC:
        topic = reader.read_text("topic")
        partition_count: int = reader.read_u32("missing partition count")
        partitions: list[tuple[int, int]] = []
        left = reader.read_u32("missing list length")
        while left > 0:
            partition: int = reader.read_u32("missing partition")
            partitions.append((partition, reader.read_u64("missing high watermark")))
            left -= 1
        return DescribeTopicReply(topic, partition_count, partitions)
    if kind == DESCRIBE_PARTITION:
        topic = reader.read_text("topic")
        partition = reader.read_u32("missing partition")
        return DescribePartitionReply(topic, partition, reader.read_u64("missing high watermark"))
    if kind == METRICS:
        size = reader.read_u32("missing text length")
        begin = reader.need(size, "truncated text")
        return MetricsReply(reader.buffer[begin : begin + size].decode("utf-8", "replace"))
    raise RustLogProtocolError(f"Decode error: unknown reply type: {kind}", 0, DECODE_ERROR)
