"""BlipMQ: PUBLISH. Rows 28 to 39 of the table, over a real socket."""

import errno
import os
import threading
from collections.abc import Callable

import pytest
from conformance.blipmq.conftest import PATIENT, Connect, Disk, Exchange, Start
from conformance.blipmq.peer import (
    EMPTY_TOPIC,
    INVALID_PUBLISH,
    INVALID_QOS,
    PUBLISH,
    ZERO_SUBSCRIPTION,
    BlipMQPeer,
    ack,
    frame,
    message,
    nack,
    ping,
    poll,
    pong,
    u16,
    until,
    until_queued,
    write_failed,
    x,
)
from kit.live_server import LiveServer

from penstock.log.partitions import appending

SHUTTING_DOWN = "log corruption: write-ahead log not available: broker shutting down"
DiskOf = Callable[[LiveServer], Disk]


def stored(server: LiveServer, topic: str) -> int:
    """Records that readers of the log can see; 0 without a topic."""
    engine = server.server.engine
    if engine.topic(topic) is None:
        return 0
    return server.call(lambda: engine.offsets(topic, 0)[1])


@pytest.mark.row("blipmq-28")
@pytest.mark.parametrize(
    "payload",
    [
        "",
        "01",
        "0100",
        "01 0005 64656D6F",  # topic one byte longer than the payload
        "01 FFFF 64656D6F",
        "01 0002 C328 6869",  # not UTF-8
        "01 0001 80 6869",
        "00 0003 EDA080 6869",  # half a surrogate pair
        "07 0002 C328 6869",  # and a bad QoS: the layout is checked first
        "07 0009 6869",
    ],
)
def test_a_malformed_publish(peer: BlipMQPeer, payload: str, exchange: Exchange) -> None:
    exchange(peer, frame(PUBLISH, 7, x(payload)), INVALID_PUBLISH.frame(7))


@pytest.mark.row("blipmq-29")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("body", [b"", b"hi"])
def test_an_empty_topic(peer: BlipMQPeer, qos: int, body: bytes, exchange: Exchange) -> None:
    exchange(peer, frame(PUBLISH, 7, bytes([qos]) + x("0000") + body), EMPTY_TOPIC.frame(7))


@pytest.mark.row("blipmq-30")
@pytest.mark.parametrize("qos", [2, 7, 255])
def test_an_empty_topic_is_seen_before_a_bad_qos(
    peer: BlipMQPeer, qos: int, exchange: Exchange
) -> None:
    exchange(peer, frame(PUBLISH, 7, bytes([qos]) + x("0000 6869")), EMPTY_TOPIC.frame(7))


@pytest.mark.row("blipmq-31")
@pytest.mark.parametrize("qos", [2, 3, 7, 128, 129, 255])
def test_a_bad_qos(peer: BlipMQPeer, topic: str, qos: int, exchange: Exchange) -> None:
    exchange(peer, message(7, topic, b"hi", qos), INVALID_QOS.frame(7))


@pytest.mark.row("blipmq-31")
def test_a_refused_publish_does_not_disturb_those_around_it(
    peer: BlipMQPeer, other: BlipMQPeer, topic: str
) -> None:
    subscription = other.subscribe(topic)
    parts = message(3, topic, b"one") + message(4, topic, b"bad", 2) + message(5, topic, b"two")
    peer.ask(parts, INVALID_QOS.frame(4))
    assert other.poll(subscription) == message(1, topic, b"one")
    assert other.poll(subscription) == message(2, topic, b"two")
    peer.quiet()


@pytest.mark.row("blipmq-32")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_valid_publish_is_never_answered(
    peer: BlipMQPeer, other: BlipMQPeer, topic: str, qos: int, exchange: Exchange
) -> None:
    """Not even when the message is on disk, delivered and acknowledged; its correlation id is
    forgotten."""
    subscription = other.subscribe(topic)
    exchange(peer, message(0x1234_5678, topic, b"hi", qos))
    cid = 1 if qos else 9
    assert other.poll(subscription, 9) == message(cid, topic, b"hi", qos)
    if qos:
        other.send(ack(1, subscription))
    other.quiet()
    peer.quiet()


