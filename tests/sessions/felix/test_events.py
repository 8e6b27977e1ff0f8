"""Felix subscriptions without a socket: hello, events, lives of streams, slow subscribers."""

from collections.abc import Callable
from typing import Any

import pytest
from broker.bench import ANYBODY, Bench
from sessions.felix.peer import (
    NAMES,
    NOT_FOUND,
    TOPIC,
    Client,
    b64,
    exact,
    frames,
    message,
    subscribe,
)

from penstock.sessions.felix.options import FelixOptions
from penstock.wire.felix.batches import EventFrames, encode_publish_batch
from penstock.wire.felix.frames import MAX_PAYLOAD_BYTES

ALPHA_BETA = bytes.fromhex("00000000000000010000000200000005616c7068610000000462657461")


def event(value: bytes) -> dict[str, str]:
    return {"type": "event", **NAMES, "payload": b64(value)}


@pytest.mark.parametrize(
    ("sent", "reply", "hello"),
    [
        (subscribe(subscription_id=1), '{"type":"subscribed","subscription_id":1}', 1),
        (subscribe(), '{"type":"ok"}', "1"),
        (subscribe(request_id="r"), '{"type":"ok","request_id":"r"}', "1"),
        (subscribe(subscription_id="mine"), '{"type":"ok"}', "mine"),
        (
            message("auth", token="dev-key") + subscribe(),
            '{"type":"subscribed","subscription_id":1}',
            1,
        ),
    ],
)
def test_the_reply_and_the_hello(bench: Bench, sent: bytes, reply: str, hello: int | str) -> None:
    """Rows 59 to 61, 65, 68."""
    client = Client(bench)
    stream = client.open()
    assert stream.ask(sent).endswith(exact(reply))
    recorder, _ = client.connection.opened[0]
    assert recorder.unidirectional
    bench.publish(TOPIC, b"a")
    assert client.events() == [
        {"type": "event_stream_hello", "subscription_id": hello},
        event(b"a"),
    ]
    assert not stream.recorder.finished


@pytest.mark.parametrize(
    ("dialect", "sent", "kind"),
    [("doc", subscribe(subscription_id=1), "ok"), ("native", subscribe(), "subscribed")],
)
def test_a_dialect_may_be_forced(bench: Bench, dialect: str, sent: bytes, kind: str) -> None:
    options = FelixOptions(dialect=dialect)  # type: ignore[arg-type]  # a text of the parameters
    assert frames(Client(bench, options).open().ask(sent))[0]["type"] == kind


def test_an_unknown_stream(bench: Bench) -> None:
    """Row 62."""
    client = Client(bench)
    stream = client.open()
    found = stream.ask(subscribe(stream="none", request_id=4))
    assert found == exact(f'{{"type":"error","request_id":4,"message":"{NOT_FOUND}"}}')
    assert client.connection.opened == [] and not stream.recorder.finished


def test_events_go_one_by_one_or_together(bench: Bench) -> None:
    """Rows 69, 72, 73."""
    client = Client(bench)
    bench.publish(TOPIC, b"before")
    client.open().ask(subscribe())
    client.events()
    bench.publish(TOPIC, b"one")
    assert client.events() == [event(b"one")]
    bench.publish(TOPIC, *[b"%d" % number for number in range(65)])
    batch, single = client.events()
    payloads = [b64(b"%d" % number) for number in range(64)]
    assert batch == {"type": "event_batch", **NAMES, "payloads": payloads}
    assert single == event(b"64")


def test_a_large_event_goes_alone(bench: Bench) -> None:
    """Row 74."""
    client = Client(bench, FelixOptions(batch_bytes=100))
    client.open().ask(subscribe())
    client.events()
    bench.publish(TOPIC, b"a", bytes(500), b"b")
    assert [found["type"] for found in client.events()] == ["event"] * 3


@pytest.mark.parametrize(
    ("encoding", "sent", "binary"),
    [
        ("json", subscribe(subscription_id=1), False),
        ("auto", subscribe(subscription_id=1), True),
        ("auto", subscribe(), False),
        ("binary", subscribe(), True),
    ],
)
def test_binary_events(bench: Bench, encoding: str, sent: bytes, binary: bool) -> None:
    """Row 70: never flag 0x0002 towards a client of the document, unless it is configured."""
    options = FelixOptions(event_encoding=encoding)  # type: ignore[arg-type]  # a text of the parameters
    client = Client(bench, options)
    client.open().ask(sent)
    client.events()
    bench.publish(TOPIC, b"alpha", b"beta")
    (found,) = client.events()
    assert (found == ALPHA_BETA) == binary


