"""FlyMQ over a socket: where records go, what is answered, topics that come and go."""

import struct
from pathlib import Path

import pytest
from conformance.flymq.peer import (
    OK,
    FlyMQPeer,
    blob,
    frame,
    live,
    names,
    placed,
    produce,
    text,
)
from kit.live_server import LiveServer

# The document's check values, modulo 3.
KEYS = {
    b"user-123": 2,
    b"user-456": 2,
    b"user-789": 0,
    b"a": 0xE40C292C % 3,
    b"test": 0xAFD071E5 % 3,
}


def test_keys_choose_the_partition(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic, 3)
    for key, partition in KEYS.items():
        assert peer.produce(topic, b"v", key)[0] == partition


@pytest.mark.row("flymq-D10")
def test_an_explicit_partition_beats_the_key(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic, 3)
    assert peer.produce(topic, b"v", b"user-123", 1) == (1, 0)
    assert peer.produce(topic, b"v", b"", 1) == (1, 1)
    assert peer.produce(topic, b"v", b"", 0) == (0, 0)
    for number in (3, 1 << 30, -2):
        refused = peer.ask(0x01, produce(topic, b"v", b"", number))
        assert refused.error == f"partition {number} out of range"


@pytest.mark.row("flymq-D10")
def test_a_missing_partition_is_any(peer: FlyMQPeer, topic: str) -> None:
    for behind in (b"", b"\xff", b"\x00\x00\x00"):
        payload = text(topic) + blob(b"") + blob(b"v") + behind
        assert placed(peer.want(0x01, payload))[0] == 0


def test_pipelined_produces_get_the_answers_of_their_own(peer: FlyMQPeer, topic: str) -> None:
    """Keys of several partitions, records without a key, refusals and other topics between them."""
    peer.create(topic, 3)
    other = f"{topic}-other"
    wanted: list[tuple[bytes, str, bytes, int | None]] = []
    for number in range(60):
        key = (b"user-123", b"user-789", b"")[number % 3]
        wanted.append((b"%d" % number, topic, key, {b"user-123": 2, b"user-789": 0}.get(key)))
        if number % 7 == 0:
            wanted.append((b"o%d" % number, other, b"", 0))
    requests = [frame(0x01, produce(name, value, key)) for value, name, key, _ in wanted]
    bad = frame(0x01, produce(topic, b"bad", b"", 9))
    peer.send(b"".join([*requests[:30], bad, *requests[30:]]))
    stored: dict[tuple[str, int, int], bytes] = {}
    for number, (value, name, key, partition) in enumerate(wanted):
        if number == 30:
            assert peer.hear().error == "partition 9 out of range"
        reply = peer.hear()
        assert reply.payload[: 2 + len(name)] == text(name)
        found, offset = placed(reply.payload)
        assert partition is None or found == partition
        assert struct.unpack(">ii", reply.payload[-8:]) == (len(key) or -1, len(value))
        stored[name, found, offset] = value
    assert len(stored) == len(wanted)
    for (name, partition, offset), value in stored.items():
        payload = text(name) + struct.pack(">iQ", partition, offset)
        assert peer.want(0x02, payload).endswith(blob(value))


def test_records_without_a_key_are_spread_in_runs(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic, 3)
    value = bytes(40_000)
    chosen = [peer.produce(topic, value)[0] for _ in range(12)]
    assert chosen == [0, 0, 1, 1, 2, 2] * 2


def test_one_record_that_is_too_large_is_refused_alone(tmp_path: Path) -> None:
    with live(tmp_path, log__record_bytes="1 KiB") as server, FlyMQPeer(server.port()) as peer:
        values = [b"a", bytes(2_000), b"b"]
        peer.send(b"".join(frame(0x01, produce("t", value)) for value in values))
        assert placed(peer.hear().payload) == (0, 0)
        assert "a record may have 1024 bytes at most" in peer.hear().error
        assert placed(peer.hear().payload) == (0, 1)


def test_empty_keys_are_none_and_empty_values_are_values(peer: FlyMQPeer, topic: str) -> None:
    reply = peer.want(0x01, produce(topic, b""))
    assert struct.unpack(">ii", reply[-8:]) == (-1, 0)
    assert peer.fetch(topic) == ([(0, b"", b"")], 1)


