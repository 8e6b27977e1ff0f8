"""RustLog dialect J, writing: exact shapes, sizes told beforehand, replies that stop at the cap."""

import json
from array import array
from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.rustlog import json as rustlog_json
from penstock.wire.rustlog import json_encode as rustlog_json_encode
from penstock.wire.rustlog.frames import (
    MAX_FRAME_BYTES,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    FetchReply,
    ListTopics,
    Metrics,
    OffsetCommit,
    OffsetFetch,
    Ping,
    Produce,
    ProduceReply,
    Request,
)
from penstock.wire.rustlog.json_encode import (
    FetchReplyWriter,
    encode_request,
    fits_produce_reply,
    fits_single_record_reply,
    number_list_size,
    produce_reply_size,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
OFFSETS = st.integers(0, 2**63 - 100)


def fetch_reply(records: list[tuple[int, bytes]], next_offset: int) -> bytes:
    writer = FetchReplyWriter(MAX_FRAME_BYTES)
    for offset, payload in records:
        assert writer.add(offset, payload)
    return writer.finish(next_offset)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (
            fetch_reply([(0, b"hi")], 1),
            '{"Fetch":{"records":[{"offset":0,"payload":[104,105]}],"next_offset":1}}',
        ),
        (
            fetch_reply([(9, b""), (10, b"\x00\x09\x0a\x63\x64\xff")], 11),
            '{"Fetch":{"records":[{"offset":9,"payload":[]},'
            '{"offset":10,"payload":[0,9,10,99,100,255]}],"next_offset":11}}',
        ),
        (fetch_reply([], 1002), '{"Fetch":{"records":[],"next_offset":1002}}'),
        (
            rustlog_json_encode.encode_produce_reply(1000, 3),
            '{"Produce":{"offsets":[1000,1001,1002]}}',
        ),
        (rustlog_json_encode.encode_produce_reply(7, 0), '{"Produce":{"offsets":[]}}'),
        (
            rustlog_json_encode.encode_offset_commit_reply(True),
            '{"OffsetCommit":{"success":true}}',
        ),
        (
            rustlog_json_encode.encode_offset_commit_reply(False),
            '{"OffsetCommit":{"success":false}}',
        ),
        (rustlog_json_encode.encode_offset_fetch_reply(1500), '{"OffsetFetch":{"offset":1500}}'),
        (rustlog_json_encode.encode_offset_fetch_reply(None), '{"OffsetFetch":{"offset":null}}'),
        (
            rustlog_json_encode.encode_error("partition not found: topic=orders, partition=99"),
            '{"Error":{"message":"partition not found: topic=orders, partition=99"}}',
        ),
        (
            rustlog_json_encode.encode_error('é "\\\n\x01'),
            '{"Error":{"message":"é \\"\\\\\\n\\u0001"}}',
        ),
        (rustlog_json_encode.encode_create_topic_reply(True), '{"CreateTopic":{"success":true}}'),
        (
            rustlog_json_encode.encode_list_topics_reply([[("a", 1)], [], [("b", 3)]]),
            '{"ListTopics":{"topics":[{"topic":"a","partition_count":1},'
            '{"topic":"b","partition_count":3}]}}',
        ),
        (rustlog_json_encode.encode_metrics_reply("x 1\n"), '{"Metrics":{"text":"x 1\\n"}}'),
        (rustlog_json_encode.encode_pong(), '"Pong"'),
        (encode_request(Ping()), '"Ping"'),
        (encode_request(ListTopics()), '"ListTopics"'),
        (encode_request(Metrics()), '"Metrics"'),
        (
            encode_request(Produce("orders", 0, [b"bytes", b"more"])),
            '{"Produce":{"topic":"orders","partition":0,'
            '"records":[[98,121,116,101,115],[109,111,114,101]]}}',
        ),
        (
            encode_request(Fetch("orders", 0, 1000, 1_048_576, None)),
            '{"Fetch":{"topic":"orders","partition":0,"offset":1000,"max_bytes":1048576,'
            '"group_id":null}}',
        ),
        (
            encode_request(OffsetCommit("orders", 0, "g", 1500)),
            '{"OffsetCommit":{"topic":"orders","partition":0,"group_id":"g","offset":1500}}',
        ),
        (
            encode_request(OffsetFetch("orders", 0, "g")),
            '{"OffsetFetch":{"topic":"orders","partition":0,"group_id":"g"}}',
        ),
        (
            encode_request(CreateTopic("a", 3)),
            '{"CreateTopic":{"topic":"a","partition_count":3}}',
        ),
    ],
)
def test_shapes_are_compact_and_in_schema_order(frame: bytes, text: str) -> None:
    assert frame == len(text.encode()).to_bytes(4, "big") + text.encode()


REQUESTS = st.one_of(
    st.builds(Produce, TEXT, U32, st.lists(st.binary(max_size=30), max_size=10)),
    st.builds(Fetch, TEXT, U32, U64, U64, TEXT | st.none()),
    st.builds(OffsetCommit, TEXT, U32, TEXT, U64),
    st.builds(OffsetFetch, TEXT, U32, TEXT),
    st.builds(CreateTopic, TEXT, U32),
)


@given(REQUESTS)
def test_requests_come_back(request: Request) -> None:
    frame = encode_request(request)
    assert rustlog_json.decode_request(frame, 4, len(frame)) == request


@given(OFFSETS, st.integers(0, 50))
def test_produce_replies_come_back_and_their_size_is_known(first: int, count: int) -> None:
    frame = rustlog_json_encode.encode_produce_reply(first, count)
    reply = rustlog_json.decode_reply(frame, 4, len(frame))
    assert reply == ProduceReply(list(range(first, first + count)))
    assert produce_reply_size(first, count) == len(frame) - 4


