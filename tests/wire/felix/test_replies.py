"""Felix as a client reads and writes it: replies of both message sets, event streams, requests."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.errors import PeerError
from penstock.wire.felix import messages as m
from penstock.wire.felix import replies, requests
from penstock.wire.felix.batches import (
    EventFrames,
    encode_shared_events,
    event_batch_head,
)
from penstock.wire.felix.frames import HEADER_BYTES, framed
from penstock.wire.felix.gets import GetRun, encode_values
from penstock.wire.felix.split import PublishRun, split_requests

NAMES = requests.Names("t1", "default", "demo")
FIELD = requests.names_field(NAMES)


def cache_value(value: bytes | None) -> bytes:
    run = GetRun(b"", None, None, None)
    run.add("k", b'"k"', b',"request_id":"3"')
    return encode_values(run, [value])


REPLIES = [
    (m.OK, ("ok", None, None)),
    (m.encode_ok("1"), ("ok", "1", None)),
    (m.encode_published(1), ("publish_ok", 1, None)),
    (m.encode_publish_refused(7, "stream not found"), ("publish_error", 7, "stream not found")),
    (m.encode_error(None, "bad"), ("error", None, "bad")),
    (m.encode_error("x", ""), ("error", "x", "no reason given")),
    (m.encode_cached(4), ("cache_ok", 4, None)),
    (m.encode_subscribed(9), ("subscribed", None, None)),
    (m.encode_auth_ok(7), ("auth_ok", None, None)),
    (cache_value(b"v"), ("cache_value", "3", None)),
]


@pytest.mark.parametrize(("frame", "expected"), REPLIES)
@pytest.mark.parametrize("trailing", [b"", b"F", m.OK[:20]])
def test_a_reply(frame: bytes, expected: tuple[object, ...], trailing: bytes) -> None:
    data = frame + trailing
    (found,), consumed = replies.split_replies(data, 0, len(data))
    assert (found.type, found.request_id, found.failure) == expected
    assert consumed == len(frame)


def test_replies_byte_by_byte() -> None:
    data = b"".join(frame for frame, _ in REPLIES)
    found, held = [], b""
    for byte in data:
        held += bytes((byte,))
        some, consumed = replies.split_replies(held, 0, len(held))
        found += [(one.type, one.request_id, one.failure) for one in some]
        held = held[consumed:]
    assert found == [expected for _, expected in REPLIES] and held == b""


def test_a_cached_value_is_bytes_or_nothing() -> None:
    for value in (b"", b"\x00\xff" * 9, None):
        data = cache_value(value)
        (found,), _ = replies.split_replies(data, 0, len(data))
        assert found.cached() == value


BINARY = encode_shared_events([b"alpha", b"", b"beta"])
EVENTS = [
    (EventFrames(FIELD).encode([b"one"]), [b"one"]),
    (EventFrames(FIELD).encode([b"", bytes(range(256))]), [b"", bytes(range(256))]),
    (event_batch_head(1, len(BINARY)) + BINARY, [b"alpha", b"", b"beta"]),
]


@pytest.mark.parametrize("trailing", [b"", b"FLX1", m.OK[:13]])
@pytest.mark.parametrize(("frame", "values"), EVENTS)
def test_events(frame: bytes, values: list[bytes], trailing: bytes) -> None:
    data = frame + trailing
    assert replies.split_events(data, 0, len(data)) == (values, len(frame))


def test_events_byte_by_byte() -> None:
    data = b"".join(frame for frame, _ in EVENTS)
    found, held = [], b""
    for byte in data:
        held += bytes((byte,))
        some, consumed = replies.split_events(held, 0, len(held))
        found += some
        held = held[consumed:]
    assert found == [value for _, values in EVENTS for value in values]


def test_an_error_stands_between_events() -> None:
    (one, _), (two, _), _ = EVENTS
    told = m.encode_error(None, "offset 7 is left out")
    data = one + told + two
    values, at = replies.split_events(data, 0, len(data))
    assert (values, at) == ([b"one"], len(one))
    for end in range(at, at + len(told)):
        assert replies.read_missed(data, at, end) == (None, at)
    missed, at = replies.read_missed(data, at, len(data))
    assert (missed, at) == ("offset 7 is left out", len(one + told))
    assert replies.read_missed(data, at, len(data)) == (None, at)
    assert replies.split_events(data, at, len(data))[1] == len(data)


@pytest.mark.parametrize("id", [1, "1"])
def test_a_hello(id: int | str) -> None:
    data = m.encode_hello(id)
    for size in range(len(data)):
        assert replies.read_hello(data[:size], 0, size) == (None, 0)
    found, consumed = replies.read_hello(data + b"more", 0, len(data) + 4)
    assert found is not None and found.subscription_id == id and consumed == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1",
        framed(b"[]"),
        framed(b'{"type":"event"}'),
        framed(b'{"type":"publish"}'),
        framed(b"\xff"),
        framed(b'{"type":"event","payload":"="}'),
        framed(b"", 2),
        framed(bytes(8) + b"\xff\xff\xff\xff", 2),
        framed(bytes(8) + b"\x00\x00\x00\x01\x00\x00\x00\x09abc", 2),
    ],
)
def test_what_is_no_message_is_an_error_of_the_peer(data: bytes) -> None:
    with pytest.raises(PeerError):
        replies.split_events(data, 0, len(data))


@pytest.mark.parametrize("split", [replies.split_replies, replies.split_events])
@given(
    payload=st.binary() | st.from_type(dict).map(lambda one: json.dumps(str(one)).encode()),
    flags=st.sampled_from([0, 1, 2, 3, 0xFFFF]),
    junk=st.binary(max_size=20),
)
def test_any_bytes_parse_or_are_an_error_of_the_peer(
    split: object, payload: bytes, flags: int, junk: bytes
) -> None:
    data = framed(payload, flags) + junk
    assert callable(split)
    try:
        _, consumed = split(data, 0, len(data))
    except PeerError:
        return
    assert consumed in (0, HEADER_BYTES + len(payload), len(data))


# ---- requests ----


def test_requests_are_what_a_server_reads() -> None:
    """In the field order of Rust clients; and both message sets."""
    frame = requests.encode_publish(FIELD, b"hello", 1)
    assert frame[HEADER_BYTES:] == (
        b'{"type":"publish","tenant_id":"t1","namespace":"default","stream":"demo",'
        b'"payload":"aGVsbG8=","request_id":1,"ack":"per_message"}'
    )
    put = requests.encode_cache_put(NAMES, "k", b"v", 1, None)
    assert put[HEADER_BYTES:] == (
        b'{"type":"cache_put","tenant_id":"t1","namespace":"default","cache":"demo",'
        b'"key":"k","value":"dg==","request_id":1,"ttl_ms":null}'
    )
    data = b"".join(
        (
            requests.encode_auth("secret"),
            frame,
            requests.encode_publish_batch(FIELD, [b"a", b""], "2"),
            requests.encode_publish_batch(FIELD, [], None, acked=False),
            requests.encode_subscribe(FIELD, 5),
            put,
            requests.encode_cache_get(None, "k", "4"),
        )
    )
    items, consumed, flaw = split_requests(data, 0, len(data))
    assert consumed == len(data) and flaw is None
    auth, run, subscribe, stored, got = items
    assert isinstance(auth, m.Auth) and auth.token == "secret"
    assert isinstance(run, PublishRun)
    assert (run.values, run.ids, run.acked) == (
        [b"hello", b"a", b""],
        [1, "2", None],
        [True, True, False],
    )
    assert isinstance(subscribe, m.Subscribe) and subscribe.subscription_id == 5
    assert isinstance(stored, m.CachePut) and stored.cache == "demo" and stored.ttl_ms is None
    assert isinstance(got, GetRun) and got.cache is None
    assert (got.keys, got.id_fields) == (["k"], [b',"request_id":"4"'])


@pytest.mark.parametrize("text", ["", "a", "a/b", "a/b/c/d", "a//c", "/b/c"])
def test_names_of_a_stream(text: str) -> None:
    with pytest.raises(ValueError, match="write tenant/namespace/stream"):
        requests.parse_names(text)
    assert str(requests.parse_names("ä/ñ/日本")) == "ä/ñ/日本"
