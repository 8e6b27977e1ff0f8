"""RustLog dialect J, reading: examples of the document, strictness, agreement with an oracle."""

import json
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wire.json_oracle import expected

from penstock.wire.rustlog import json as rustlog_json
from penstock.wire.rustlog.frames import (
    CreateTopic,
    CreateTopicReply,
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
from penstock.wire.rustlog.json_encode import encode_request

# The examples of the document, comments taken out, and the forms of our extensions.
REQUESTS: list[tuple[str, Request]] = [
    (
        """{
  "Produce": {
    "topic": "orders",
    "partition": 0,
    "records": [
      [98, 121, 116, 101, 115],
      [109, 111, 114, 101]
    ]
  }
}""",
        Produce("orders", 0, [b"bytes", b"more"]),
    ),
    (
        """{
  "Fetch": {
    "topic": "orders",
    "partition": 0,
    "offset": 1000,
    "max_bytes": 1048576,
    "group_id": "order-processor"
  }
}""",
        Fetch("orders", 0, 1000, 1_048_576, "order-processor"),
    ),
    (
        """{
  "OffsetCommit": {
    "topic": "orders",
    "partition": 0,
    "group_id": "order-processor",
    "offset": 1500
  }
}""",
        OffsetCommit("orders", 0, "order-processor", 1500),
    ),
    (
        """{
  "OffsetFetch": {
    "topic": "orders",
    "partition": 0,
    "group_id": "order-processor"
  }
}""",
        OffsetFetch("orders", 0, "order-processor"),
    ),
    (
        '{"Produce": {"topic": "orders", "partition": 0, "records": [[10, 20], [30, 40]]}}',
        Produce("orders", 0, [b"\x0a\x14", b"\x1e\x28"]),
    ),
    (
        '{"Produce": {"topic": "orders", "partition": 0, "records": [[50, 60]]}}',
        Produce("orders", 0, [b"\x32\x3c"]),
    ),
    (
        '{"Fetch": {"topic": "orders", "partition": 0, "offset": 0, "max_bytes": 1048576,'
        ' "group_id": "processor"}}',
        Fetch("orders", 0, 0, 1_048_576, "processor"),
    ),
    (
        '{"OffsetCommit": {"topic": "orders", "partition": 0, "group_id": "processor",'
        ' "offset": 2}}',
        OffsetCommit("orders", 0, "processor", 2),
    ),
    (
        '{"Fetch": {"topic": "orders", "partition": 0, "offset": 100, "max_bytes": 1048576,'
        ' "group_id": null}}',
        Fetch("orders", 0, 100, 1_048_576, None),
    ),
    (
        '{"Fetch": {"topic": "nonexistent", "partition": 0, "offset": 0, "max_bytes": 1048576}}',
        Fetch("nonexistent", 0, 0, 1_048_576, None),
    ),
    ('{"Produce":{"records":[],"partition":1,"topic":""}}', Produce("", 1, [])),
    ('{"CreateTopic":{"topic":"a","partition_count":3}}', CreateTopic("a", 3)),
    ('"Ping"', Ping()),
    ('{"Ping":null}', Ping()),
    ('"ListTopics"', ListTopics()),
    ('{"ListTopics":null}', ListTopics()),
    ('"Metrics"', Metrics()),
]

REPLIES: list[tuple[str, Reply]] = [
    ('{"Produce": {"offsets": [1000, 1001, 1002]}}', ProduceReply([1000, 1001, 1002])),
    ('{"Produce": {"offsets": []}}', ProduceReply([])),
    (
        """{
  "Fetch": {
    "records": [
      { "offset": 1000, "payload": [98, 121, 116, 101, 115] },
      { "offset": 1001, "payload": [109, 111, 114, 101] }
    ],
    "next_offset": 1002
  }
}""",
        FetchReply([1000, 1001], [b"bytes", b"more"], 1002),
    ),
    (
        '{"Fetch": {"records": [{"offset": 2, "payload": [50, 60]}], "next_offset": 3}}',
        FetchReply([2], [b"\x32\x3c"], 3),
    ),
    ('{"Fetch":{"records":[],"next_offset":7}}', FetchReply([], [], 7)),
    ('{"OffsetCommit": {"success": true}}', OffsetCommitReply(True)),
    ('{"OffsetCommit": {"success": false}}', OffsetCommitReply(False)),
    ('{"OffsetFetch": {"offset": 1500}}', OffsetFetchReply(1500)),
    ('{"OffsetFetch": {"offset": null}}', OffsetFetchReply(None)),
    (
        '{"Error": {"message": "partition not found: topic=orders, partition=99"}}',
        ErrorReply(0, "partition not found: topic=orders, partition=99"),
    ),
    ('{"CreateTopic":{"success":true}}', CreateTopicReply(True)),
    (
        '{"ListTopics":{"topics":[{"topic":"a","partition_count":1}]}}',
        ListTopicsReply([("a", 1)]),
    ),
    ('{"Metrics":{"text":"a 1\\n"}}', MetricsReply("a 1\n")),
    ('"Pong"', PongReply()),
]


def decode(payload: bytes) -> Request | None:
    try:
        return rustlog_json.decode_request(payload, 0, len(payload))
    except RustLogProtocolError as error:
        assert error.what.startswith("failed to parse request: ")
        assert 0 <= error.position <= len(payload)
        return None


def complaint(payload: bytes) -> str:
    with pytest.raises(RustLogProtocolError) as caught:
        rustlog_json.decode_request(payload, 0, len(payload))
    return caught.value.what


@pytest.mark.parametrize(("text", "request_"), REQUESTS)
def test_requests_of_the_document(text: str, request_: Request) -> None:
    payload = text.encode()
    assert decode(payload) == request_
    assert expected(payload) == request_
    # Blanks around it, and bytes outside of the payload.
    assert decode(b" \t\r\n" + payload + b" \t\r\n") == request_
    assert rustlog_json.decode_request(b"[[" + payload + b"]]", 2, len(payload) + 2) == request_


@pytest.mark.parametrize(("text", "reply"), REPLIES)
def test_replies_of_the_document(text: str, reply: Reply) -> None:
    payload = text.encode()
    assert rustlog_json.decode_reply(payload, 0, len(payload)) == reply
    assert rustlog_json.decode_reply(b"[[" + payload + b"]]", 2, len(payload) + 2) == reply


@pytest.mark.parametrize("text", [text for text, _ in REQUESTS])
def test_every_shorter_request_and_every_longer_one_is_refused(text: str) -> None:
    payload = text.encode()
    for size in range(len(payload)):
        # What stands behind the payload, here its own rest, must not be read.
        with pytest.raises(RustLogProtocolError) as caught:
            rustlog_json.decode_request(payload, 0, size)
        assert caught.value.position <= size
    assert complaint(payload + b"}").endswith(f"trailing characters at byte {len(payload)}")


@pytest.mark.parametrize("text", [text for text, _ in REPLIES])
def test_every_shorter_reply_and_every_longer_one_is_the_servers_fault(text: str) -> None:
    payload = text.encode()
    for part in [*(payload[:size] for size in range(len(payload))), payload + b" 1"]:
        with pytest.raises(RustLogProtocolError, match="failed to parse reply"):
            rustlog_json.decode_reply(part, 0, len(part))


def fetch(**changes: str) -> bytes:
    fields = {"topic": '"t"', "partition": "0", "offset": "0", "max_bytes": "0"} | changes
    return (
        b'{"Fetch":{%s}}' % ",".join(f'"{name}":{text}' for name, text in fields.items()).encode()
    )


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"", "expected `{`"),
        (b"[]", "expected `{`"),
        (b"{}", "expected the name of a request"),
        (b'"Pong"', "unknown request `Pong`"),
        (b'"Produce"', "Produce needs fields"),
        (b'{"Nope":{}}', "unknown request `Nope`"),
        (b'{"Ping":{}}', "Ping takes null"),
        (b'{"Ping":null,"Ping":null}', "expected exactly one key"),
        (b'{"Fetch":null}', "expected `{`"),
        (b'{"Produce":["t",0,[]]}', "expected `{`"),
        (b'{"Fetch":{}}', "missing field `topic`"),
        (b'{"OffsetFetch":{"topic":"t","partition":0}}', "missing field `group_id`"),
        (b'{"OffsetFetch":{"topic":"t","partition":0,"group_id":null}}', "expected a string"),
        (b'{"CreateTopic":{"topic":"a","topic":"a"}}', "duplicate field `topic`"),
        (fetch(group_id="1"), "expected a string"),
        (fetch(partition="4294967296"), "number above 4294967295"),
        (fetch(partition="-1"), "number below 0"),
        (fetch(offset="-0"), "number below 0"),
        (fetch(offset="1.0"), "expected a whole number"),
        (fetch(offset="1e3"), "expected a whole number"),
        (fetch(offset="true"), "expected a whole number"),
        (fetch(offset='"1"'), "expected a whole number"),
        (fetch(offset="01"), "number with a leading zero"),
        (fetch(offset="18446744073709551616"), "number above 18446744073709551615"),
        (fetch(max_bytes="9" * 5000), "number above 18446744073709551615"),
        (fetch(other="NaN"), "expected a value"),
        (fetch(other="Infinity"), "expected a value"),
        (fetch(other="-"), "expected a value"),
        (fetch(other="00"), "number with a leading zero"),
        (fetch(other="1."), "expected a value"),
        (fetch(other="1e"), "expected a value"),
        (fetch(other="[1,]"), "expected a value"),
        (fetch(other="nul"), "expected null"),
        (fetch(other='{"a" 1}'), "expected `:`"),
        (fetch(other="[1 2]"), "expected `,` or `]`"),
        (fetch(other='{"a":1 "b":2}'), "expected `,` or `}`"),
        (fetch(topic='"\\ud800"'), "lone surrogate in a string"),
        (fetch(topic='"\\x"'), "invalid escape in a string"),
        (fetch(topic='"a\nb"'), "control character in a string"),
        (b'{"Fetch":{"topic":"a', "string without end"),
        (b'{"Fetch":{"topic":"a\\"}}', "string without end"),
        (b'{"Fetch":{"topic":"\xff"}}', "string is not UTF-8"),
        (b'{"Fetch":{"topic":"\xed\xa0\x80"}}', "string is not UTF-8"),
        (b'\xef\xbb\xbf"Ping"', "expected `{`"),
        ('"Ping"'.encode("utf-16"), "expected `{`"),
        (b'{"Produce":{"topic":"t","partition":0,"records":[[256]]}}', "number above 255"),
        (b'{"Produce":{"topic":"t","partition":0,"records":[[1,256,1]]}}', "number above 255"),
        (b'{"Produce":{"topic":"t","partition":0,"records":[[1,,1]]}}', "expected a whole number"),
        (b'{"Produce":{"topic":"t","partition":0,"records":[[1,2,]]}}', "expected a whole number"),
        (b'{"Produce":{"topic":"t","partition":0,"records":[[1,02,3]]}}', "leading zero"),
        (b'{"Produce":{"topic":"t","partition":0,"records":[[true]]}}', "expected a whole number"),
        (b'{"Produce":{"topic":"t","partition":0,"records":["aGk="]}}', "expected `[`"),
        (b'{"Produce":{"topic":"t","partition":0,"records":[1]}}', "expected `[`"),
    ],
)
def test_what_is_refused_and_in_which_words(payload: bytes, what: str) -> None:
    assert expected(payload) is None
    text = complaint(payload)
    assert text.startswith("failed to parse request: ")
    assert what in text


