"""BlipMQ: repeats, time to live, capacity. Rows 73 to 77 of the table, over a real socket.

The time of the server is the test's: every deadline is met to the microsecond, and nothing waits.
"""

import pytest
from conformance.blipmq.conftest import Clock, Connect, Start
from conformance.blipmq.peer import (
    UNKNOWN_TAG,
    BlipMQPeer,
    ack,
    message,
    poll,
    subscribe,
    until_dropped,
    until_queued,
)
from kit.live_server import LiveServer

from penstock.server.config.errors import BadValue
from penstock.server.config.loading import load_config
from penstock.server.protocols import BlipmqConfig

SECOND_MS = 1000


def in_flight(server: LiveServer, peer: BlipMQPeer, topic: str, body: bytes = b"hi") -> int:
    """A subscription whose only message, tag 1, was just delivered for the first time."""
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, body))
    until_queued(server, subscription, 1)
    assert peer.poll_once(subscription) == message(1, topic, body)
    return subscription


def comes_after(
    peer: BlipMQPeer, clock: Clock, subscription: int, wait_ms: int, delivery: bytes
) -> None:
    """Not a microsecond before the wait is over, and then at once: there is no tick to wait for."""
    clock.advance_us(1000 * wait_ms - 1)
    assert peer.poll_once(subscription) is None
    clock.advance_us(1)
    assert peer.poll_once(subscription) == delivery


@pytest.mark.row("blipmq-73")
def test_the_wait_doubles_with_each_delivery(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    """100, 200, 400 ms. The reference server looks every 200 ms, so a repeat may be that much late
    there; here a POLL looks itself (protocol notes, section 2, question 14)."""
    assert load_config(None, {}, {}).config.of(BlipmqConfig).retry_backoff_us == 100_000
    server = start({"blipmq.max_deliveries": "5"})
    peer = connect(server).login()
    subscription = in_flight(server, peer, topic)
    for wait_ms in (100, 200, 400, 800):
        comes_after(peer, clock, subscription, wait_ms, message(1, topic, b"hi"))
    peer.send(ack(1, subscription))
    peer.quiet()


@pytest.mark.row("blipmq-73")
def test_the_wait_can_be_chosen(start: Start, connect: Connect, clock: Clock, topic: str) -> None:
    server = start({"blipmq.retry_backoff": "7 s"})
    peer = connect(server).login()
    subscription = in_flight(server, peer, topic)
    comes_after(peer, clock, subscription, 7 * SECOND_MS, message(1, topic, b"hi"))
    comes_after(peer, clock, subscription, 14 * SECOND_MS, message(1, topic, b"hi"))


@pytest.mark.row("blipmq-73")
def test_repeats_in_real_time(start: Start, connect: Connect, topic: str) -> None:
    """With the clock of the machine: the same bytes three times, and then the dead letter."""
    server = start({"blipmq.retry_backoff": "5 ms"})
    peer = connect(server).login()
    dead = peer.subscribe(topic + ".dlq")
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"hi"))
    for _ in range(3):
        assert peer.poll(subscription) == message(1, topic, b"hi")
    assert peer.poll(dead) == message(1, topic + ".dlq", b"hi")


