"""Felix over real QUIC, rows 21 to 29: what is in a JSON frame, and what is wrong with it."""

import pytest
from conformance.felix.kit import ACKED, OK, reply
from conformance.quic import Wire
from sessions.felix.peer import NAMES, exact, message, publish

from penstock.wire.felix.frames import framed


def row(number: int) -> pytest.MarkDecorator:
    return pytest.mark.row(f"felix-{number}")


@pytest.mark.row("felix-21")
@pytest.mark.row("felix-22")
@pytest.mark.row("felix-23")
@pytest.mark.row("felix-25")
@pytest.mark.parametrize(
    ("bad", "words", "request_id"),
    [
        pytest.param(framed(b"not JSON"), "invalid JSON", None, id="21"),
        pytest.param(framed(b'{"type":"\xff"}'), "invalid JSON", None, id="21-utf8"),
        pytest.param(framed(b"[]"), "invalid JSON", None, id="21-list"),
        pytest.param(message("nothing", request_id=5), "unknown message type 'nothing'", 5, id="22"),
        pytest.param(
            message("publish", tenant_id="t", namespace="n", payload="", request_id="r"),
            "`stream`",
            "r",
            id="23-missing",
        ),
        pytest.param(publish(payload=7, request_id=9), "`$.payload`", 9, id="23-type"),
        pytest.param(publish(payload="AB==", request_id=1), "payload: not base64", 1, id="25-bits"),
        pytest.param(publish(payload="YQ"), "payload: not base64", None, id="25-unpadded"),
        pytest.param(publish(payload="_-8="), "payload: not base64", None, id="25-url"),
        pytest.param(
            message("publish_batch", **NAMES, payloads=["YQ==", "Y"]),
            "payloads: not base64",
            None,
            id="25-batch",
        ),
        pytest.param(
            message("cache_put", key="k", value="%", request_id="p"), "value: not base64", "p", id="25-put"
        ),
    ],
)  # fmt: skip
def test_a_bad_payload_is_an_error_and_the_stream_goes_on(
    wire: Wire, bad: bytes, words: str, request_id: object
) -> None:
    stream = wire.open(bad)
    found = reply(wire, stream)
    assert found["type"] == "error" and words in found["message"]
    assert found.get("request_id") == request_id
    wire.ask(stream, ACKED, OK)


@pytest.mark.row("felix-24")
def test_fields_that_nobody_knows_are_ignored(wire: Wire) -> None:
    wire.ask(wire.open(), publish(ack="per_message", extra=[1, {"a": None}]), OK)


@pytest.mark.row("felix-26")
@pytest.mark.parametrize(
    "kind",
    ["event", "event_batch", "event_stream_hello", "ok", "cache_value", "cache_ok", "subscribed",
     "publish_ok", "publish_error", "auth_ok"],
)  # fmt: skip
def test_messages_of_servers_end_the_stream(wire: Wire, kind: str) -> None:
    words = exact('{"type":"error","message":"unexpected message type"}')
    assert wire.rest(wire.open(message(kind))) == words
    wire.ask(wire.open(), ACKED, OK)


@pytest.mark.row("felix-27")
def test_an_error_of_the_client_ends_the_stream_without_a_word(wire: Wire) -> None:
    assert wire.rest(wire.open(message("error", message="x"))) == b""
    wire.ask(wire.open(), ACKED, OK)


@pytest.mark.row("felix-28")
def test_a_text_as_request_id_comes_back_as_a_text(wire: Wire) -> None:
    """Also where only NATIVE clients send the request."""
    put = message(
        "cache_put", tenant_id="t", namespace="n", cache="c", key="k", value="", request_id="7"
    )
    wire.ask(wire.open(), put, exact('{"type":"ok","request_id":"7"}'))
    for id, shown in ((18_446_744_073_709_551_615, "18446744073709551615"), ("ü", '"ü"')):
        found = exact(f'{{"type":"cache_value","request_id":{shown},"key":"none","value":null}}')
        wire.ask(wire.open(), message("cache_get", key="none", request_id=id), found)


@pytest.mark.row("felix-29")
def test_spaces_are_fine_and_the_last_of_two_fields_counts(wire: Wire) -> None:
    wire.ask(wire.open(), framed(b" \n" + ACKED[12:] + b"\t "), OK)
    twice = b'{"type":"cache_get","key":"a","key":"b"}'
    wire.ask(wire.open(), framed(twice), exact('{"type":"cache_value","key":"b","value":null}'))
