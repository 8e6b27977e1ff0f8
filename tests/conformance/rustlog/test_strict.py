"""RustLog over a socket: broken requests in the exact words, strict JSON, hostile frames."""

import socket
import tracemalloc

import pytest
from conformance.rustlog.peer import (
    BINARY,
    JSON,
    PING_B,
    U64_MAX,
    Talker,
    Topics,
    framed,
    parse_error,
)
from hypothesis import given
from hypothesis import strategies as st
from kit.live_server import LiveServer

# What a hostile frame may cost at most, while it is answered: its own bytes are a few.
HOSTILE_BYTES = 8 * 1024 * 1024


# ---- broken requests -----------------------------------------------------------------------------

# Section 1.3, each text with a request that provokes it.
DECODE_ERRORS = [
    ("01", "missing topic length"),
    ("01 00", "missing topic length"),
    ("01 0004 6465", "truncated topic"),
    ("01 0001 74", "missing partition"),
    ("01 0001 74 000000", "missing partition"),
    ("01 0001 74 00000000", "missing record count"),
    ("01 0001 74 00000000 00000001", "truncated record length"),
    ("01 0001 74 00000000 00000001 000000", "truncated record length"),
    ("01 0001 74 00000000 00000001 00000003 6869", "truncated record"),
    ("02 00", "missing group_id length"),
    ("02 0002 67", "truncated group_id"),
    ("02 0000 0001 74 00000000 00000000", "missing offset"),
    ("02 0000 0001 74 00000000 0000000000000000 0000", "missing max_bytes"),
    ("03", "missing group length"),
    ("03 0002 67", "truncated group"),
    ("03 0001 67 0001 74 00000000", "missing offset"),
    ("04 00", "missing group length"),
    ("04 0005 67", "truncated group"),
    ("04 0001 67 0001 74 0000", "missing partition"),
    ("05 0001 74", "missing partition count"),
    ("07 0002 74", "truncated topic"),
    ("08 0001 74 00", "missing partition"),
    ("01 0001 FF", "invalid utf8 topic: invalid utf-8 sequence of 1 bytes from index 0"),
    ("02 0002 61C3", "invalid utf8 group_id: incomplete utf-8 byte sequence from index 1"),
    ("03 0002 C328", "invalid utf8 group: invalid utf-8 sequence of 1 bytes from index 0"),
]


@pytest.mark.row("rustlog-8")
@pytest.mark.parametrize(("payload", "words"), DECODE_ERRORS)
def test_decode_errors_of_b_in_the_exact_words(peer: Talker, payload: str, words: str) -> None:
    reply = peer.ask(bytes.fromhex(payload))
    assert reply == BINARY.error(2, f"Decode error: decode error: {words}")
    assert peer.ask(PING_B) == PING_B