@pytest.mark.row("blipmq-33")
@pytest.mark.parametrize("qos", [0, 1])
def test_an_empty_body_is_delivered(peer: BlipMQPeer, topic: str, qos: int) -> None:
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"", qos) + message(4, topic, b"after", qos))
    assert peer.poll(subscription, 1) == message(1, topic, b"", qos)
    assert peer.poll(subscription, 2) == message(2, topic, b"after", qos)


@pytest.mark.row("blipmq-34")
@pytest.mark.parametrize(
    "name",
    ["t", "Ü/∑ 🙂", "*", ">", "a.*", "#", " spaced ", "../../etc/passwd", "CON", "n" * 249],
    ids=lambda name: ascii(name[:20]),
)
def test_topic_names_are_plain_text(peer: BlipMQPeer, topic: str, name: str) -> None:
    """No wildcards, no trimming, no meaning for the file system."""
    name = name if len(name) == 249 else f"{topic} {name}"
    subscription = peer.subscribe(name)
    peer.send(message(3, name, b"hi"))
    assert peer.poll(subscription) == message(1, name, b"hi")


@pytest.mark.row("blipmq-34")
def test_topic_names_match_exactly(blipmq: LiveServer, peer: BlipMQPeer, topic: str) -> None:
    near = [topic.upper(), topic + " ", " " + topic, topic[:-1] + "*", topic + ".x", "*", ">"]
    subscriptions = [peer.subscribe(name) for name in near]
    exact = peer.subscribe(topic)
    peer.send(message(3, topic, b"hi"))
    until_queued(blipmq, exact, 1)
    for subscription in subscriptions:
        assert peer.poll_once(subscription) is None
    assert peer.poll_once(exact) == message(1, topic, b"hi")


@pytest.mark.row("blipmq-34")
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("n" * 250, "it has 250 bytes in UTF-8, at most 249 are allowed"),
        ("ü" * 125, "it has 250 bytes in UTF-8, at most 249 are allowed"),
        ("n" * 65_535, "it has 65535 bytes in UTF-8, at most 249 are allowed"),
        ("line\nbreak", "character 4 is the control character U+000A"),
        ("\0", "character 0 is the control character U+0000"),
        ("del\x7f", "character 3 is the control character U+007F"),
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_topic_names_of_the_log_have_limits(
    peer: BlipMQPeer, name: str, reason: str, qos: int
) -> None:
    """The reference server takes 65,535 bytes of anything. Here a topic is a part of the log that all
    protocols see, with Kafka's bound and without control characters; a client is told so."""
    shown = ascii(name[:60]) + ("..." if len(name) > 60 else "")
    refusal = nack(7, 400, f"topic name {shown} is not allowed: {reason}")
    peer.ask(message(7, name, b"hi", qos), refusal)
    peer.quiet()


@pytest.mark.row("blipmq-35")
def test_a_publish_without_subscribers_is_stored_and_not_delivered_later(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str
) -> None:
    """As there: a later subscriber sees nothing of it. Unlike there the topic exists from now on: the
    record is in the log, for every protocol to read."""
    assert blipmq.server.engine.topic(topic) is None
    peer.send(message(3, topic, b"durable") + message(4, topic, b"at most once", 0))
    until(lambda: stored(blipmq, topic) == 2, "both are in the log")
    peer.quiet()
    subscription = peer.subscribe(topic)
    assert peer.poll_once(subscription) is None
    peer.send(message(5, topic, b"later"))
    assert peer.poll(subscription) == message(1, topic, b"later")


@pytest.mark.row("blipmq-36")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_publisher_gets_its_own_message(peer: BlipMQPeer, topic: str, qos: int) -> None:
    subscription = peer.subscribe(topic, qos)
    peer.send(message(3, topic, b"mine", qos))
    assert peer.poll(subscription, 9) == message(1 if qos else 9, topic, b"mine", qos)