@pytest.mark.row("flymq-D18")
def test_a_topic_that_a_produce_makes(tmp_path: Path) -> None:
    """With the partitions of the configuration: one, unless it says otherwise."""
    for partitions in ("1", "4"):
        settings = {"topic_defaults__partitions": partitions}
        with live(tmp_path / partitions, **settings) as server, FlyMQPeer(server.port()) as peer:
            peer.produce("t", b"v")
            metadata = peer.want(0x04, text("t"))
            assert metadata[3:7] == struct.pack(">I", int(partitions))


@pytest.mark.parametrize("name", ["", "x" * 250, "a\nb", "_internal"])
def test_names_that_are_not_allowed(peer: FlyMQPeer, name: str) -> None:
    assert peer.ask(0x01, produce(name, b"v")).opcode == 0xFF
    assert peer.ask(0x03, text(name) + bytes(4)).opcode == 0xFF


# ---- topics --------------------------------------------------------------------------------------


def test_creating_and_deleting_may_be_repeated(peer: FlyMQPeer, topic: str) -> None:
    assert peer.want(0x09, text(topic)) == OK
    peer.create(topic, 3)
    peer.create(topic, 5)
    assert peer.want(0x04, text(topic))[2 + len(topic) : 6 + len(topic)] == bytes((0, 0, 0, 3))
    assert peer.want(0x09, text(topic)) == OK
    assert peer.ask(0x04, text(topic)).error == f"topic not found: {topic}"
    peer.create(topic, 0)
    assert peer.want(0x04, text(topic))[2 + len(topic) : 6 + len(topic)] == bytes((0, 0, 0, 1))


@pytest.mark.parametrize("partitions", [-1, -(1 << 31), 1 << 30])
def test_partition_counts_that_are_not_allowed(
    peer: FlyMQPeer, topic: str, partitions: int
) -> None:
    assert "partitions" in peer.ask(0x03, text(topic) + struct.pack(">i", partitions)).error


def test_a_produce_behind_a_delete_makes_the_topic_anew(peer: FlyMQPeer, topic: str) -> None:
    peer.produce(topic, b"old")
    requests = [frame(0x09, text(topic)), frame(0x01, produce(topic, b"new")), frame(0x08)]
    peer.send(b"".join(requests))
    assert peer.hear().payload == OK
    assert placed(peer.hear().payload) == (0, 0)
    assert text(topic) in peer.hear().payload
    assert peer.fetch(topic) == ([(0, b"", b"new")], 1)


def test_lists_are_sorted_and_hide_internal_topics(tmp_path: Path) -> None:
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        server.call(lambda: server.server.engine.create_topic("_hidden"))
        for name in ("bc", "a"):
            peer.create(name)
        assert peer.want(0x08) == names("a", "bc")
        assert b"_hidden" not in peer.want(0x53)


# ---- the cluster of one --------------------------------------------------------------------------


@pytest.mark.row("flymq-0x50", "flymq-0x51")
def test_a_cluster_of_one_takes_no_other_node(peer: FlyMQPeer) -> None:
    for opcode, payload in ((0x50, text("n2:9093")), (0x51, b"")):
        words = peer.ask(opcode, payload).error
        assert words.startswith("nodes neither join nor leave") and "--engine kafka" in words


def node(address: str) -> bytes:
    head = text("standalone") + text("n1") + struct.pack(">QI", 1, 1)
    return head + text("n1") + text(address) + text("") + text("online") + b"\x01"


@pytest.mark.row("flymq-0x52")
def test_the_status_of_the_cluster(server: LiveServer, peer: FlyMQPeer) -> None:
    assert peer.want(0x52) == node(f"127.0.0.1:{server.port()}")


@pytest.mark.row("flymq-0x52", "flymq-0x53")
def test_the_address_that_clients_are_told(tmp_path: Path) -> None:
    with (
        live(tmp_path, server__advertise="broker.example:9092") as server,
        FlyMQPeer(server.port()) as peer,
    ):
        assert peer.want(0x52) == node("broker.example:9092")
        peer.create("t", 2)
        found = peer.want(0x53, text("t"))
        assert found.count(text("broker.example:9092")) == 2
        assert peer.want(0x53) == found == peer.want(0x53, text(""))
        assert peer.ask(0x53, text("none")).sdk_error == (1, "topic not found: none")