@pytest.mark.parametrize("first", [0, 5, 9, 95, 999, 99_990])
def test_the_size_of_a_produce_reply_across_powers_of_ten(first: int) -> None:
    for count in (0, 1, 10, 1000):
        frame = rustlog_json_encode.encode_produce_reply(first, count)
        assert produce_reply_size(first, count) == len(frame) - 4


def test_a_full_request_of_empty_records_may_have_a_reply_that_fits_no_frame() -> None:
    assert produce_reply_size(10**6, 3_400_000) > MAX_FRAME_BYTES
    assert not fits_produce_reply(10**6, 3_400_000)


@pytest.mark.parametrize("first", [0, 10**6, 2**63 - 1 - MAX_FRAME_BYTES])
def test_whether_a_produce_reply_fits(first: int) -> None:
    sizes = range(MAX_FRAME_BYTES)
    most = bisect_right(sizes, MAX_FRAME_BYTES, key=lambda n: produce_reply_size(first, n)) - 1
    for count in (0, 1, most // 2, most - 1, most):
        assert fits_produce_reply(first, count)
    for count in (most + 1, most + 2, 2 * most):
        assert not fits_produce_reply(first, count)


@given(st.binary(max_size=300))
def test_the_size_of_a_number_list(payload: bytes) -> None:
    assert number_list_size(payload) == len(json.dumps(list(payload), separators=(",", ":")))


@given(
    st.lists(st.binary(max_size=20), max_size=20),
    OFFSETS,
    st.integers(0, 200) | U64,
    st.data(),
)
def test_rows_of_a_batch_up_to_max_bytes(
    values: list[bytes], base: int, max_bytes: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(values)))
    offsets = array("i", accumulate(map(len, values), initial=0)).tobytes()
    batch = b"head" + offsets + b"".join(values)
    writer = FetchReplyWriter(max_bytes)
    taken = writer.add_rows(batch, 4, 4 + len(offsets), first, len(values) - first, base + first)
    expected: list[bytes] = []
    for value in values[first:]:
        if expected and sum(map(len, expected)) + len(value) > max_bytes:
            break
        expected.append(value)
    assert (taken, writer.count) == (len(expected), len(expected))
    assert writer.full == (len(expected) < len(values) - first)
    frame = writer.finish(base + first + taken)
    reply = rustlog_json.decode_reply(frame, 4, len(frame))
    begin = base + first
    assert reply == FetchReply(list(range(begin, begin + taken)), expected, begin + taken)


def test_max_bytes_counts_payload_and_gives_one_record_at_least() -> None:
    for max_bytes, count in ((0, 1), (3, 1), (8, 2), (11, 2), (12, 3)):
        writer = FetchReplyWriter(max_bytes)
        for offset in range(5):
            writer.add(offset, b"four")
        assert (writer.count, writer.full) == (count, True)


def test_a_fetch_reply_stops_before_the_frame_cap() -> None:
    writer = FetchReplyWriter(2**64 - 1)
    record = b"\xff" * 1_000_000
    assert [writer.add(offset, record) for offset in range(4)] == [True, True, False, False]
    assert (writer.count, writer.full) == (2, True)
    frame = writer.finish(2)
    assert len(frame) - 4 <= MAX_FRAME_BYTES
    reply = rustlog_json.decode_reply(frame, 4, len(frame))
    assert reply == FetchReply([0, 1], [record, record], 2)


LARGEST = 2**63 - 1
# A Fetch reply with one record, less the number list, at the largest offsets.
AROUND = len(b'{"Fetch":{"records":[{"offset":,"payload":}],"next_offset":}}') + 2 * 19


@pytest.mark.parametrize(("filler", "width"), [(b"\xff", 4), (b"\x00", 2)])
def test_a_record_is_accepted_exactly_if_its_reply_fits(filler: bytes, width: int) -> None:
    payload = filler * ((MAX_FRAME_BYTES - AROUND) // width - 2)
    verdicts = set()
    for more in range(8):
        record = payload + bytes(more)
        fits = AROUND + number_list_size(record) <= MAX_FRAME_BYTES
        assert fits_single_record_reply(record) == fits
        verdicts.add(fits)
        if verdicts == {True, False}:
            break
    assert verdicts == {True, False}
    writer = FetchReplyWriter(2**64 - 1)
    assert not writer.add(LARGEST - 1, record)
    assert (writer.count, writer.full) == (0, True)
    writer = FetchReplyWriter(2**64 - 1)
    assert writer.add(LARGEST - 1, record[:-1])
    assert len(writer.finish(LARGEST)) - 4 <= MAX_FRAME_BYTES


def test_a_record_far_beyond_the_cap_is_refused_without_being_written() -> None:
    assert not fits_single_record_reply(bytes(MAX_FRAME_BYTES))
    writer = FetchReplyWriter(2**64 - 1)
    assert not writer.add(0, bytes(16 * 1024 * 1024))
    assert json.loads(writer.finish(0)[4:]) == {"Fetch": {"records": [], "next_offset": 0}}


def test_an_error_that_quotes_a_very_long_topic_still_fits() -> None:
    frame = rustlog_json_encode.encode_error(
        "partition not found: topic=" + "\x01" * MAX_FRAME_BYTES
    )
    assert len(frame) < 6 * 65_535 + 100


@pytest.mark.parametrize("request_", [DescribeTopic("t"), DescribePartition("t", 0)])
def test_requests_of_the_other_dialect_have_no_form_here(request_: Request) -> None:
    with pytest.raises(ValueError, match="has no Describe"):
        encode_request(request_)


def test_a_request_that_fits_no_frame_is_our_own_fault() -> None:
    with pytest.raises(ValueError, match="the most is 10485760"):
        encode_request(Produce("t", 0, [b"\xff" * 3_000_000]))