def test_single_events_may_be_binary_from_a_size_on(bench: Bench) -> None:
    """Row 71."""
    options = FelixOptions(fanout_batch_size=1, single_binary=True, single_binary_min_bytes=4)
    client = Client(bench, options)
    client.open().ask(subscribe(subscription_id=1))
    client.events()
    bench.publish(TOPIC, b"abc", b"abcd")
    first, second = client.events()
    assert first == event(b"abc")
    assert second == bytes([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4]) + b"abcd"


# As JSON one byte more is over the frames that clients take; as a binary frame it is far below.
AROUND = EventFrames(b'"tenant_id":"t","namespace":"n","stream":"s"').single_bytes(0)
MOST_JSON = (MAX_PAYLOAD_BYTES - AROUND) // 4 * 3
MOST_BINARY = MAX_PAYLOAD_BYTES - 16


def frame_of(value: bytes) -> bytes:
    return bytes([0] * 7 + [1, 0, 0, 0, 1]) + len(value).to_bytes(4, "big") + value


def missed(value: bytes) -> dict[str, str]:
    text = (
        f"topic 't/n/s' partition 0 offset 1: an event of {len(value)} bytes does not fit a frame of this"
        " subscriber and is left out; read it with another protocol"
    )
    return {"type": "error", "message": text}


