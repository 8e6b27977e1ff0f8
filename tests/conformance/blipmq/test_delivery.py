"""BlipMQ: POLL and deliveries. Rows 49 to 63 of the table, over a real socket."""

import pytest
from conformance.blipmq.conftest import PATIENT, Connect, Exchange, Start
from conformance.blipmq.peer import (
    ALL_ONES,
    INVALID_POLL,
    POLL,
    ZERO_SUBSCRIPTION,
    BlipMQPeer,
    ack,
    frame,
    message,
    ping,
    poll,
    pong,
    until_dropped,
    until_queued,
    x,
)
from kit.live_server import LiveServer


@pytest.mark.row("blipmq-49")
@pytest.mark.parametrize("payload", ["", "00", "00000000000001", "000000000000000100", "00" * 16])
def test_a_malformed_poll(peer: BlipMQPeer, payload: str, exchange: Exchange) -> None:
    exchange(peer, frame(POLL, 7, x(payload)), INVALID_POLL.frame(7))


@pytest.mark.row("blipmq-50")
def test_subscription_zero(peer: BlipMQPeer, exchange: Exchange) -> None:
    exchange(peer, x("00000011 09 0000000000000007 0000000000000000"), ZERO_SUBSCRIPTION.frame(7))


@pytest.mark.row("blipmq-51")
@pytest.mark.parametrize("subscription", [999_999, 0x8000_0000_0000_0000, ALL_ONES], ids=hex)
def test_an_unknown_subscription_is_met_with_silence(
    peer: BlipMQPeer, subscription: int, exchange: Exchange
) -> None:
    exchange(peer, poll(7, subscription))


@pytest.mark.row("blipmq-52")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_poll_of_an_empty_queue_is_forgotten(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, qos: int, exchange: Exchange
) -> None:
    subscription = peer.subscribe(topic, qos)
    exchange(peer, poll(7, subscription))
    peer.send(message(3, topic, b"hi", qos))
    until_queued(blipmq, subscription, 1)
    peer.quiet()
    assert peer.poll_once(subscription, 8) == message(1 if qos else 8, topic, b"hi", qos)


@pytest.mark.row("blipmq-53")
@pytest.mark.parametrize("qos", [0, 1])
def test_one_poll_brings_one_message(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, qos: int, exchange: Exchange
) -> None:
    subscription = peer.subscribe(topic, qos)
    peer.send(message(3, topic, b"one", qos) + message(4, topic, b"two", qos))
    until_queued(blipmq, subscription, 2)
    exchange(peer, poll(7, subscription), message(1 if qos else 7, topic, b"one", qos))
    exchange(peer, poll(8, subscription), message(2 if qos else 8, topic, b"two", qos))
    exchange(peer, poll(9, subscription))


@pytest.mark.row("blipmq-54")
@pytest.mark.parametrize(
    ("published", "subscribed", "effective"), [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1)]
)
def test_the_lower_qos_counts(
    peer: BlipMQPeer, topic: str, published: int, subscribed: int, effective: int
) -> None:
    subscription = peer.subscribe(topic, subscribed)
    peer.send(message(3, topic, b"hi", published))
    cid = 1 if effective else 9
    assert peer.poll(subscription, 9) == message(cid, topic, b"hi", effective)


