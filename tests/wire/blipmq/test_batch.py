"""BlipMQ frames written many at once are, byte for byte, the frames written one by one."""

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from penstock.wire.blipmq import batch as blipmq_batch
from penstock.wire.blipmq import frames as blipmq
from penstock.wire.blipmq.batch import write_deliveries, write_poll_answers
from penstock.wire.blipmq.split import unpack_ids

VALUES = st.lists(st.binary(max_size=40), max_size=20)
U64 = st.integers(0, 2**64 - 1)


def columns(values: list[bytes], before: bytes = b"") -> tuple[bytes, int, int]:
    """A batch as the log keeps it: (buffer, where the offsets are, where the values are)."""
    offsets = array("i", accumulate(map(len, values), initial=0)).tobytes()
    padding = bytes(-len(offsets) % 8)
    buffer = b"".join((before, offsets, padding, *values, b"what comes behind"))
    return buffer, len(before), len(before + offsets + padding)


def test_ids_pack_and_unpack() -> None:
    assert blipmq_batch.pack_consecutive(2**63 - 1, 3) == (
        bytes.fromhex("7FFFFFFFFFFFFFFF 8000000000000000 8000000000000001")
    )
    assert unpack_ids(blipmq_batch.pack_consecutive(2**64 - 1, 2)) == (2**64 - 1, 0)
    assert unpack_ids(b"") == ()


@given(VALUES, st.data())
def test_deliveries_of_rows_of_a_batch(values: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(values)))
    count = data.draw(st.integers(0, len(values) - first))
    buffer, offsets_at, values_at = columns(values, b"header of the batch")
    rows = values[first : first + count]

    writer = BytesWriter()
    write_deliveries(writer, b"demo", buffer, offsets_at, values_at, first, count, 2**62)
    assert writer.getvalue() == b"".join(
        blipmq.encode_publish(2**62 + number, b"demo", 1, row) for number, row in enumerate(rows)
    )

    ids = data.draw(st.lists(U64, min_size=count + 2, max_size=count + 2))
    packed = b"".join(number.to_bytes(8, "big") for number in ids)
    writer = BytesWriter()
    write_poll_answers(writer, b"demo", buffer, offsets_at, values_at, first, count, packed, 2)
    assert writer.getvalue() == b"".join(
        blipmq.encode_publish(cid, b"demo", 0, row) for cid, row in zip(ids[2:], rows, strict=True)
    )


@given(VALUES, st.integers(0, 1), st.data())
def test_messages_of_a_list(values: list[bytes], qos: int, data: st.DataObject) -> None:
    ids = data.draw(st.lists(U64, min_size=len(values), max_size=len(values)))
    packed = b"".join(number.to_bytes(8, "big") for number in ids)
    assert blipmq_batch.encode_messages(b"demo", qos, values, packed) == b"".join(
        blipmq.encode_publish(cid, b"demo", qos, value)
        for cid, value in zip(ids, values, strict=True)
    )


@given(U64.filter(bool), st.lists(U64, max_size=10))
def test_acks_and_nacks_of_packed_ids(subscription: int, ids: list[int]) -> None:
    packed = b"".join(number.to_bytes(8, "big") for number in ids)
    assert blipmq_batch.encode_acks(subscription, packed) == b"".join(
        blipmq.encode_ack(tag, subscription) for tag in ids
    )
    nack = blipmq.durable_publish_failed("I/O error: no space")
    assert blipmq_batch.encode_nacks(packed, nack) == b"".join(
        blipmq.encode_nack(cid, nack) for cid in ids
    )


@given(U64.filter(bool), st.integers(0, 2**63), st.integers(0, 10))
def test_polls_count_up(subscription: int, first: int, count: int) -> None:
    assert blipmq_batch.encode_polls(subscription, first, count) == b"".join(
        blipmq.encode_poll(first + number, subscription) for number in range(count)
    )


def test_values_and_ids_must_match() -> None:
    with pytest.raises(ValueError, match="2 values need 16 id bytes, not 8"):
        blipmq_batch.encode_messages(b"demo", 0, [b"a", b"b"], bytes(8))


@pytest.mark.parametrize("number", [-1, 2**64])
def test_ids_are_unsigned_64_bit(number: int) -> None:
    with pytest.raises(ValueError, match="not an unsigned 64-bit number"):
        blipmq_batch.encode_polls(number, 1, 1)


def test_a_row_that_no_frame_can_hold_is_refused() -> None:
    """Another protocol may have stored it; the session asks `message_room` before."""
    large = bytes(blipmq.message_room(b"demo") + 1)
    buffer, offsets_at, values_at = columns([b"small", large])
    with pytest.raises(ValueError, match="message of"):
        write_deliveries(BytesWriter(), b"demo", buffer, offsets_at, values_at, 0, 2, 1)
    with pytest.raises(ValueError, match="message of"):
        write_poll_answers(BytesWriter(), b"demo", buffer, offsets_at, values_at, 1, 1, bytes(8), 0)
    with pytest.raises(ValueError, match="message of"):
        blipmq_batch.encode_messages(b"demo", 0, [large], bytes(8))
