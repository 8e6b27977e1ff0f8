"""PRODUCE and its kin, split and answered in runs: an object for each run of messages, not for each.

    PRODUCE            topic str, key blob (empty: none), value blob, partition i32 (-1 or missing: we
                       choose)
    PRODUCE_DELAYED    topic str, value blob, delay_ms i64
    PRODUCE_WITH_TTL   topic str, value blob, ttl_ms i64
    TXN_PRODUCE        transaction str, topic str, value blob
    reply              topic str, partition i32, offset u64, timestamp_ms i64, key_size i32 (-1: none),
                       value_size i32

    str = u16 length and UTF-8, blob = u32 length and bytes, all big-endian. Bytes behind the fields are
    ignored.

Frames that follow each other with one opcode, one topic, and one partition field or transaction, are one
run. Where a record of a transaction goes is known at the commit: its reply has partition 0 and offset 0. A
frame that is compressed, or that does not parse, is left to the caller as it is. Hot: compiled by mypyc.
"""

from typing import Final, TypeAlias, final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from penstock.wire.flymq.frames import (
    FLAG_BINARY,
    HEADER_BYTES,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    VERSION,
    FlyMQProtocolError,
    Frame,
    frame_flaw,
)
from penstock.wire.primitives import is_utf8, read_u16, read_u32, write_u16

PRODUCE: Final = 0x01
PRODUCE_DELAYED: Final = 0x30
PRODUCE_WITH_TTL: Final = 0x35
TXN_PRODUCE: Final = 0x43
# The opcodes that come in runs.
IN_RUNS: Final = frozenset({PRODUCE, PRODUCE_DELAYED, PRODUCE_WITH_TTL, TXN_PRODUCE})
ANY_PARTITION: Final = -1
NO_KEY: Final = -1
# A run ends here: its cost per byte is low already, a larger one only delays its answers.
MAX_RUN_BYTES: Final = 1024 * 1024
# So does one of messages with times: where some are refused, each of them is looked at, within a turn.
MAX_TIMED_MESSAGES: Final = 256

# Behind the topic of a reply.
_REPLY_FIELDS_BYTES: Final = 28
_COMPRESSION_BITS: Final = 0x0E


@final
class ProduceRun:
    """Messages of consecutive frames. `keys`: None where no message has one. `size`: of the frames.
    `transaction`: its id, of TXN_PRODUCE. `times_ms`: delays or times to live, of opcodes with them."""

    def __init__(
        self,
        topic: bytes,
        partition: i64,
        transaction: bytes | None = None,
        opcode: i64 = PRODUCE,
    ) -> None:
        self.opcode: i64 = opcode
        self.topic = topic
        self.transaction = transaction
        self.topic_name = topic.decode()
        self.partition: int = partition
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.times_ms: list[int] = []
        self.size: i64 = 0

    def add(self, key: bytes | None, value: bytes, size: i64) -> None:
        if self.keys is None and key is not None:
            self.keys = [None] * len(self.values)
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        self.size += size

    def key_size(self, row: i64) -> i64:
        if self.keys is None:
            return NO_KEY
        key = self.keys[row]
        return NO_KEY if key is None else len(key)

    def single(self, row: int) -> "ProduceRun":
        """One of its messages alone."""
        alone = ProduceRun(self.topic, self.partition, self.transaction, self.opcode)
        if self.times_ms:
            alone.times_ms.append(self.times_ms[row])
        key = None if self.keys is None else self.keys[row]
        value = self.values[row]
        alone.add(key, value, HEADER_BYTES + len(self.topic) + len(value))
        return alone


Item: TypeAlias = Frame | ProduceRun
Split: TypeAlias = tuple[list[Item], int, FlyMQProtocolError | None]


