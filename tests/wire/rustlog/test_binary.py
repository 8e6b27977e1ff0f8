"""RustLog dialect B: golden vectors, texts of decode errors, counts that lie, round trips."""

import tracemalloc
from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.rustlog import binary as rustlog_binary
from penstock.wire.rustlog import binary_reply as rustlog_binary_reply
from penstock.wire.rustlog.binary_reply import FetchReplyWriter
from penstock.wire.rustlog.frames import (
    MAX_FRAME_BYTES,
    CreateTopic,
    CreateTopicReply,
    DescribePartition,
    DescribePartitionReply,
    DescribeTopic,
    DescribeTopicReply,
    ErrorReply,
    Fetch,
    FetchReply,
    ListTopics,
    ListTopicsReply,
    Metrics,
    MetricsReply,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    Ping,
    PongReply,
    Produce,
    ProduceReply,
    Reply,
    Request,
    RustLogProtocolError,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

REQUESTS: list[tuple[str, Request]] = [
    ("00000001 FF", Ping()),
    ("0000000B 05 0004 64656D6F 00000001", CreateTopic("demo", 1)),
    (
        "00000015 01 0004 64656D6F 00000000 00000001 00000002 6869",
        Produce("demo", 0, [b"hi"]),
    ),
    (
        "00000019 02 0000 0004 64656D6F 00000000 0000000000000000 00000400",
        Fetch("demo", 0, 0, 1024, None),
    ),
    (
        "00000016 03 0001 67 0004 64656D6F 00000000 0000000000000005",
        OffsetCommit("demo", 0, "g", 5),
    ),
    ("0000000E 04 0001 67 0004 64656D6F 00000000", OffsetFetch("demo", 0, "g")),
    ("00000001 06", ListTopics()),
    ("00000007 07 0004 64656D6F", DescribeTopic("demo")),
    ("0000000B 08 0004 64656D6F FFFFFFFF", DescribePartition("demo", 2**32 - 1)),
    ("00000001 09", Metrics()),
]


def one_record_reply() -> bytes:
    writer = FetchReplyWriter(1024)
    assert writer.add(b"hi")
    return writer.finish(1)


REPLIES: list[tuple[str, bytes, Reply]] = [
    ("00000001 FF", rustlog_binary_reply.encode_pong(), PongReply()),
    ("00000002 05 01", rustlog_binary_reply.encode_create_topic_reply(), CreateTopicReply(True)),
    (
        "0000000D 01 0000000000000000 00000001",
        rustlog_binary_reply.encode_produce_reply(0, 1),
        ProduceReply(range(1)),
    ),
    (
        "00000013 02 00000001 00000002 6869 0000000000000001",
        one_record_reply(),
        FetchReply(range(1), [b"hi"], 1),
    ),
    ("00000002 03 01", rustlog_binary_reply.encode_offset_commit_reply(), OffsetCommitReply(True)),
    (
        "0000000A 04 01 0000000000000005",
        rustlog_binary_reply.encode_offset_fetch_reply(5),
        OffsetFetchReply(5),
    ),
    (
        "00000002 04 00",
        rustlog_binary_reply.encode_offset_fetch_reply(None),
        OffsetFetchReply(None),
    ),
    (
        "00000013 06 00000002 0001 61 00000001 0001 62 00000003",
        rustlog_binary_reply.encode_list_topics_reply([[("a", 1)], [], [("b", 3)]]),
        ListTopicsReply([("a", 1), ("b", 3)]),
    ),
    (
        "00000024 07 0001 61 00000002 00000002 00000000 0000000000000007 00000001 0000000000000009",
        rustlog_binary_reply.encode_describe_topic_reply("a", [7, 9]),
        DescribeTopicReply("a", 2, [(0, 7), (1, 9)]),
    ),
    (
        "00000010 08 0001 61 00000003 0000000000000007",
        rustlog_binary_reply.encode_describe_partition_reply("a", 3, 7),
        DescribePartitionReply("a", 3, 7),
    ),
    (
        "00000007 09 00000002 6869",
        rustlog_binary_reply.encode_metrics_reply("hi"),
        MetricsReply("hi"),
    ),
    (
        "00000043 FE 000A 003E"
        + b"Topic or partition does not exist: topic=no-topic, partition=0".hex(),
        rustlog_binary_reply.encode_error(
            10, "Topic or partition does not exist: topic=no-topic, partition=0"
        ),
        ErrorReply(10, "Topic or partition does not exist: topic=no-topic, partition=0"),
    ),
]


@pytest.mark.parametrize(("vector", "request_"), REQUESTS)
def test_requests_are_the_golden_vectors(vector: str, request_: Request) -> None:
    frame = bytes.fromhex(vector)
    assert rustlog_binary.encode_request(request_) == frame
    assert rustlog_binary.decode_request(frame, 4, len(frame)) == request_
    # Trailing bytes are ignored, and what stands outside of the payload does not count.
    assert rustlog_binary.decode_request(frame + b"more", 4, len(frame) + 4) == request_
    assert rustlog_binary.decode_request(b"?" + frame + b"more", 5, len(frame) + 1) == request_


@pytest.mark.parametrize(("vector", "encoded", "reply"), REPLIES)
def test_replies_are_the_golden_vectors(vector: str, encoded: bytes, reply: Reply) -> None:
    frame = bytes.fromhex(vector)
    assert encoded == frame
    assert rustlog_binary_reply.decode_reply(frame, 4, len(frame)) == reply
    assert rustlog_binary_reply.decode_reply(frame + b"more", 4, len(frame) + 4) == reply


@pytest.mark.parametrize("vector", [vector for vector, _ in REQUESTS])
def test_every_shorter_request_names_what_is_missing(vector: str) -> None:
    payload = bytes.fromhex(vector)[4:]
    for size in range(len(payload)):
        with pytest.raises(RustLogProtocolError) as caught:
            rustlog_binary.decode_request(payload, 0, size)
        assert caught.value.code == 2
        assert caught.value.what.startswith("Decode error: decode error: ")


@pytest.mark.parametrize("vector", [vector for vector, _, _ in REPLIES])
def test_every_shorter_reply_is_the_servers_fault(vector: str) -> None:
    payload = bytes.fromhex(vector)[4:]
    for size in range(len(payload)):
        with pytest.raises(RustLogProtocolError):
            rustlog_binary_reply.decode_reply(payload, 0, size)


PREFIX = "Decode error: decode error: "


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("01", PREFIX + "missing topic length"),
        ("01 0004 6465", PREFIX + "truncated topic"),
        ("01 0001 61 0000", PREFIX + "missing partition"),
        ("01 0001 61 00000000 00", PREFIX + "missing record count"),
        ("01 0001 61 00000000 00000001", PREFIX + "truncated record length"),
        ("01 0001 61 00000000 00000002 00000000", PREFIX + "truncated record length"),
        ("01 0001 61 00000000 00000001 00000002 68", PREFIX + "truncated record"),
        ("01 0001 61 00000000 00000001 FFFFFFFF 68", PREFIX + "truncated record"),
        ("02 00", PREFIX + "missing group_id length"),
        ("02 0002 67", PREFIX + "truncated group_id"),
        ("02 0001 67 00", PREFIX + "missing topic length"),
        ("02 0000 0001 61 00000000 00", PREFIX + "missing offset"),
        ("02 0000 0001 61 00000000 0000000000000000 00", PREFIX + "missing max_bytes"),
        ("03", PREFIX + "missing group length"),
        ("03 0002 67", PREFIX + "truncated group"),
        ("03 0001 67 0001 61 00000000 00", PREFIX + "missing offset"),
        ("04 00", PREFIX + "missing group length"),
        ("04 0001 67 0001 61 00", PREFIX + "missing partition"),
        ("05 0001 61 00", PREFIX + "missing partition count"),
        ("07 0002 61", PREFIX + "truncated topic"),
        ("08 0001 61 00", PREFIX + "missing partition"),
        (
            "01 0003 6162FF",
            PREFIX + "invalid utf8 topic: invalid utf-8 sequence of 1 bytes from index 2",
        ),
        (
            "03 0002 61C3",
            PREFIX + "invalid utf8 group: incomplete utf-8 byte sequence from index 1",
        ),
        (
            "02 0003 E28228",
            PREFIX + "invalid utf8 group_id: invalid utf-8 sequence of 2 bytes from index 0",
        ),
        ("7B", "Decode error: unknown request type: 123"),
        ("0A", "Decode error: unknown request type: 10"),
        ("00", "Decode error: unknown request type: 0"),
        ("FE", "Decode error: unknown request type: 254"),
        ("", PREFIX + "empty buffer"),
    ],
)
def test_decode_errors_have_the_exact_texts(payload: str, text: str) -> None:
    data = bytes.fromhex(payload)
    with pytest.raises(RustLogProtocolError) as caught:
        rustlog_binary.decode_request(data, 0, len(data))
    assert (caught.value.what, caught.value.code) == (text, 2)


