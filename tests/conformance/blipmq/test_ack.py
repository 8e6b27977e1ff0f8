"""BlipMQ: ACK. Rows 64 to 72 of the table, over a real socket."""

import pytest
from conformance.blipmq.conftest import Clock, Connect, Exchange, Start
from conformance.blipmq.peer import (
    ACK,
    ALL_ONES,
    INVALID_ACK,
    UNKNOWN_TAG,
    ZERO_SUBSCRIPTION,
    BlipMQPeer,
    ack,
    frame,
    message,
    poll,
    until_queued,
    x,
)
from kit.live_server import LiveServer


def delivered(server: LiveServer, peer: BlipMQPeer, topic: str, number: int) -> int:
    """A subscription with so many messages in flight, tags 1 and up."""
    subscription = peer.subscribe(topic)
    peer.send(b"".join(message(3, topic, b"%d" % n) for n in range(1, number + 1)))
    until_queued(server, subscription, number)
    for tag in range(1, number + 1):
        assert peer.poll_once(subscription) == message(tag, topic, b"%d" % tag)
    return subscription


@pytest.mark.row("blipmq-64")
@pytest.mark.parametrize("payload", ["", "00", "00000000000001", "000000000000000100", "00" * 16])
def test_a_malformed_ack(peer: BlipMQPeer, payload: str, exchange: Exchange) -> None:
    exchange(peer, frame(ACK, 7, x(payload)), INVALID_ACK.frame(7))


@pytest.mark.row("blipmq-65")
def test_subscription_zero(peer: BlipMQPeer, exchange: Exchange) -> None:
    exchange(peer, x("00000011 05 0000000000000007 0000000000000000"), ZERO_SUBSCRIPTION.frame(7))


@pytest.mark.row("blipmq-66")
def test_an_ack_is_not_answered(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, exchange: Exchange
) -> None:
    subscription = delivered(blipmq, peer, topic, 1)
    exchange(peer, ack(1, subscription))


@pytest.mark.row("blipmq-67")
def test_a_second_ack_is_unknown(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, exchange: Exchange
) -> None:
    subscription = delivered(blipmq, peer, topic, 1)
    twice = ack(1, subscription) + ack(1, subscription)
    exchange(peer, twice, UNKNOWN_TAG.frame(1))
    exchange(peer, ack(1, subscription), UNKNOWN_TAG.frame(1))


@pytest.mark.row("blipmq-68")
@pytest.mark.parametrize("subscription", [999_999, 0x8000_0000_0000_0000, ALL_ONES], ids=hex)
def test_an_unknown_subscription(peer: BlipMQPeer, subscription: int, exchange: Exchange) -> None:
    exchange(peer, ack(1, subscription), UNKNOWN_TAG.frame(1))


@pytest.mark.row("blipmq-68")
@pytest.mark.parametrize("tag", [0, 2, 3, 0x7FFF_FFFF_FFFF_FFFF, ALL_ONES], ids=hex)
def test_a_tag_that_was_never_given(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, tag: int, exchange: Exchange
) -> None:
    subscription = delivered(blipmq, peer, topic, 1)
    exchange(peer, ack(tag, subscription), UNKNOWN_TAG.frame(tag))
    peer.send(ack(1, subscription))
    peer.quiet()


@pytest.mark.row("blipmq-68")
@pytest.mark.parametrize(("published", "subscribed"), [(0, 0), (0, 1), (1, 0)])
def test_the_tag_of_a_qos0_delivery(
    peer: BlipMQPeer, topic: str, published: int, subscribed: int, exchange: Exchange
) -> None:
    subscription = peer.subscribe(topic, subscribed)
    peer.send(message(3, topic, b"hi", published))
    assert peer.poll(subscription, 77) == message(77, topic, b"hi", 0)
    for tag in (1, 77):
        exchange(peer, ack(tag, subscription), UNKNOWN_TAG.frame(tag))


@pytest.mark.row("blipmq-68")
def test_a_tag_that_is_still_queued(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, exchange: Exchange
) -> None:
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"hi"))
    until_queued(blipmq, subscription, 1)
    exchange(peer, ack(1, subscription), UNKNOWN_TAG.frame(1))
    assert peer.poll_once(subscription) == message(1, topic, b"hi")
    exchange(peer, ack(1, subscription))


@pytest.mark.row("blipmq-68")
def test_a_range_of_acks_of_which_some_are_known(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, exchange: Exchange
) -> None:
    """Known and unknown tags in one run: each unknown one is answered, in order."""
    subscription = delivered(blipmq, peer, topic, 3)
    peer.send(ack(2, subscription))
    acks = b"".join(ack(tag, subscription) for tag in range(1, 6))
    exchange(peer, acks, *(UNKNOWN_TAG.frame(tag) for tag in (2, 4, 5)))


@pytest.mark.row("blipmq-69")
def test_a_late_ack_settles_what_waits_to_be_repeated(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    """The reference server answers 404 and delivers the message again. Here an ACK counts as long as
    its tag is known: the copy in the queue is taken back, and nothing is sent (protocol notes,
    section 2, question 12)."""
    server = start({})
    peer = connect(server).login()
    subscription = delivered(server, peer, topic, 2)
    clock.advance_ms(100)
    until_queued(server, subscription, 2)
    peer.send(ack(1, subscription))
    peer.quiet()
    assert peer.poll_once(subscription) == message(2, topic, b"2")
    assert peer.poll_once(subscription) is None
    peer.ask(ack(1, subscription), UNKNOWN_TAG.frame(1))


@pytest.mark.row("blipmq-70")
def test_a_repeat_has_its_old_tag_and_needs_one_ack(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    server = start({})
    peer = connect(server).login()
    subscription = delivered(server, peer, topic, 1)
    clock.advance_ms(100)
    assert peer.poll_once(subscription) == message(1, topic, b"1")
    peer.send(ack(1, subscription))
    peer.quiet()
    clock.advance_ms(10_000)
    assert peer.poll_once(subscription) is None
    peer.ask(ack(1, subscription), UNKNOWN_TAG.frame(1))


@pytest.mark.row("blipmq-71")
def test_any_connection_may_acknowledge(
    blipmq: LiveServer, peer: BlipMQPeer, other: BlipMQPeer, topic: str
) -> None:
    subscription = delivered(blipmq, peer, topic, 1)
    other.send(ack(1, subscription))
    other.quiet()
    peer.ask(ack(1, subscription), UNKNOWN_TAG.frame(1))


@pytest.mark.row("blipmq-72")
def test_acks_in_any_order_settle_one_message_each(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    server = start({})
    peer = connect(server).login()
    subscription = delivered(server, peer, topic, 5)
    peer.send(ack(4, subscription) + ack(2, subscription) + ack(5, subscription))
    peer.quiet()
    clock.advance_ms(100)
    peer.ask(
        poll(7, subscription) * 5,
        message(1, topic, b"1"),
        message(3, topic, b"3"),
    )
    peer.quiet()
