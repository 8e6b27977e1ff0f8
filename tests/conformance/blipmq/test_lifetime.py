"""BlipMQ: how long subscriptions live, and what a restart leaves. Rows 78 and 79 of the table, over a
real socket."""

from pathlib import Path

import pytest
from conformance.blipmq.conftest import PATIENT, Clock, Connect, Start
from conformance.blipmq.peer import (
    UNKNOWN_TAG,
    BlipMQPeer,
    ack,
    message,
    poll,
    until,
    until_alone,
    until_queued,
)
from kit.live_server import LiveServer, ServerProcess

from penstock.server.config.loading import load_config
from penstock.server.protocols import BlipmqConfig

ORPHAN_TIME_US = 60_000_000


def subscriptions(server: LiveServer) -> int:
    return server.call(lambda: len(server.server.broker.subscriptions))


@pytest.mark.row("blipmq-78")
def test_a_subscription_outlives_its_connection(start: Start, connect: Connect, topic: str) -> None:
    server = start(PATIENT)
    first, other = connect(server).login(), connect(server).login()
    subscription = first.subscribe(topic)
    other.send(message(3, topic, b"before"))
    assert first.poll(subscription) == message(1, topic, b"before")
    first.socket.close()
    until_alone(server, 1)
    # It goes on collecting, and anybody may poll and acknowledge, also what another one was given.
    other.send(message(4, topic, b"after"))
    assert other.poll(subscription) == message(2, topic, b"after")
    other.send(ack(1, subscription) + ack(2, subscription))
    other.quiet()
    other.ask(ack(1, subscription), UNKNOWN_TAG.frame(1))