@pytest.mark.parametrize(
    ("size", "sent", "options", "expected"),
    [
        (MOST_JSON, subscribe(), {}, event),
        (MOST_JSON + 1, subscribe(), {}, missed),
        (MOST_JSON, subscribe(subscription_id=1), {}, event),
        (MOST_JSON + 1, subscribe(subscription_id=1), {}, frame_of),
        (MOST_BINARY, subscribe(subscription_id=1), {}, frame_of),
        (MOST_BINARY + 1, subscribe(subscription_id=1), {}, missed),
        (MOST_BINARY, subscribe(), {"event_encoding": "binary"}, frame_of),
        (MOST_BINARY + 1, subscribe(), {"event_encoding": "binary"}, missed),
        # Who lets longer frames in has clients that read them; a lower limit says nothing of these.
        (MOST_JSON + 1, subscribe(), {"max_frame_bytes": 2 * MAX_PAYLOAD_BYTES}, event),
        (MOST_JSON, subscribe(), {"max_frame_bytes": 1_000}, event),
    ],
    # Not with the place of a function in memory: each worker of a run has another one.
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_no_frame_is_longer_than_clients_take(
    bench: Bench,
    size: int,
    sent: bytes,
    options: dict[str, Any],
    expected: Callable[[bytes], object],
) -> None:
    """An event that does not fit is a binary frame, or is left out and told; the others come."""
    client = Client(bench, FelixOptions(fanout_batch_size=1, **options))
    client.open().ask(sent)
    client.events()
    large = bytes(size)
    bench.publish(TOPIC, b"a", large, b"b")
    first, found, last = client.events()
    assert found == expected(large)
    binary = options.get("event_encoding") == "binary"
    assert [first, last] == [(frame_of if binary else event)(one) for one in (b"a", b"b")]
    told = expected is missed
    assert bench.broker.fanout.counters.dropped == told
    assert bench.broker.counters["felix"].messages_out == 3 - told


@pytest.mark.parametrize("encoding", ["json", "binary"])
def test_no_batch_is_longer_than_clients_take(bench: Bench, encoding: str) -> None:
    """Whatever the configuration has for batches."""
    options = FelixOptions(batch_bytes=4 * MAX_PAYLOAD_BYTES, event_encoding=encoding)  # type: ignore[arg-type]  # a text of the parameters
    client = Client(bench, options)
    client.open().ask(subscribe())
    client.events()
    bench.publish(TOPIC, *[bytes(MAX_PAYLOAD_BYTES // 4)] * 5)
    recorder, _ = client.connection.opened[0]
    bench.settle()
    data, sizes = bytes(recorder.written), []
    while data:
        sizes.append(int.from_bytes(data[8:12], "big"))
        data = data[12 + sizes[-1] :]
    assert 1 < len(sizes) < 5 and max(sizes) <= MAX_PAYLOAD_BYTES


def test_all_subscribers_share_the_bytes(bench: Bench) -> None:
    clients = [Client(bench) for _ in range(3)]
    for client in clients:
        client.open().ask(subscribe())
        client.events()
    encoded = bench.broker.fanout.counters.encoded
    bench.publish(TOPIC, b"x", b"y")
    assert len({str(client.events()) for client in clients}) == 1
    assert bench.broker.fanout.counters.encoded == encoded + 1


def test_two_subscriptions_of_one_connection_with_one_id(bench: Bench) -> None:
    """Rows 66 and 67."""
    client = Client(bench)
    client.open().ask(subscribe(subscription_id=5) * 2)
    bench.publish(TOPIC, b"x")
    hello = {"type": "event_stream_hello", "subscription_id": 5}
    assert client.events(0) == client.events(1) == [hello, event(b"x")]


def test_a_subscription_outlives_the_stream_that_asked_for_it(bench: Bench) -> None:
    """Rows 20, 64."""
    client = Client(bench)
    stream = client.open()
    stream.ask(subscribe())
    stream.session.end_of_input()
    bench.settle()
    stream.session.closed()
    client.events()
    bench.publish(TOPIC, b"x")
    assert client.events() == [event(b"x")]


@pytest.mark.parametrize("how", ["stopped", "closed", "connection"])
def test_a_subscription_ends_with_its_event_stream(bench: Bench, how: str) -> None:
    """Row 76."""
    client = Client(bench)
    client.open().ask(subscribe())
    client.events()
    session = client.connection.opened[0][1]
    if how == "stopped":
        session.peer_stopped(0)
    elif how == "closed":
        session.closed()
    else:
        client.session.closed()
    bench.publish(TOPIC, b"x")
    assert client.events() == []
    assert bench.broker.fanout.counters.subscriptions == 0


def test_a_deleted_stream_finishes_its_event_streams(bench: Bench) -> None:
    """Row 78."""
    client = Client(bench)
    client.open().ask(subscribe())
    bench.broker.delete_topic(ANYBODY, TOPIC)
    bench.settle()
    recorder, _ = client.connection.opened[0]
    assert recorder.finished and recorder.reset_code is None


def test_a_slow_subscriber_is_reset_where_its_policy_says_so(bench: Bench) -> None:
    options = FelixOptions(policies={TOPIC: "disconnect"}, queue_events=5)
    client = Client(bench, options)
    client.open().ask(subscribe())
    client.events()
    recorder, _ = client.connection.opened[0]
    recorder.room = 0
    recorder.unread = 1
    for _ in range(6):
        bench.publish(TOPIC, b"x")
        client.events()
    assert recorder.reset_code == 2
    assert bench.broker.counters["felix"].refused["slow subscriber"] == 1


def test_a_slow_subscriber_gets_everything_by_default(bench: Bench) -> None:
    """Row 75, with the policy block: it is behind in the log, and delays nobody."""
    client = Client(bench)
    stream = client.open()
    stream.ask(subscribe())
    client.events()
    recorder, session = client.connection.opened[0]
    recorder.room, recorder.unread = 0, 1
    batch = encode_publish_batch("t", "n", "s", [bytes(1_000)] * 100)
    ok = message("publish_batch", **NAMES, payloads=[], ack="per_batch")
    for _ in range(20):
        assert frames(stream.ask(batch + ok)) == [{"type": "ok"}]
    assert client.events() == []
    recorder.room = None
    recorder.read_all()
    session.writable()
    assert sum(len(found["payloads"]) for found in client.events()) == 2_000


def test_streams_that_the_client_does_not_allow_yet_open_later(bench: Bench) -> None:
    client = Client(bench, allowed=0)
    client.open().ask(subscribe() * 2)
    bench.publish(TOPIC, b"from now on")
    assert client.connection.opened == []
    client.connection.allowed = 2
    client.session.streams_allowed()
    for number in range(2):
        hello, found = client.events(number)
        assert hello["type"] == "event_stream_hello"
        assert found == event(b"from now on")


def test_a_connection_has_so_many_subscriptions(bench: Bench) -> None:
    client = Client(bench, FelixOptions(max_subscriptions=1))
    first, second = frames(client.open().ask(subscribe() * 2))
    assert first["type"] == "ok"
    assert "felix.max_subscriptions = 1" in second["message"]
    client.connection.opened[0][1].closed()
    assert frames(client.open().ask(subscribe())) == [{"type": "ok"}]


def test_a_drain_waits_until_events_are_out(bench: Bench) -> None:
    """Row 97."""
    client = Client(bench)
    client.open().ask(subscribe())
    client.events()
    recorder, session = client.connection.opened[0]
    recorder.room, recorder.unread = 0, 1
    bench.publish(TOPIC, b"x")
    client.session.drain()
    session.drain()
    assert session.busy()
    recorder.room = None
    recorder.read_all()
    session.writable()
    assert not session.busy() and not client.session.busy()
    assert client.events() == [event(b"x")]


def test_a_stream_may_be_made_by_a_subscription(bench: Bench) -> None:
    client = Client(bench, FelixOptions(auto_create=True))
    assert frames(client.open().ask(subscribe(stream="new"))) == [{"type": "ok"}]
    assert bench.broker.topic("t/n/new") is not None
