"""BlipMQ, RustLog and FlyMQ on one log and one port: what one protocol writes the others read.

With and without TLS, and across a SIGKILL: a Produce that was answered, a QoS1 publish that was seen by a
Fetch and a commit that was answered are there afterwards, at the same offsets. Killing the process proves
safety against a crash of the process only; the simulated disk of the log's own tests proves power loss.
"""

import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from conformance.blipmq.peer import BlipMQPeer, ack, message, until
from conformance.flymq.peer import OK, FlyMQPeer, group_row, text
from conformance.rustlog.peer import (
    BINARY,
    DIALECTS,
    JSON,
    Dialect,
    Talker,
    dialect_name,
    framed,
    live,
)
from kit.echo_server import make_certificate
from kit.live_server import LiveServer, RawPeer, ServerProcess

both = pytest.mark.parametrize("dialect", DIALECTS, ids=dialect_name)

TOPIC = "meet"
Peer = TypeVar("Peer", bound=RawPeer)
EVERY_BYTE = bytes(range(256))


@dataclass(frozen=True, slots=True)
class Meeting:
    """One port, with or without TLS."""

    port: int
    tls: ssl.SSLContext | None = None

    def rustlog(self) -> Talker:
        return self._secured(Talker(self.port))

    def blipmq(self) -> BlipMQPeer:
        return self._secured(BlipMQPeer(self.port)).login()

    def flymq(self) -> FlyMQPeer:
        return self._secured(FlyMQPeer(self.port))

    def _secured(self, peer: Peer) -> Peer:
        if self.tls is not None:
            peer.socket = self.tls.wrap_socket(peer.socket, server_hostname="localhost")
        return peer


@pytest.fixture(scope="module")
def secure_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[LiveServer, ssl.SSLContext]]:
    directory = tmp_path_factory.mktemp("tls")
    pem = make_certificate(directory)
    client = ssl.create_default_context(cafile=pem.certificate)
    settings = {"tls__certificate": pem.certificate, "tls__key": pem.key}
    with live(directory / "data", **settings) as running:
        yield running, client


@pytest.fixture(params=["plain", "tls"])
def meeting(
    request: pytest.FixtureRequest, secure_server: tuple[LiveServer, ssl.SSLContext]
) -> Meeting:
    """The same port both times: a certificate does not make TLS a must."""
    server, context = secure_server
    return Meeting(server.port(), context if request.param == "tls" else None)


@pytest.fixture
def topic(request: pytest.FixtureRequest, meeting: Meeting) -> str:
    name = str(request.node.name)
    with meeting.rustlog() as peer:
        assert peer.ask(BINARY.create(name, 1)) == BINARY.created()
    return name


def until_readable(peer: Talker, topic: str, count: int) -> None:
    """BlipMQ does not answer a publish: it is confirmed when a Fetch shows it."""
    request = BINARY.fetch(topic, 0, 0, 1_000_000)
    until(lambda: BINARY.count(peer.ask(request)) >= count, f"{count} records in {topic}")


@both
def test_published_with_blipmq_read_with_rustlog(
    meeting: Meeting, topic: str, dialect: Dialect
) -> None:
    records = [b"hello", b"", EVERY_BYTE, b"x" * 50_000]
    with meeting.blipmq() as publisher, meeting.rustlog() as reader:
        publisher.send(b"".join(message(n, topic, body) for n, body in enumerate(records)))
        until_readable(reader, topic, len(records))
        reply = reader.ask(dialect.fetch(topic, 0, 0, 1_000_000))
        assert reply == dialect.fetched(0, records, len(records))


@both
def test_published_at_most_once_is_in_the_log_too(
    meeting: Meeting, topic: str, dialect: Dialect
) -> None:
    with meeting.blipmq() as publisher, meeting.rustlog() as reader:
        publisher.send(message(1, topic, b"maybe", 0))
        until_readable(reader, topic, 1)
        assert reader.ask(dialect.fetch(topic, 0, 0, 99)) == dialect.fetched(0, [b"maybe"], 1)


