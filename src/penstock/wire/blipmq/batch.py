"""Writes many BlipMQ frames in one go: deliveries out of a log batch, publishes, polls, acks.

One BytesWriter for all frames, no object per frame. The layouts are in frames.py. Does not decide
what is delivered, with which tag or QoS.
"""

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i32_le,
    read_i64_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i32, i64, u8

from penstock.wire.blipmq.frames import (
    ACK,
    LENGTH_OVERHEAD,
    POLL,
    PUBLISH,
    QOS_AT_LEAST_ONCE,
    QOS_AT_MOST_ONCE,
    Nack,
    check_message,
    check_topic,
    encode_nack,
    message_room,
    topic_prefix,
)
from penstock.wire.primitives import U64_MAX

_SUBSCRIPTION_LENGTH: Final = LENGTH_OVERHEAD + 8
_I64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_I64_MIN: Final = -0x8000_0000_0000_0000
_U64_SPAN: Final = 0x1_0000_0000_0000_0000


def write_deliveries(
    writer: BytesWriter,
    topic: bytes,
    batch: bytes,
    offsets_at: i64,
    values_at: i64,
    first_row: i64,
    row_count: i64,
    first_tag: i64,
) -> None:
    """QoS1 deliveries of consecutive rows of a log batch, with consecutive tags.

    `batch` holds at `offsets_at` the value offsets (i32 little-endian, one more than rows, counted
    from `values_at`), and at `values_at` the values.
    """
    prefix = topic_prefix(topic, QOS_AT_LEAST_ONCE)
    room = _room(topic)
    overhead: i64 = LENGTH_OVERHEAD + len(prefix)
    offset_at: i64 = offsets_at + 4 * first_row
    begin: i64 = i64(read_i32_le(batch, offset_at))
    row: i64 = 0
    while row < row_count:
        offset_at += 4
        finish: i64 = i64(read_i32_le(batch, offset_at))
        if finish - begin > room:
            check_message(topic, finish - begin)
        write_i32_be(writer, i32(overhead + finish - begin))
        writer.append(u8(PUBLISH))
        write_i64_be(writer, first_tag + row)
        writer.write(prefix)
        writer.write(batch[values_at + begin : values_at + finish])
        begin = finish
        row += 1


def write_poll_answers(
    writer: BytesWriter,
    topic: bytes,
    batch: bytes,
    offsets_at: i64,
    values_at: i64,
    first_row: i64,
    row_count: i64,
    poll_ids: bytes,
    first_poll: i64,
) -> None:
    """QoS0 deliveries of consecutive rows: each bears the correlation id of the POLL it answers.

    `poll_ids` are the packed ids of a PollRun; rows take them from number `first_poll` on.
    """
    prefix = topic_prefix(topic, QOS_AT_MOST_ONCE)
    room = _room(topic)
    overhead: i64 = LENGTH_OVERHEAD + len(prefix)
    offset_at: i64 = offsets_at + 4 * first_row
    begin: i64 = i64(read_i32_le(batch, offset_at))
    row: i64 = 0
    while row < row_count:
        offset_at += 4
        finish: i64 = i64(read_i32_le(batch, offset_at))
        if finish - begin > room:
            check_message(topic, finish - begin)
        write_i32_be(writer, i32(overhead + finish - begin))
        writer.append(u8(PUBLISH))
        write_i64_be(writer, read_i64_be(poll_ids, 8 * (first_poll + row)))
        writer.write(prefix)
        writer.write(batch[values_at + begin : values_at + finish])
        begin = finish
        row += 1


def write_messages(
    writer: BytesWriter, topic: bytes, qos: int, values: list[bytes], ids: bytes
) -> None:
    """One PUBLISH for each value, with its packed id: repeated deliveries, or publishes."""
    prefix = topic_prefix(topic, qos)
    room = _room(topic)
    overhead: i64 = LENGTH_OVERHEAD + len(prefix)
    if len(ids) != 8 * len(values):
        raise ValueError(f"{len(values)} values need {8 * len(values)} id bytes, not {len(ids)}")
    id_at: i64 = 0
    for value in values:
        size: i64 = len(value)
        if size > room:
            check_message(topic, size)
        write_i32_be(writer, i32(overhead + size))
        writer.append(u8(PUBLISH))
        write_i64_be(writer, read_i64_be(ids, id_at))
        writer.write(prefix)
        writer.write(value)
        id_at += 8


def encode_messages(topic: bytes, qos: int, values: list[bytes], ids: bytes) -> bytes:
    """Like `write_messages`, but returns bytes."""
    writer = BytesWriter()
    write_messages(writer, topic, qos, values, ids)
    return writer.getvalue()


def encode_polls(subscription_id: int, first_correlation_id: int, count: int) -> bytes:
    """A run of POLLs with consecutive correlation ids."""
    return _subscription_frames(
        POLL, subscription_id, pack_consecutive(first_correlation_id, count)
    )


def encode_acks(subscription_id: int, tags: bytes) -> bytes:
    """One ACK for each packed delivery tag."""
    return _subscription_frames(ACK, subscription_id, tags)


def encode_nacks(correlation_ids: bytes, nack: Nack) -> bytes:
    """The same refusal for each packed id, such as the messages of a run that was not written."""
    frame = encode_nack(0, nack)
    head, tail = frame[:5], frame[13:]
    writer = BytesWriter()
    position: i64 = 0
    while position < len(correlation_ids):
        writer.write(head)
        write_i64_be(writer, read_i64_be(correlation_ids, position))
        writer.write(tail)
        position += 8
    return writer.getvalue()


def pack_consecutive(first: int, count: int) -> bytes:
    """Ids first, first + 1, ... as 8 bytes each; 0 follows the largest."""
    writer = BytesWriter()
    following: i64 = _signed(first)
    left: i64 = count
    while left > 0:
        write_i64_be(writer, following)
        # Explicit, because compiled code wraps here by itself and pure code does not.
        following = _I64_MIN if following == _I64_MAX else following + 1
        left -= 1
    return writer.getvalue()


def _subscription_frames(frame_type: i64, subscription_id: int, ids: bytes) -> bytes:
    subscription = _signed(subscription_id)
    writer = BytesWriter()
    position: i64 = 0
    while position < len(ids):
        write_i32_be(writer, _SUBSCRIPTION_LENGTH)
        writer.append(u8(frame_type))
        write_i64_be(writer, read_i64_be(ids, position))
        write_i64_be(writer, subscription)
        position += 8
    return writer.getvalue()


def _signed(number: int) -> i64:
    """A u64 as the i64 with the same bits."""
    if not 0 <= number <= U64_MAX:
        raise ValueError(f"{number} is not an unsigned 64-bit number")
    return number if number <= _I64_MAX else number - _U64_SPAN


def _room(topic: bytes) -> i64:
    check_topic(topic)
    return message_room(topic)