@pytest.mark.row("blipmq-74")
def test_three_deliveries_then_a_dead_letter(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    """`max_deliveries` counts deliveries, as there: the first and two repeats. There the message then
    vanishes; here it goes to `<topic>.dlq`. Its tag is forgotten in both."""
    assert load_config(None, {}, {}).config.of(BlipmqConfig).max_deliveries == 3
    server = start({})
    peer = connect(server).login()
    dead = peer.subscribe(topic + ".dlq")
    subscription = in_flight(server, peer, topic)
    comes_after(peer, clock, subscription, 100, message(1, topic, b"hi"))
    comes_after(peer, clock, subscription, 200, message(1, topic, b"hi"))
    clock.advance_us(399_999)
    assert peer.poll_once(dead) is None
    clock.advance_us(1)
    assert peer.poll_once(subscription) is None
    peer.ask(ack(1, subscription), UNKNOWN_TAG.frame(1))
    assert peer.poll(dead) == message(1, topic + ".dlq", b"hi")
    clock.advance_ms(10 * SECOND_MS)
    assert peer.poll_once(subscription) is None
    # What no BlipMQ frame can carry stands in the headers of the record.
    engine = server.server.engine
    letter = server.call(lambda: engine.read(topic + ".dlq", 0, 0, 1024)).result().views[0]
    assert letter.headers(letter.first_row) == [
        (b"penstock-reason", b"max deliveries reached"),
        (b"penstock-topic", topic.encode()),
        (b"penstock-partition", b"0"),
        (b"penstock-deliveries", b"3"),
        (b"penstock-protocol", b"blipmq"),
        (b"penstock-offset", b"0"),
    ]


@pytest.mark.row("blipmq-74")
def test_nobody_needs_to_poll_for_a_dead_letter(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    """The server looks by itself too."""
    server = start({"blipmq.max_deliveries": "1"})
    peer = connect(server).login()
    dead = peer.subscribe(topic + ".dlq")
    in_flight(server, peer, topic)
    clock.advance_ms(100)
    until_queued(server, dead, 1)
    assert peer.poll_once(dead) == message(1, topic + ".dlq", b"hi")


@pytest.mark.row("blipmq-74")
def test_one_delivery_means_one_delivery(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    """There 0 means 1 as well; here 0 is refused in the configuration, with what is expected."""
    server = start({"blipmq.max_deliveries": "1"})
    peer = connect(server).login()
    subscription = in_flight(server, peer, topic)
    clock.advance_ms(100)
    assert peer.poll_once(subscription) is None
    peer.ask(ack(1, subscription), UNKNOWN_TAG.frame(1))
    with pytest.raises(BadValue, match="expected a whole number from 1 up"):
        load_config(None, {}, {"blipmq.max_deliveries": "0"})


@pytest.mark.row("blipmq-74")
def test_an_ack_in_time_stops_the_count(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    server = start({})
    peer = connect(server).login()
    dead = peer.subscribe(topic + ".dlq")
    subscription = in_flight(server, peer, topic)
    comes_after(peer, clock, subscription, 100, message(1, topic, b"hi"))
    comes_after(peer, clock, subscription, 200, message(1, topic, b"hi"))
    clock.advance_us(399_999)
    peer.send(ack(1, subscription))
    peer.quiet()
    clock.advance_ms(SECOND_MS)
    assert peer.poll_once(subscription) is None
    assert peer.poll_once(dead) is None


@pytest.mark.row("blipmq-75")
def test_a_repeat_goes_behind_newer_messages(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    server = start({})
    peer = connect(server).login()
    subscription = in_flight(server, peer, topic, b"old")
    peer.send(message(4, topic, b"new") + message(5, topic, b"newer"))
    until_queued(server, subscription, 2)
    clock.advance_ms(100)
    peer.ask(
        poll(6, subscription) * 4,
        message(2, topic, b"new"),
        message(3, topic, b"newer"),
        message(1, topic, b"old"),
    )
    peer.quiet()
    # What is published now is behind the repeats that are due.
    clock.advance_ms(100)
    until_queued(server, subscription, 2)
    peer.send(message(7, topic, b"newest"))
    until_queued(server, subscription, 3)
    peer.ask(
        poll(8, subscription) * 4,
        message(2, topic, b"new"),
        message(3, topic, b"newer"),
        message(4, topic, b"newest"),
    )
    peer.quiet()


@pytest.mark.row("blipmq-76")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_queued_message_lives_for_60_seconds(
    start: Start, connect: Connect, clock: Clock, topic: str, qos: int
) -> None:
    """To the microsecond where the reference server is up to 200 ms late."""
    assert load_config(None, {}, {}).config.of(BlipmqConfig).message_ttl_us == 60_000_000
    server = start({})
    peer = connect(server).login()
    early, late = peer.subscribe(topic, qos), peer.subscribe(topic, qos)
    peer.send(message(3, topic, b"hi", qos))
    until_queued(server, late, 1)
    clock.advance_us(60_000_000 - 1)
    assert peer.poll_once(early, 9) == message(1 if qos else 9, topic, b"hi", qos)
    clock.advance_us(1)
    assert peer.poll_once(late) is None
    assert server.server.broker.subscriptions.counters.expired == 1
    # The tag is used up all the same.
    peer.send(message(4, topic, b"next", qos))
    assert peer.poll(late, 9) == message(2 if qos else 9, topic, b"next", qos)


@pytest.mark.row("blipmq-76")
def test_a_message_in_flight_is_not_repeated_after_its_time(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    server = start({})
    peer = connect(server).login()
    dead = peer.subscribe(topic + ".dlq")
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"hi"))
    until_queued(server, subscription, 1)
    clock.advance_ms(60 * SECOND_MS - 50)
    assert peer.poll_once(subscription) == message(1, topic, b"hi")
    clock.advance_ms(100)
    assert peer.poll_once(subscription) is None
    peer.ask(ack(1, subscription), UNKNOWN_TAG.frame(1))
    assert peer.poll_once(dead) is None


@pytest.mark.row("blipmq-76")
def test_old_messages_go_without_a_poll(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    server = start({"blipmq.message_ttl": "2 s"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"hi"))
    until_queued(server, subscription, 1)
    clock.advance_ms(2 * SECOND_MS)
    until_queued(server, subscription, 0)


@pytest.mark.row("blipmq-76")
def test_the_time_to_live_can_be_switched_off(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    """0 means none, a choice that the reference server has not (protocol notes, question 15)."""
    server = start({"blipmq.message_ttl": "0"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"hi"))
    until_queued(server, subscription, 1)
    clock.advance_ms(1000 * 3600 * SECOND_MS)
    assert peer.poll_once(subscription) == message(1, topic, b"hi")


@pytest.mark.row("blipmq-77")
def test_the_reference_profile_holds_1024_messages(
    start: Start, connect: Connect, topic: str
) -> None:
    """1,025 QoS0 publishes, no POLL: the first POLL brings number 2. The publisher is not told, and in
    this profile nobody counts."""
    server = start({"blipmq.profile": "reference"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic, 0)
    peer.send(b"".join(message(3, topic, b"%d" % n, 0) for n in range(1, 1026)))
    peer.send(poll(7, subscription))
    peer.expect(message(7, topic, b"2", 0))
    peer.quiet()
    until_queued(server, subscription, 1023)
    peer.ask(
        poll(8, subscription) * 1024,
        *(message(8, topic, b"%d" % number, 0) for number in range(3, 1026)),
    )
    peer.quiet()
    assert server.server.broker.subscriptions.counters.dropped_capacity == 0


@pytest.mark.row("blipmq-77")
def test_the_defaults_are_larger_and_drops_are_counted(
    start: Start, connect: Connect, topic: str
) -> None:
    """65,536 messages and 64 MiB, because clients of the reference server hang at 1,024 (protocol
    notes, question 16)."""
    chosen = load_config(None, {}, {}).config.of(BlipmqConfig)
    assert (chosen.capacity_messages, chosen.capacity_bytes) == (65_536, 64 * 1024 * 1024)
    assert chosen.drops == "counted"
    reference = load_config(None, {}, {"blipmq.profile": "reference"}).config.of(BlipmqConfig)
    assert (reference.capacity_messages, reference.drops) == (1_024, "silent")

    server = start({})
    peer = connect(server).login()
    subscription = peer.subscribe(topic, 0)
    number = 65_536
    one = message(3, topic, b"x", 0)
    peer.send(message(3, topic, b"first", 0) + one * number)
    until_queued(server, subscription, number)
    until_dropped(server, 1)
    assert peer.poll_once(subscription, 9) == message(9, topic, b"x", 0)
    peer.quiet()


@pytest.mark.row("blipmq-77")
def test_the_oldest_queued_message_goes_first(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    server = start({"blipmq.capacity_messages": "3"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    for number in range(1, 4):
        peer.send(message(3, topic, b"%d" % number))
        until_queued(server, subscription, number)
    # One is in flight and counts: two more push out the two oldest that are queued.
    assert peer.poll_once(subscription) == message(1, topic, b"1")
    for number in (4, 5):
        peer.send(message(3, topic, b"%d" % number))
        until_dropped(server, number - 3)
    peer.ask(poll(7, subscription) * 3, message(4, topic, b"4"), message(5, topic, b"5"))
    peer.quiet()
    peer.send(b"".join(ack(tag, subscription) for tag in (1, 4, 5)))
    peer.quiet()


@pytest.mark.row("blipmq-77")
def test_a_newcomer_is_kept_when_all_others_are_in_flight(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    server = start({"blipmq.capacity_messages": "2"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    for number in (1, 2):
        peer.send(message(3, topic, b"%d" % number))
        assert peer.poll(subscription) == message(number, topic, b"%d" % number)
    peer.send(message(3, topic, b"3"))
    assert peer.poll(subscription) == message(3, topic, b"3")
    assert server.server.broker.subscriptions.counters.dropped_capacity == 0


@pytest.mark.row("blipmq-77")
def test_bytes_count_too(start: Start, connect: Connect, clock: Clock, topic: str) -> None:
    """The reference server counts messages only."""
    server = start({"blipmq.capacity_bytes": "10 KiB", "log.record_bytes": "8 KiB"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    bodies = [bytes([number]) * 4096 for number in range(1, 5)]
    for number, body in enumerate(bodies):
        peer.send(message(3, topic, body))
        until_queued(server, subscription, min(number + 1, 2))
    until_dropped(server, 2)
    assert peer.poll_once(subscription) == message(3, topic, bodies[2])
    assert peer.poll_once(subscription) == message(4, topic, bodies[3])
    assert peer.poll_once(subscription) is None


@pytest.mark.row("blipmq-77")
def test_one_slow_subscription_does_not_cost_another(
    start: Start, connect: Connect, topic: str
) -> None:
    server = start({"blipmq.capacity_messages": "2"})
    peer = connect(server).login()
    peer.ask(subscribe(3, topic, 0), ack(3, 1))
    quick = peer.subscribe(topic, 0)
    for number in range(5):
        peer.send(message(3, topic, b"%d" % number, 0))
        assert peer.poll(quick, 8) == message(8, topic, b"%d" % number, 0)
