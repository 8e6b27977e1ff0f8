"""FlyMQ over a socket: transactions, 0x40 to 0x43, in each dialect and however they arrive."""

import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.flymq.peer import (
    SDK,
    FlyMQPeer,
    Reply,
    Way,
    blob,
    both,
    every_way,
    frame,
    live,
    raw,
    text,
)
from kit.live_server import LiveServer

BEGIN, COMMIT, ROLLBACK, PRODUCE = 0x40, 0x41, 0x42, 0x43
UNKNOWN = "transaction not found: "
# The number of TRANSACTION_NOT_OPEN in our table of errors.
NOT_OPEN = 24


def begin(peer: FlyMQPeer) -> str:
    reply = peer.want(BEGIN)
    size = int.from_bytes(reply[:2], "big")
    assert reply[2 + size :] == b"\x01"
    return reply[2 : 2 + size].decode()


def stage(peer: FlyMQPeer, id: str, topic: str, *values: bytes) -> list[Reply]:
    requests = [frame(PRODUCE, text(id) + text(topic) + blob(value)) for value in values]
    peer.send(b"".join(requests))
    return [peer.hear() for _ in values]


def values(peer: FlyMQPeer, topic: str, partition: int = 0) -> list[bytes]:
    return [value for _, _, value in peer.fetch(topic, partition=partition)[0]]


def error(reply: Reply, dialect: str) -> str:
    if dialect != SDK:
        return reply.error.rstrip(" ")
    code, words = reply.sdk_error
    assert code == NOT_OPEN
    return words.rstrip()


@pytest.fixture
def talk(peer: FlyMQPeer, dialect: str) -> FlyMQPeer:
    if dialect == SDK:
        peer.want(0x53)  # which only an SDK sends
    return peer


@pytest.mark.row("flymq-0x40", "flymq-0x41", "flymq-0x42", "flymq-0x43", "flymq-D19")
@both
@every_way
@pytest.mark.usefixtures("dialect")
def test_the_frames_of_the_documents(talk: FlyMQPeer, topic: str, way: Way) -> None:
    """The id is ours; everything else is as the document writes it."""
    talk.create(topic)
    (begun,) = way(talk, [raw("AF 01 40 01 00000000")])
    id = re.fullmatch(rb"(txn-[0-9a-f]{16}-\d+)\x01", begun[10:])
    assert id is not None
    assert begun[:10] == raw(f"AF 01 40 01 {len(begun) - 8:08X}  {len(id[1]):04X}")
    name, place = text(id[1].decode()), text(topic)
    requests = [frame(PRODUCE, name + place + blob(value)) for value in (b"v", b"", b"w" * 300)]
    replies = way(talk, requests)
    for reply, size in zip(replies, (1, 0, 300), strict=True):
        behind = reply[8 + len(place) :]
        assert reply[: 8 + len(place)] == frame(PRODUCE, bytes(len(place) + 28))[:8] + place
        assert behind[:12] == bytes(12), "partition 0 and offset 0: the commit decides"
        assert abs(int.from_bytes(behind[12:20], "big") - time.time() * 1000) < 3_600_000
        assert behind[20:] == raw(f"FFFFFFFF {size:08X}")
    assert values(talk, topic) == []
    done = frame(COMMIT, name + b"\x01")
    # Twice: a commit whose answer was lost may be repeated.
    assert way(talk, [frame(COMMIT, name), frame(COMMIT, name)]) == [done, done]
    assert values(talk, topic) == [b"v", b"", b"w" * 300]
    assert way(talk, [frame(ROLLBACK, name)]) == [frame(ROLLBACK, name + b"\x00")]


@pytest.mark.row("flymq-D15", "flymq-0x41", "flymq-0x42", "flymq-0x43")
@both
def test_one_that_nobody_began(talk: FlyMQPeer, topic: str, dialect: str) -> None:
    for id in ("", "txn-1", "txn-0123456789abcdef-0", "t" * 700):
        assert error(talk.ask(COMMIT, text(id)), dialect) == (UNKNOWN + id).rstrip(" ")
        assert talk.want(ROLLBACK, text(id)) == text(id) + b"\x00"
        for reply in stage(talk, id, topic, b"1", b"2"):
            assert error(reply, dialect) == (UNKNOWN + id).rstrip(" ")
    assert talk.want(0x09, text(topic)), "the connection goes on"


@pytest.mark.row("flymq-0x42")
@both
@pytest.mark.usefixtures("dialect")
def test_rolled_back_it_leaves_nothing(talk: FlyMQPeer, topic: str) -> None:
    id = begin(talk)
    stage(talk, id, topic, b"1")
    assert talk.want(ROLLBACK, text(id)) == text(id) + b"\x01"
    assert talk.want(ROLLBACK, text(id)) == text(id) + b"\x00"
    assert talk.ask(COMMIT, text(id)).opcode == 0xFF
    assert text(topic) not in talk.want(0x08), "not even a topic"


@pytest.mark.row("flymq-0x43")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        text("txn-1"),
        text("txn-1") + text("t") + raw("00000002 76"),
        raw("0001 FF 0001 74 00000000"),
    ],
)
@both
def test_a_payload_that_does_not_parse(talk: FlyMQPeer, payload: bytes, dialect: str) -> None:
    reply = talk.ask(PRODUCE, payload)
    words = reply.sdk_error[1] if dialect == SDK else reply.error
    assert words.startswith("invalid binary format: ")
    assert talk.ask(COMMIT, payload[:1]).opcode == 0xFF
    begin(talk)