@pytest.mark.row("blipmq-37")
def test_a_full_queue_to_the_disk_refuses(
    start: Start,
    connect: Connect,
    topic: str,
    disk_of: DiskOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the disk stands still, what does not fit into memory is refused with the words of the
    reference server; it counted 1,024 messages, here bytes count (256 MiB, here made small)."""
    monkeypatch.setattr(appending, "MAX_PENDING_BYTES", 4096)
    server = start(PATIENT)
    peer = connect(server).login()
    disk = disk_of(server)
    subscription = peer.subscribe(topic)
    with disk.files.pause("sync", suffix=".log") as paused:
        peer.send(message(3, topic, b"first"))
        paused.wait_until_reached()
        peer.send(message(4, topic, b"second"))
        peer.quiet()
        overloaded = "wal overload: wal channel full"
        peer.ask(message(5, topic, b"x" * 5000), write_failed(5, overloaded))
        # QoS0 is not told, as with every failure.
        peer.send(message(6, topic, b"x" * 5000, 0))
        peer.quiet()
    assert peer.poll(subscription) == message(1, topic, b"first")
    assert peer.poll(subscription) == message(2, topic, b"second")
    peer.send(message(7, topic, b"third"))
    assert peer.poll(subscription) == message(3, topic, b"third")
    peer.quiet()


@pytest.mark.row("blipmq-38")
def test_a_write_error_refuses_what_it_hit_and_nothing_else(
    start: Start, connect: Connect, topic: str, disk_of: DiskOf
) -> None:
    """The reference server delivers the batch that hit the error, tells nobody, and refuses all later
    ones for good. Here the refused message is told to its publisher and never delivered, and the
    topic works again when the disk does."""
    server = start(PATIENT)
    peer = connect(server).login()
    disk = disk_of(server)
    subscription = peer.subscribe(topic)
    disk.is_full()
    lost = message(3, topic, b"lost") + message(4, topic, b"lost too")
    reason = f"I/O error: {os.strerror(errno.ENOSPC)}"
    peer.ask(lost, write_failed(3, reason), write_failed(4, reason))
    peer.send(message(5, topic, b"lost without a word", 0))
    refused = server.server.broker.counters["blipmq"].refused
    until(lambda: refused["qos0 not stored"] == 1, "the QoS0 message is counted")
    peer.quiet()
    disk.files.clear()
    peer.send(message(6, topic, b"stored"))
    assert peer.poll(subscription) == message(1, topic, b"stored")
    assert peer.poll_once(subscription) is None


@pytest.mark.row("blipmq-38")
def test_a_failed_flush_stops_its_partition_only(
    start: Start, connect: Connect, topic: str, disk_of: DiskOf
) -> None:
    """After a failed flush nobody can know what is on the disk, so this topic takes nothing more until
    a restart: later QoS1 publishes get the words of the reference server. There QoS0 goes on because
    it never touches the disk; here every message is in the log, so QoS0 goes on in all other topics."""
    server = start(PATIENT)
    peer = connect(server).login()
    disk = disk_of(server)
    subscription = peer.subscribe(topic)
    elsewhere = peer.subscribe(topic + "-2")
    disk.loses_flushes()
    reason = f"I/O error: {os.strerror(errno.EIO)}"
    peer.ask(message(3, topic, b"lost"), write_failed(3, reason))
    for cid in (4, 5):
        peer.ask(message(cid, topic, b"refused"), write_failed(cid, "wal writer stopped"))
    peer.send(message(6, topic, b"dropped", 0))
    peer.quiet()
    assert peer.poll_once(subscription) is None
    for qos in (0, 1):
        peer.send(message(7, topic + "-2", b"fine", qos))
        assert peer.poll(elsewhere, 2) == message(2, topic + "-2", b"fine", qos)


@pytest.mark.row("blipmq-38")
def test_a_message_is_on_disk_before_anybody_gets_it(
    start: Start, connect: Connect, topic: str, disk_of: DiskOf
) -> None:
    """The reference server delivers first and writes later (protocol notes, section 2, question 18)."""
    server = start(PATIENT)
    publisher, peer = connect(server).login(), connect(server).login()
    disk = disk_of(server)
    subscription = peer.subscribe(topic)
    with disk.files.pause("sync", suffix=".log") as paused:
        publisher.send(message(3, topic, b"durable"))
        paused.wait_until_reached()
        # The salt of a new partition, and the message.
        assert disk.files.calls["write"] == 2
        assert peer.poll_once(subscription) is None
        publisher.quiet()
    assert peer.poll(subscription) == message(1, topic, b"durable")


@pytest.mark.row("blipmq-39")
def test_publishes_during_a_shutdown(
    start: Start, connect: Connect, topic: str, disk_of: DiskOf
) -> None:
    """A connection with open work is served until that is done: new QoS1 publishes are refused, QoS0
    is dropped, POLL and ACK go on (protocol notes, section 2, question 26)."""
    server = start(PATIENT)
    peer = connect(server).login()
    subscription = peer.subscribe(topic)
    peer.send(message(3, topic, b"early"))
    until_queued(server, subscription, 1)
    disk = disk_of(server)
    slow = topic + "-slow"
    stopping = threading.Thread(target=lambda: server.run(server.server.stop()))
    with disk.files.pause("sync", suffix=".log") as paused:
        peer.send(message(4, slow, b"in time"))
        paused.wait_until_reached()
        stopping.start()
        until(lambda: server.server.broker.stopping, "the stop has begun")
        peer.ask(message(5, topic, b"late"), write_failed(5, SHUTTING_DOWN))
        peer.send(message(6, topic, b"late", 0))
        peer.quiet()
        assert peer.poll_once(subscription) == message(1, topic, b"early")
        peer.send(ack(1, subscription) + poll(7, subscription))
        peer.quiet()
    assert peer.at_end()
    stopping.join()

    again = start(PATIENT)
    assert stored(again, slow) == 1
    assert stored(again, topic) == 1


@pytest.mark.row("blipmq-39")
def test_an_idle_connection_is_closed_at_a_shutdown(start: Start, connect: Connect) -> None:
    server = start(PATIENT)
    peer = connect(server).login()
    server.run(server.server.stop())
    assert peer.at_end()


def test_the_frames_of_this_file_are_what_they_seem() -> None:
    """The builder by hand, against bytes of the document."""
    expected = x("00000012 03 0000000000000004 01 0004 64656D6F 6869")
    assert message(4, "demo", b"hi") == expected == frame(PUBLISH, 4, x("01") + u16(4) + b"demohi")


@pytest.mark.row("blipmq-27")
def test_a_pong_waits_until_what_was_published_is_on_disk(
    start: Start, connect: Connect, topic: str, disk_of: DiskOf
) -> None:
    """A publisher has no other way to hear that its messages are durable: a PING behind them is
    answered when they are, or behind their refusal. The reference server answers at once, and its
    PONG says nothing of the disk."""
    server = start(PATIENT)
    peer = connect(server).login()
    disk = disk_of(server)
    with disk.files.pause("sync", suffix=".log") as paused:
        peer.send(message(3, topic, b"slow") + ping(4) + poll(5, 0))
        paused.wait_until_reached()
        # Nothing can be told of silence here but this: the record is not visible, and the answer
        # comes behind the flush, in order with the frame that follows it.
        assert stored(server, topic) == 0
    peer.expect(pong(4), ZERO_SUBSCRIPTION.frame(5))
    assert stored(server, topic) == 1

    disk.is_full()
    peer.ask(
        message(6, topic, b"refused") + ping(7),
        write_failed(6, f"I/O error: {os.strerror(errno.ENOSPC)}"),
        pong(7),
    )