@pytest.mark.parametrize(
    "payload",
    [
        "01 0001 61 00000000 FFFFFFFF",
        "01 0001 61 00000000 FFFFFFFF" + "00000000" * 100,
    ],
)
def test_a_count_that_lies_costs_nothing(payload: str) -> None:
    data = bytes.fromhex(payload)
    tracemalloc.start()
    try:
        with pytest.raises(RustLogProtocolError, match="truncated record length"):
            rustlog_binary.decode_request(data, 0, len(data))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("payload", ["06 FFFFFFFF", "07 0001 61 00000001 FFFFFFFF", "02 FFFFFFFF"])
def test_a_reply_count_that_lies_is_refused(payload: str) -> None:
    data = bytes.fromhex(payload)
    with pytest.raises(RustLogProtocolError):
        rustlog_binary_reply.decode_reply(data, 0, len(data))


def test_a_fetch_reply_with_more_records_than_offsets_is_refused() -> None:
    data = bytes.fromhex("02 00000002 00000000 00000000 0000000000000001")
    with pytest.raises(RustLogProtocolError, match="next offset below"):
        rustlog_binary_reply.decode_reply(data, 0, len(data))


RANDOM_REQUESTS = st.one_of(
    st.builds(Produce, TEXT, U32, st.lists(st.binary(max_size=30), max_size=10)),
    st.builds(Fetch, TEXT, U32, U64, U32, TEXT.filter(bool) | st.none()),
    st.builds(OffsetCommit, TEXT, U32, TEXT, U64),
    st.builds(OffsetFetch, TEXT, U32, TEXT),
    st.builds(CreateTopic, TEXT, U32),
    st.builds(DescribeTopic, TEXT),
    st.builds(DescribePartition, TEXT, U32),
)