@pytest.mark.parametrize(
    ("payload", "request_"),
    [
        (fetch(extra='{"a":[1,-2.5e+3,null,true,"x"]}'), Fetch("t", 0, 0, 0, None)),
        (fetch(records='"not of a Fetch"'), Fetch("t", 0, 0, 0, None)),
        (fetch(offset="18446744073709551615"), Fetch("t", 0, 2**64 - 1, 0, None)),
        (fetch(partition="4294967295"), Fetch("t", 2**32 - 1, 0, 0, None)),
        (fetch(topic='"\\u00e9\\ud83d\\ude00\\n\\/"'), Fetch("é😀\n/", 0, 0, 0, None)),
        (fetch(topic='"é😀\x7f"'), Fetch("é😀\x7f", 0, 0, 0, None)),
        (b'{"\\u0046etch":' + fetch()[9:], Fetch("t", 0, 0, 0, None)),
    ],
)
def test_what_is_taken(payload: bytes, request_: Request) -> None:
    assert decode(payload) == expected(payload) == request_


def test_nesting_is_bounded() -> None:
    assert decode(fetch(other="[" * 128 + "]" * 128)) is not None
    for deep in ("[" * 129 + "]" * 129, "[" * 1_000_000, '{"a":' * 200_000):
        assert "nested deeper than 128" in complaint(fetch(other=deep))