@pytest.mark.row("blipmq-78")
def test_a_lost_connection_does_not_hurry_a_repeat(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    """The retry clock goes on as if nothing had happened (protocol notes, section 2, question 13)."""
    server = start({})
    first, other = connect(server).login(), connect(server).login()
    subscription = first.subscribe(topic)
    first.send(message(3, topic, b"hi"))
    assert first.poll(subscription) == message(1, topic, b"hi")
    first.socket.close()
    until_alone(server, 1)
    clock.advance_us(99_999)
    assert other.poll_once(subscription) is None
    clock.advance_us(1)
    assert other.poll_once(subscription) == message(1, topic, b"hi")


@pytest.mark.row("blipmq-78")
def test_an_orphan_ends_after_a_minute(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    """On the reference server every subscription lives as long as the process, and fills its memory.
    Here one that nobody uses any more ends 60 s after its last connection is gone: what it held has
    passed its time to live by then (protocol notes, section 2, question 11)."""
    assert load_config(None, {}, {}).config.of(BlipmqConfig).orphan_time_us == ORPHAN_TIME_US
    server = start({})
    first, other = connect(server).login(), connect(server).login()
    orphan, kept = first.subscribe(topic), other.subscribe(topic)
    first.socket.close()
    until_alone(server, 1)
    clock.advance_us(ORPHAN_TIME_US - 1)
    server.call(server.server.broker.subscriptions.tick)
    assert subscriptions(server) == 2
    clock.advance_us(1)
    until(lambda: subscriptions(server) == 1, "the orphan is gone")
    assert server.server.broker.subscriptions.counters.orphans_expired == 1
    other.send(message(3, topic, b"hi"))
    assert other.poll(kept) == message(1, topic, b"hi")
    assert other.poll_once(orphan) is None
    other.ask(ack(1, orphan), UNKNOWN_TAG.frame(1))


@pytest.mark.row("blipmq-78")
@pytest.mark.parametrize("use", [poll, ack], ids=["POLL", "ACK"])
def test_whoever_uses_a_subscription_keeps_it(
    start: Start, connect: Connect, clock: Clock, topic: str, use: object
) -> None:
    server = start({})
    first, other = connect(server).login(), connect(server).login()
    subscription = first.subscribe(topic)
    first.socket.close()
    until_alone(server, 1)
    clock.advance_us(ORPHAN_TIME_US - 1)
    if use is poll:
        assert other.poll_once(subscription) is None
    else:
        other.ask(ack(1, subscription), UNKNOWN_TAG.frame(1))
    clock.advance_us(10 * ORPHAN_TIME_US)
    server.call(server.server.broker.subscriptions.tick)
    assert subscriptions(server) == 1
    # Until that connection is gone too.
    other.socket.close()
    until_alone(server)
    clock.advance_us(ORPHAN_TIME_US)
    until(lambda: subscriptions(server) == 0, "the orphan is gone")


def leave_backlog(server: LiveServer, peer: BlipMQPeer, topic: str) -> None:
    """Five messages: 1 never delivered twice, 2 acknowledged, 3 QoS0, 4 and 5 not even polled."""
    subscription = peer.subscribe(topic)
    for body, qos in ((b"one", 1), (b"two", 1), (b"three", 0), (b"four", 1), (b"five", 1)):
        peer.send(message(3, topic, body, qos))
    until_queued(server, subscription, 5)
    peer.ask(poll(7, subscription) * 2, message(1, topic, b"one"), message(2, topic, b"two"))
    peer.send(ack(2, subscription))
    peer.quiet()


@pytest.mark.row("blipmq-79")
def test_the_backlog_goes_to_the_first_qos1_subscriber_after_a_restart(
    start: Start, connect: Connect, topic: str
) -> None:
    """The reference server replays its log before anybody has subscribed, so everything is lost
    (protocol notes, section 2, question 19). Here what was never acknowledged is delivered again, to
    one subscriber, and what was acknowledged or QoS0 is not."""
    first = start(PATIENT)
    leave_backlog(first, connect(first).login(), topic)
    first.run(first.server.stop())

    server = start(PATIENT)
    peer = connect(server).login()
    at_most_once = peer.subscribe(topic, 0)
    heir, late = peer.subscribe(topic), peer.subscribe(topic)
    peer.send(message(4, topic, b"new"))
    until_queued(server, heir, 4)
    peer.ask(
        poll(7, heir) * 5,
        message(1, topic, b"one"),
        message(2, topic, b"four"),
        message(3, topic, b"five"),
        message(4, topic, b"new"),
    )
    assert peer.poll_once(late) == message(1, topic, b"new")
    assert peer.poll_once(at_most_once, 9) == message(9, topic, b"new", 0)
    for subscription in (heir, late, at_most_once):
        assert peer.poll_once(subscription) is None
    peer.send(b"".join(ack(tag, heir) for tag in (1, 2, 3, 4)) + ack(1, late))
    peer.quiet()
    server.run(server.server.stop())

    # All is acknowledged: the next restart brings nothing.
    third = start(PATIENT)
    peer = connect(third).login()
    subscription = peer.subscribe(topic)
    peer.send(message(5, topic, b"only this"))
    assert peer.poll(subscription) == message(1, topic, b"only this")


@pytest.mark.row("blipmq-79")
def test_the_backlog_can_be_switched_off(start: Start, connect: Connect, topic: str) -> None:
    first = start(PATIENT)
    leave_backlog(first, connect(first).login(), topic)
    first.run(first.server.stop())
    server = start({**PATIENT, "blipmq.replay": "none"})
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    peer.send(message(4, topic, b"new"))
    assert peer.poll(subscription) == message(1, topic, b"new")


@pytest.mark.row("blipmq-35", "blipmq-79")
def test_what_nobody_subscribed_to_is_not_owed_after_a_restart(
    start: Start, connect: Connect, topic: str
) -> None:
    """A message without subscribers stays in the log, for those who read the log; it is no backlog
    (protocol notes, section 2, question 20)."""
    first = start(PATIENT)
    peer = connect(first).login()
    peer.send(message(3, topic, b"nobody"))
    until(lambda: first.server.engine.topic(topic) is not None, "the topic is there")
    first.run(first.server.stop())
    server = start(PATIENT)
    assert server.call(lambda: server.server.engine.offsets(topic, 0)) == (0, 1)
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    peer.send(message(4, topic, b"new"))
    assert peer.poll(subscription) == message(1, topic, b"new")


@pytest.mark.row("blipmq-76", "blipmq-79")
def test_a_message_of_the_backlog_begins_a_new_life(
    start: Start, connect: Connect, clock: Clock, topic: str
) -> None:
    first = start({})
    peer = connect(first).login()
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"hi"))
    until_queued(first, subscription, 1)
    clock.advance_us(59_000_000)
    first.run(first.server.stop())
    server = start({})
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    until_queued(server, subscription, 1)
    clock.advance_us(60_000_000 - 1)
    assert peer.poll_once(subscription) == message(1, topic, b"hi")


@pytest.mark.row("blipmq-79")
def test_the_backlog_survives_a_kill(tmp_path: Path, topic: str) -> None:
    """SIGKILL, no goodbye: what was delivered was on disk before, so it is there afterwards."""
    with ServerProcess(tmp_path, PATIENT) as process, BlipMQPeer(process.ports["blipmq"]) as peer:
        peer.login()
        subscription = peer.subscribe(topic)
        peer.send(message(3, topic, b"one") + message(4, topic, b"two"))
        assert peer.poll(subscription) == message(1, topic, b"one")
        process.kill()
        assert peer.at_end()
    with LiveServer(tmp_path, PATIENT) as server, BlipMQPeer(server.port("blipmq")) as peer:
        peer.login()
        subscription = peer.subscribe(topic)
        assert peer.poll(subscription) == message(1, topic, b"one")
        assert peer.poll(subscription) == message(2, topic, b"two")
