"""Promises of FlyMQ for messages that nobody takes, or that a schema refuses."""

import struct
import threading

import pytest
from conformance.blipmq.peer import BlipMQPeer, nack, ping, pong
from conformance.blipmq.peer import message as blipmq_message
from conformance.flymq.peer import (
    CAP,
    OK,
    FlyMQPeer,
    blob,
    frame,
    text,
)
from conformance.flymq.promises import ADMIN, begin, values
from kit.limits import HANG_S
from kit.live_server import LiveServer

# --- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_of_dead_letters(peer: FlyMQPeer, topic: str) -> None:
    """A topic of dead letters is one like others: what is in `<topic>.dlq.dlq` goes back to it."""
    letters = f"{topic}.dlq"
    peer.produce(f"{letters}.dlq", b"v")
    assert peer.want(0x21, text(letters) + text("0-0")) == OK
    assert peer.want(0x21, text(topic) + text("0-0")) == OK
    assert values(peer, topic) == [b"v"]
    for name in (letters, topic):
        again = peer.want(0x21, text(name) + text("0-0"))
        assert again[:1] == b"\x00" and b"replayed already" in again
    assert peer.want(0x22, text(letters)) == OK
    assert values(peer, letters) == [b"v"]


def test_two_replays_at_once_make_one_copy(server: LiveServer, topic: str) -> None:
    with FlyMQPeer(server.port()) as peer:
        for number in range(20):
            peer.produce(f"{topic}.dlq", b"%d" % number)
    together = threading.Barrier(4)
    done: list[int] = []

    def replay() -> None:
        with FlyMQPeer(server.port()) as peer:
            for number in range(20):
                together.wait(HANG_S)
                done.append(peer.want(0x21, text(topic) + text(f"0-{number}"))[0])

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sum(done) == 20 and len(done) == 80
    with FlyMQPeer(server.port()) as peer:
        assert sorted(values(peer, topic)) == sorted(b"%d" % number for number in range(20))


def test_a_long_list_of_dead_letters_fits_a_frame(peer: FlyMQPeer, topic: str) -> None:
    """In parts: the rest is read when those before it are purged or replayed."""
    for _ in range(5):
        peer.produce(f"{topic}.dlq", bytes(8 << 20))
    reply = peer.want(0x20, text(topic) + struct.pack(">i", 1_000))
    assert len(reply) <= CAP and int.from_bytes(reply[:4], "big") >= 1


@pytest.mark.row("flymq-0x21")
def test_a_replay_that_cannot_be_is_no_error(
    peer: FlyMQPeer, server: LiveServer, topic: str
) -> None:
    """The answer says false and why, as clients expect it, and the entry can be replayed later."""
    peer.want(0x10, text("numbers") + b"\x04json" + blob(b'{"type":"integer"}'))
    peer.create(topic)
    broker = server.server.broker
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema": "numbers"}))
    peer.produce(f"{topic}.dlq", b'"x"')
    reply = peer.want(0x21, text(topic) + text("0-0"))
    assert reply[:1] == b"\x00" and b"schema validation failed: [type mismatch" in reply
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema": ""}))
    assert peer.want(0x21, text(topic) + text("0-0")) == OK
    assert values(peer, topic) == [b'"x"']


# --- bound topics ---------------------------------------------------------------------------------


def test_blipmq_names_path_and_rule(server: LiveServer, peer: FlyMQPeer, topic: str) -> None:
    schema = b'{"type":"object","properties":{"a":{"type":"array","items":{"maximum":3}}}}'
    peer.want(0x10, text("deep") + b"\x04json" + blob(schema))
    peer.create(topic)
    broker = server.server.broker
    server.settle(lambda: broker.change_topic(ADMIN, topic, {"schema": "deep"}))
    with BlipMQPeer(server.port()).login() as publisher:
        publisher.send(blipmq_message(1, topic, b'{"a":[1,9]}') + ping(2))
        refused = publisher.frame()
        assert refused[4:13] == nack(1, 400, "")[4:13]
        assert b"a[1]" in refused or b"a.1" in refused, refused
        assert publisher.frame() == pong(2)
    assert values(peer, topic) == []


def test_a_transaction_makes_dead_letters_with_its_commit(
    server: LiveServer, peer: FlyMQPeer, topic: str
) -> None:
    """Of what the schema refuses under `on_invalid = dlq`: with the good ones, or not at all."""
    peer.want(0x10, text("integers") + b"\x04json" + blob(b'{"type":"integer"}'))
    peer.create(topic)
    broker = server.server.broker
    changes: dict[str, object] = {"schema": "integers", "on_invalid": "dlq"}
    server.settle(lambda: broker.change_topic(ADMIN, topic, changes))
    for end in (0x42, 0x41):
        id = begin(peer)
        staged = [b"1", b"x", b"2", b"y"]
        peer.send(b"".join(frame(0x43, text(id) + text(topic) + blob(one)) for one in staged))
        for value in staged:
            reply = peer.hear()
            name = topic if value.isdigit() else f"{topic}.dlq"
            assert reply.opcode == 0x43 and reply.payload.startswith(text(name) + bytes(12))
        assert peer.fetch(topic) == ([], 0)
        assert peer.want(0x20, text(topic) + struct.pack(">i", 9)) == bytes(4)
        assert peer.want(end, text(id)) == text(id) + b"\x01"
    assert values(peer, topic) == [b"1", b"2"]
    letters = peer.want(0x20, text(topic) + struct.pack(">i", 9))
    assert letters[:4] == struct.pack(">I", 2)
    assert blob(b"x") in letters and blob(b"y") in letters and b"invalid JSON message" in letters


def test_a_large_transaction_with_dead_letters(
    server: LiveServer, peer: FlyMQPeer, topic: str
) -> None:
    """More than is kept in memory."""
    peer.want(0x10, text("small") + b"\x04json" + blob(b'{"maxLength":9}'))
    peer.create(topic)
    broker = server.server.broker
    changes: dict[str, object] = {"schema": "small", "on_invalid": "dlq"}
    server.settle(lambda: broker.change_topic(ADMIN, topic, changes))
    id = begin(peer)
    long = b'"' + b"x" * 300_000 + b'"'
    staged = [long, b'"short"'] * 6
    peer.send(b"".join(frame(0x43, text(id) + text(topic) + blob(one)) for one in staged))
    assert [peer.hear().opcode for _ in staged] == [0x43] * 12
    assert peer.want(0x41, text(id)) == text(id) + b"\x01"
    assert values(peer, topic) == [b'"short"'] * 6
    assert peer.want(0x20, text(topic) + struct.pack(">i", 9))[:4] == struct.pack(">I", 6)
