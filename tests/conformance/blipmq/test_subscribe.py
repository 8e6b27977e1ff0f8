"""BlipMQ: SUBSCRIBE. Rows 40 to 48 of the table, over a real socket."""

import pytest
from conformance.blipmq.conftest import Connect, Exchange, Start
from conformance.blipmq.peer import (
    EMPTY_TOPIC,
    INVALID_QOS,
    INVALID_SUBSCRIBE,
    SUBSCRIBE,
    BlipMQPeer,
    ack,
    frame,
    message,
    nack,
    poll,
    subscribe,
    u16,
    until_queued,
    x,
)
from kit.live_server import LiveServer


@pytest.mark.row("blipmq-40")
@pytest.mark.parametrize(
    "payload",
    [
        "",
        "00",
        "0001",
        "0004 64656D6F",  # no room for the QoS
        "0005 64656D6F 01",
        "FFFF 64656D6F 01",
        "0002 C328 01",  # not UTF-8
        "0003 EDA080 01",
        "0002 C328 07",  # and a bad QoS: the layout is checked first
        "0000",  # an empty topic without a QoS is too short
    ],
)
def test_a_malformed_subscribe(peer: BlipMQPeer, payload: str, exchange: Exchange) -> None:
    exchange(peer, frame(SUBSCRIBE, 7, x(payload)), INVALID_SUBSCRIBE.frame(7))


@pytest.mark.row("blipmq-41")
@pytest.mark.parametrize("extra", [b"\x00", b"\x01", b"anything"])
def test_bytes_behind_the_qos_are_ignored(
    peer: BlipMQPeer, topic: str, extra: bytes, exchange: Exchange
) -> None:
    first = peer.subscribe(topic)
    longer = frame(SUBSCRIBE, 7, u16(len(topic)) + topic.encode() + b"\x00" + extra)
    exchange(peer, longer, ack(7, first + 1))
    peer.send(message(8, topic, b"hi"))
    assert peer.poll(first + 1, 9) == message(9, topic, b"hi", 0)


@pytest.mark.row("blipmq-42")
@pytest.mark.parametrize("qos", [0, 1, 2, 255])
def test_an_empty_topic_is_seen_first(peer: BlipMQPeer, qos: int, exchange: Exchange) -> None:
    exchange(peer, frame(SUBSCRIBE, 7, x("0000") + bytes([qos])), EMPTY_TOPIC.frame(7))


@pytest.mark.row("blipmq-43")
@pytest.mark.parametrize("qos", [2, 7, 128, 255])
def test_a_bad_qos(peer: BlipMQPeer, topic: str, qos: int, exchange: Exchange) -> None:
    exchange(peer, subscribe(7, topic, qos), INVALID_QOS.frame(7))


@pytest.mark.row("blipmq-44")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscription_is_acknowledged_with_its_id(
    peer: BlipMQPeer, topic: str, qos: int, exchange: Exchange
) -> None:
    first = peer.subscribe(topic, qos)
    assert first > 0
    exchange(peer, subscribe(0xABCD, topic, qos), ack(0xABCD, first + 1))


@pytest.mark.row("blipmq-45")
def test_ids_start_at_one_and_are_never_used_again(start: Start, connect: Connect) -> None:
    """On the reference server the first client gets 2, because a self-test at start takes 1. Penstock
    tests nothing against live state (protocol notes, section 2, question 17)."""
    server = start({})
    one, two = connect(server).login(), connect(server).login()
    one.ask(subscribe(3, "a"), x("00000011 05 0000000000000003 0000000000000001"))
    two.ask(subscribe(3, "b"), x("00000011 05 0000000000000003 0000000000000002"))
    one.ask(subscribe(4, "a"), x("00000011 05 0000000000000004 0000000000000003"))
    two.ask(subscribe(5, "", 1), EMPTY_TOPIC.frame(5))
    one.socket.close()
    two.ask(subscribe(6, "c", 0), ack(6, 4))
    assert connect(server).login().subscribe("d") == 5


@pytest.mark.row("blipmq-46")
def test_the_same_topic_twice_gives_two_copies(peer: BlipMQPeer, topic: str) -> None:
    first, second = peer.subscribe(topic), peer.subscribe(topic)
    assert second == first + 1
    peer.send(message(3, topic, b"hi"))
    assert peer.poll(first) == message(1, topic, b"hi")
    assert peer.poll(second) == message(1, topic, b"hi")
    # Each is settled on its own.
    peer.send(ack(1, first))
    peer.quiet()
    peer.send(ack(1, second))
    peer.quiet()


@pytest.mark.row("blipmq-47")
@pytest.mark.parametrize("qos", [0, 1])
def test_older_messages_are_never_seen(peer: BlipMQPeer, topic: str, qos: int) -> None:
    """Neither those that are on disk, nor those that are still on their way there."""
    peer.send(message(3, topic, b"old", qos))
    witness = peer.subscribe(topic)
    peer.send(message(4, topic, b"older than the next", qos))
    assert peer.poll(witness, 1) == message(1, topic, b"older than the next", qos)
    peer.send(message(5, topic, b"on its way", qos) + subscribe(6, topic, qos))
    late = int.from_bytes(peer.frame()[-8:], "big")
    peer.send(message(7, topic, b"new", qos))
    cid = 1 if qos else 9
    assert peer.poll(late, 9) == message(cid, topic, b"new", qos)
    assert peer.poll_once(late) is None


@pytest.mark.row("blipmq-48")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_publish_pipelined_behind_its_subscribe_is_queued(
    blipmq: LiveServer, peer: BlipMQPeer, topic: str, qos: int
) -> None:
    before = peer.subscribe(topic + "-before")
    wanted = before + 1
    frames = (
        subscribe(3, topic, qos) + message(4, topic, b"one", qos) + message(5, topic, b"2", qos)
    )
    peer.ask(frames, ack(3, wanted))
    until_queued(blipmq, wanted, 2)
    cids = (1, 2) if qos else (8, 9)
    peer.ask(
        poll(8, wanted) + poll(9, wanted),
        message(cids[0], topic, b"one", qos),
        message(cids[1], topic, b"2", qos),
    )


@pytest.mark.row("blipmq-48")
@pytest.mark.parametrize("qos", [0, 1])
def test_subscribe_publish_and_poll_in_one_segment(
    peer: BlipMQPeer, topic: str, qos: int, exchange: Exchange
) -> None:
    """A POLL behind a PUBLISH of the same connection finds the message: it waits for the disk."""
    wanted = peer.subscribe(topic) + 1
    frames = subscribe(3, topic, qos) + message(4, topic, b"hi", qos) + poll(5, wanted)
    exchange(peer, frames, ack(3, wanted), message(1 if qos else 5, topic, b"hi", qos))


@pytest.mark.row("blipmq-34", "blipmq-40")
@pytest.mark.parametrize("name", ["n" * 250, "tab\there"], ids=["long", "control"])
def test_a_topic_that_the_log_cannot_have(peer: BlipMQPeer, name: str) -> None:
    """The reference server takes any UTF-8; see the same test of PUBLISH."""
    reasons = {
        250: "it has 250 bytes in UTF-8, at most 249 are allowed",
        8: "character 3 is the control character U+0009",
    }
    shown = ascii(name[:60]) + ("..." if len(name) > 60 else "")
    text = f"topic name {shown} is not allowed: {reasons[len(name)]}"
    peer.ask(subscribe(7, name), nack(7, 400, text))
    peer.quiet()