@pytest.mark.parametrize("qos", [0, 1])
@both
def test_produced_with_rustlog_delivered_by_blipmq(
    meeting: Meeting, topic: str, dialect: Dialect, qos: int
) -> None:
    """A Produce is QoS1, so a delivery has the subscriber's QoS; tags begin at 1."""
    records = [b"one", b"", EVERY_BYTE]
    with meeting.rustlog() as producer, meeting.blipmq() as subscriber:
        subscription = subscriber.subscribe(topic, qos)
        assert producer.ask(dialect.produce(topic, 0, records)) == dialect.produced(0, 3)
        for tag, body in enumerate(records, 1):
            assert subscriber.poll(subscription, 77) == message(
                tag if qos else 77, topic, body, qos
            )
            if qos:
                subscriber.send(ack(tag, subscription))
                subscriber.quiet()
        assert subscriber.poll_once(subscription) is None


def test_all_writers_share_one_order(meeting: Meeting, topic: str) -> None:
    """BlipMQ's deliveries come in the order of the log that RustLog reads, whoever wrote."""
    with meeting.rustlog() as peer, meeting.blipmq() as client:
        subscription = client.subscribe(topic, 0)
        written = 0
        for number in range(5):
            for dialect in DIALECTS:
                record = f"{dialect.name}{number}".encode()
                assert peer.ask(dialect.produce(topic, 0, [record])) == dialect.produced(written, 1)
                written += 1
            client.send(message(number, topic, b"Q%d" % number))
            written += 1
            until_readable(peer, topic, written)
        expected = [b"%c%d" % (kind, number) for number in range(5) for kind in b"JBQ"]
        reply = peer.ask(JSON.fetch(topic, 0, 0, 1_000))
        assert reply == JSON.fetched(0, expected, 15)
        assert [client.poll(subscription) for _ in expected] == [
            message(9, topic, body, 0) for body in expected
        ]


def test_groups_are_shared_by_the_dialects(meeting: Meeting, topic: str) -> None:
    with meeting.blipmq() as publisher, meeting.rustlog() as peer:
        publisher.send(b"".join(message(n, topic, b"%d" % n) for n in range(4)))
        until_readable(peer, topic, 4)
        assert peer.ask(JSON.commit("team", topic, 0, 2)) == JSON.committed()
        assert peer.ask(BINARY.offset_fetch("team", topic, 0)) == BINARY.offset(2)
        assert peer.ask(BINARY.fetch(topic, 0, 0, 13, "team")) == BINARY.fetched(2, [b"2"], 3)
        assert peer.ask(BINARY.commit("team", topic, 0, 3)) == BINARY.committed()
        assert peer.ask(JSON.fetch(topic, 0, 0, 9, "team")) == JSON.fetched(3, [b"3"], 4)


def test_a_large_message_in_pieces_over_tls_and_without(meeting: Meeting, topic: str) -> None:
    record = EVERY_BYTE * 8_000
    with meeting.rustlog() as peer, meeting.blipmq() as subscriber:
        subscription = subscriber.subscribe(topic, 0)
        data = framed(BINARY.produce(topic, 0, [record]))
        for start in range(0, len(data), 100_000):
            peer.send(data[start : start + 100_000])
        assert peer.hear() == BINARY.produced(0, 1)
        assert peer.ask(BINARY.fetch(topic, 0, 0, 1)) == BINARY.fetched(0, [record], 1)
        assert subscriber.poll(subscription, 5) == message(5, topic, record, 0)


# ---- FlyMQ with the others -----------------------------------------------------------------------


@both
def test_produced_with_flymq_read_by_the_others(
    meeting: Meeting, topic: str, dialect: Dialect
) -> None:
    """Keys stay in the log: the others have no place for them."""
    records = [b"hello", b"", EVERY_BYTE, b"x" * 50_000]
    with meeting.flymq() as producer, meeting.rustlog() as reader, meeting.blipmq() as client:
        subscription = client.subscribe(topic)
        for offset, value in enumerate(records):
            assert producer.produce(topic, value, b"key") == (0, offset)
        reply = reader.ask(dialect.fetch(topic, 0, 0, 1_000_000))
        assert reply == dialect.fetched(0, records, len(records))
        for tag, value in enumerate(records, 1):
            assert client.poll(subscription) == message(tag, topic, value)