def test_a_long_name_is_not_sent_back() -> None:
    assert len(complaint(b'"' + b"x" * 1_000_000 + b'"')) < 200


def test_a_reply_with_a_field_twice_or_missing_is_the_servers_fault() -> None:
    for text in (
        '{"Produce":{}}',
        '{"Produce":{"offsets":[],"offsets":[]}}',
        '{"Fetch":{"records":[]}}',
        '{"Fetch":{"next_offset":1}}',
        '{"Fetch":{"records":[],"records":[],"next_offset":1}}',
        '{"Fetch":{"records":[],"next_offset":1,"next_offset":1}}',
        '{"Fetch":{"records":[{"offset":1}],"next_offset":1}}',
        '{"Fetch":{"records":[{"payload":[]}],"next_offset":1}}',
        '{"Fetch":{"records":[{"offset":1,"offset":1,"payload":[]}],"next_offset":1}}',
        '{"Fetch":{"records":[{"offset":1,"payload":[],"payload":[]}],"next_offset":1}}',
        '{"Nope":{}}',
        '"Ping"',
        "{}",
        '{"OffsetCommit":{"success":1}}',
        '{"OffsetCommit":{"success":true},"Error":{"message":""}}',
    ):
        with pytest.raises(RustLogProtocolError, match="failed to parse reply"):
            rustlog_json.decode_reply(text.encode(), 0, len(text))


