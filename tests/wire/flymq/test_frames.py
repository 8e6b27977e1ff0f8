"""FlyMQ frames and PRODUCE in runs: whole, byte by byte, between other bytes, and any bytes at all."""

import gzip
import struct

import pytest
from conformance.flymq.peer import blob, frame, produce, raw, text
from hypothesis import given
from hypothesis import strategies as st
from wire.ways import WAYS, Feed, SplitResult

from penstock.wire.flymq.frames import (
    MAX_PAYLOAD_BYTES,
    FlyMQProtocolError,
    Frame,
    frame_size,
    framed,
)
from penstock.wire.flymq.gzip import check_compression, inflated
from penstock.wire.flymq.produce import (
    MAX_RUN_BYTES,
    MAX_TIMED_MESSAGES,
    ProduceRun,
    decode_produce,
    encode_produced,
    encode_produced_one,
    encode_produced_rows,
    split_requests,
)

Message = tuple[str, bytes | None, bytes, int]
every_way = pytest.mark.parametrize("feed", WAYS)


def shown(result: SplitResult, data: bytes) -> list[object]:
    """Requests in order: a PRODUCE as (topic, key, value, partition), TXN_PRODUCE with its transaction
    behind them, those with a time with opcode and time, others as (opcode, flags, size)."""
    found: list[object] = []
    for item in result[0]:
        if isinstance(item, ProduceRun):
            transaction = () if item.transaction is None else (item.transaction,)
            if item.times_ms:
                assert item.keys is None and len(item.times_ms) == len(item.values)
                found += [
                    (item.topic_name, None, value, item.partition, item.opcode, time_ms)
                    for value, time_ms in zip(item.values, item.times_ms, strict=True)
                ]
                continue
            keys = item.keys if item.keys is not None else [None] * len(item.values)
            found += [
                (item.topic_name, key, value, item.partition, *transaction)
                for key, value in zip(keys, item.values, strict=True)
            ]
        else:
            assert isinstance(item, Frame)
            found.append((item.opcode, item.flags, item.end - item.start))
    return found


def staged(transaction: str, topic: str, value: bytes) -> bytes:
    return text(transaction) + text(topic) + blob(value)


def timed(topic: str, value: bytes, time_ms: int) -> bytes:
    return text(topic) + blob(value) + struct.pack(">q", time_ms)


STREAM = [
    frame(0x01, produce("t", b"a", b"k")),
    frame(0x01, produce("t", b"", b"")),
    frame(0x01, produce("t", b"c", b"", 2)),
    frame(0x08),
    frame(0x01, produce("u", b"d")[:-4]),
    frame(0x01, produce("u", b"e") + b"behind"),
    frame(0x01, gzip.compress(produce("u", b"f"), mtime=0), 0x03),
    frame(0x01, b"\x00\x01\xff" + produce("", b"g")[2:]),
    frame(0x01, b"\x00"),
    frame(0x07, b"\x01\x02", 0xF1),
    frame(0x43, staged("txn-1", "t", b"h")),
    frame(0x43, staged("txn-1", "t", b"") + b"behind"),
    frame(0x43, staged("txn-2", "t", b"i")),
    frame(0x43, staged("txn-2", "u", b"j")),
    frame(0x01, produce("u", b"k")),
    frame(0x43, staged("", "u", b"l")),
    frame(0x43, gzip.compress(staged("txn-2", "u", b"m"), mtime=0), 0x03),
    frame(0x43, b"\x00\x01\xff" + staged("", "u", b"n")[2:]),
    frame(0x43, staged("txn-2", "u", b"o")[:-1]),
    frame(0x30, timed("t", b"p", 5)),
    frame(0x30, timed("t", b"", -1) + b"behind"),
    frame(0x35, timed("t", b"q", 1 << 40)),
    frame(0x35, timed("u", b"r", 7)),
    frame(0x01, produce("u", b"s")),
    frame(0x30, timed("u", b"t", 8)[:-1]),
    frame(0x30, b"\x00\x01\xff" + timed("", b"u", 9)[2:]),
    frame(0x35, gzip.compress(timed("u", b"v", 10), mtime=0), 0x03),
]
EXPECTED: list[object] = [
    ("t", b"k", b"a", -1),
    ("t", None, b"", -1),
    ("t", None, b"c", 2),
    (0x08, 1, 0),
    ("u", None, b"d", -1),
    ("u", None, b"e", -1),
    (0x01, 3, len(STREAM[6]) - 8),
    (0x01, 1, len(STREAM[7]) - 8),
    (0x01, 1, 1),
    (0x07, 0xF1, 2),
    ("t", None, b"h", -1, b"txn-1"),
    ("t", None, b"", -1, b"txn-1"),
    ("t", None, b"i", -1, b"txn-2"),
    ("u", None, b"j", -1, b"txn-2"),
    ("u", None, b"k", -1),
    ("u", None, b"l", -1, b""),
    (0x43, 3, len(STREAM[16]) - 8),
    (0x43, 1, len(STREAM[17]) - 8),
    (0x43, 1, len(STREAM[18]) - 8),
    ("t", None, b"p", -1, 0x30, 5),
    ("t", None, b"", -1, 0x30, -1),
    ("t", None, b"q", -1, 0x35, 1 << 40),
    ("u", None, b"r", -1, 0x35, 7),
    ("u", None, b"s", -1),
    (0x30, 1, len(STREAM[24]) - 8),
    (0x30, 1, len(STREAM[25]) - 8),
    (0x35, 3, len(STREAM[26]) - 8),
]


