"""Felix over real QUIC: the rows of its table, with the bytes that they name."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.bench import ANYBODY
from conformance.quic import Wire
from kit.limits import HANG_S
from kit.live_server import LiveServer
from sessions.felix.peer import (
    NAMES,
    NOT_FOUND,
    TOPIC,
    b64,
    exact,
    frames,
    message,
    publish,
    subscribe,
)

from penstock.wire.felix.batches import encode_publish_batch
from penstock.wire.felix.frames import framed

SETTINGS = {"felix.streams": TOPIC, "felix.caches": "t/n/c"}
OK = exact('{"type":"ok"}')
ACKED = publish(ack="per_message")
BATCH = encode_publish_batch("t", "n", "s", [b"hello", b""])
SCOPE = {"tenant_id": "t", "namespace": "n", "cache": "c"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(Path(tmp_path_factory.mktemp("felix")) / "data", SETTINGS) as server:
        yield server


@pytest.fixture
def wire(live: LiveServer) -> Iterator[Wire]:
    made = Wire(live)
    yield made
    made.close()


class Events:
    """The frames of the event streams of a connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._seen: dict[int, int] = {}

    def stream(self, number: int = 0) -> int:
        self._wire.until(lambda: len(self._wire.server_streams(unidirectional=True)) > number)
        return self._wire.server_streams(unidirectional=True)[number]

    def next(self, number: int = 0) -> Any:
        """One frame: an object, or the bytes of a binary one."""
        stream = self.stream(number)
        head = self._wire.take(stream, 12)
        return frames(head + self._wire.take(stream, int.from_bytes(head[8:12], "big")))[0]


def event(value: bytes) -> dict[str, str]:
    return {"type": "event", **NAMES, "payload": b64(value)}


@pytest.mark.row("felix-1")
def test_any_application_and_none_is_felix(live: LiveServer) -> None:
    for names, listener in ((None, "udp"), (["h3"], "udp"), (None, "felix"), (["x"], "felix")):
        wire = Wire(live, names, listener)
        wire.ask(wire.open(), ACKED, OK)
        wire.close()


@pytest.mark.row("felix-5")
def test_a_thousand_streams(wire: Wire) -> None:
    streams = [wire.open(ACKED) for _ in range(1_000)]
    assert all(wire.take(stream, len(OK)) == OK for stream in streams)


@pytest.mark.row("felix-7")
@pytest.mark.row("felix-8")
@pytest.mark.parametrize(
    ("bad", "words"),
    [(b"GET / HTTP/1.1\r\n", "FLX1"), (b"FLX1\x00\x02\x00\x00\x00\x00\x00\x00", "version 2")],
)
def test_a_header_that_is_none_closes_the_connection(wire: Wire, bad: bytes, words: str) -> None:
    stream = wire.open(bad)
    code, reason = wire.closed()
    assert code == 1 and words in reason
    assert wire.peer.received[stream] == b""


@pytest.mark.row("felix-6")
@pytest.mark.row("felix-9")
@pytest.mark.row("felix-10")
def test_flags_that_nobody_knows_are_ignored(wire: Wire) -> None:
    stream = wire.open()
    wire.ask(stream, framed(ACKED[12:], 0xFFFE), OK)
    wire.ask(stream, framed(BATCH[12:], 0xFFFF) + ACKED, OK)


@pytest.mark.row("felix-11")
def test_a_frame_too_large_ends_its_stream_only(wire: Wire) -> None:
    stream = wire.open(b"FLX1\x00\x01\x00\x00\x01\x00\x00\x01")
    assert wire.rest(stream) == exact('{"type":"error","message":"frame too large"}')
    wire.until(lambda: stream in wire.peer.stops)
    wire.ask(wire.open(), ACKED, OK)


@pytest.mark.row("felix-12")
def test_a_frame_of_exactly_the_limit_is_taken(wire: Wire) -> None:
    padded = json.dumps({"type": "cache_get", "key": ""}).encode().ljust(16_777_216)
    stream = wire.open(framed(padded))
    assert wire.take(stream, 12)[:8] == b"FLX1\x00\x01\x00\x00"