FETCH = '{"Fetch":{"topic":"t","partition":%s,"offset":%s,"max_bytes":%s%s}}'
PRODUCE = '{"Produce":{"topic":%s,"partition":0,"records":%s}}'
STRICT = [
    # exactly one outer key
    "{}",
    '{"Ping":null,"Ping":null}',
    '{"Ping":null,"Metrics":null}',
    '{"Ping":{}}',
    '"Produce"',
    "{",
    '{"Produce"}',
    '{"Produce":[]}',
    '{"Produce":null}',
    # whole numbers only
    *(FETCH % (bad, 0, 1, "") for bad in ("1.0", "1e3", "true", '"1"', "-1", "-0", "01", "+1")),
    *(FETCH % (0, bad, 1, "") for bad in ("1.0", "1E3", "false", '"1"', "-1", "null", "[0]", "{}")),
    *(FETCH % (0, 0, bad, "") for bad in ("1.5", "true", "-1", "null", "NaN", "Infinity", "")),
    # ranges: u32 partition, u64 offset and max_bytes, bytes 0 to 255
    FETCH % (1 << 32, 0, 1, ""),
    FETCH % (0, U64_MAX + 1, 1, ""),
    FETCH % (0, 0, U64_MAX + 1, ""),
    FETCH % (0, "9" * 400, 1, ""),
    PRODUCE % ('"t"', "[[256]]"),
    PRODUCE % ('"t"', "[[-1]]"),
    PRODUCE % ('"t"', "[[true]]"),
    PRODUCE % ('"t"', "[[1.0]]"),
    PRODUCE % ('"t"', '["hi"]'),
    PRODUCE % ('"t"', "[1]"),
    PRODUCE % ('"t"', "[null]"),
    PRODUCE % ('"t"', "[[1,]]"),
    PRODUCE % ('"t"', "[[1][2]]"),
    PRODUCE % ('"t"', "null"),
    # a missing field is an error, and so is one twice
    '{"Produce":{"partition":0,"records":[]}}',
    '{"Produce":{"topic":"t","records":[]}}',
    '{"Produce":{"topic":"t","partition":0}}',
    '{"Fetch":{"topic":"t","partition":0,"offset":0}}',
    '{"Fetch":{"topic":"t","partition":0,"max_bytes":0}}',
    '{"OffsetCommit":{"topic":"t","partition":0,"offset":1}}',
    '{"OffsetCommit":{"topic":"t","partition":0,"group_id":null,"offset":1}}',
    '{"OffsetFetch":{"topic":"t","partition":0}}',
    '{"CreateTopic":{"topic":"t"}}',
    FETCH % (0, 0, 1, ',"offset":0'),
    FETCH % (0, 0, 1, ',"group_id":5'),
    PRODUCE % ("7", "[]"),
    PRODUCE % ("null", "[]"),
    # trailing text
    '"Ping" x',
    '"Ping""Ping"',
    '{"Ping":null}}',
    '{"Ping":null},',
    # other things that the standard parser of Python lets through
    "{'Ping':null}",
    '{"Ping":null,}',
    PRODUCE % ('"\\ud800"', "[]"),
    PRODUCE % ('"a\nb"', "[]"),
    PRODUCE % ('"\\x"', "[]"),
    FETCH % (0, 0, 1, ',"later":NaN'),
    FETCH % (0, 0, 1, ',"later":[01]'),
    FETCH % (0, 0, 1, ',"later":tru'),
]


@pytest.mark.row("rustlog-8")
@pytest.mark.parametrize("request_", STRICT)
def test_json_is_strict(peer: Talker, request_: str) -> None:
    """Section 2, item 22: as strict as serde with derived types."""
    assert parse_error(peer.ask(request_.encode())).startswith("failed to parse request: ")
    assert peer.ask(JSON.ping()) == JSON.pong()


@pytest.mark.row("rustlog-8")
@pytest.mark.parametrize(
    "payload",
    [
        '"Ping"'.encode("utf-16-be")[1:],
        '"Ping"'.encode("utf-16-le"),
        b'{"Produce":{"topic":"\xff\xfe","partition":0,"records":[]}}',
        b'{"Produce":{"topic":"\xed\xa0\x80","partition":0,"records":[]}}',
        b'{"Produce":{"topic":"\xc0\xaf","partition":0,"records":[]}}',
        b'\x20\xef\xbb\xbf"Ping"',
    ],
)
def test_json_is_utf8(peer: Talker, payload: bytes) -> None:
    assert peer.ask(JSON.ping()) == JSON.pong()
    assert parse_error(peer.ask(payload)).startswith("failed to parse request: ")
    assert peer.ask(JSON.ping()) == JSON.pong()


@pytest.mark.row("rustlog-10", "rustlog-54")
@pytest.mark.parametrize(
    "request_",
    ['"Ping"', '{"Ping":null}', ' { "Ping" : null } ', '\n"Ping"\r\n\t ', '"\\u0050ing"'],
)
def test_unit_requests_are_strings_or_keys_with_null(peer: Talker, request_: str) -> None:
    """Section 2, item 21."""
    assert peer.ask(request_.encode()) == b'"Pong"'


@pytest.mark.row("rustlog-36")
@pytest.mark.parametrize("group", ["", ',"group_id":null', ',"group_id":""'])
def test_only_the_group_of_a_fetch_may_be_missing(peer: Talker, topics: Topics, group: str) -> None:
    topic = topics.holding(b"x")
    request = f'{{"Fetch":{{"topic":"{topic}","partition":0,"offset":0,"max_bytes":1{group}}}}}'
    assert peer.ask(request.encode()) == JSON.fetched(0, [b"x"], 1)