@every_way
def test_frames_are_found(feed: Feed) -> None:
    data = b"".join(STREAM)
    result = feed(split_requests, data)
    assert result[1:] == (len(data), None)
    assert shown(result, data) == EXPECTED


def test_what_follows_each_other_is_one_run() -> None:
    data = b"".join(STREAM)
    items = split_requests(data, 0, len(data))[0]
    sizes = [len(item.values) if isinstance(item, ProduceRun) else 0 for item in items]
    assert sizes == [2, 1, 0, 2, 0, 0, 0, 0, 2, 1, 1, 1, 1, 0, 0, 0, 2, 1, 1, 1, 0, 0, 0]
    assert sum(item.size for item in items if isinstance(item, ProduceRun)) == sum(
        len(STREAM[number]) for number in (0, 1, 2, 4, 5, *range(10, 16), *range(19, 24))
    )


def test_a_run_of_messages_with_times_ends_after_some() -> None:
    data = frame(0x30, timed("t", b"", 1)) * (2 * MAX_TIMED_MESSAGES + 1)
    items = split_requests(data, 0, len(data))[0]
    sizes = [len(item.times_ms) for item in items if isinstance(item, ProduceRun)]
    assert sizes == [MAX_TIMED_MESSAGES, MAX_TIMED_MESSAGES, 1]


@pytest.mark.parametrize("opcode", [0x30, 0x35])
def test_one_message_with_a_time(opcode: int) -> None:
    payload = timed("topic", b"value", 12)
    run = decode_produce(payload, opcode)
    assert run is not None and (run.opcode, run.values, run.times_ms) == (opcode, [b"value"], [12])
    assert run.single(0).times_ms == [12] and run.single(0).opcode == opcode
    for size in range(len(payload)):
        assert decode_produce(payload[:size], opcode) is None
    reply = struct.pack(">iqqii", 0, 9, 77, -1, 5)
    assert encode_produced_rows(run, 0, 1, 0, 9, 77) == frame(opcode, text("topic") + reply)


def test_a_run_ends_where_it_is_large_enough() -> None:
    data = frame(0x01, produce("t", bytes(MAX_RUN_BYTES // 2))) * 5
    items = split_requests(data, 0, len(data))[0]
    assert [len(item.values) for item in items if isinstance(item, ProduceRun)] == [2, 2, 1]


@every_way
@pytest.mark.parametrize(
    ("broken", "position", "words"),
    [
        (raw("00"), 0, "the first byte of a frame is 0xaf"),
        (raw("AF 00 01"), 1, "the version of the protocol is 1"),
        (raw("AF 01 01 01 02000001"), 4, "a payload has at most 33554432 bytes"),
    ],
)
def test_a_broken_header_is_found_as_soon_as_it_is_there(
    feed: Feed, broken: bytes, position: int, words: str
) -> None:
    before = STREAM[0]
    items, consumed, error = feed(split_requests, before + broken)
    assert len(items) == 1 and consumed == len(before)
    assert isinstance(error, FlyMQProtocolError) and error.what == words
    for size in range(position + 1):
        if size < position + 1 - (3 if position == 4 else 0):
            assert split_requests(broken[:size], 0, size) == ([], 0, None)


def test_the_cap_is_of_the_caller() -> None:
    data = frame(0x08, bytes(100))
    assert split_requests(data, 0, len(data), 100)[2] is None
    error = split_requests(data, 0, 8, 99)[2]
    assert error is not None and error.what == "a payload has at most 99 bytes"
    assert split_requests(raw("AF 01 08 01 02000000"), 0, 8) == ([], 0, None)


@given(data=st.binary(max_size=80), start=st.integers(0, 5))
def test_any_bytes_split_or_are_refused(data: bytes, start: int) -> None:
    items, position, error = split_requests(data, min(start, len(data)), len(data))
    assert 0 <= position <= len(data)
    if error is None:
        assert (
            len(data) - position < 8 or frame_size(data, position, len(data)) > len(data) - position
        )
    assert all(isinstance(item, Frame | ProduceRun) for item in items)


_MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["t", "u", "", "ä"]),
        st.one_of(st.none(), st.binary(min_size=1, max_size=4)),
        st.binary(max_size=6),
        st.integers(-1, 1),
    ),
    max_size=12,
)