@both
def test_written_by_the_others_read_with_flymq(
    meeting: Meeting, topic: str, dialect: Dialect
) -> None:
    with meeting.flymq() as reader, meeting.rustlog() as producer, meeting.blipmq() as publisher:
        assert producer.ask(dialect.produce(topic, 0, [b"one", b""])) == dialect.produced(0, 2)
        publisher.send(message(1, topic, EVERY_BYTE) + message(2, topic, b"maybe", 0))
        until_readable(producer, topic, 4)
        expected = [(n, b"", one) for n, one in enumerate([b"one", b"", EVERY_BYTE, b"maybe"])]
        assert reader.fetch(topic) == (expected, 4)
        for offset, key, value in expected:
            found = reader.want(0x02, text(topic) + struct.pack(">iQ", 0, offset))
            assert found == struct.pack(">I", len(key)) + struct.pack(">I", len(value)) + value


def test_a_topic_that_flymq_makes_is_one_of_all(meeting: Meeting, topic: str) -> None:
    name = f"{topic}-made"
    with meeting.flymq() as producer, meeting.rustlog() as peer, meeting.blipmq() as client:
        producer.create(name, 2)
        assert peer.ask(BINARY.produce(name, 1, [b"a"])) == BINARY.produced(0, 1)
        subscription = client.subscribe(name)
        assert producer.produce(name, b"b", b"", 1) == (1, 1)
        assert client.poll(subscription) == message(1, name, b"b")
        assert producer.fetch(name, 0, 9, 1) == ([(0, b"", b"a"), (1, b"", b"b")], 2)


@both
def test_groups_are_shared_by_flymq_and_rustlog(
    meeting: Meeting, topic: str, dialect: Dialect
) -> None:
    """One set of committed offsets; a reset or a deletion by one is seen by the other."""
    place = text(topic) + text("team") + bytes(4)
    with meeting.flymq() as flymq, meeting.rustlog() as peer:
        for value in (b"0", b"1", b"2", b"3"):
            flymq.produce(topic, value)
        assert peer.ask(dialect.commit("team", topic, 0, 2)) == dialect.committed()
        assert flymq.want(0x60, place) == struct.pack(">Q", 2)
        assert flymq.want(0x64, place) == struct.pack(">QQQQ", 2, 2, 4, 2)
        row = group_row(topic, "team", 0, {0: 2})
        assert flymq.want(0x63, text(topic) + text("team")) == row
        assert flymq.want(0x06, place + struct.pack(">Q", 3)) == OK
        assert peer.ask(dialect.offset_fetch("team", topic, 0)) == dialect.offset(3)
        reply = peer.ask(dialect.fetch(topic, 0, 0, 13, "team"))
        assert reply == dialect.fetched(3, [b"3"], 4)
        assert flymq.want(0x61, place + text("earliest")) == OK
        assert peer.ask(dialect.offset_fetch("team", topic, 0)) == dialect.offset(0)
        assert flymq.want(0x65, text(topic) + text("team")) == OK
        assert peer.ask(dialect.offset_fetch("team", topic, 0)) == dialect.offset(None)


def test_a_produce_of_flymq_is_there_after_a_kill(tmp_path: Path) -> None:
    """And so are a topic, a commit and a deletion that were answered."""
    place = text("t") + text("g") + bytes(4)
    with ServerProcess(tmp_path) as process, Meeting(process.ports["tcp"]).flymq() as peer:
        for topic in ("t", "gone"):
            peer.create(topic, 2)
        assert peer.produce("t", b"kept", b"user-789", 1) == (1, 0)
        assert peer.want(0x06, place + struct.pack(">Q", 7)) == OK
        assert peer.want(0x09, text("gone")) == OK
        process.kill()
    with ServerProcess(tmp_path) as process, Meeting(process.ports["tcp"]).flymq() as peer:
        assert peer.want(0x08) == struct.pack(">I", 1) + text("t")
        assert peer.fetch("t", 0, 9, 1) == ([(0, b"user-789", b"kept")], 1)
        assert peer.want(0x60, place) == struct.pack(">Q", 7)