@pytest.mark.row("rustlog-8", "rustlog-58")
def test_a_short_json_request_is_never_taken_for_a_whole_one(peer: Talker) -> None:
    whole = JSON.fetch("none", 0, 0, 1, "g")
    for size in range(1, len(whole)):
        assert parse_error(peer.ask(whole[:size])).startswith("failed to parse request: ")
    assert peer.ask(whole) == JSON.missing("none", 0)


# ---- hostile frames ------------------------------------------------------------------------------

HOSTILE = [
    pytest.param(bytes.fromhex("01 0001 74 00000000 FFFFFFFF"), id="record count"),
    pytest.param(
        bytes.fromhex("01 0001 74 00000000 FFFFFFFF") + bytes(400_000), id="count and empty records"
    ),
    pytest.param(bytes.fromhex("01 0001 74 00000000 00000001 FFFFFFFF"), id="record length"),
    pytest.param(b"\x02" + b"\xff\xff" * 2, id="name length"),
    pytest.param(b'{"Fetch":{"a":' + b"[" * 100_000, id="deep lists"),
    pytest.param(b'{"Fetch":{"a":' + b'{"a":' * 50_000, id="deep objects"),
    pytest.param(b"{" + b'"x' * 100_000, id="garbage"),
    pytest.param(b'{"' + b"N" * 100_000 + b'":{}}', id="long name"),
    pytest.param(FETCH.encode() % (b"9" * 100_000, b"0", b"0", b""), id="long number"),
]


@pytest.mark.row("rustlog-8", "rustlog-9")
@pytest.mark.parametrize("payload", HOSTILE)
def test_a_hostile_frame_is_refused_cheaply(
    server: LiveServer, peer: Talker, payload: bytes
) -> None:
    """The existing broker reserves memory for the declared count, about 96 GiB for the first of
    these. Here every length and count is checked against what is there."""
    assert peer.ask(PING_B) == PING_B
    tracemalloc.start()
    try:
        reply = peer.ask(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < HOSTILE_BYTES
    assert len(reply) < 1_000
    assert b"ecode error" in reply or b"failed to parse request" in reply
    assert peer.ask(PING_B) == PING_B
    with Talker(server.port()) as other:
        assert other.ask(JSON.ping()) == JSON.pong()


# ---- anything at all -----------------------------------------------------------------------------

# Pieces of real requests among noise, so that the random bytes get past the first checks.
PIECES = st.sampled_from(
    [
        BINARY.produce("t", 0, [b"x"]),
        BINARY.fetch("t", 0, 0, 9, "g"),
        BINARY.commit("g", "t", 0, 1),
        BINARY.list_topics(),
        JSON.produce("t", 0, [b"x"]),
        JSON.fetch("t", 0, 0, 9),
        JSON.offset_fetch("g", "t", 0),
        JSON.ping(),
        b'{"Produce":{"topic":"t","partition":0,"records":[[1,2',
        b"]}}",
    ]
)
PAYLOADS = st.one_of(
    PIECES,
    st.binary(min_size=1, max_size=60),
    st.lists(PIECES, min_size=1, max_size=3).map(b"".join),
    st.tuples(PIECES, st.integers(1, 40)).map(lambda cut: cut[0][: cut[1]]),
)


@pytest.mark.row("rustlog-6", "rustlog-8")
@given(payloads=st.lists(PAYLOADS, min_size=1, max_size=8), step=st.integers(1, 200))
def test_every_frame_has_exactly_one_answer(
    server: LiveServer, payloads: list[bytes], step: int
) -> None:
    """Whatever the frames hold and however they are cut: one reply each, and a ping behind them."""
    data = b"".join(map(framed, [PING_B, *payloads, PING_B]))
    with Talker(server.port()) as peer:
        for start in range(0, len(data), step):
            peer.send(data[start : start + step])
        assert peer.hear() == PING_B
        for payload in payloads:
            assert peer.hear(), payload
        assert peer.hear() == PING_B
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.at_end()