@pytest.mark.row("felix-13")
@pytest.mark.row("felix-21")
@pytest.mark.row("felix-22")
@pytest.mark.row("felix-23")
@pytest.mark.row("felix-25")
@pytest.mark.row("felix-38")
@pytest.mark.row("felix-54")
@pytest.mark.row("felix-55")
@pytest.mark.row("felix-91")
@pytest.mark.parametrize(
    "bad",
    [
        framed(b""),
        framed(b"not JSON"),
        framed(b"[]"),
        message("nothing"),
        message("publish", tenant_id="t"),
        publish(payload="AB=="),
        publish(ack="all"),
        framed(b"\x00", 1),
        framed(BATCH[12:-13] + b"\xff\xff\xff\xff", 1),
        message("cache_put", key="k", value="", ttl_ms=-1),
        message("cache_put", key="k", value="", ttl_ms="1"),
    ],
)
def test_a_bad_payload_is_an_error_and_the_stream_goes_on(wire: Wire, bad: bytes) -> None:
    stream = wire.open(bad)
    head = wire.take(stream, 12)
    (reply,) = frames(head + wire.take(stream, int.from_bytes(head[8:12], "big")))
    assert reply["type"] == "error"
    wire.ask(stream, ACKED, OK)


@pytest.mark.row("felix-14")
def test_frames_byte_by_byte_and_together(wire: Wire) -> None:
    stream = wire.open()
    for byte in ACKED:
        wire.send(stream, bytes([byte]))
    assert wire.take(stream, len(OK)) == OK
    wire.ask(stream, ACKED * 5, OK * 5)


@pytest.mark.row("felix-15")
@pytest.mark.row("felix-16")
@pytest.mark.row("felix-17")
@pytest.mark.parametrize("cut", [0, 1, 11, 40])
def test_the_end_of_input(wire: Wire, cut: int) -> None:
    assert wire.rest(wire.open(ACKED * 3 + ACKED[:cut], fin=True)) == OK * 3
    assert wire.peer.closed is None


@pytest.mark.row("felix-18")
@pytest.mark.row("felix-19")
def test_streams_in_one_direction(live: LiveServer, wire: Wire) -> None:
    broker = live.server.broker
    before = live.call(lambda: broker.offsets(TOPIC, 0))[1]
    stream = wire.open(BATCH + ACKED, unidirectional=True)
    wire.until(lambda: live.call(lambda: broker.offsets(TOPIC, 0))[1] == before + 3)
    wire.send(stream, message("cache_get", key="k"))
    wire.until(lambda: stream in wire.peer.stops)
    assert wire.peer.closed is None and wire.peer.received[stream] == b""


@pytest.mark.row("felix-24")
@pytest.mark.row("felix-28")
@pytest.mark.row("felix-29")
@pytest.mark.row("felix-30")
@pytest.mark.row("felix-31")
@pytest.mark.row("felix-32")
@pytest.mark.row("felix-33")
@pytest.mark.row("felix-34")
@pytest.mark.row("felix-35")
@pytest.mark.row("felix-36")
@pytest.mark.row("felix-37")
@pytest.mark.row("felix-39")
@pytest.mark.row("felix-40")
@pytest.mark.row("felix-41")
@pytest.mark.row("felix-47")
@pytest.mark.row("felix-48")
@pytest.mark.row("felix-51")
@pytest.mark.row("felix-52")
@pytest.mark.row("felix-53")
@pytest.mark.row("felix-56")
@pytest.mark.row("felix-57")
@pytest.mark.row("felix-58")
@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (publish(ack="none"), b""),
        (publish(), b""),
        (publish(b""), b""),
        (publish(stream="none"), b""),
        (BATCH, b""),
        (framed(BATCH[12:] + b"behind", 1), b""),
        (encode_publish_batch("t", "n", "none", [b"x"]), b""),
        (encode_publish_batch("", "", "", []), b""),
        (publish(ack="per_message", extra=[1]), OK),
        (framed(b" " + ACKED[12:] + b" "), OK),
        (publish(ack="per_message", request_id=1), exact('{"type":"publish_ok","request_id":1}')),
        (publish(ack="per_batch", request_id="1"), exact('{"type":"ok","request_id":"1"}')),
        (message("publish_batch", **NAMES, payloads=[], ack="per_batch"), OK),
        (message("publish_batch", **NAMES, payloads=["YQ==", ""], ack="per_message"), OK),
        (
            publish(stream="none", ack="per_message", request_id=7),
            exact(f'{{"type":"publish_error","request_id":7,"message":"{NOT_FOUND}"}}'),
        ),
        (
            publish(stream="none", ack="per_message"),
            exact(f'{{"type":"error","message":"{NOT_FOUND}"}}'),
        ),
    ],
)
def test_replies_to_publishes(wire: Wire, sent: bytes, reply: bytes) -> None:
    """What has no reply is followed by something that has one: replies are in order."""
    wire.ask(wire.open(), sent + ACKED, reply + OK)


@pytest.mark.row("felix-26")
@pytest.mark.row("felix-27")
def test_messages_of_servers_end_the_stream(wire: Wire) -> None:
    words = exact('{"type":"error","message":"unexpected message type"}')
    assert wire.rest(wire.open(message("ok"))) == words
    assert wire.rest(wire.open(message("error", message="x"))) == b""