@given(messages=_MESSAGES, cuts=st.lists(st.integers(0, 300), max_size=4))
def test_messages_are_those_that_were_sent(messages: list[Message], cuts: list[int]) -> None:
    data = b"".join(frame(0x01, produce(t, v, k or b"", p)) for t, k, v, p in messages)
    found: list[object] = []
    rest = b""
    at = 0
    for cut in [*sorted(min(one, len(data)) for one in cuts), len(data)]:
        rest += data[at:cut]
        at = cut
        result = split_requests(rest, 0, len(rest))
        assert result[2] is None
        found += shown(result, rest)
        rest = rest[result[1] :]
    assert found == messages and rest == b""


@given(
    messages=_MESSAGES.filter(bool), offset=st.integers(0, 1 << 62), partition=st.integers(0, 99)
)
def test_answers_of_a_run(messages: list[Message], offset: int, partition: int) -> None:
    topic = messages[0][0]
    run = ProduceRun(topic.encode(), -1)
    for _, key, value, _ in messages:
        run.add(key, value, 1)
    expected = [
        frame(
            0x01,
            text(topic)
            + struct.pack(">iQq", partition, offset + row, 1_700_000_000_000)
            + struct.pack(">ii", -1 if key is None else len(key), len(value)),
        )
        for row, (_, key, value, _) in enumerate(messages)
    ]
    assert encode_produced(run, partition, offset, 1_700_000_000_000) == b"".join(expected)
    for row, one in enumerate(expected):
        assert encode_produced_one(run, row, partition, offset + row, 1_700_000_000_000) == one


def test_a_payload_alone() -> None:
    payload = produce("t", b"v", b"k", 3)
    run = decode_produce(payload)
    assert run is not None and (run.topic_name, run.keys, run.values) == ("t", [b"k"], [b"v"])
    # Without the partition it is a whole request too, with bytes that are ignored behind it.
    for size in range(len(payload) - 4):
        assert decode_produce(payload[:size]) is None


def test_a_frame_that_is_too_long_is_not_written() -> None:
    assert framed(0x02, b"x") == frame(0x02, b"x")
    with pytest.raises(ValueError, match="the most is 33554432"):
        framed(0x02, bytes(MAX_PAYLOAD_BYTES + 1))


# ---- gzip ----------------------------------------------------------------------------------------


@given(payload=st.binary(max_size=200), trailing=st.binary(max_size=3))
def test_gzip_is_inflated(payload: bytes, trailing: bytes) -> None:
    packed = gzip.compress(payload, mtime=0)
    assert inflated(packed + trailing, len(payload)) == payload
    for size in range(len(packed)):
        with pytest.raises(FlyMQProtocolError, match="cut off"):
            inflated(packed[:size], len(payload))
    if payload:
        with pytest.raises(FlyMQProtocolError, match="has more than"):
            inflated(packed, len(payload) - 1)


@given(payload=st.binary(max_size=100))
def test_any_bytes_inflate_or_are_refused(payload: bytes) -> None:
    try:
        inflated(payload, 1_000)
    except FlyMQProtocolError as error:
        assert error.what


@pytest.mark.parametrize(
    ("number", "name"), [(2, "lz4"), (3, "zstd"), (4, "snappy"), (5, "number 5"), (7, "number 7")]
)
def test_other_compressions_are_named(number: int, name: str) -> None:
    with pytest.raises(FlyMQProtocolError, match=f"compression {name} is not supported"):
        check_compression(number)
    check_compression(0)
    check_compression(1)
