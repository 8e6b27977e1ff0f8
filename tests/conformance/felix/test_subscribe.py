"""Felix over real QUIC, rows 59 to 79: subscriptions and their events."""

from collections.abc import Callable
from pathlib import Path

import pytest
from broker.bench import ANYBODY
from conformance.felix.kit import ACKED, OK, SETTINGS, SUBSCRIBED, Events, event, reply
from conformance.quic import Wire
from kit.live_server import LiveServer
from sessions.felix.peer import NAMES, NOT_FOUND, TOPIC, b64, exact, message, publish, subscribe

from penstock.broker.delivery.fanout import Fanout
from penstock.wire.felix.batches import encode_publish_batch


@pytest.mark.parametrize(
    ("sent", "answer", "hello"),
    [
        pytest.param(
            subscribe(subscription_id=1),
            bytes.fromhex("464c58310001000000000029")
            + b'{"type":"subscribed","subscription_id":1}',
            bytes.fromhex("464c58310001000000000031")
            + b'{"type":"event_stream_hello","subscription_id":1}',
            marks=pytest.mark.row("felix-59"),
            id="59",
        ),
        pytest.param(
            subscribe(),
            OK,
            exact('{"type":"event_stream_hello","subscription_id":"1"}'),
            marks=pytest.mark.row("felix-60"),
            id="60",
        ),
        pytest.param(
            subscribe(request_id="r"),
            exact('{"type":"ok","request_id":"r"}'),
            exact('{"type":"event_stream_hello","subscription_id":"1"}'),
            marks=pytest.mark.row("felix-60"),
            id="60-id",
        ),
        pytest.param(
            message("auth", token="dev-key") + subscribe(),
            OK + SUBSCRIBED,
            exact('{"type":"event_stream_hello","subscription_id":1}'),
            marks=pytest.mark.row("felix-60"),
            id="60-auth",
        ),
        pytest.param(
            subscribe(subscription_id="mine"),
            OK,
            exact('{"type":"event_stream_hello","subscription_id":"mine"}'),
            marks=pytest.mark.row("felix-61"),
            id="61",
        ),
    ],
)
def test_replies_and_hello(wire: Wire, sent: bytes, answer: bytes, hello: bytes) -> None:
    stream = wire.open()
    wire.ask(stream, sent, answer)
    events = Events(wire)
    assert wire.take(events.stream(), len(hello)) == hello
    wire.ask(stream, publish(b"first", ack="per_message"), OK)
    assert events.next() == event(b"first")


@pytest.mark.row("felix-62")
def test_an_unknown_stream(wire: Wire) -> None:
    stream = wire.open()
    lost = exact(f'{{"type":"error","message":"{NOT_FOUND}"}}')
    wire.ask(stream, subscribe(stream="none", subscription_id=1), lost)
    with_id = exact(f'{{"type":"error","request_id":4,"message":"{NOT_FOUND}"}}')
    wire.ask(stream, subscribe(stream="none", request_id=4), with_id)
    wire.ask(stream, ACKED, OK)
    assert wire.server_streams(unidirectional=True) == []


@pytest.mark.row("felix-63")
@pytest.mark.row("felix-66")
@pytest.mark.row("felix-67")
@pytest.mark.row("felix-68")
def test_two_subscriptions_with_one_id_on_one_stream(wire: Wire) -> None:
    """The control stream goes on; each has an event stream that begins with its hello."""
    control = wire.open()
    subscribed = exact('{"type":"subscribed","subscription_id":5}')
    wire.ask(control, subscribe(subscription_id=5) * 2, subscribed * 2)
    wire.ask(control, ACKED, OK)
    events = Events(wire)
    for number in range(2):
        hello = {"type": "event_stream_hello", "subscription_id": 5}
        assert [events.next(number), events.next(number)] == [hello, event(b"x")]


@pytest.mark.row("felix-64")
def test_a_subscription_outlives_its_control_stream(wire: Wire) -> None:
    control = wire.open(subscribe(), fin=True)
    assert wire.rest(control) == OK
    events = Events(wire)
    assert events.next()["type"] == "event_stream_hello"
    wire.ask(wire.open(), publish(b"later", ack="per_message"), OK)
    assert events.next() == event(b"later")


@pytest.mark.row("felix-65")
def test_the_reply_is_written_before_the_event_stream_is_opened(wire: Wire) -> None:
    """In one packet where both fit: the reply stands first in it."""
    order: list[int] = []
    take = wire.peer._take

    def noted(event: object) -> None:
        if type(event).__name__ == "StreamDataReceived":
            order.append(event.stream_id)  # type: ignore[attr-defined]  # of such an event
        take(event)

    wire.peer._take = noted  # type: ignore[method-assign]
    control = wire.open(subscribe())
    opened = Events(wire).stream()
    wire.until(lambda: control in order)
    assert sorted(order[:2]) == sorted((control, opened))


@pytest.mark.row("felix-69")
def test_it_begins_with_what_is_published_after_it(wire: Wire) -> None:
    control = wire.open()
    wire.ask(control, publish(b"before", ack="per_message"), OK)
    wire.ask(control, subscribe() + publish(b"after", ack="per_message"), OK * 2)
    events = Events(wire)
    assert [events.next()["type"], events.next()] == ["event_stream_hello", event(b"after")]