@pytest.mark.row("felix-59")
@pytest.mark.row("felix-60")
@pytest.mark.row("felix-61")
@pytest.mark.row("felix-65")
@pytest.mark.row("felix-68")
@pytest.mark.row("felix-99")
@pytest.mark.row("felix-100")
@pytest.mark.parametrize(
    ("sent", "reply", "hello"),
    [
        (subscribe(subscription_id=1), exact('{"type":"subscribed","subscription_id":1}'), 1),
        (subscribe(), OK, "1"),
        (subscribe(subscription_id="mine"), OK, "mine"),
        (
            message("auth", token="dev-key") + subscribe(),
            OK + exact('{"type":"subscribed","subscription_id":1}'),
            1,
        ),
        (
            message("auth", token="dev-key", client_flags=3) + subscribe(subscription_id=9),
            exact('{"type":"auth_ok","server_flags":3}')
            + exact('{"type":"subscribed","subscription_id":9}'),
            9,
        ),
    ],
)
def test_subscriptions(wire: Wire, sent: bytes, reply: bytes, hello: int | str) -> None:
    stream = wire.open()
    wire.ask(stream, sent, reply)
    events = Events(wire)
    assert events.next() == {"type": "event_stream_hello", "subscription_id": hello}
    wire.ask(stream, publish(b"first", ack="per_message"), OK)
    assert events.next() == event(b"first")


@pytest.mark.row("felix-62")
@pytest.mark.row("felix-63")
@pytest.mark.row("felix-64")
@pytest.mark.row("felix-66")
@pytest.mark.row("felix-67")
@pytest.mark.row("felix-69")
@pytest.mark.row("felix-72")
@pytest.mark.row("felix-73")
@pytest.mark.row("felix-79")
def test_events_of_two_subscriptions(wire: Wire) -> None:
    control = wire.open()
    wire.ask(control, publish(b"before", ack="per_message"), OK)
    not_found = exact(f'{{"type":"error","request_id":4,"message":"{NOT_FOUND}"}}')
    wire.ask(control, subscribe(stream="none", request_id=4), not_found)
    subscribed = exact('{"type":"subscribed","subscription_id":5}')
    wire.ask(control, subscribe(subscription_id=5) * 2, subscribed * 2)
    wire.send(control, b"", fin=True)
    assert wire.rest(control) == b""
    batch = message(
        "publish_batch", **NAMES, payloads=[b64(b"%d" % n) for n in range(65)], ack="per_batch"
    )
    wire.ask(wire.open(), batch, OK)
    events = Events(wire)
    for number in range(2):
        assert events.next(number)["type"] == "event_stream_hello"
        found: list[str] = []
        while len(found) < 65:
            one = events.next(number)
            found += one["payloads"] if one["type"] == "event_batch" else [one["payload"]]
        assert found == [b64(b"%d" % n) for n in range(65)]


@pytest.mark.row("felix-76")
def test_a_client_that_stops_an_event_stream(live: LiveServer, wire: Wire) -> None:
    wire.ask(wire.open(), subscribe(), OK)
    stream = Events(wire).stream()
    fanout = live.server.broker.fanout
    count: Callable[[], int] = lambda: live.call(lambda: fanout.counters.subscriptions)  # noqa: E731
    before = count()
    wire.peer.quic.stop_stream(stream, 0)
    wire.until(lambda: count() < before)


@pytest.mark.row("felix-78")
def test_a_deleted_stream_finishes_its_event_streams(live: LiveServer, wire: Wire) -> None:
    broker = live.server.broker
    live.call(lambda: broker.create_topic(ANYBODY, "t/n/short", 1))
    wire.ask(wire.open(), subscribe(stream="short"), OK)
    stream = Events(wire).stream()
    live.call(lambda: broker.delete_topic(ANYBODY, "t/n/short"))
    wire.until(lambda: stream in wire.peer.finished)


@pytest.mark.row("felix-20")
def test_a_reset_of_a_control_stream_leaves_its_subscriptions(wire: Wire) -> None:
    control = wire.open()
    wire.ask(control, subscribe(), OK)
    events = Events(wire)
    assert events.next()["type"] == "event_stream_hello"
    wire.peer.quic.reset_stream(control, 7)
    wire.ask(wire.open(), publish(b"after", ack="per_message"), OK)
    assert events.next() == event(b"after")