def split_requests(
    buffer: bytes, start: i64, end: i64, max_bytes: i64 = MAX_PAYLOAD_BYTES
) -> Split:
    """All complete frames, those of PRODUCE in runs: (items, where the rest begins, error).

    An error means: answer what comes before it, and close. It is found as soon as its byte is there.
    """
    items: list[Item] = []
    run: ProduceRun | None = None
    position = start
    while True:
        flaw = frame_flaw(buffer, position, end, max_bytes)
        if flaw is not None or end - position < HEADER_BYTES:
            return items, position, flaw
        payload: i64 = position + HEADER_BYTES
        finish: i64 = payload + read_u32(buffer, position + 4)
        if finish > end:
            return items, position, None
        opcode: i64 = i64(buffer[position + 2])
        flags: i64 = i64(buffer[position + 3])
        taken: ProduceRun | None = None
        if not flags & _COMPRESSION_BITS:
            if opcode == PRODUCE:
                taken = _take(run, buffer, payload, finish)
            elif opcode == TXN_PRODUCE:
                taken = _take_staged(run, buffer, payload, finish)
            elif opcode in (PRODUCE_DELAYED, PRODUCE_WITH_TTL):
                taken = _take_timed(run, buffer, payload, finish, opcode)
        if taken is None:
            items.append(Frame(opcode, flags, payload, finish))
        elif taken is not run:
            items.append(taken)
        run = taken
        position = finish


def decode_produce(payload: bytes, opcode: int = PRODUCE) -> ProduceRun | None:
    """The run of one request (IN_RUNS), from its payload alone; None when that does not parse."""
    if opcode == TXN_PRODUCE:
        return _take_staged(None, payload, 0, len(payload))
    if opcode in (PRODUCE_DELAYED, PRODUCE_WITH_TTL):
        return _take_timed(None, payload, 0, len(payload), opcode)
    return _take(None, payload, 0, len(payload))


def _take(run: ProduceRun | None, buffer: bytes, start: i64, end: i64) -> ProduceRun | None:
    """The run that holds the message now: `run`, or a new one. None when the payload does not parse."""
    if end - start < 2:
        return None
    topic_size = read_u16(buffer, start)
    topic_at: i64 = start + 2
    key_at: i64 = topic_at + topic_size + 4
    if key_at > end:
        return None
    key_size = read_u32(buffer, key_at - 4)
    value_at: i64 = key_at + key_size + 4
    if value_at > end:
        return None
    value_size = read_u32(buffer, value_at - 4)
    behind: i64 = value_at + value_size
    if behind > end:
        return None
    partition: i64 = ANY_PARTITION
    if end - behind >= 4:
        partition = i64(read_i32_be(buffer, behind))
    if run is None or not _same(run, buffer, topic_at, topic_size, partition):
        topic = buffer[topic_at : topic_at + topic_size]
        if not is_utf8(topic):
            return None
        run = ProduceRun(topic, partition)
    key = buffer[key_at : key_at + key_size] if key_size else None
    run.add(key, buffer[value_at:behind], end - start + HEADER_BYTES)
    return run


def _take_staged(run: ProduceRun | None, buffer: bytes, start: i64, end: i64) -> ProduceRun | None:
    """The same for TXN_PRODUCE."""
    if end - start < 2:
        return None
    id_size = read_u16(buffer, start)
    id_at: i64 = start + 2
    topic_at: i64 = id_at + id_size + 2
    if topic_at > end:
        return None
    topic_size = read_u16(buffer, topic_at - 2)
    value_at: i64 = topic_at + topic_size + 4
    if value_at > end:
        return None
    behind: i64 = value_at + read_u32(buffer, value_at - 4)
    if behind > end:
        return None
    transaction = buffer[id_at : id_at + id_size]
    if (
        run is None
        or run.transaction != transaction
        or not _same_topic(run, buffer, topic_at, topic_size)
    ):
        topic = buffer[topic_at : topic_at + topic_size]
        if not is_utf8(topic) or not is_utf8(transaction):
            return None
        run = ProduceRun(topic, ANY_PARTITION, transaction, TXN_PRODUCE)
    run.add(None, buffer[value_at:behind], end - start + HEADER_BYTES)
    return run