# ---- across a SIGKILL ----------------------------------------------------------------------------


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    """Three times in a row on one data directory; each time everything of before is there."""
    written: list[bytes] = []
    for life in range(3):
        with ServerProcess(tmp_path) as process:
            meeting = Meeting(process.ports["tcp"])
            with meeting.rustlog() as peer, meeting.blipmq() as publisher:
                if life == 0:
                    assert peer.ask(JSON.create(TOPIC, 1)) == JSON.created()
                else:
                    check_past(peer, written, life)
                for dialect in DIALECTS:
                    records = [f"{life} {dialect.name} {n}".encode() for n in range(3)]
                    reply = peer.ask(dialect.produce(TOPIC, 0, records))
                    assert reply == dialect.produced(len(written), 3)
                    written += records
                published = [b"%d Q %d" % (life, n) for n in range(3)]
                publisher.send(b"".join(message(n, TOPIC, b) for n, b in enumerate(published)))
                written += published
                until_readable(peer, TOPIC, len(written))
                for group, dialect in (("json", JSON), ("binary", BINARY)):
                    offset = len(written) - 1
                    reply = peer.ask(dialect.commit(group, TOPIC, 0, offset))
                    assert reply == dialect.committed()
                process.kill()
    with ServerProcess(tmp_path) as process, Meeting(process.ports["tcp"]).rustlog() as peer:
        check_past(peer, written, 3)


def check_past(peer: Talker, written: list[bytes], life: int) -> None:
    assert peer.ask(JSON.list_topics()) == JSON.topics([(TOPIC, 1)])
    for dialect in DIALECTS:
        reply = peer.ask(dialect.fetch(TOPIC, 0, 0, 1_000_000))
        assert reply == dialect.fetched(0, written, len(written)), f"life {life}"
        for group in ("json", "binary"):
            committed = dialect.offset(len(written) - 1)
            assert peer.ask(dialect.offset_fetch(group, TOPIC, 0)) == committed


def test_a_backlog_written_by_rustlog_survives_a_kill_for_blipmq(tmp_path: Path) -> None:
    """Delivered and not acknowledged by a QoS1 subscriber when the server dies: the first QoS1
    subscriber after the restart gets it again. What was acknowledged does not come again."""
    with ServerProcess(tmp_path) as process:
        meeting = Meeting(process.ports["tcp"])
        with meeting.rustlog() as producer, meeting.blipmq() as subscriber:
            assert producer.ask(JSON.create(TOPIC, 1)) == JSON.created()
            subscription = subscriber.subscribe(TOPIC, 1)
            records = [b"settled", b"open", b"unseen"]
            assert producer.ask(JSON.produce(TOPIC, 0, records)) == JSON.produced(0, 3)
            assert subscriber.poll(subscription) == message(1, TOPIC, b"settled")
            assert subscriber.poll(subscription) == message(2, TOPIC, b"open")
            subscriber.send(ack(1, subscription))
            subscriber.quiet()
        # An orderly stop writes the acknowledgement down; a kill may bring the message once more.
        assert process.stop() == 0
    with ServerProcess(tmp_path) as process, Meeting(process.ports["tcp"]).blipmq() as subscriber:
        subscription = subscriber.subscribe(TOPIC, 1)
        assert subscriber.poll(subscription) == message(1, TOPIC, b"open")
        process.kill()
    with ServerProcess(tmp_path) as process, Meeting(process.ports["tcp"]).blipmq() as subscriber:
        subscription = subscriber.subscribe(TOPIC, 1)
        assert subscriber.poll(subscription) == message(1, TOPIC, b"open")
        assert subscriber.poll(subscription) == message(2, TOPIC, b"unseen")