@pytest.mark.row("felix-80")
@pytest.mark.row("felix-81")
@pytest.mark.row("felix-82")
@pytest.mark.row("felix-83")
@pytest.mark.row("felix-84")
@pytest.mark.row("felix-85")
@pytest.mark.row("felix-86")
@pytest.mark.row("felix-87")
@pytest.mark.row("felix-88")
@pytest.mark.row("felix-89")
@pytest.mark.row("felix-90")
@pytest.mark.row("felix-92")
@pytest.mark.row("felix-94")
@pytest.mark.row("felix-95")
@pytest.mark.row("felix-96")
def test_the_cache(wire: Wire) -> None:
    stream = wire.open()
    put, get = "cache_put", "cache_get"
    ok = exact('{"type":"ok","request_id":"1"}')
    wire.ask(stream, message(put, key="k", value=b64(b"v"), request_id="1", ttl_ms=None), ok)
    value = exact('{"type":"cache_value","request_id":"2","key":"k","value":"dg=="}')
    wire.ask(stream, message(get, key="k", request_id="2") * 3 + ACKED, value * 3 + OK)
    cache_ok = exact('{"type":"cache_ok","request_id":1}')
    wire.ask(stream, message(put, **SCOPE, key="", value="", request_id=1), cache_ok)
    scoped = (
        '{"type":"cache_value","tenant_id":"t","namespace":"n","cache":"c","key":"%s","value":%s}'
    )
    wire.ask(stream, message(get, **SCOPE, key=""), exact(scoped % ("", '""')))
    wire.ask(stream, message(get, **SCOPE, key="k"), exact(scoped % ("k", "null")))
    wire.ask(stream, message(put, key="k", value=b64(b"w"), ttl_ms=0), OK)
    gone = exact('{"type":"cache_value","key":"k","value":null}')
    wire.ask(stream, message(get, key="k"), gone)
    lost = exact('{"type":"error","request_id":3,"message":"cache scope not found: t/n/x"}')
    wire.ask(stream, message(get, **{**SCOPE, "cache": "x"}, key="k", request_id=3), lost)


def binary(*values: bytes) -> bytes:
    """The payload of a binary event batch for subscription 1."""
    parts = [(1).to_bytes(8, "big"), len(values).to_bytes(4, "big")]
    return b"".join([*parts, *(len(value).to_bytes(4, "big") + value for value in values)])


SUBSCRIBED = exact('{"type":"subscribed","subscription_id":1}')


@pytest.mark.row("felix-70")
@pytest.mark.row("felix-74")
@pytest.mark.row("felix-98")
def test_binary_events_and_streams_made_on_demand(tmp_path: Path) -> None:
    settings = {
        "felix.auto_create": "true",
        "felix.event_encoding": "auto",
        "felix.event_batch_max_bytes": "100",
    }
    with LiveServer(tmp_path / "data", settings) as live:
        wire = Wire(live)
        wire.ask(wire.open(), subscribe(subscription_id=1), SUBSCRIBED)
        wire.ask(wire.open(), subscribe(), OK)
        events = Events(wire)
        for number in range(2):
            assert events.next(number)["type"] == "event_stream_hello"
        batch = encode_publish_batch("t", "n", "s", [b"alpha", b"beta", bytes(500)])
        wire.ask(wire.open(), batch + ACKED, OK)
        assert events.next() == binary(b"alpha", b"beta")
        assert events.next() == binary(bytes(500))
        assert events.next() == binary(b"x")
        # A client of the document gets none of it.
        assert events.next(1)["payloads"] == [b64(b"alpha"), b64(b"beta")]
        wire.close()


@pytest.mark.row("felix-71")
def test_single_events_are_binary_from_a_size_on(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        "felix.fanout_batch_size": "1",
        "felix.event_single_binary_enabled": "true",
        "felix.event_single_binary_min_bytes": "4",
    }
    with LiveServer(tmp_path / "data", settings) as live:
        wire = Wire(live)
        wire.ask(wire.open(), subscribe(subscription_id=1), SUBSCRIBED)
        events = Events(wire)
        events.next()
        wire.ask(wire.open(), encode_publish_batch("t", "n", "s", [b"abc", b"abcd"]) + ACKED, OK)
        assert [events.next(), events.next()] == [event(b"abc"), binary(b"abcd")]
        wire.close()


@pytest.mark.row("felix-97")
def test_a_stop_finishes_event_streams_and_closes_with_0(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", SETTINGS) as live:
        wire = Wire(live)
        stream = wire.open()
        wire.ask(stream, subscribe(), OK)
        events = Events(wire)
        events.next()
        stopping = live.begin(live.server.stop())
        assert wire.closed()[0] == 0
        assert events.stream() in wire.peer.finished
        wire.close()
        stopping.result(HANG_S)