@given(RANDOM_REQUESTS)
def test_requests_come_back(request: Request) -> None:
    frame = rustlog_binary.encode_request(request)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert rustlog_binary.decode_request(frame, 4, len(frame)) == request


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda request, cut, byte: rustlog_binary.encode_request(request)[4:-cut] + byte,
        RANDOM_REQUESTS,
        st.integers(1, 8),
        st.binary(max_size=3),
    )
)
def test_any_bytes_decode_or_are_the_peers_fault(payload: bytes) -> None:
    for decode in (rustlog_binary.decode_request, rustlog_binary_reply.decode_reply):
        try:
            decode(payload, 0, len(payload))
        except RustLogProtocolError as error:
            assert 0 <= error.position <= len(payload)


@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(0, 300), st.data())
def test_a_fetch_reply_counts_twelve_bytes_more_for_each_record(
    values: list[bytes], max_bytes: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(values)))
    offsets = array("i", accumulate(map(len, values), initial=0)).tobytes()
    batch = b"head" + offsets + b"".join(values)
    writer = FetchReplyWriter(max_bytes)
    taken = writer.add_rows(batch, 4, 4 + len(offsets), first, len(values) - first)
    expected: list[bytes] = []
    room = max_bytes
    for value in values[first:]:
        if max_bytes == 0 or (expected and 12 + len(value) > room):
            break
        expected.append(value)
        room -= 12 + len(value)
    assert (taken, writer.count) == (len(expected), len(expected))
    assert writer.full == (max_bytes == 0 or len(expected) < len(values) - first)
    frame = writer.finish(first + taken)
    reply = rustlog_binary_reply.decode_reply(frame, 4, len(frame))
    assert reply == FetchReply(range(first, first + taken), expected, first + taken)


@pytest.mark.parametrize(("max_bytes", "count"), [(32, 2), (31, 1), (48, 3), (1, 1), (0, 0)])
def test_what_max_bytes_counts(max_bytes: int, count: int) -> None:
    writer = FetchReplyWriter(max_bytes)
    for _ in range(5):
        writer.add(b"four")
    assert writer.count == count


def test_a_fetch_reply_stops_before_the_frame_cap() -> None:
    writer = FetchReplyWriter(2**32 - 1)
    first = bytes(MAX_FRAME_BYTES - 1 - 4 - 4 - 8 - 4)
    assert writer.add(first)
    assert not writer.add(b"x")
    assert writer.full
    assert not writer.add(b"")
    frame = writer.finish(1)
    assert len(frame) - 4 == MAX_FRAME_BYTES - 4
    alone = FetchReplyWriter(2**32 - 1)
    assert not alone.add(first + b"12345")
    assert (alone.count, alone.full) == (0, True)


def test_an_error_text_is_bounded() -> None:
    frame = rustlog_binary_reply.encode_error(10, "é" * 40_000)
    assert rustlog_binary_reply.decode_reply(frame, 4, len(frame)) == ErrorReply(10, "é" * 32_767)


@pytest.mark.parametrize(
    "request_",
    [
        DescribeTopic("x" * 65_536),
        CreateTopic("x", 2**32),
        CreateTopic("x", -1),
        Produce("x", 0, [bytes(MAX_FRAME_BYTES)]),
    ],
)
def test_what_no_frame_can_hold_is_our_own_fault(request_: Request) -> None:
    with pytest.raises(ValueError, match=r"bytes|number"):
        rustlog_binary.encode_request(request_)