def binary(*values: bytes) -> bytes:
    """The payload of a binary event batch for subscription 1."""
    parts = [(1).to_bytes(8, "big"), len(values).to_bytes(4, "big")]
    return b"".join([*parts, *(len(value).to_bytes(4, "big") + value for value in values)])


@pytest.mark.row("felix-70")
@pytest.mark.row("felix-74")
def test_binary_events_for_clients_that_show_that_they_can(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
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
        row = bytes.fromhex(
            "464c5831000100020000001d00000000000000010000000200000005616c7068610000000462657461"
        )
        assert wire.take(events.stream(), len(row)) == row
        # Larger than a frame of events may be: it goes alone.
        assert events.next() == binary(bytes(500))
        assert events.next() == binary(b"x")
        # A client of the document gets none of it.
        assert events.next(1)["payloads"] == [b64(b"alpha"), b64(b"beta")]
        assert events.next(1) == event(bytes(500))
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


@pytest.mark.row("felix-72")
@pytest.mark.row("felix-73")
@pytest.mark.row("felix-79")
def test_events_that_come_together_share_a_frame(wire: Wire) -> None:
    """64 events and 262,144 bytes at most; a rest of one is an `event`, and no frame is empty."""
    wire.ask(wire.open(), subscribe(), OK)
    events = Events(wire)
    assert events.next()["type"] == "event_stream_hello"
    small = [b64(b"%d" % number) for number in range(65)]
    wire.ask(wire.open(), message("publish_batch", **NAMES, payloads=small, ack="per_batch"), OK)
    first = events.next()
    assert list(first) == ["type", "tenant_id", "namespace", "stream", "payloads"]
    assert (first["type"], first["payloads"]) == ("event_batch", small[:64])
    assert events.next() == event(b"64")
    large = [b64(bytes([number]) * 100_000) for number in range(3)]
    wire.ask(wire.open(), message("publish_batch", **NAMES, payloads=large, ack="per_batch"), OK)
    assert events.next()["payloads"] == large[:2]
    assert events.next()["payload"] == large[2]


def topic_end(fanout: Fanout) -> int | None:
    """How far the subscribers were told; None without any."""
    found = fanout._topics.get(TOPIC)
    return None if found is None else found.ends[0]


@pytest.mark.row("felix-75")
@pytest.mark.parametrize("policy", ["block", "drop_oldest", "drop_newest", "disconnect"])
def test_slow_subscribers(tmp_path: Path, policy: str) -> None:
    """The client does not read while 400 events of 10 KB come: its window takes a few of them."""
    settings = {**SETTINGS, "felix.slow_subscribers": policy, "felix.queue_events": "10"}
    count, size = 400, 10_000
    with LiveServer(tmp_path / "data", settings) as live:
        slow = Wire(live, max_data=100_000, max_stream_data=100_000)
        slow.ask(slow.open(), subscribe(), OK)
        events = Events(slow)
        assert events.next()["type"] == "event_stream_hello"
        fast = Wire(live)
        # A slow one delays no ack: all of these come while it stands still.
        for number in range(count):
            value = number.to_bytes(2, "big") + bytes(size)
            fast.ask(fast.open(), publish(value, ack="per_message"), OK)
        fanout = live.server.broker.fanout
        # An ack waits for no subscriber: the last events may be handed to them a moment later.
        fast.until(lambda: live.call(lambda: topic_end(fanout)) in (count, None))
        dropped = live.call(lambda: fanout.counters.dropped)
        if policy == "disconnect":
            stream = events.stream()
            slow.until(lambda: stream in slow.peer.resets)
            assert slow.peer.resets[stream] == 2
        else:
            found = events.values(count - dropped)
            last = b64((count - 1).to_bytes(2, "big") + bytes(size))
            assert (found[-1] == last) == (policy != "drop_newest")
            assert (dropped == 0) == (policy == "block")
        fast.close()
        slow.close()


@pytest.mark.row("felix-76")
def test_a_client_that_stops_an_event_stream(live: LiveServer, wire: Wire) -> None:
    wire.ask(wire.open(), subscribe(), OK)
    stream = Events(wire).stream()
    fanout = live.server.broker.fanout
    count: Callable[[], int] = lambda: live.call(lambda: fanout.counters.subscriptions)  # noqa: E731
    before = count()
    wire.peer.quic.stop_stream(stream, 0)
    wire.until(lambda: count() < before)
    wire.ask(wire.open(), ACKED, OK)


@pytest.mark.row("felix-77")
def test_there_is_no_unsubscribe(wire: Wire) -> None:
    stream = wire.open(message("unsubscribe", subscription_id=1, request_id=2))
    found = {"type": "error", "request_id": 2, "message": "unknown message type 'unsubscribe'"}
    assert reply(wire, stream) == found
    wire.ask(stream, ACKED, OK)


@pytest.mark.row("felix-78")
def test_a_deleted_stream_finishes_its_event_streams(live: LiveServer, wire: Wire) -> None:
    broker = live.server.broker
    live.call(lambda: broker.create_topic(ANYBODY, "t/n/short", 1))
    wire.ask(wire.open(), subscribe(stream="short"), OK)
    stream = Events(wire).stream()
    live.call(lambda: broker.delete_topic(ANYBODY, "t/n/short"))
    wire.until(lambda: stream in wire.peer.finished)
    assert stream not in wire.peer.resets and wire.peer.closed is None