@pytest.mark.row("blipmq-55")
@pytest.mark.parametrize(("published", "subscribed"), [(0, 0), (0, 1), (1, 0)])
def test_qos0_is_gone_with_its_delivery(
    start: Start, connect: Connect, topic: str, published: int, subscribed: int
) -> None:
    """Nothing is in flight, so nothing can come again: neither now nor after any deadline."""
    server = start({"blipmq.retry_backoff": "1 ms"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic, subscribed)
    peer.send(message(3, topic, b"one", published) + message(4, topic, b"two", published))
    assert peer.poll(subscription, 77) == message(77, topic, b"one", 0)
    assert peer.poll(subscription, 78) == message(78, topic, b"two", 0)
    found = server.call(server.server.broker.subscriptions.all)[0]
    assert (found.inflight_messages, found.queued_messages) == (0, 0)
    assert peer.poll_once(subscription) is None


@pytest.mark.row("blipmq-56")
def test_qos1_carries_its_tag(peer: BlipMQPeer, topic: str) -> None:
    subscription = peer.subscribe(topic)
    peer.send(message(0xAAAA, topic, b"hi"))
    assert peer.poll(subscription, 0xBBBB)[5:13] == x("0000000000000001")


@pytest.mark.row("blipmq-57")
def test_tags_count_every_message_of_a_subscription(peer: BlipMQPeer, topic: str) -> None:
    first, second = peer.subscribe(topic), peer.subscribe(topic)
    for body, qos in ((b"a", 1), (b"b", 0), (b"c", 0), (b"d", 1)):
        peer.send(message(3, topic, body, qos))
    for subscription in (first, second):
        assert peer.poll(subscription, 70) == message(1, topic, b"a")
        assert peer.poll(subscription, 71) == message(71, topic, b"b", 0)
        assert peer.poll(subscription, 72) == message(72, topic, b"c", 0)
        assert peer.poll(subscription, 73) == message(4, topic, b"d")
    peer.send(ack(4, first) + ack(1, second))
    peer.quiet()


@pytest.mark.row("blipmq-57", "blipmq-77")
def test_dropped_messages_keep_their_tags(start: Start, connect: Connect, topic: str) -> None:
    server = start({**PATIENT, "blipmq.capacity_messages": "2"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    for number in range(1, 6):
        peer.send(message(number, topic, b"%d" % number))
    # The last two of five are left, whatever arrived together.
    until_dropped(server, 3)
    assert peer.poll(subscription) == message(4, topic, b"4")
    assert peer.poll(subscription) == message(5, topic, b"5")
    assert peer.poll_once(subscription) is None


@pytest.mark.row("blipmq-58")
@pytest.mark.parametrize("qos", [0, 1])
def test_first_deliveries_come_in_order(peer: BlipMQPeer, topic: str, qos: int) -> None:
    subscription = peer.subscribe(topic, qos)
    bodies = [b"%04d" % number for number in range(500)]
    peer.send(b"".join(message(3, topic, body, qos) for body in bodies))
    prefix = 13 + 3 + len(topic)
    assert peer.poll_bodies(subscription, 500, prefix) == bodies


@pytest.mark.row("blipmq-58")
def test_order_holds_across_qos_and_connections_of_one_publisher(
    peer: BlipMQPeer, other: BlipMQPeer, topic: str
) -> None:
    subscription = other.subscribe(topic)
    numbers = range(100)
    peer.send(b"".join(message(3, topic, b"%02d" % n, n % 3 == 0) for n in numbers))
    prefix = 13 + 3 + len(topic)
    assert other.poll_bodies(subscription, 100, prefix) == [b"%02d" % n for n in numbers]


@pytest.mark.row("blipmq-59")
@pytest.mark.parametrize("name", ["plain", "Ünïcödé/🙂"])
def test_a_delivery_names_the_topic_of_the_subscription(
    peer: BlipMQPeer, topic: str, name: str
) -> None:
    subscription = peer.subscribe(topic + name)
    peer.send(message(3, topic + name, b"hi"))
    raw = (topic + name).encode()
    delivery = peer.poll(subscription)
    assert delivery[13:16] == b"\x01" + len(raw).to_bytes(2, "big")
    assert delivery[16:] == raw + b"hi"


@pytest.mark.row("blipmq-60")
def test_any_connection_may_poll(peer: BlipMQPeer, other: BlipMQPeer, topic: str) -> None:
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"hi"))
    assert other.poll(subscription) == message(1, topic, b"hi")
    assert peer.poll_once(subscription) is None


@pytest.mark.row("blipmq-60")
def test_polling_can_be_left_to_the_key_that_subscribed(start: Start, connect: Connect) -> None:
    """A choice that the reference server has not (protocol notes, section 2, question 10)."""
    server = start({**PATIENT, "blipmq.subscription_owner": "key"})
    access = server.server.broker.access
    owner = connect(server).login(access.create_key("owner", "user"))
    thief = connect(server).login(access.create_key("thief", "user"))
    subscription = owner.subscribe("demo")
    owner.send(message(3, "demo", b"hi"))
    until_queued(server, subscription, 1)
    assert thief.poll_once(subscription) is None
    assert owner.poll_once(subscription) == message(1, "demo", b"hi")


@pytest.mark.row("blipmq-61")
@pytest.mark.parametrize("qos", [0, 1])
def test_more_polls_than_messages(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, qos: int, exchange: Exchange
) -> None:
    subscription = peer.subscribe(topic, qos)
    peer.send(b"".join(message(3, topic, b"%d" % number, qos) for number in range(3)))
    until_queued(blipmq, subscription, 3)
    polls = b"".join(poll(70 + number, subscription) for number in range(10))
    first = 1 if qos else 70
    exchange(peer, polls, *(message(first + n, topic, b"%d" % n, qos) for n in range(3)))


@pytest.mark.row("blipmq-61")
def test_polls_of_several_subscriptions_are_answered_in_order(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str
) -> None:
    one, two = peer.subscribe(topic), peer.subscribe(topic, 0)
    peer.send(message(3, topic, b"a") + message(4, topic, b"b"))
    until_queued(blipmq, two, 2)
    peer.ask(
        poll(1, two) + poll(2, one) + ping(3) + poll(4, two) + poll(5, one) + poll(6, one),
        message(1, topic, b"a", 0),
        message(1, topic, b"a"),
        pong(3),
        message(4, topic, b"b", 0),
        message(2, topic, b"b"),
    )
    peer.quiet()


@pytest.mark.row("blipmq-62")
@pytest.mark.parametrize("qos", [0, 1])
def test_two_connections_compete(
    blipmq: LiveServer, peer: BlipMQPeer, other: BlipMQPeer, topic: str, qos: int
) -> None:
    subscription = peer.subscribe(topic, qos)
    bodies = [b"%03d" % number for number in range(200)]
    peer.send(b"".join(message(3, topic, body, qos) for body in bodies))
    until_queued(blipmq, subscription, 200)
    shares: dict[BlipMQPeer, list[bytes]] = {peer: [], other: []}
    for _ in range(10):
        for one in shares:
            one.send(b"".join(poll(5, subscription) for _ in range(10)))
    for one, share in shares.items():
        share += [one.frame()[-3:] for _ in range(100)]
        one.quiet()
    assert sorted(shares[peer] + shares[other]) == bodies
    assert all(share == sorted(share) for share in shares.values())


@pytest.mark.row("blipmq-63")
def test_every_subscription_of_a_topic_gets_every_message(
    blipmq: LiveServer, peer: BlipMQPeer, other: BlipMQPeer, topic: str
) -> None:
    """Two publishers: each one's order is kept. Penstock has one log, so all subscriptions see the
    same order; the reference server leaves it open."""
    subscriptions = [peer.subscribe(topic, number % 2) for number in range(4)]
    bystander = peer.subscribe(topic + "-other")
    for number in range(20):
        peer.send(message(3, topic, b"p%02d" % number))
        other.send(message(3, topic, b"o%02d" % number))
    prefix = 13 + 3 + len(topic)
    seen = [peer.poll_bodies(subscription, 40, prefix) for subscription in subscriptions]
    assert all(one == seen[0] for one in seen)
    assert [body for body in seen[0] if body[:1] == b"p"] == [b"p%02d" % n for n in range(20)]
    assert [body for body in seen[0] if body[:1] == b"o"] == [b"o%02d" % n for n in range(20)]
    assert peer.poll_once(bystander) is None