def test_a_reply_with_unknown_fields_is_read() -> None:
    text = b'{"Fetch":{"x":[1],"next_offset":3,"records":[{"payload":[1],"y":{},"offset":2}],"z":null}}'
    reply = rustlog_json.decode_reply(text, 0, len(text))
    assert reply == FetchReply([2], [b"\x01"], 3)
    text = b'{"OffsetFetch":{"x":1,"offset":3,"y":[]}}'
    assert rustlog_json.decode_reply(text, 0, len(text)) == OffsetFetchReply(3)


VALUES = st.sampled_from(
    [
        "0",
        "1",
        "255",
        "256",
        "-1",
        "-0",
        "1.0",
        "1e3",
        "1E+2",
        "01",
        "00",
        "true",
        "false",
        "null",
        '"x"',
        '""',
        "[]",
        "{}",
        "4294967295",
        "4294967296",
        "18446744073709551615",
        "18446744073709551616",
        "999999999999999999",
        "1000000000000000000",
        "99999999999999999999999",
        "NaN",
        "-Infinity",
        "[1,2]",
        "[[1,2],[3]]",
        "[[],[0]]",
        "[[256]]",
        "[[1.0]]",
        "[[true]]",
        "[[01]]",
        "[[1,]]",
        "[[1],]",
        "[[1,2],[300,4]]",
        "[[99,100,101,9,10,255]]",
        "[[1e1,2]]",
        "[[-0,1]]",
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        '"\\u00e9"',
        '"é"',
        '"\\q"',
        '"a\\"b"',
        '{"a":1}',
        '{"a":1,"a":2}',
        "[[10,20,3x]]",
        "[[1,2",
    ]
)
BLANK = st.sampled_from(["", "", "", " ", "\n\t", "\r "])
NAMES = st.sampled_from(
    ["topic", "partition", "records", "offset", "max_bytes", "group_id", "partition_count", "other"]
)
KINDS = st.sampled_from(
    ["Produce", "Fetch", "OffsetCommit", "OffsetFetch", "CreateTopic", "Ping", "Metrics", "Nope"]
)
# Values that fit their field most of the time: else every case would fail at its first field.
LIKELY = {
    "topic": '"orders"',
    "partition": "0",
    "records": "[[98,121],[]]",
    "offset": "5",
    "max_bytes": "1024",
    "group_id": '"g"',
    "partition_count": "3",
    "other": "[1]",
}


