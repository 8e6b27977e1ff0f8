"""Felix's messages: the bytes of the table's rows, both sets, strict base64, and what any bytes lead to."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.felix import messages as m
from penstock.wire.felix.frames import framed

# --- replies, as the rows have them ----------------------------------------------------------------

SCOPE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "cache": "c"}
HEADER = "464c58310001000000000"


@pytest.mark.parametrize(
    ("reply", "header", "text"),
    [
        (m.encode_ok(None), HEADER + "00d", '{"type":"ok"}'),
        (m.encode_published(1), HEADER + "024", '{"type":"publish_ok","request_id":1}'),
        (m.encode_published("1"), HEADER + "01e", '{"type":"ok","request_id":"1"}'),
        (m.encode_published(None), HEADER + "00d", '{"type":"ok"}'),
        (m.encode_subscribed(1), HEADER + "029", '{"type":"subscribed","subscription_id":1}'),
        (m.encode_hello(1), HEADER + "031", '{"type":"event_stream_hello","subscription_id":1}'),
        (
            m.encode_hello("s"),
            HEADER + "033",
            '{"type":"event_stream_hello","subscription_id":"s"}',
        ),
        (m.encode_cached(1), HEADER + "022", '{"type":"cache_ok","request_id":1}'),
        (m.encode_cached("1"), HEADER + "01e", '{"type":"ok","request_id":"1"}'),
        (m.encode_cached(None), HEADER + "00d", '{"type":"ok"}'),
        (
            m.encode_publish_refused(7, "no"),
            HEADER + "036",
            '{"type":"publish_error","request_id":7,"message":"no"}',
        ),
        (
            m.encode_publish_refused("7", "no"),
            HEADER + "030",
            '{"type":"error","request_id":"7","message":"no"}',
        ),
        (m.encode_error(None, 'a "b"'), HEADER + "022", '{"type":"error","message":"a \\"b\\""}'),
        (m.encode_auth_ok(3), HEADER + "023", '{"type":"auth_ok","server_flags":3}'),
    ],
)
def test_a_reply_has_these_bytes(reply: bytes, header: str, text: str) -> None:
    assert reply[12:].decode() == text
    assert reply[:8].hex() == header[:16]
    assert int.from_bytes(reply[8:12], "big") == len(text.encode())


def test_the_reply_of_row_32() -> None:
    assert m.encode_ok(None).hex() == "464c5831000100000000000d7b2274797065223a226f6b227d"


@pytest.mark.parametrize(
    ("reply", "header"),
    [
        (m.encode_published(1), "464c58310001000000000024"),
        (m.encode_published("1"), "464c5831000100000000001e"),
        (m.encode_subscribed(1), "464c58310001000000000029"),
        (m.encode_hello(1), "464c58310001000000000031"),
        (m.encode_cached(1), "464c58310001000000000022"),
    ],
)
def test_the_headers_that_rows_name(reply: bytes, header: str) -> None:
    assert reply[:12].hex() == header


# --- requests: every example of the document -------------------------------------------------------

NAMES: dict[str, Any] = {"tenant_id": "t", "namespace": "n", "stream": "s"}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            {"type": "publish", **NAMES, "payload": "aGk=", "ack": "none"},
            m.Publish(**NAMES, payload="aGk=", ack="none"),
        ),
        (
            {"type": "publish", **NAMES, "payload": "aGk=", "ack": "per_message"},
            m.Publish(**NAMES, payload="aGk=", ack="per_message"),
        ),
        (
            {"type": "publish", **NAMES, "payload": "", "request_id": 18446744073709551615},
            m.Publish(**NAMES, payload="", request_id=2**64 - 1),
        ),
        (
            {"type": "publish_batch", **NAMES, "payloads": ["YQ==", ""], "ack": "per_batch"},
            m.PublishBatch(**NAMES, payloads=["YQ==", ""], ack="per_batch"),
        ),
        ({"type": "subscribe", **NAMES}, m.Subscribe(**NAMES)),
        (
            {"type": "subscribe", **NAMES, "subscription_id": 1, "later": [{}]},
            m.Subscribe(**NAMES, subscription_id=1),
        ),
        (
            {"type": "cache_put", "request_id": "1", "key": "k", "value": "dg==", "ttl_ms": 5},
            m.CachePut(request_id="1", key="k", value="dg==", ttl_ms=5),
        ),
        (
            {"type": "cache_put", "request_id": "1", "key": "", "value": "", "ttl_ms": None},
            m.CachePut(request_id="1", key="", value=""),
        ),
        (
            {"type": "cache_get", "request_id": "2", "key": "k"},
            m.CacheGet(request_id="2", key="k"),
        ),
        ({"type": "cache_get", **SCOPE, "key": "k"}, m.CacheGet(**SCOPE, key="k")),
        ({"type": "auth", "token": "x", "tenant_id": "t"}, m.Auth(token="x")),
    ],
)
def test_a_request_is_read(sent: dict[str, object], expected: m.Request) -> None:
    payload = json.dumps(sent).encode()
    assert m.decode_request(payload) == expected
    assert m.decode_request(b" \n" + payload + b"\t ") == expected


@pytest.mark.parametrize(
    ("payload", "message", "request_id"),
    [
        (b"", "invalid JSON", None),
        (b"{", "invalid JSON", None),
        (b'{"type":"publish"} x', "invalid JSON", None),
        (b'{"type":"\xff"}', "invalid JSON", None),
        (b"[]", "invalid JSON", None),
        (b"[" * 100_000, "invalid JSON", None),
        (b'{"a":' + b"[" * 100_000, "invalid JSON: nested too deeply", None),
        (b"{}", "type", None),
        (b'{"type":7,"request_id":1}', "type", 1),
        (b'{"type":"publish_all","request_id":"a"}', "'publish_all'", "a"),
        (b'{"type":"subscribe","tenant_id":"t","namespace":"n","request_id":9}', "stream", 9),
        (b'{"type":"cache_get","key":1,"request_id":"z"}', "key", "z"),
        (b'{"type":"cache_get","key":"k","request_id":1.5}', "request_id", None),
        (b'{"type":"cache_get","key":"k","request_id":-1}', "request_id", None),
        (b'{"type":"cache_get","key":"k","request_id":18446744073709551616}', "request_id", None),
        (b'{"type":"cache_get","key":"k","request_id":true}', "request_id", None),
        (b'{"type":"cache_get","key":"k","tenant_id":"t","request_id":3}', "namespace", 3),
        (b'{"type":"cache_put","key":"k","value":"","ttl_ms":-1,"request_id":3}', "ttl_ms", 3),
        (b'{"type":"cache_put","key":"k","value":"","ttl_ms":1.5}', "ttl_ms", None),
        (b'{"type":"cache_put","key":"k","value":"","ttl_ms":"1"}', "ttl_ms", None),
        (
            b'{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":"",'
            b'"ack":"all","request_id":4}',
            "ack",
            4,
        ),
        (
            b'{"type":"subscribe","tenant_id":"t","namespace":"n","stream":"s",'
            b'"subscription_id":-1,"request_id":5}',
            "subscription_id",
            5,
        ),
    ],
)
def test_a_flaw_is_named_and_carries_the_request_id(
    payload: bytes, message: str, request_id: m.RequestId
) -> None:
    found = m.decode_request(payload)
    assert isinstance(found, m.Flaw)
    assert message in found.message
    assert (found.request_id, found.ends) == (request_id, False)


@pytest.mark.parametrize("name", m.SERVER_TYPES)
def test_what_only_servers_send_ends_the_stream(name: str) -> None:
    payload = json.dumps({"type": name, "request_id": 1}).encode()
    assert m.decode_request(payload) == m.Flaw("unexpected message type", 1, ends=True)


def test_an_error_of_a_client_ends_the_stream_in_silence() -> None:
    assert m.decode_request(b'{"type":"error","message":"x"}') == m.Flaw("", None, ends=True)


def test_a_long_text_of_the_peer_is_not_repeated_whole() -> None:
    found = m.decode_request(json.dumps({"type": "x" * 10_000}).encode())
    assert isinstance(found, m.Flaw)
    assert len(found.message) < 200
    sent = {"type": "cache_get", "key": "", "request_id": "x" * 2000}
    long_id = m.decode_request(json.dumps(sent).encode())
    assert isinstance(long_id, m.Flaw)
    assert long_id.request_id is None


@given(st.one_of(st.binary(), st.from_regex(rb'\{"type":"[a-z_]{0,12}"[^\x00]{0,40}\}')))
def test_any_bytes_are_a_request_or_a_flaw(payload: bytes) -> None:
    """The invariant of the parser: it raises nothing, whatever arrives."""
    m.decode_request(payload)


# --- base64 ----------------------------------------------------------------------------------------


@given(st.binary())
def test_base64_both_ways(value: bytes) -> None:
    text = m.encode_base64(value).decode()
    assert text == base64.b64encode(value).decode()
    assert m.decode_base64(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "AB==",
        "AAB=",
        "AA",
        "A",
        "AA=",
        "A-_=",
        "AA==AA==",
        "A A=",
        "=",
        "====",
        "AAAA=",
        "Aé==",
        "AA==\n",
    ],
)
def test_base64_is_read_strictly(text: str) -> None:
    assert m.decode_base64(text) is None


@given(st.text(alphabet="AQgwBz+/=-_", max_size=9))
def test_what_base64_accepts_is_canonical(text: str) -> None:
    value = m.decode_base64(text)
    assert value is None or base64.b64encode(value).decode() == text


def test_framed_is_what_replies_are() -> None:
    assert m.encode_ok(None) == framed(b'{"type":"ok"}')