def test_many_topics_and_partitions_at_once(
    peer: FlyMQPeer, server: LiveServer, topic: str
) -> None:
    """With ordinary records between them, from the same connection and another one."""
    names = [f"{topic}.{number}" for number in range(4)]
    peer.create(names[0], 2)
    id = begin(peer)
    with FlyMQPeer(server.port()) as other:
        for number, name in enumerate(names):
            other.produce(name, b"before", partition=0 if number == 0 else -1)
            assert [reply.opcode for reply in stage(peer, id, name, *[b"%d" % number] * 50)] == (
                [PRODUCE] * 50
            )
            peer.produce(name, b"between", partition=0 if number == 0 else -1)
        assert all(values(other, name) == [b"before", b"between"] for name in names)
        assert peer.want(COMMIT, text(id))[-1] == 1
        for number, name in enumerate(names):
            found = values(other, name) + (values(other, name, 1) if number == 0 else [])
            assert sorted(found) == sorted([b"before", b"between", *[b"%d" % number] * 50])


def test_one_record_that_is_too_large_is_refused_alone(peer: FlyMQPeer, topic: str) -> None:
    peer.create(topic)
    id = begin(peer)
    replies = stage(peer, id, topic, b"1", bytes(17 << 20), b"2")
    assert [reply.opcode for reply in replies] == [PRODUCE, 0xFF, PRODUCE]
    assert "bytes at most" in replies[1].error
    assert peer.want(COMMIT, text(id))[-1] == 1
    assert values(peer, topic) == [b"1", b"2"]


@pytest.mark.row("flymq-D15")
def test_its_time_is_over(tmp_path: Path, topic: str) -> None:
    with live(tmp_path, flymq__transaction_time="20ms") as server, FlyMQPeer(server.port()) as peer:
        id = begin(peer)
        stage(peer, id, topic, b"1")
        while server.server.broker.transactions.counters.expired == 0:
            peer.want(0x08)
        assert peer.ask(COMMIT, text(id)).error == UNKNOWN + id


def test_they_are_counted(tmp_path: Path, topic: str) -> None:
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        ids = [begin(peer) for _ in range(3)]
        stage(peer, ids[0], topic, b"12345678")
        found = metrics(server)
        assert found["transactions_open"] == 3
        assert found["transactions_staged_bytes"] == 8 + 64
        peer.want(COMMIT, text(ids[0]))
        peer.want(ROLLBACK, text(ids[1]))
        found = metrics(server)
        assert found["transactions_open"] == 1
        assert found["transactions_staged_bytes"] == 0
        assert found['transactions_ended_total{how="committed"}'] == 1
        assert found['transactions_ended_total{how="rolled back"}'] == 1


def metrics(server: LiveServer) -> dict[str, float]:
    url = f"http://127.0.0.1:{server.port('http')}/metrics"
    with urllib.request.urlopen(url) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.removeprefix("penstock_").rpartition(" ") for line in lines if line[0] != "#"]
    return {name: float(value) for name, _, value in pairs}


# --- whose they are -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, dict[str, str]]]:
    data = tmp_path_factory.mktemp("keys")
    with live(data) as server:
        create = server.server.broker.access.create_key
        keys = {name: create(name, role) for name, role in (("ann", "user"), ("bob", "admin"))}
        keys |= {"reader": create("reader", "reader")}
    with live(data) as server:
        yield server, keys


def logged_in(keyed: tuple[LiveServer, dict[str, str]], name: str) -> FlyMQPeer:
    server, keys = keyed
    peer = FlyMQPeer(server.port())
    peer.ask(0x70, text(name) + text(keys[name]))
    return peer


def test_it_belongs_to_the_user(keyed: tuple[LiveServer, dict[str, str]], topic: str) -> None:
    with logged_in(keyed, "ann") as ann:
        id = begin(ann)
        stage(ann, id, topic, b"1")
    with logged_in(keyed, "bob") as bob:
        assert bob.ask(COMMIT, text(id)).error == UNKNOWN + id
        assert bob.want(ROLLBACK, text(id)) == text(id) + b"\x00"
        (reply,) = stage(bob, id, topic, b"2")
        assert reply.error == UNKNOWN + id
    with logged_in(keyed, "ann") as again:
        assert again.want(COMMIT, text(id)) == text(id) + b"\x01"
        assert values(again, topic) == [b"1"]


def test_readers_have_none(keyed: tuple[LiveServer, dict[str, str]]) -> None:
    with logged_in(keyed, "reader") as reader:
        assert " may not begin transactions: " in reader.ask(BEGIN).error


def test_without_a_login_it_belongs_to_the_connection(server: LiveServer, topic: str) -> None:
    with FlyMQPeer(server.port()) as one, FlyMQPeer(server.port()) as other:
        id, kept = begin(one), begin(other)
        stage(one, id, topic, b"1")
        assert other.ask(COMMIT, text(id)).error == UNKNOWN + id
        assert other.want(ROLLBACK, text(id))[-1] == 0
        open_ones = server.server.broker.transactions
        one.socket.close()
        while any(found.id == id for found in open_ones):
            other.want(0x08)
        assert other.want(COMMIT, text(kept))[-1] == 1
        assert text(topic) not in other.want(0x08)


def test_a_restart_remembers_what_was_committed(tmp_path: Path, topic: str) -> None:
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        id, lost = begin(peer), begin(peer)
        stage(peer, id, topic, b"1")
        stage(peer, lost, topic, b"2")
        peer.want(COMMIT, text(id))
    with live(tmp_path) as server, FlyMQPeer(server.port()) as peer:
        assert peer.want(COMMIT, text(id)) == text(id) + b"\x01"
        assert peer.ask(COMMIT, text(lost)).error == UNKNOWN + lost
        assert values(peer, topic) == [b"1"]