def _take_timed(
    run: ProduceRun | None, buffer: bytes, start: i64, end: i64, opcode: i64
) -> ProduceRun | None:
    """The same for PRODUCE_DELAYED and PRODUCE_WITH_TTL."""
    if end - start < 2:
        return None
    topic_size = read_u16(buffer, start)
    topic_at: i64 = start + 2
    value_at: i64 = topic_at + topic_size + 4
    if value_at > end:
        return None
    behind: i64 = value_at + read_u32(buffer, value_at - 4)
    if behind + 8 > end:
        return None
    if (
        run is None
        or run.opcode != opcode
        or len(run.values) >= MAX_TIMED_MESSAGES
        or not _same_topic(run, buffer, topic_at, topic_size)
    ):
        topic = buffer[topic_at : topic_at + topic_size]
        if not is_utf8(topic):
            return None
        run = ProduceRun(topic, ANY_PARTITION, None, opcode)
    run.times_ms.append(read_i64_be(buffer, behind))
    run.add(None, buffer[value_at:behind], end - start + HEADER_BYTES)
    return run


def _same(run: ProduceRun, buffer: bytes, topic_at: i64, topic_size: i64, partition: i64) -> bool:
    return (
        run.opcode == PRODUCE
        and run.partition == partition
        and _same_topic(run, buffer, topic_at, topic_size)
    )


def _same_topic(run: ProduceRun, buffer: bytes, topic_at: i64, topic_size: i64) -> bool:
    """Whether the run may go on with this topic. Not by `startswith`: compiled, a slice and a comparison
    take a fifth of the time."""
    return run.size < MAX_RUN_BYTES and buffer[topic_at : topic_at + topic_size] == run.topic


def encode_produced(run: ProduceRun, partition: i64, first_offset: i64, time_ms: i64) -> bytes:
    """The answers to a run whose messages all went to one partition, from one offset on."""
    return encode_produced_rows(run, 0, len(run.values), partition, first_offset, time_ms)


def encode_produced_rows(
    run: ProduceRun, first_row: i64, count: i64, partition: i64, first_offset: i64, time_ms: i64
) -> bytes:
    """The same for some that follow each other."""
    writer = BytesWriter()
    row: i64 = 0
    while row < count:
        _write_reply(writer, run, first_row + row, partition, first_offset + row, time_ms)
        row += 1
    return writer.getvalue()


def encode_staged(run: ProduceRun, time_ms: i64) -> bytes:
    """The answers to a run of a transaction."""
    writer = BytesWriter()
    row: i64 = 0
    count: i64 = len(run.values)
    while row < count:
        _write_reply(writer, run, row, 0, 0, time_ms)
        row += 1
    return writer.getvalue()


def encode_produced_one(
    run: ProduceRun, row: i64, partition: i64, offset: i64, time_ms: i64
) -> bytes:
    """The answer to one message of a run."""
    writer = BytesWriter()
    _write_reply(writer, run, row, partition, offset, time_ms)
    return writer.getvalue()


def _write_reply(
    writer: BytesWriter, run: ProduceRun, row: i64, partition: i64, offset: i64, time_ms: i64
) -> None:
    topic_size: i64 = len(run.topic)
    writer.append(MAGIC)
    writer.append(VERSION)
    writer.append(run.opcode)
    writer.append(FLAG_BINARY)
    write_i32_be(writer, i32(2 + topic_size + _REPLY_FIELDS_BYTES))
    write_u16(writer, topic_size)
    writer.write(run.topic)
    write_i32_be(writer, i32(partition))
    write_i64_be(writer, offset)
    write_i64_be(writer, time_ms)
    write_i32_be(writer, i32(run.key_size(row)))
    write_i32_be(writer, i32(len(run.values[row])))