@st.composite
def loose_requests(draw: st.DrawFn) -> bytes:
    names = draw(
        st.permutations(list(LIKELY)) | st.lists(NAMES, max_size=9)  # all of them, or any of them
    )
    strange = draw(st.sets(st.integers(0, 8), max_size=2))
    members = []
    for place, name in enumerate(names):
        value = draw(VALUES) if place in strange else LIKELY[name]
        blanks = [draw(BLANK) for _ in range(3)]
        members.append(f'{blanks[0]}"{name}"{blanks[1]}:{blanks[2]}{value}')
    inner = draw(st.just("{" + ",".join(members) + "}") | VALUES)
    text = f'{{"{draw(KINDS)}":{inner}{draw(BLANK)}}}'
    return text.encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good request with a few bytes changed, taken out or put in."""
    payload = bytearray(draw(st.sampled_from([text for text, _ in REQUESTS])).encode())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(payload)))
        width = draw(st.integers(0, 2))
        payload[place : place + width] = draw(
            st.sampled_from(
                [b"", b",", b"0", b"9", b"]", b"[", b'"', b"\\", b" ", b"}", b"-", b"e"]
            )
            | st.binary(max_size=2)
        )
    return bytes(payload)


@given(loose_requests() | damaged() | st.binary(max_size=40))
@example(b'{"Produce":{"topic":"t","partition":0,"records":[[1,2,3,4,5,6,7,8,9,255,100,10]]}}')
def test_the_reader_agrees_with_the_standard_library(payload: bytes) -> None:
    assert decode(payload) == expected(payload)


@given(st.lists(st.binary(max_size=30), max_size=8), st.sampled_from([",", ", ", " ,", "\n,\t"]))
def test_compact_and_spaced_number_lists_are_the_same(records: list[bytes], comma: str) -> None:
    """Compact lists take the fast way, any blank the general one."""
    request = Produce("t", 0, records)
    compact = encode_request(request)[4:]
    spaced = json.dumps(
        {"Produce": {"topic": "t", "partition": 0, "records": [list(one) for one in records]}},
        separators=(comma, ":"),
    ).encode()
    assert decode(compact) == decode(spaced) == request


@given(st.binary(max_size=50) | damaged())
def test_any_reply_decodes_or_is_the_servers_fault(payload: bytes) -> None:
    try:
        rustlog_json.decode_reply(payload, 0, len(payload))
    except RustLogProtocolError as error:
        assert 0 <= error.position <= len(payload)


def test_memory_is_bounded_by_the_frame() -> None:
    """No list of numbers: a record costs its bytes, not eight for each."""
    payload = encode_request(Produce("t", 0, [bytes(100_000)] * 5))[4:]
    tracemalloc.start()
    try:
        assert decode(payload) is not None
        assert tracemalloc.get_traced_memory()[1] < len(payload)
    finally:
        tracemalloc.stop()
